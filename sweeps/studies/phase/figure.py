"""Drawing phase diagrams: observable and region maps, with the closed form's lines."""

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import wrapped
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed as compute
from sweeps.studies.phase import diagram
from sweeps.studies.phase.diagram import DESCENT, Phase
from sweeps.studies.phase.maps import boundary, panels_of
from sweeps.studies.phase.panels import (
    Told,
    colours_of,
    legend,
    lines_of,
    plot_agreement,
    plot_bound,
    plot_boundary,
    plot_lines,
    plot_map,
    plot_regions,
)
from sweeps.studies.phase.plane import Plane, sweep
from sweeps.studies.phase.regions import Rule, agreement, sides
from sweeps.studies.phase.tally import Tally
from sweeps.studies.trainability import edge, ties

__all__ = ["Phase", "Plane", "compute", "run"]

TITLES = {
    "simulation": "training",
    DESCENT: "descent, T and batch infinite",
    "symmetric": "exact flow",
    "symmetric-finite-t": "flow at finite T",
    "symmetric-noise": "descent with noise",
}


def run(config: Plane, rule: Rule | None = None) -> list[Path]:
    """Compute or resume, draw and write a diagram; `rule` replaces that of the settings."""
    begin = time.perf_counter()
    rule = rule or config.rule()
    flows, left_out = edge_of(config)
    found = panels_of(config, rule, report=print)
    drawn = {name: panel.map for name, panel in found.items()}
    runs = sum(each.attrs["runs"] for each in drawn.values())
    print(
        f"{count(runs, 'run')} in {time.perf_counter() - begin:.1f} s, those found in "
        f"{config.out} included"
    )
    for name, each in drawn.items():
        for line in said(config, each):
            print(f"{name}: {line}")
    scatter = config.scatter()
    noise = None
    if scatter is not None:
        scatter.check()
        tokens = diagram.most_distinct(scatter.first.built[0])
        predicted = run_sweep(scatter, config.out / "spread").load()
        noise = diagram.noise(predicted, diagram.winning_spread(tokens))
    closed = config.lines()
    own = dict(rule.lines(next(iter(found.values())).runs) if rule.lines else {})
    unstable = {} if scatter is None else ties.lines(scatter)
    own |= unstable
    told = theory(drawn, rule, closed, noise, own)
    first = next(iter(drawn))
    if scatter is not None:
        told += mixed(config, drawn, rule, next(iter(unstable.values()), None))
    edges = {}
    if flows is not None:
        edges = edge.lines(flows, config.axes(), config.out / edge.WHOLE.name)
        told += edge.told(edges, rule, drawn[first])
    for line in (*reported(told, first, drawn[first].region), *left_out, *edge.outside(edges)):
        print(line)
    seeded = {name: boundary(each) for name, each in drawn.items() if "share" in each}
    seeded = {name: table for name, table in seeded.items() if table.sizes["vertex"]}
    figure = draw(config, drawn, rule, closed, told, seeded)
    arrays: dict[str, Any] = {"closed_form": closed, **config.axes()}
    for name, each in drawn.items():
        arrays |= {name: {**exported(each), **each.attrs}}
    if noise is not None:
        arrays |= {"noise": noise, **{f"noise/{dim}": noise[dim] for dim in noise.dims}}
    for values in unstable.values():
        arrays |= {"ties": values, **{f"ties/{dim}": values[dim] for dim in values.dims}}
    arrays |= {f"line/{name}": values.values for name, values in edges.items()}
    arrays["agreement"] = {each.name: each.agreement.right for each in told}
    paths = output.write(config.out, "phase", figure=figure, arrays=arrays)
    for name, table in seeded.items():
        stem = "phase-boundary" if name == first else f"phase-boundary-{name}"
        paths += write_boundary(config.out, stem, table)
    return paths


def edge_of(config: Plane) -> tuple[Sweep | None, tuple[str, ...]]:
    """The flows that tell where the edge of stability is, if it is asked for and there is one, and
    else why not, in lines."""
    if not config.edge:
        return None, ()
    try:
        return edge.flow_of(config.run, config.axes()), ()
    except ValueError as error:
        return None, (f"edge of stability: left out, {error}",)


def exported(found: xr.Dataset) -> dict[Any, xr.DataArray]:
    """The arrays of a map, without what is drawn in between."""
    if "share" not in found:
        return dict(found.drop_vars("drawn").data_vars)
    masked = {end: found[end].where(found.computed) for end in ("low", "high")}
    return {**found.drop_vars(["drawn", "share"]).data_vars, **masked, "code": found["code"]}


