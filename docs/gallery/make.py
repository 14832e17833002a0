"""Make the figures of README and docs, and the gallery page: `make gallery`.

The command of each card in cards.toml runs in a fresh folder; its image is shrunk, and made.json
records the command, its cost and machine, a digest of the image, and a `fingerprint` of the arrays
behind it. Cards that are up to date are skipped: the image is the recorded one, made by this
command, with recorded arrays. Only a run shows whether the code still produces these arrays:
`--check` runs all cards, and the tests run those that take seconds.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageSequence

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARDS, MADE, PAGE = HERE / "cards.toml", HERE / "made.json", HERE / "index.md"
WIDTH, COLOURS = 1200, 256
"""Width in pixels and number of colours of an image: enough for a screen, at some 60 kB."""
SHAPE, CELL = (32, 32), (8, 19)
"""Columns and rows of the map in a screenshot, and the open cell."""
SEEN = 0.5
"""Largest mean difference of pixels, out of 255, between equal images: versions of matplotlib place
letters a little differently."""
NUMBERS, APART = 6, 1e-4
"""Length of a fingerprint, and the largest difference, relative to the arrays' size, between
fingerprints of the same arrays: rounding differs between machines."""
PATHS = ("--corpus-path", "--corpus")
"""Options whose value is a corpus."""
CORPORA = "DYNSIM_CORPORA"
"""Environment variable with the folder of the corpora that cards name, such as wikitext-2."""
HEADER = """# Gallery

<!-- Written by `make gallery` from cards.toml and made.json: edit those. -->

Use the gallery to find a figure and the command that draws it. It shows every figure of
`dynsim figure` and two views of stored sweeps, each with its command and its CPU time from a cold
start, compilation included, on a machine with {cores} CPU cores (jax {jax}).
Where a caption calls the picture reduced, the options make the run shorter: omit them for the full
figure. Click a picture to enlarge it.
"""


class Card(NamedTuple):
    """A figure of the gallery.

    Attributes:
        name: name of the image file.
        section: folder of the image.
        title: title of the card.
        alt: alternative text, which describes the image.
        learn: the point of the figure with these options, in Markdown.
        page: the page that explains it, relative to the gallery.
        options: options of the command.
        draws: the figure, as in `dynsim figure NAME`, if its name differs from the image's.
        commands: commands to run in one folder instead; the last one makes the image, or a page of
            which a screenshot is taken with a cell open.
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
        """The figure's name, as in `dynsim figure NAME`, or that of the last command."""
        return self.commands[-1].split()[1] if self.commands else self.draws or self.name

    @property
    def command(self) -> str:
        """The command as a reader types it."""
        if self.commands:
            return "\n".join(self.commands)
        return f"dynsim figure {self.figure} {self.options}".rstrip()

    @property
    def words(self) -> list[str]:
        """The words of the command, with the corpus in the folder `CORPORA` if that is set."""
        words, at = self.command.split(), self.corpus
        if at and (corpora := os.environ.get(CORPORA)):
            words[at] = str(Path(corpora).absolute() / words[at])
        return words

    @property
    def corpus(self) -> int | None:
        """Index of the corpus among the words of the command; None without one."""
        words = self.command.split()
        return next((words.index(each) + 1 for each in PATHS if each in words), None)

    @property
    def lacks(self) -> str | None:
        """Name of the corpus that it needs if that is missing, else None."""
        found = ROOT / self.words[self.corpus] if self.corpus else ROOT
        return None if found.exists() else found.name

    @property
    def picture(self) -> Path:
        """Path of its image, relative to the gallery."""
        moves = bool(self.commands) and self.commands[-1].split()[1] == "movie"
        return Path(self.section) / f"{self.name}.{'gif' if moves else 'png'}"


def cards() -> dict[str, Card]:
    """Return all cards by name, in their order in cards.toml."""
    sections = tomllib.loads(CARDS.read_text())
    return {
        name: Card(name, section, **fields)
        for section, found in sections.items()
        for name, fields in found.items()
        if name != "about"
    }


def made() -> dict[str, Any]:
    """Return the records of made.json by the name of their figure."""
    return json.loads(MADE.read_text()) if MADE.exists() else {}


def arrays(work: Path) -> dict[str, np.ndarray]:
    """Return the arrays behind a figure, by file and name: commands write them next to the image,
    or for a page of the explorer into the folder that it shows."""
    found = {}
    for path in sorted(work.rglob("*.npz")):
        with np.load(path) as file:
            found |= {f"{path.relative_to(work)}/{name}": file[name] for name in file.files}
    return found


def fingerprint(found: Mapping[str, np.ndarray]) -> list[float]:
    """Condense arrays into a few numbers: sums, with random signs seeded by name and shape, of the
    values over their root mean square, its logarithm, the number of non-finite values, and 1.

    Unlike a hash, they change by as much as the arrays do: rounding moves them by about its share
    of the values, so they are kept to six digits and compared within `APART`. All arrays count
    equally, whatever their size.
    """
    total = np.zeros(NUMBERS)
    for name, values in sorted(found.items()):
        numbers = np.asarray(values, np.float64).ravel()
        finite = np.isfinite(numbers)
        numbers = np.where(finite, numbers, 0)
        size = np.sqrt(np.mean(numbers**2)) if numbers.size and numbers.any() else 1.0
        shares = numbers / size / max(numbers.size, 1) ** 0.5
        parts = np.concatenate([shares, [np.log(size), float((~finite).sum()), 1.0]])
        # The legacy generator, whose numbers are the same in all versions of NumPy.
        signs = np.random.RandomState(zlib.crc32(f"{name} {np.shape(values)}".encode()))
        total += [(2 * signs.randint(0, 2, parts.size) - 1) @ parts for _ in range(NUMBERS)]
    return [round(float(each), 6) for each in total]


