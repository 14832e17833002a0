"""Phase diagrams of any problem: maps of an observable and of regions over a plane of two settings,
with the lines that theory predicts.

Example:
    >>> run = sweeps.experiment("saxe", steps=5)
    >>> diagram = sweeps.phase.Phase(run, x="eta:0.05:2", y="u0:0.01:1", resolution=4)
    >>> regions = sweeps.phase.maps(diagram)["simulation"].region
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import to_hex

from sweeps import output
from sweeps.output.cells import contour
from sweeps.runner.progress import count
from sweeps.studies.phase import edge
from sweeps.studies.phase.edge import crosses, edges
from sweeps.studies.phase.maps import boundary, maps, panels_of, predictions
from sweeps.studies.phase.panels import draw
from sweeps.studies.phase.plane import Phase, at_points
from sweeps.studies.phase.refinement import Lattice, Refinement
from sweeps.studies.phase.regions import TRAINED, Prediction, agreement, sides
from sweeps.systems.diagrams import Diagram, Line, Predictions, Rule, View

__all__ = [
    "TRAINED",
    "Diagram",
    "Lattice",
    "Line",
    "Phase",
    "Predictions",
    "Refinement",
    "Rule",
    "View",
    "at_points",
    "boundary",
    "contour",
    "crosses",
    "edges",
    "maps",
    "predictions",
    "run",
]


def run(config: Phase, rule: Rule | None = None) -> list[Path]:
    """Compute or resume, draw, print and write a diagram, as `dynsim phase` does.

    Args:
        config: the settings.
        rule: rule of the regions; by default that of the settings.

    Returns:
        The paths of its files: the figure; phase.npz, the arrays of the maps; phase.json, the lines
        as drawn; and with several seeds the boundaries, as CSV and netCDF.

    Example:
        >>> import functools, tempfile
        >>> model = sweeps.experiment("saxe", steps=5)
        >>> diagram = functools.partial(sweeps.phase.Phase, model, "eta:0.05:2", "u0:0.01:1", 3)
        >>> paths = sweeps.phase.run(diagram(out=Path(tempfile.mkdtemp())))
    """
    begin = time.perf_counter()
    found = panels_of(config, rule, report=print)
    rule = rule or config.rule()
    drawn = {name: each for name, (each, _) in found.items()}
    (name, first), runs = next(iter(drawn.items())), next(iter(found.values()))[1]
    number = count(sum(each.attrs["runs"] for each in drawn.values()), "run")
    seconds = time.perf_counter() - begin
    print(f"{number} in {seconds:.1f} s, those found in {config.out} included")
    for theory, each in drawn.items():
        for line in said(config, each):
            print(f"{theory}: {line}")
    own = rule.lines(runs) if rule.lines else {}
    mine = [Line(n, n, v, (f"C{i}", "-", 1.6)) for i, (n, v) in enumerate(own.items(), 1)]
    predicted = predictions(config, drawn, rule)
    predicted = predicted._replace(lines=[*predicted.lines, *mine])
    told = compared(drawn, rule, predicted)
    limits = edges(config.run, config.axes(), config.out) if config.edge else []
    told += edge.predicted(limits, rule, first)
    for line in reported(told, name, first.region):
        print(line)
    seeded = {theory: boundary(each) for theory, each in drawn.items() if "share" in each}
    seeded = {theory: table for theory, table in seeded.items() if table.sizes["vertex"]}
    figure = draw(config, drawn, rule, predicted.levels, told, seeded)
    arrays: dict[str, Any] = {**config.axes()}
    for theory, each in drawn.items():
        # Without the interpolated values.
        kept = dict(each.drop_vars(["drawn", "share"], errors="ignore").data_vars)
        if "share" in each:
            kept |= {end: each[end].where(each.computed) for end in ("low", "high")}
            kept["code"] = each["code"]
        arrays[theory] = {**kept, **each.attrs}
    arrays |= {**predicted.arrays, **{f"line/{line.name}": line.values for line in limits}}
    arrays["agreement"] = {each.name: each.agreement.right for each in told}
    report = {"lines": [as_drawn(each) for each in told if each.line]}
    paths = output.write(config.out, "phase", figure=figure, arrays=arrays, report=report)
    for theory, table in seeded.items():
        stem = "phase-boundary" if theory == name else f"phase-boundary-{theory}"
        text, written = table.to_dataframe().to_csv(index=False), table.to_netcdf(engine="h5netcdf")
        paths += output.write(config.out, stem, text={"csv": text})
        path = output.folder(config.out) / f"{stem}.nc"
        paths.append(output.write_whole(path, lambda file, written=written: file.write(written)))
    return paths


def compared(
    drawn: Mapping[str, xr.Dataset], rule: Rule, predicted: Predictions
) -> list[Prediction]:
    """Compare the second theory, and each line of theory that crosses the plane, with the regions
    of the first map."""
    (_, first), *others = drawn.items()
    told = [
        Prediction(name, "same region", agreement(other.region, first)) for name, other in others
    ]
    for name, (text, region) in predicted.regions.items():
        told.append(Prediction(name, text, agreement(region, first)))
    for line in filter(crosses, predicted.lines):
        codes = sides(line.values, first.region)
        here, there = (rule.legend[code][0] for code in codes[:2])
        text = f"{here} on one side and {there} on the other"
        across, up = first.region.dims
        line = line._replace(values=line.values.transpose(up, across))
        told.append(Prediction(line.name, text, agreement(codes[2], first), line))
    return told


def as_drawn(each: Prediction) -> dict[str, Any]:
    """Return a line of the figure as JSON: its label, its style, and its vertices, where None ends
    a piece."""
    assert each.line is not None
    text, (colour, dashes, width) = each.line.text, each.line.style
    pieces = contour(each.line.values)
    x, y = ([v for piece in pieces for v in (*piece[side].tolist(), None)] for side in (0, 1))
    style = {"colour": to_hex(colour), "dashes": dashes, "width": width}
    return {"name": each.name, "text": text, "right": each.agreement.right, **style, "x": x, "y": y}


def reported(told: list[Prediction], name: str, region: xr.DataArray) -> Iterator[str]:
    """Yield lines on the share of the plane where theory predicts the region of the map `name`."""
    if told:
        alone = np.unique(region, return_counts=True)[1].max() / region.size
        yield (
            f"share of the plane where theory has the region of {name} (its most common region "
            f"alone: {100 * alone:.1f} %):"
        )
    for theory, text, found, line in told:
        yield f"  line {theory}: {found}, {text}" if line else f"  {theory}: {found}"


def said(config: Phase, found: xr.Dataset) -> Iterator[str]:
    """Yield lines about the points and seeds from which a map was computed."""
    about, points, seeds = found.attrs, found.computed, found.seeds
    if config.refine:
        share = f"{100 * float(points.mean()):.2g} % of {count(points.size, 'point')} computed"
        if np.isfinite(about["dimension"]):
            share += f" about a boundary of dimension {about['dimension']:.2f}"
        if about["probes"]:
            share += (
                f"; {about['failures']} of {about['probes']} random points among the others were "
                "not as inferred, so with 95 % confidence at most "
                f"{100 * about['bound']:.2g} % of the plane is wrong"
            )
        yield share if about["probes"] else f"{share}, nothing probed"
    if "band" in about:
        few, many = int(seeds.where(points).min()), int(seeds.max())
        left = about["band"] > config.band
        yield (
            f"{few} to {many} seeds at a point; the boundary is uncertain by at most "
            f"{about['band']:.2g} points"
            + (f", more than band = {config.band:g}: max_seeds is reached" if left else "")
        )
