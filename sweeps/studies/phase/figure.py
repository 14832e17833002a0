"""Phase diagrams of any problem: maps of an observable and of regions over a plane of two settings,
with the lines that theory predicts.

Example:
    >>> run = sweeps.experiment("saxe", steps=5)
    >>> options = sweeps.diagrams.Phase(run, x="eta:0.05:2", y="u0:0.01:1", resolution=4)
    >>> regions = sweeps.diagrams.maps(options)["simulation"].region
"""

import dataclasses
import functools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from sweeps.studies.phase.regions import TRAINED, Prediction, agreement, chosen, sides
from sweeps.systems import registry
from sweeps.systems.diagrams import Diagram, Line, Predictions, Regions, View
from sweeps.systems.experiment import made

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "TRAINED",
    "Diagram",
    "Lattice",
    "Line",
    "Phase",
    "PhaseDiagram",
    "Predictions",
    "Refinement",
    "Regions",
    "View",
    "at_points",
    "boundary",
    "contour",
    "crosses",
    "edges",
    "maps",
    "phase",
    "predictions",
    "run",
]


@dataclasses.dataclass(frozen=True, repr=False)
class PhaseDiagram:
    """Regions of training over a plane of two settings, and what theory predicts of them.

    Attributes:
        options: the settings.
        regions: how runs were classified.
        maps: training and theory by name, as `sweeps.diagrams.maps` returns them.
        theory: lines and regions of theory over the plane.
        edges: lines of the edge of stability, if they were requested.
        predictions: what theory predicts of the regions of the first map, and how often it is
            right.
        notes: lines of text about the points and seeds behind the maps.

    Example:
        >>> diagram = sweeps.phase("saxe", x="eta:0.05:2:4", y="u0:0.01:1:4", steps=5)
        >>> diagram.dataset.region.sel(theory="simulation").shape
        (4, 4)
    """

    options: Phase
    regions: Regions
    maps: Mapping[str, xr.Dataset]
    theory: Predictions
    edges: Sequence[Line]
    predictions: Sequence[Prediction]
    notes: Sequence[str]

    @functools.cached_property
    def dataset(self) -> xr.Dataset:
        """The maps over `theory` and both axes; the attribute `regions` names the codes."""
        names = {str(code): name for code, (name, _) in self.regions.legend.items()}
        along = xr.DataArray([*self.maps], dims="theory", name="theory")
        found = xr.concat(
            [each.drop_vars(["drawn", "share"], errors="ignore") for each in self.maps.values()],
            along,
            join="outer",
            combine_attrs="drop",
        )
        return found.assign_attrs(regions=names)

    @functools.cached_property
    def boundaries(self) -> dict[str, xr.Dataset]:
        """Boundaries of the maps that have several seeds and more than one region, by theory, as
        `sweeps.diagrams.boundary` returns them."""
        found = {name: boundary(each) for name, each in self.maps.items() if "share" in each}
        return {name: table for name, table in found.items() if table.sizes["vertex"]}

    def plot(self, panels: str | None = None) -> "Figure":
        """Draw the diagram with "one" panel or "all" of them, by default as in the settings."""
        shown = dataclasses.replace(self.options, panels=panels or self.options.panels)
        return draw(
            shown, self.maps, self.regions, self.theory.levels, self.predictions, self.boundaries
        )

    def __str__(self) -> str:
        """What `dynsim phase` prints: points and seeds, then how often theory is right."""
        name, first = next(iter(self.maps.items()))
        return "\n".join([*self.notes, *reported(self.predictions, name, first.region)])

    def __repr__(self) -> str:
        name, first = next(iter(self.maps.items()))
        plane = " and ".join(f"{dim} ({size})" for dim, size in first.region.sizes.items())
        codes, points = np.unique(first.region, return_counts=True)
        parts = (
            f"{self.regions.legend[code][0]} {100 * n / first.region.size:.0f} %"
            for n, code in sorted(zip(points.tolist(), codes.tolist(), strict=True), reverse=True)
        )
        about = registry.system_of(self.options.run).name
        return f"<PhaseDiagram of {about} over {plane}, {name}: {', '.join(parts)}>"