def theory(
    drawn: Mapping[str, xr.Dataset],
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
    own: Mapping[str, xr.DataArray],
) -> list[Told]:
    """What the other engine and each line say of the regions of the first one."""
    (_, first), *others = drawn.items()
    told = []
    for name, other in others:
        told.append(Told(name, "same region", agreement(other.region, first)))
        # Seeds of a theory have their noise already.
        if noise is not None and "share" not in other:
            corrected = diagram.with_noise(other.region, noise)
            told.append(Told(f"{name} with noise", "with noise", agreement(corrected, first)))
    for line in lines_of(closed, noise, own, first.region):
        codes = sides(line.values, first.region)
        here, there = (rule.legend[code][0] for code in codes[:2])
        text = f"{here} on one side and {there} on the other"
        told.append(Told(line.name, text, agreement(codes[2], first), line))
    return told


def mixed(
    config: Plane, drawn: Mapping[str, xr.Dataset], rule: Rule, unstable: xr.DataArray | None
) -> Iterator[Told]:
    """What theories without noise say of the regions if descent with noise takes their place where
    steps are too large for a flow."""
    (_, first), *others = drawn.items()
    for name, other in others:
        if "share" in other:
            continue
        noisy, tally = (
            sweep(config, ties.ENGINE),
            Tally(other.region.shape, rule, config.observable),
        )
        out = config.out / f"{name}-with-steps"
        region = ties.stepped(config.run, other.region, unstable, noisy, tally, out)
        if region is not None:
            found = agreement(region, first)
            yield Told(f"{name} with steps where they are large", "with large steps", found)


def reported(told: Sequence[Told], name: str, region: xr.DataArray) -> Iterator[str]:
    """Lines of text: where theory has the regions of the engine of that name."""
    if told:
        alone = np.unique(region, return_counts=True)[1].max() / region.size
        yield (
            f"share of the plane where theory has the region of {name} (its most common region "
            f"alone: {100 * alone:.1f} %):"
        )
    for theory, text, found, line in told:
        yield f"  line {theory}: {found}, {text}" if line else f"  {theory}: {found}"


def write_boundary(out: Path, stem: str, table: xr.Dataset) -> list[Path]:
    """The curves of one engine as a table in .csv and .nc."""
    path = output.folder(out) / f"{stem}.nc"
    written = table.to_netcdf(engine="h5netcdf")
    return [
        *output.write(out, path.stem, text={"csv": table.to_dataframe().to_csv(index=False)}),
        output.write_whole(path, lambda file: file.write(written)),
    ]


def said(config: Plane, found: xr.Dataset) -> Iterator[str]:
    """What a map rests on, in lines."""
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


def draw(
    config: Plane,
    found: Mapping[str, xr.Dataset],
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    told: Sequence[Told],
    seeded: Mapping[str, xr.Dataset],
) -> Figure:
    """The observable above, the regions below: a column for each engine, and for two of them a
    third one for the difference. `seeded` are the boundaries of engines with several seeds."""
    maps = {name: each["drawn"] for name, each in found.items()}
    areas = {name: each["region"] for name, each in found.items()}
    compared = len(maps) == 2
    columns = 3 if compared else 1
    figure, axes = drawing.panels(2, columns, width=3.6 if compared else 5, height=3.6)
    norm = colours_of(np.concatenate([each.values.ravel() for each in maps.values()]))
    for column, (name, values) in enumerate(maps.items()):
        mesh = plot_map(values, norm, ax=axes[0, column])
        axes[0, column].set_title(TITLES.get(name, name))
        plot_regions(areas[name], rule, ax=axes[1, column])
        plot_bound(closed, areas[name], ax=axes[0, column])
    shown = next(iter(found.values()))[config.observable]
    figure.colorbar(mesh, ax=axes[0, : len(maps)], label=wrapped(shown))
    if compared:
        one, other = maps.values()
        decades = isinstance(norm, LogNorm)
        difference = xr.apply_ufunc(np.log10, one / other) if decades else one - other
        span = float(np.nanmax(np.abs(difference))) or 1.0
        mesh = plot_map(difference, Normalize(-span, span), ax=axes[0, 2], cmap="RdBu")
        what = "decades between" if decades else "difference in"
        figure.colorbar(mesh, ax=axes[0, 2], label=f"{what} {config.observable}")
        axes[0, 2].set_title("left over middle" if decades else "left minus middle")
        plot_agreement(*areas.values(), ax=axes[1, 2])
        same = [f"{each.text}: {each.agreement}" for each in told if each.line is None]
        axes[1, 2].set_title("\n".join(same), fontsize="medium")
    for ax in axes.flat:
        plot_lines([each.line for each in told if each.line], ax=ax)
    for name, table in seeded.items():
        for ax, panel in zip_longest(axes[1], maps):
            plot_boundary(table, ax=ax, whole=panel == name)
    codes = np.unique(np.concatenate([each.values.ravel() for each in areas.values()]))
    figure.legend(
        handles=legend(rule, closed, told, codes, bool(seeded)),
        loc="outside lower center",
        ncols=4 if compared else 2,
        frameon=False,
    )
    figure.suptitle(textwrap.fill(config.title(), 34 * columns + 10))
    return figure
