"""The commands that made the images of the gallery."""

import json
from pathlib import Path


def command(docs: Path, uri: str) -> str | None:
    """Return the command that made an image of the gallery, or None if it has no options."""
    path = Path(uri)
    if path.parts[0] != "gallery":
        return None
    made = json.loads((docs / "gallery" / "made.json").read_text())
    found = made.get(path.stem, {}).get("command", "")
    return found if " --" in found else None
