"""How the pictures of the gallery were made."""

import json
from pathlib import Path


def command(docs: Path, uri: str) -> str | None:
    """The command that made a picture of the gallery, if it has options."""
    path = Path(uri)
    if path.parts[0] != "gallery":
        return None
    made = json.loads((docs / "gallery" / "made.json").read_text())
    found = made.get(path.stem, {}).get("command", "")
    return found if " --" in found else None
