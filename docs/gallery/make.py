"""Make the pictures of README and docs, and the page of the gallery: `make gallery`.

For each card of cards.toml its command runs in a fresh folder; the picture is shrunk, and made.json
keeps what was run, how long it took and where. What is up to date is left as it is: the picture is
there, and was made by this command from these sources of the figure.
"""

import argparse
import ast
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

from sweeps.commands.table import COMMANDS, group

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARDS, MADE, PAGE = HERE / "cards.toml", HERE / "made.json", HERE / "index.md"
WIDTH, COLOURS = 1200, 256
"""Pixels across, and colours, of a picture: enough for a screen, at some 60 kB."""
SHAPE, CELL = (32, 32), (20, 19)
"""Columns and rows of a map that is photographed, and the cell that is open."""
PATH = "--corpus-path"
CORPORA = "DYNSIM_CORPORA"
"""Environment variable: the folder that has the corpora which cards name, such as wikitext-2."""
HEADER = """# Gallery

<!-- Written by `make gallery` from cards.toml and made.json: edit those. -->

Every figure that `dynsim figure` draws, and two views of stored sweeps: what it shows, the command
that made the picture, and its CPU time from a cold start, compilation included, on a machine with
{cores} CPU cores (jax {jax}).
Where a caption calls the picture reduced, the options make the run shorter: omit them for the full
figure. Click a picture to enlarge it.
"""


class Card(NamedTuple):
    """A figure of the gallery.

    Attributes:
        name: of the picture's file.
        section: folder of its picture.
        title: what it is called.
        alt: what is to be seen in it, for readers who do not see it.
        learn: what this picture shows, Markdown: with its options, if it has any.
        page: the page that explains it, relative to the gallery.
        options: of the command that makes the picture.
        draws: the figure, as in `dynsim figure NAME`, if it is not called as the picture is.
        commands: in place of a figure's, typed in one folder; the last one makes the picture, or a
            page that is photographed with a cell open.
    """

    name: str
    section: str
    title: str
    alt: str
    learn: str
    page: str
    options: str = ""
    draws: str = ""
    commands: tuple[str, ...] = ()

    @property
    def figure(self) -> str:
        """The figure, as in `dynsim figure NAME`, or the last command."""
        return self.commands[-1].split()[1] if self.commands else self.draws or self.name

    @property
    def command(self) -> str:
        """The command as a reader types it."""
        if self.commands:
            return "\n".join(self.commands)
        return f"dynsim figure {self.figure} {self.options}".rstrip()

    @property
    def words(self) -> list[str]:
        """The words of the command, a corpus where `CORPORA` has it."""
        words = self.command.split()
        at = words.index(PATH) + 1 if PATH in words else None
        if at and (corpora := os.environ.get(CORPORA)):
            words[at] = str(Path(corpora).absolute() / words[at])
        return words

    @property
    def lacks(self) -> str | None:
        """The corpus that it needs and that is not there."""
        words = self.words
        found = ROOT / words[words.index(PATH) + 1] if PATH in words else ROOT
        return None if found.exists() else found.name

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


def sources(card: Card) -> str:
    """A digest of the files that decide how a figure looks, that of a paper's problem with them."""
    digest, problems = hashlib.sha256(), importlib.metadata.entry_points(group="dynsim.systems")
    papers = {_file(problem.module) for problem in problems if problem.name in card.words}
    for path in sorted(files(card.figure) | (papers - {None})):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def files(figure: str) -> set[Path]:
    """The figure's module, what it imports of the studies or views, and what all pictures share."""
    found = {ROOT / "sweeps" / "output" / "drawing.py"}
    known = COMMANDS | group("figure")
    waiting = ["sweeps." + known[figure].settings.split(":")[0]]
    while waiting:
        file = _file(waiting.pop())
        if file is not None and file not in found:
            found.add(file)
            waiting += _imports(file)
    return found


def _file(module: str) -> Path | None:
    """The file of a module of studies, views or papers; None for another one, or what is none."""
    if not module.startswith(("sweeps.studies", "sweeps.commands.views", "papers.")):
        return None
    path = ROOT.joinpath(*module.split("."))
    files = path / "__init__.py", path.with_suffix(".py")
    return next((file for file in files if file.is_file()), None)


def _imports(file: Path) -> list[str]:
    """What a file imports, by dotted name: modules, and names that may be modules."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return found


def is_current(card: Card) -> bool:
    """Whether the card's picture is there, made by its command from the present sources."""
    found = made().get(card.name, {})
    wanted = {"command": card.command, "sources": sources(card)}
    return (HERE / card.picture).exists() and wanted.items() <= found.items()


def make(card: Card, work: Path) -> None:
    """Run a card's command in `work`, and keep the picture and what it took."""
    shutil.rmtree(work, ignore_errors=True)
    began, cpu = time.monotonic(), _cpu_seconds()
    dynsim = [sys.executable, "-m", "dynsim"]
    if card.commands:
        work.mkdir(parents=True)
        for command in card.commands:
            subprocess.run([*dynsim, *command.split()[1:]], check=True, cwd=work)
    else:
        subprocess.run([*dynsim, *card.words[1:], "--out", str(work)], check=True, cwd=ROOT)
    took = {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - cpu}
    for page in work.glob("*.html"):
        photograph(page)
    shrink(max(work.glob("*.png"), key=lambda path: path.stat().st_mtime), HERE / card.picture)
    entry = {
        "command": card.command,
        "sources": sources(card),
        **{name: round(value, 1) for name, value in took.items()},
        "cores": os.cpu_count(),
        "jax": importlib.metadata.version("jax"),
    }
    kept = {**made(), card.name: entry}
    MADE.write_text(json.dumps({name: kept[name] for name in sorted(kept)}, indent=2) + "\n")


def photograph(page: Path) -> None:
    """Write a picture of a page of the explorer next to it, with a cell open."""
    sys.path.append(str(ROOT))
    from tests.sweeps.commands.views.screen import opened

    with opened(page.parent / "profile") as screen:
        screen.open(page.as_uri())
        for act in (screen.click, screen.point):
            act(CELL, SHAPE)
        screen.run("scrollTo(0, 0)")
        screen.driver.save_screenshot(str(page.with_suffix(".png")))


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

![{card.alt}]({card.picture})

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
    parser.add_argument("names", nargs="*", help="pictures to make anew, up to date or not")
    parser.add_argument("--all", action="store_true", help="make all anew")
    asked, known = parser.parse_args(), cards()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"no card for {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = asked.names or [n for n, card in known.items() if asked.all or not is_current(card)]
    for name in [name for name in chosen if known[name].lacks]:
        chosen.remove(name)
        print(f"left out: {name} needs the corpus {known[name].lacks}: {CORPORA}=FOLDER has it")
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
