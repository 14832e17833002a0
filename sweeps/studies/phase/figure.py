"""`dynsim phase`: maps of an observable and of regions over a plane, with theory's lines."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.studies import computed as compute
from sweeps.studies.phase import diagram
from sweeps.studies.phase.diagram import Phase
from sweeps.studies.phase.maps import boundary, panels_of
from sweeps.studies.phase.panels import TITLES, Prediction, draw, lines_of
from sweeps.studies.phase.plane import Plane, Tally, sweep
from sweeps.studies.phase.regions import Rule, agreement, sides
from sweeps.studies.trainability import limits

__all__ = ["TITLES", "Phase", "Plane", "compute", "run"]


def run(config: Plane, rule: Rule | None = None) -> list[Path]:
    """Compute or resume, draw and write a diagram; `rule` replaces that of the settings."""
    begin = time.perf_counter()
    rule = rule or config.rule()
    flows, lines = None, []
    if config.edge:
        try:
            flows = limits.flow_of(config.run, config.axes())
        except ValueError as error:
            lines.append(f"edge of stability: left out, {error}")
    found = panels_of(config, rule, report=print)
    drawn = {name: each for name, (each, _) in found.items()}
    first, runs = next(iter(drawn)), next(iter(found.values()))[1]
    number = count(sum(each.attrs["runs"] for each in drawn.values()), "run")
    seconds = time.perf_counter() - begin
    print(f"{number} in {seconds:.1f} s, those found in {config.out} included")
    for name, each in drawn.items():
        for line in said(config, each):
            print(f"{name}: {line}")
    closed = config.lines()
    own = dict(rule.lines(runs) if rule.lines else {})
    scatter, noise, unstable = config.scatter(), None, {}
    if scatter is not None:
        scatter.check()
        tokens = diagram.most_distinct(scatter.first.built[0])
        predicted = run_sweep(scatter, config.out / "spread").load()
        noise = diagram.noise(predicted, diagram.winning_spread(tokens))
        unstable = limits.tie_lines(scatter)
    told = theory(drawn, rule, closed, noise, own | unstable)
    if scatter is not None:
        told += with_steps(config, drawn, rule, next(iter(unstable.values()), None))
    edges = {}
    if flows is not None:
        edges = limits.edge_lines(flows, config.axes(), config.out / limits.WHOLE.name)
        told += limits.told(edges, rule, drawn[first])
    for line in (*reported(told, first, drawn[first].region), *lines, *limits.outside(edges)):
        print(line)
    seeded = {name: boundary(each) for name, each in drawn.items() if "share" in each}
    seeded = {name: table for name, table in seeded.items() if table.sizes["vertex"]}
    figure = draw(config, drawn, rule, closed, told, seeded)
    arrays: dict[str, Any] = {"closed_form": closed, **config.axes()}
    for name, each in drawn.items():
        # Without the interpolated values.
        kept = dict(each.drop_vars(["drawn", "share"], errors="ignore").data_vars)
        if "share" in each:
            kept |= {end: each[end].where(each.computed) for end in ("low", "high")}
            kept["code"] = each["code"]
        arrays[name] = {**kept, **each.attrs}
    coarse = [] if noise is None else [("noise", noise)]
    for name, values in [*coarse, *(("ties", each) for each in unstable.values())]:
        arrays |= {name: values, **{f"{name}/{dim}": values[dim] for dim in values.dims}}
    arrays |= {f"line/{name}": values.values for name, values in edges.items()}
    arrays["agreement"] = {each.name: each.agreement.right for each in told}
    paths = output.write(config.out, "phase", figure=figure, arrays=arrays)
    for name, table in seeded.items():
        stem = "phase-boundary" if name == first else f"phase-boundary-{name}"
        text, written = table.to_dataframe().to_csv(index=False), table.to_netcdf(engine="h5netcdf")
        paths += output.write(config.out, stem, text={"csv": text})
        path = output.folder(config.out) / f"{stem}.nc"
        paths.append(output.write_whole(path, lambda file, written=written: file.write(written)))
    return paths


def theory(
    drawn: Mapping[str, xr.Dataset],
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
    own: Mapping[str, xr.DataArray],
) -> list[Prediction]:
    """Compare the second theory, and each line of theory, with the regions of the first map."""
    (_, first), *others = drawn.items()
    told = []
    for name, other in others:
        told.append(Prediction(name, "same region", agreement(other.region, first)))
        # A theory with seeds already includes noise.
        if noise is not None and "share" not in other:
            corrected = diagram.with_noise(other.region, noise)
            told.append(Prediction(f"{name} with noise", "with noise", agreement(corrected, first)))
    for line in lines_of(closed, noise, own, first.region):
        codes = sides(line.values, first.region)
        here, there = (rule.legend[code][0] for code in codes[:2])
        text = f"{here} on one side and {there} on the other"
        told.append(Prediction(line.name, text, agreement(codes[2], first), line))
    return told


def with_steps(
    config: Plane, drawn: Mapping[str, xr.Dataset], rule: Rule, unstable: xr.DataArray | None
) -> Iterator[Prediction]:
    """Yield the agreement of theories without noise when noisy descent replaces them where steps
    are too large for a flow."""
    (_, first), *others = drawn.items()
    for name, other in others:
        if "share" in other:
            continue
        tally = Tally(other.region.shape, rule, config.observable)
        noisy, out = sweep(config, limits.NOISY), config.out / f"{name}-with-steps"
        region = limits.stepped(config.run, other.region, unstable, noisy, tally, out)
        if region is not None:
            found = agreement(region, first)
            yield Prediction(f"{name} with steps where they are large", "with large steps", found)


def reported(told: Sequence[Prediction], name: str, region: xr.DataArray) -> Iterator[str]:
    """Yield lines on the share of the plane where theory predicts the region of the map `name`."""
    if told:
        alone = np.unique(region, return_counts=True)[1].max() / region.size
        yield (
            f"share of the plane where theory has the region of {name} (its most common region "
            f"alone: {100 * alone:.1f} %):"
        )
    for theory, text, found, line in told:
        yield f"  line {theory}: {found}, {text}" if line else f"  {theory}: {found}"


def said(config: Plane, found: xr.Dataset) -> Iterator[str]:
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
