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
from sweeps.studies.phase.maps import boundary, maps, maps_and_runs, predictions
from sweeps.studies.phase.panels import draw_all, draw_one
from sweeps.studies.phase.plane import Phase, at_points
from sweeps.studies.phase.refinement import Lattice, Refinement
from sweeps.studies.phase.regions import (
    TRAINED,
    RegionPrediction,
    region_agreement,
    resolve_regions,
    sides,
)
from sweeps.systems import registry
from sweeps.systems.diagrams import Diagram, Line, Predictions, Regions, View
from sweeps.systems.experiment import as_experiment

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
    predictions: Sequence[RegionPrediction]
    notes: Sequence[str]

    @functools.cached_property
    def dataset(self) -> xr.Dataset:
        """The maps over `theory` and both axes; the attribute `regions` names the codes."""
        names = {str(code): name for code, (name, _) in self.regions.legend.items()}
        along = xr.DataArray([*self.maps], dims="theory", name="theory")
        # Interpolated values are for figures only.
        computed = [m.drop_vars(["drawn", "share"], errors="ignore") for m in self.maps.values()]
        dataset = xr.concat(computed, along, join="outer", combine_attrs="drop")
        return dataset.assign_attrs(regions=names)

    @functools.cached_property
    def boundaries(self) -> dict[str, xr.Dataset]:
        """Boundaries of the maps that have several seeds and more than one region, by theory, as
        `sweeps.diagrams.boundary` returns them."""
        tables = {name: boundary(m) for name, m in self.maps.items() if "share" in m}
        return {name: table for name, table in tables.items() if table.sizes["vertex"]}

    def plot(self, panels: str | None = None) -> "Figure":
        """Draw the diagram with "one" panel or "all" of them, by default as in the settings."""
        options = dataclasses.replace(self.options, panels=panels or self.options.panels)
        predicted = self.predictions, self.boundaries
        if options.panels == "all":
            return draw_all(options, self.maps, self.regions, self.theory.levels, *predicted)
        return draw_one(options, self.maps, self.regions, *predicted)

    def __str__(self) -> str:
        """What `dynsim phase` prints: points and seeds, then how often theory is right."""
        name, first = next(iter(self.maps.items()))
        lines = [*self.notes]
        if self.predictions:
            alone = np.unique(first.region, return_counts=True)[1].max() / first.region.size
            lines.append(
                f"share of the plane where theory has the region of {name} (its most common region "
                f"alone: {100 * alone:.1f} %):"
            )
        for theory, text, right, line in self.predictions:
            # A user may name a line by a formula, which a terminal does not set.
            theory = theory.translate(str.maketrans("", "", "$\\{}"))
            lines.append(f"  line {theory}: {right}, {text}" if line else f"  {theory}: {right}")
        return "\n".join(lines)

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
    # `Phase` takes the name of regions, which a stored diagram repeats, and no object.
    word, custom = (regions, None) if isinstance(regions, str) else (None, regions)
    # As on the command line, where the default steps of the layer do not apply to other problems.
    usual = {} if "steps" in settings or str(run) != "yz" else {"steps": Phase.RUN["steps"]}
    experiment = as_experiment(run, rule, **usual, **settings)
    with tempfile.TemporaryDirectory() as folder:
        plane = Phase(experiment, x, y, regions=word, out=Path(out or folder), **options)
        return compute_diagram(plane, custom)