def same(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two fingerprints belong to the same arrays."""
    return bool(np.allclose(one, other, rtol=0, atol=APART))


def digest(picture: Path) -> str:
    """Return a hash of the pixels of all frames, independent of compression."""
    with Image.open(picture) as image:
        frames = (frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(image))
        return hashlib.sha256(b"".join(frames)).hexdigest()[:16]


def problem(card: Card) -> str | None:
    """Explain why the card's image is not the one in made.json; None if it is."""
    found, picture = made().get(card.name, {}), HERE / card.picture
    if not picture.exists():
        return "there is no picture"
    if found.get("command") != card.command:
        return "options were changed since the picture was made"
    return None if found.get("picture") == digest(picture) else "the picture is another one"


def is_current(card: Card) -> bool:
    """Return whether the card's image is the recorded one, and its arrays are recorded."""
    return problem(card) is None and "arrays" in made()[card.name]


def run(card: Card, work: Path) -> Path:
    """Run a card's command in `work`, resuming what is there; return the path of its image."""
    dynsim = [sys.executable, "-m", "dynsim"]
    if card.commands:
        work.mkdir(parents=True, exist_ok=True)
        for command in card.commands:
            subprocess.run([*dynsim, *command.split()[1:]], check=True, cwd=work)
    else:
        subprocess.run([*dynsim, *card.words[1:], "--out", str(work)], check=True, cwd=ROOT)
    for page in work.glob("*.html"):
        photograph(page)
    return max(work.glob(f"*{card.picture.suffix}"), key=lambda path: path.stat().st_mtime)


def make(card: Card, work: Path, redraw: bool = False) -> None:
    """Run a card's command in `work`, and record its image, arrays and cost. `redraw` reuses the
    results of an earlier run and keeps the cost on record."""
    if not redraw:
        shutil.rmtree(work, ignore_errors=True)
    began, cpu = time.monotonic(), _cpu_seconds()
    picture = run(card, work)
    took = {"seconds": time.monotonic() - began, "cpu_seconds": _cpu_seconds() - cpu}
    cost = {name: round(value, 1) for name, value in took.items()}
    cost |= {"cores": os.cpu_count(), "jax": importlib.metadata.version("jax")}
    known = made()
    before = known.get(card.name, {})
    if redraw and before.get("command") == card.command:
        cost = {name: before[name] for name in cost}
    shrink(picture, HERE / card.picture)
    numbers = " ".join(f"{each:.6f}" for each in fingerprint(arrays(work)))
    entry = {"command": card.command, "picture": digest(HERE / card.picture), "arrays": numbers}
    kept = {**known, card.name: {**entry, **cost}}
    MADE.write_text(json.dumps({name: kept[name] for name in sorted(kept)}, indent=2) + "\n")


def differs(card: Card, work: Path) -> str | None:
    """Describe how a fresh run of a card differs from its record; None if it does not."""
    shutil.rmtree(work, ignore_errors=True)
    picture, recorded = run(card, work), made()[card.name]
    if "arrays" not in recorded:
        return "its arrays are not recorded"
    if not same(fingerprint(arrays(work)), [float(each) for each in recorded["arrays"].split()]):
        return "it is made of other arrays"
    shrink(picture, drawn := work / f"shrunk{picture.suffix}")
    pixels = [np.asarray(Image.open(p).convert("L"), float) for p in (drawn, HERE / card.picture)]
    if pixels[0].shape != pixels[1].shape or np.abs(pixels[0] - pixels[1]).mean() > SEEN:
        return "it is drawn in another way"
    return None


def photograph(page: Path) -> None:
    """Take a screenshot of a page of the explorer, with a cell open, and write it next to it."""
    sys.path.append(str(ROOT))
    from tests.sweeps.commands.views.screen import opened

    with opened(page.parent / "profile") as screen:
        screen.open(page.as_uri())
        for act in (screen.click, screen.point):
            act(CELL, SHAPE)
        screen.run("scrollTo(0, 0)")
        screen.driver.save_screenshot(str(page.with_suffix(".png")))


def _cpu_seconds() -> float:
    """CPU time of all child processes that have ended. Other load on the machine changes it less
    than the wall time."""
    used = os.times()
    return used.children_user + used.children_system


def shrink(source: Path, target: Path) -> None:
    """Write an image with at most `WIDTH` pixels across and `COLOURS` colours. What moves is small
    already."""
    target.parent.mkdir(exist_ok=True)
    if source.suffix == ".gif":
        shutil.copyfile(source, target)
        return
    picture = Image.open(source).convert("RGB")
    if picture.width > WIDTH:
        size = WIDTH, round(picture.height * WIDTH / picture.width)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    # By coverage, not by frequency, so that a thin line keeps its colour. Each colour is then the
    # mean of those that it replaces, so that an area keeps its colour as well.
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, 1, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


def page() -> str:
    """Return the gallery page in Markdown."""
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
    """Format CPU time for readers."""
    if seconds is None:
        return "cost not measured yet"
    said = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    return f"{said} of CPU time"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make gallery", description=__doc__)
    parser.add_argument("names", nargs="*", help="pictures, up to date or not")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--redraw", action="store_true", help="use again what a run has left")
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
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
        card, work = known[name], ROOT / "out" / "gallery" / name
        try:
            if not asked.check:
                make(card, work, asked.redraw)
            elif how := differs(card, work):
                failed.append(f"{name}: {how}")
        except subprocess.CalledProcessError:
            failed.append(f"{name}: its command failed")
    if not asked.check:
        PAGE.write_text(page())
    if failed:
        parser.exit(1, "\n".join(failed) + "\n")


if __name__ == "__main__":
    main()