def phase(
    run: Any = "yz",
    rule: Any = None,
    /,
    x: str | None = None,
    y: str | None = None,
    *,
    regions: Regions | str | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> PhaseDiagram:
    """Map the outcome of training over a plane of two settings, next to what theory predicts.

    Args:
        run: a `sweeps.Experiment`; or a problem or its name, as in `sweeps.experiment`.
        rule: the update rule; by default that of the problem.
        x: horizontal axis, "NAME:FIRST:LAST:NUMBER", logarithmic, or linear with ":lin" at the end.
            If omitted, that of the problem, if it has one.
        y: vertical axis, in the same form.
        regions: how to classify the runs, by name or as `sweeps.diagrams.Regions`.
        out: folder that keeps the runs, from which the same call resumes; by default none are kept.
        settings: further options of `dynsim phase`, such as seeds=8 and against="best", and
            settings of the run.

    Returns:
        The diagram, with its maps as a `dataset`, its figure as `plot()`, and its agreement with
        theory as text through `print`.

    Raises:
        ValueError: naming the setting, its value and what is allowed, before anything runs.

    Example:
        >>> diagram = sweeps.phase("saxe", x="eta:0.05:2:4", y="u0:0.01:1:4", steps=5)
        >>> figure = diagram.plot()
    """
    names = {field.name for field in dataclasses.fields(Phase)}
    options = {name: settings.pop(name) for name in names & {*settings}}
    word, own = (regions, None) if isinstance(regions, str) else (None, regions)
    # As on the command line, where a default of the layer does not apply to other problems.
    usual = {} if "steps" in settings or str(run) != "yz" else {"steps": Phase.RUN["steps"]}
    experiment = made(run, rule, **usual, **settings)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(out or folder)
        return computed(Phase(experiment, x, y, regions=word, out=place, **options), own)


def computed(options: Phase, regions: Regions | None = None) -> PhaseDiagram:
    """Compute or resume a diagram. The `regions` are those of the settings if omitted."""
    begin = time.perf_counter()
    regions = chosen(regions or options.outcomes())
    found = panels_of(options, regions, report=print)
    drawn = {name: each for name, (each, _) in found.items()}
    first, runs = next(iter(found.values()))
    number = count(sum(each.attrs["runs"] for each in drawn.values()), "run")
    seconds = time.perf_counter() - begin
    notes = [f"{number} in {seconds:.1f} s, stored ones included"]
    notes += [f"{n}: {line}" for n, each in drawn.items() for line in said(options, each)]
    theory = predictions(options, drawn, regions)
    own = regions.lines(runs) if regions.lines else {}
    mine = [Line(n, n, v, (f"C{i}", "-", 1.6)) for i, (n, v) in enumerate(own.items(), 1)]
    theory = theory._replace(lines=[*theory.lines, *mine])
    limits = edges(options.run, options.axes(), options.out) if options.edge else []
    told = compared(drawn, regions, theory)
    told += edge.predicted(limits, regions, first)
    return PhaseDiagram(options, regions, drawn, theory, limits, told, notes)


def run(config: Phase, regions: Regions | None = None) -> list[Path]:
    """Compute or resume, draw, print and write a diagram, as `dynsim phase` does.

    Args:
        config: the settings.
        regions: the regions; by default those of the settings.

    Returns:
        The paths of its files: the figure; phase.npz, the arrays of the maps; phase.json, the lines
        as drawn; and with several seeds the boundaries, as CSV and netCDF.

    Example:
        >>> import functools, tempfile
        >>> model = sweeps.experiment("saxe", steps=5)
        >>> plane = functools.partial(sweeps.diagrams.Phase, model, "eta:0.05:2", "u0:0.01:1", 3)
        >>> paths = sweeps.diagrams.run(plane(out=Path(tempfile.mkdtemp())))
    """
    diagram = computed(config, regions)
    print(diagram)
    arrays: dict[str, Any] = {**config.axes()}
    for theory, each in diagram.maps.items():
        # Without the interpolated values.
        kept = dict(each.drop_vars(["drawn", "share"], errors="ignore").data_vars)
        if "share" in each:
            kept |= {end: each[end].where(each.computed) for end in ("low", "high")}
            kept["code"] = each["code"]
        arrays[theory] = {**kept, **each.attrs}
    arrays |= diagram.theory.arrays
    arrays |= {f"line/{line.name}": line.values for line in diagram.edges}
    arrays["agreement"] = {each.name: each.agreement.right for each in diagram.predictions}
    report = {
        "lines": [as_drawn(each) for each in diagram.predictions if each.line],
        "regions": {str(code): [*each] for code, each in diagram.regions.legend.items()},
    }
    figure = diagram.plot()
    paths = output.write(config.out, "phase", figure=figure, arrays=arrays, report=report)
    for theory, table in diagram.boundaries.items():
        stem = "phase-boundary" + f"-{theory}" * (theory != next(iter(diagram.maps)))
        text, written = table.to_dataframe().to_csv(index=False), table.to_netcdf(engine="h5netcdf")
        paths += output.write(config.out, stem, text={"csv": text})
        path = output.folder(config.out) / f"{stem}.nc"
        paths.append(output.write_whole(path, lambda file, written=written: file.write(written)))
    return paths


def compared(
    drawn: Mapping[str, xr.Dataset], regions: Regions, predicted: Predictions
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
        here, there = (regions.legend[code][0] for code in codes[:2])
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


def reported(told: Sequence[Prediction], name: str, region: xr.DataArray) -> Iterator[str]:
    """Yield lines on the share of the plane where theory predicts the region of the map `name`."""
    if told:
        alone = np.unique(region, return_counts=True)[1].max() / region.size
        yield (
            f"share of the plane where theory has the region of {name} (its most common region "
            f"alone: {100 * alone:.1f} %):"
        )
    for theory, text, found, line in told:
        # A line of one's own may be called by a formula, which a terminal does not set.
        theory = theory.translate(str.maketrans("", "", "$\\{}"))
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