def compute_diagram(options: Phase, regions: Regions | None = None) -> PhaseDiagram:
    """Compute or resume a diagram. The `regions` are those of the settings if omitted."""
    begin = time.perf_counter()
    regions = resolve_regions(regions or options.outcomes())
    pairs = maps_and_runs(options, regions, report=print)
    phase_maps = {name: phase_map for name, (phase_map, _) in pairs.items()}
    first, runs = next(iter(pairs.values()))
    number = count(sum(phase_map.attrs["runs"] for phase_map in phase_maps.values()), "run")
    seconds = time.perf_counter() - begin
    notes = [f"{number} in {seconds:.1f} s, stored ones included"]
    notes += [f"{n}: {line}" for n, m in phase_maps.items() for line in sampling_notes(options, m)]

    theory = predictions(options, phase_maps, regions)
    custom = regions.lines(runs) if regions.lines else {}
    lines = [Line(n, n, v, (f"C{i}", "-", 1.6)) for i, (n, v) in enumerate(custom.items(), 1)]
    theory = theory._replace(lines=[*theory.lines, *lines])
    stability = edges(options.run, options.axes(), options.out) if options.edge else []

    # Theory predicts regions in three ways: by its own map, by a rule, and on each side of a line.
    rated = [
        RegionPrediction(name, "same region", region_agreement(phase_map.region, first))
        for name, phase_map in list(phase_maps.items())[1:]
    ]
    for name, (text, region) in theory.regions.items():
        rated.append(RegionPrediction(name, text, region_agreement(region, first)))
    for line in filter(crosses, theory.lines):
        positive, negative, region = sides(line.values, first.region)
        here, there = (regions.legend[code][0] for code in (positive, negative))
        text = f"{here} on one side and {there} on the other"
        # Curves are traced over (y, x).
        line = line._replace(values=line.values.transpose(*reversed(first.region.dims)))
        rated.append(RegionPrediction(line.name, text, region_agreement(region, first), line))
    rated += edge.predictions_of(stability, regions, first)
    return PhaseDiagram(options, regions, phase_maps, theory, stability, rated, notes)


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
    diagram = compute_diagram(config, regions)
    print(diagram)
    arrays: dict[str, Any] = {**config.axes()}
    for theory, phase_map in diagram.maps.items():
        # Values as computed: the interpolated ones are for drawing.
        variables = dict(phase_map.drop_vars(["drawn", "share"], errors="ignore").data_vars)
        if "share" in phase_map:
            variables |= {end: phase_map[end].where(phase_map.computed) for end in ("low", "high")}
            variables["code"] = phase_map["code"]
        arrays[theory] = {**variables, **phase_map.attrs}
    arrays |= diagram.theory.arrays
    arrays |= {f"line/{line.name}": line.values for line in diagram.edges}
    arrays["agreement"] = {p.name: p.agreement.right for p in diagram.predictions}

    # Lines as drawn: label, style and vertices. JSON has no NaN, so that None ends a piece.
    lines = []
    for name, _, accuracy, line in diagram.predictions:
        if line is not None:
            pieces = contour(line.values)
            x, y = ([v for p in pieces for v in (*p[axis].tolist(), None)] for axis in (0, 1))
            colour, dashes, width = line.style
            style = {"colour": to_hex(colour), "dashes": dashes, "width": width}
            label = {"name": name, "text": line.text, "right": accuracy.right}
            lines.append({**label, **style, "x": x, "y": y})
    legend = {str(code): [*entry] for code, entry in diagram.regions.legend.items()}
    report = {"lines": lines, "regions": legend}

    figure = diagram.plot()
    paths = output.write(config.out, "phase", figure=figure, arrays=arrays, report=report)
    for theory, table in diagram.boundaries.items():
        # Programs that read the boundary of the first map need not know the theory's name.
        stem = "phase-boundary" + f"-{theory}" * (theory != next(iter(diagram.maps)))
        text, netcdf = table.to_dataframe().to_csv(index=False), table.to_netcdf(engine="h5netcdf")
        paths += output.write(config.out, stem, text={"csv": text})
        path = output.folder(config.out) / f"{stem}.nc"
        paths.append(output.write_whole(path, lambda file, netcdf=netcdf: file.write(netcdf)))
    return paths


def sampling_notes(config: Phase, phase_map: xr.Dataset) -> Iterator[str]:
    """Yield lines about the points and seeds from which a map was computed."""
    about, points, seeds = phase_map.attrs, phase_map.computed, phase_map.seeds
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
