"""Lines of theory and boundaries of regions over a phase diagram, as a page draws them."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sweeps import output

DASHES = {"-": "solid", ":": "dot", "--": "dash", "-.": "dashdot"}
"""The page's names for matplotlib's dashes."""
SIGNS = {
    r"\gamma": "γ",
    r"\sigma": "σ",
    r"\eta": "η",
    r"\mu": "μ",
    r"\max": "max",
    "_{peak}": "_peak",
}
"""Plain-text replacements for symbols in legends."""


def outlines(folder: Path, axes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the lines of the figure that `dynsim phase` wrote into a folder.

    Args:
        folder: contains `phase.json`, and a table of the boundary if there are seeds.
        axes: names of the two axes of the diagram, horizontal first.

    Returns:
        Lines as JSON: `name`, `axes` of `x` and `y` (None ends a piece), `colour`, `dash`, `width`.
    """
    written, found, lines = folder / "phase.json", [], []
    if written.exists():
        with output.reading(written):
            lines = json.loads(written.read_text())["lines"]
    for line in lines:
        name = f"{_plain(line['text'])} ({100 * line['right']:.0f} %)"
        found.append(_entry(name, axes, line["x"], line["y"], line))
    for path in sorted(folder.glob("phase-boundary*.nc")):
        theory = path.stem.removeprefix("phase-boundary").removeprefix("-")
        found += _boundary(path, axes, f" of {theory}" if theory else "")
    return found


def _boundary(path: Path, axes: Sequence[str], theory: str) -> Iterator[dict[str, Any]]:
    """Yield the boundary curves of the regions of training or of a theory."""
    # Imported on demand, because it loads matplotlib.
    from sweeps.studies.phase.panels import BOUNDARY

    with output.reading(path), xr.open_dataset(path, engine="h5netcdf") as file:
        if file.nbytes > output.MOST_READ:
            raise ValueError(f"holds more than {output.MOST_READ / 1e6:.0f} MB")
        table = file.load()
    level, is_share = table["level"].values, table["of"].values == "share"
    chosen = (is_share & (level == 0.5), is_share & (level != 0.5), ~is_share)
    for (text, style), here in zip(BOUNDARY, chosen, strict=True):
        numbers = table["piece"].values[here]
        x, y = (
            [v for n in np.unique(numbers) for v in (*values[numbers == n].tolist(), None)]
            for values in (table[name].values[here] for name in ("x", "y"))
        )
        look = {"colour": style["color"], "dashes": style["ls"], "width": style["lw"]}
        if x:
            yield _entry(text + theory, axes, x, y, look)


def _entry(
    name: str, axes: Sequence[str], x: list[Any], y: list[Any], look: dict[str, Any]
) -> dict[str, Any]:
    dash, width = DASHES[look["dashes"]], 1.2 * look["width"]
    style = {"colour": look["colour"], "dash": dash, "width": width}
    return {"name": name, "axes": list(axes), "x": x, "y": y, **style}


def _plain(text: str) -> str:
    """Return legend text without its markup for formulas."""
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    return re.sub(r"[$\\{}]", "", text)
