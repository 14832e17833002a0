"""Lines of theory and boundaries of regions over a phase diagram, as a page draws them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from contourpy import contour_generator
from matplotlib.colors import to_hex

from sweeps.studies.phase.maps import along
from sweeps.studies.phase.panels import BOUNDARY, Line, lines_of
from sweeps.studies.trainability import limits

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


def outlines(
    folder: Path, region: xr.DataArray, own: Mapping[str, xr.DataArray]
) -> list[dict[str, Any]]:
    """Return the lines of the figure that `dynsim phase` wrote into a folder.

    Args:
        folder: contains `phase.npz`, and a table of the boundary if there are seeds.
        region: regions over the two axes of the diagram, horizontal first.
        own: further lines of the region rule.

    Returns:
        Lines as JSON: `name`, `axes` of `x` and `y` (None ends a piece), `colour`, `dash`, `width`.
    """
    written = folder / "phase.npz"
    if not written.exists():
        return []
    with np.load(written) as file:
        stored = dict(file)
    right = {name.partition("/")[2]: float(v) for name, v in stored.items() if "agreement/" in name}
    axes = [str(dim) for dim in region.dims]
    found = [
        _drawn(line, right.get(line.name), axes)
        for line in _lines(stored, region, dict(own), right)
    ]
    for path in sorted(folder.glob("phase-boundary*.nc")):
        theory = path.stem.removeprefix("phase-boundary").removeprefix("-")
        found += _boundary(path, axes, f" of {theory}" if theory else "")
    return found


def _lines(
    stored: Mapping[str, np.ndarray],
    region: xr.DataArray,
    own: dict[str, xr.DataArray],
    right: Mapping[str, float],
) -> Iterator[Line]:
    """Return the lines of the closed form, of noise, of a rule, and of the edge of stability."""
    x, y = map(str, region.dims)

    def coarse(name: str) -> xr.DataArray | None:
        if name not in stored:
            return None
        dims = [dim for dim in (x, y) if f"{name}/{dim}" in stored]
        return xr.DataArray(stored[name], {dim: stored[f"{name}/{dim}"] for dim in dims}, dims)

    unstable = coarse("ties")
    if unstable is not None:
        own[limits.TIES if limits.TIES in right else limits.OVERSHOOT] = unstable
    closed = _under(stored, "closed_form")
    yield from lines_of(closed, coarse("noise"), own, region)
    places = {dim: region[dim] for dim in (y, x)}
    edges = {n: xr.DataArray(v, places, (y, x)) for n, v in _under(stored, "line").items()}
    yield from limits.drawn(edges)


def _under(stored: Mapping[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
    head = f"{folder}/"
    return {name.removeprefix(head): v for name, v in stored.items() if name.startswith(head)}


def _drawn(line: Line, right: float | None, axes: Sequence[str]) -> dict[str, Any]:
    """Convert a line to the page's form, with the share of the plane where it is right."""
    y, x = line.values.dims
    pieces: Any = contour_generator(z=line.values.values).lines(0.0)
    colour, dashes, width = line.style
    share = "" if right is None else f" ({100 * right:.0f} %)"
    places = [(along(line.values[x], at[:, 0]), along(line.values[y], at[:, 1])) for at in pieces]
    return _entry(f"{_plain(line.text)}{share}", axes, places, colour, dashes, width)


def _boundary(path: Path, axes: Sequence[str], theory: str) -> Iterator[dict[str, Any]]:
    """Yield the boundary curves of the regions of training or of a theory."""
    with xr.open_dataset(path, engine="h5netcdf") as file:
        table = file.load()
    level, is_share = table["level"].values, table["of"].values == "share"
    chosen = (is_share & (level == 0.5), is_share & (level != 0.5), ~is_share)
    for (text, style), here in zip(BOUNDARY, chosen, strict=True):
        numbers = table["piece"].values[here]
        columns = [table[name].values[here] for name in ("x", "y")]
        places = [tuple(c[numbers == piece] for c in columns) for piece in np.unique(numbers)]
        if places:
            yield _entry(text + theory, axes, places, style["color"], style["ls"], style["lw"])


def _entry(
    name: str, axes: Sequence[str], places: Sequence[Any], colour: Any, dashes: str, width: float
) -> dict[str, Any]:
    x, y = (
        [value for piece in places for value in (*piece[side].tolist(), None)] for side in (0, 1)
    )
    looks = {"colour": to_hex(colour), "dash": DASHES[dashes], "width": 1.2 * width}
    return {"name": name, "axes": list(axes), "x": x, "y": y, **looks}


def _plain(text: str) -> str:
    """Return legend text without its markup for formulas."""
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    return re.sub(r"[$\\{}]", "", text)
