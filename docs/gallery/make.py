"""Make the pictures of the gallery, and its page: `make gallery`.

For each card of cards.toml its command runs in a fresh folder; the picture is shrunk, and made.json
keeps what was run, how long it took and where. What is up to date is left as it is: the picture is
there, and was made by this command from these sources of the figure.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from sweeps.commands.table import group

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARDS, MADE, PAGE = HERE / "cards.toml", HERE / "made.json", HERE / "index.md"
WIDTH, COLOURS = 1200, 256
"""Pixels across, and colours, of a picture: enough for a screen, at some 60 kB."""
HEADER = """# Gallery

<!-- Written by `make gallery` from cards.toml and made.json: edit those. -->

A card for every `dynsim figure`: what it shows, the command that draws it, and what that takes
from nothing, compilation included: CPU time, on a machine with {cores} CPU cores and jax {jax}.
A picture whose command has options was made with less than the full figure, which the command draws
without them. Click a picture to enlarge it.
"""


class Card(NamedTuple):
    """A figure of the gallery.

    Attributes:
        name: of the figure, as in `dynsim figure NAME`.
        section: folder of its picture.
        title: what it is called.
        learn: what one learns from it, Markdown.
        page: the page that explains it, relative to the gallery.
        options: of the command that makes the picture.
    """

    name: str
    section: str
    title: str
    learn: str
    page: str
    options: str = ""

    @property
    def command(self) -> str:
        """The command as a reader types it."""
        return f"dynsim figure {self.name} {self.options}".rstrip()

    @property
    def picture(self) -> Path:
        """Where its picture is, relative to the gallery."""
        return Path(self.section) / f"{self.name}.png"


def cards() -> dict[str, Card]:
    """All cards by name, in their order."""
    sections = tomllib.loads(CARDS.read_text())
    return {
        name: Card(name, section, **fields)
        for section, found in sections.items()
        for name, fields in found.items()
        if name != "about"
    }


def made() -> dict[str, Any]:
    """What made.json says of each picture, by name."""
    return json.loads(MADE.read_text()) if MADE.exists() else {}


def sources(name: str) -> str:
    """A digest of the modules beside the figure's and of what all pictures share."""
    found = importlib.util.find_spec(group("figure")[name].settings.split(":")[0])
    assert found is not None
    assert found.origin is not None
    sweeps = ROOT / "sweeps"
    shared = sweeps / "output" / "drawing.py", *(sweeps / "studies").glob("*.py")
    paths = {*Path(found.origin).parent.glob("*.py"), *shared}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def is_current(card: Card) -> bool:
    """Whether the card's picture is there, made by its command from the present sources."""
    found = made().get(card.name, {})
    wanted = {"command": card.command, "sources": sources(card.name)}
    return (HERE / card.picture).exists() and wanted.items() <= found.items()


def make(card: Card, work: Path) -> None:
    """Run a card's command in `work`, and keep the picture and what it took."""
    shutil.rmtree(work, ignore_errors=True)
    began, cpu = time.monotonic(), _cpu_seconds()
    words = [*card.command.split()[1:], "--out", str(work)]
    subprocess.run([sys.executable, "-m", "dynsim", *words], check=True, cwd=ROOT)
    took = {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - cpu}
    shrink(max(work.glob("*.png"), key=lambda path: path.stat().st_mtime), HERE / card.picture)
    entry = {
        "command": card.command,
        "sources": sources(card.name),
        **{name: round(value, 1) for name, value in took.items()},
        "cores": os.cpu_count(),
        "jax": importlib.metadata.version("jax"),
    }
    kept = {**made(), card.name: entry}
    MADE.write_text(json.dumps({name: kept[name] for name in sorted(kept)}, indent=2) + "\n")


def _cpu_seconds() -> float:
    """CPU time of all processes that were started here and have ended; what else a machine does
    changes it less than the time on the clock."""
    used = os.times()
    return used.children_user + used.children_system


def shrink(source: Path, target: Path) -> None:
    """Write a picture with at most `WIDTH` pixels across and `COLOURS` colours."""
    picture = Image.open(source).convert("RGB")
    if picture.width > WIDTH:
        size = WIDTH, round(picture.height * WIDTH / picture.width)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    target.parent.mkdir(exist_ok=True)
    # By coverage, and not by how often a colour occurs: a thin line keeps its own.
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


def page() -> str:
    """The gallery's page."""
    known, sections = made(), tomllib.loads(CARDS.read_text())
    shown = [known[name] for name in cards() if name in known]
    text = HEADER.format(
        cores=" or ".join(sorted({str(each["cores"]) for each in shown})),
        jax=" or ".join(sorted({each["jax"] for each in shown})),
    )
    for section, found in sections.items():
        text += f"\n## {found['about']}\n\n::::{{grid}} 1 1 2 2\n:gutter: 3\n"
        for card in (card for card in cards().values() if card.section == section):
            text += _card(card, known.get(card.name, {}))
        text += "\n::::\n"
    return text


def _card(card: Card, found: dict[str, Any]) -> str:
    return f"""
:::{{grid-item-card}} {card.title}
:class-card: gallery-card

[![{card.title}]({card.picture})]({card.picture})

{card.learn.strip()} [More]({card.page})

```bash
{card.command}
```

*{duration(found.get("cpu_seconds"))}*
:::
"""


def duration(seconds: float | None) -> str:
    """CPU time as a reader says it."""
    if seconds is None:
        return "cost not measured yet"
    said = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    return f"{said} of CPU time"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make gallery", description=__doc__)
    parser.add_argument("names", nargs="*", help="figures to make anew, not up to date or not")
    parser.add_argument("--all", action="store_true", help="make all anew")
    asked, known = parser.parse_args(), cards()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"no card for {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = asked.names or [n for n, card in known.items() if asked.all or not is_current(card)]
    failed = []
    for number, name in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {known[name].command}", flush=True)
        try:
            make(known[name], ROOT / "out" / "gallery" / name)
        except subprocess.CalledProcessError:
            failed.append(name)
    PAGE.write_text(page())
    if failed:
        parser.exit(1, f"failed, others are made: {', '.join(failed)}\n")


if __name__ == "__main__":
    main()
