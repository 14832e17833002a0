"""Lines of theory and boundaries of regions over a phase diagram, as a page draws them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.output import JsonObject

DASH_NAMES = {"-": "solid", ":": "dot", "--": "dash", "-.": "dashdot"}
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


def outlines(folder: Path, axes: Sequence[str]) -> list[JsonObject]:
    """Return the lines of the figure that `dynsim phase` wrote into a folder.

    Args:
        folder: contains `phase.json`, and a table of the boundary if there are seeds.
        axes: names of the two axes of the diagram, horizontal first.

    Returns:
        Lines as JSON: `name`, `axes` of `x` and `y` (None ends a piece), `colour`, `dash`, `width`.
    """
    outlines = []
    path = folder / "phase.json"
    if path.exists():
        with output.reading(path):
            lines = json.loads(path.read_text())["lines"]
        for line in lines:
            # The legend has formulas, which a page does not typeset.
            text = line["text"]
            for symbol, plain in SIGNS.items():
                text = text.replace(symbol, plain)
            text = re.sub(r"[$\\{}]", "", text)
            name = f"{text} ({100 * line['right']:.0f} %)"
            style = (line["colour"], line["dashes"], line["width"])
            outlines.append(_outline(name, axes, line["x"], line["y"], *style))

    for path in sorted(folder.glob("phase-boundary*.nc")):
        # Imported on demand, because it loads matplotlib.
        from sweeps.studies.phase.panels import BOUNDARY

        with output.reading(path), xr.open_dataset(path, engine="h5netcdf") as file:
            if file.nbytes > output.MOST_READ:
                raise ValueError(f"holds more than {output.MOST_READ / 1e6:.0f} MB")
            table = file.load()
        theory = path.stem.removeprefix("phase-boundary").removeprefix("-")
        level, is_share = table["level"].values, table["of"].values == "share"
        # The curve of half of the seeds, those of the band, and the confidence interval.
        rows = (is_share & (level == 0.5), is_share & (level != 0.5), ~is_share)
        for (text, style), selected in zip(BOUNDARY, rows, strict=True):
            pieces = table["piece"].values[selected]
            x, y = (
                # Plotly interrupts a line where a value is None.
                [v for n in np.unique(pieces) for v in (*values[pieces == n].tolist(), None)]
                for values in (table[name].values[selected] for name in ("x", "y"))
            )
            if x:
                name = f"{text} of {theory}" if theory else text
                outlines.append(
                    _outline(name, axes, x, y, style["color"], style["ls"], style["lw"])
                )
    return outlines


def _outline(
    name: str,
    axes: Sequence[str],
    x: list[float | None],
    y: list[float | None],
    colour: str,
    dashes: str,
    width: float,
) -> JsonObject:
    style = {"colour": colour, "dash": DASH_NAMES[dashes], "width": 1.2 * width}
    return {"name": name, "axes": list(axes), "x": x, "y": y, **style}
