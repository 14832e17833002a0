"""Drawing phase diagrams: observable and region maps, with the closed form's lines."""

import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import label
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.studies.computing import computed as compute
from sweeps.studies.phase import diagram
from sweeps.studies.phase.diagram import DESCENT, Phase
from sweeps.studies.phase.maps import panels_of, settings
from sweeps.studies.phase.panels import (
    colours_of,
    legend,
    plot_agreement,
    plot_lines,
    plot_map,
    plot_noise,
    plot_own,
    plot_regions,
)
from sweeps.studies.phase.plane import Plane
from sweeps.studies.phase.regions import Rule

__all__ = ["Phase", "compute", "run"]

TITLES = {
    "simulation": "training",
    DESCENT: "descent, T and batch infinite",
    "symmetric": "exact flow",
    "symmetric-finite-t": "flow at finite T",
}


def command(name: str) -> tuple[type[Plane], Callable[[Plane], list[Path]]]:
    """Settings of `dynsim phase NAME`, and what runs them; `ValueError` for an unknown system."""
    return settings(name), run


def run(config: Plane, rule: Rule | None = None) -> list[Path]:
    """Compute or resume, draw and write a diagram; `rule` replaces that of the settings."""
    begin = time.perf_counter()
    rule = rule or config.rule()
    found = panels_of(config, rule)
    drawn = {name: panel.map for name, panel in found.items()}
    runs = sum(each.attrs["runs"] for each in drawn.values())
    print(
        f"{count(runs, 'run')} in {time.perf_counter() - begin:.1f} s, those found in "
        f"{config.out} included"
    )
    if config.refine:
        print(*(f"{name}: {said(each)}" for name, each in drawn.items()), sep="\n")
    scatter = config.scatter()
    noise = None
    if scatter is not None:
        scatter.check()
        tokens = diagram.most_distinct(scatter.run)
        predicted = run_sweep(scatter, config.out / "spread").load()
        noise = diagram.noise(predicted, diagram.winning_spread(tokens))
    closed = config.lines()
    own = rule.lines(next(iter(found.values())).runs) if rule.lines else {}
    figure = draw(config, drawn, rule, closed, noise, own)
    arrays: dict[str, Any] = {"closed_form": closed, **config.axes()}
    for name, each in drawn.items():
        kept = each[[config.observable, "region", "computed"]].data_vars
        arrays |= {name: {**kept, **each.attrs}}
    if noise is not None:
        arrays |= {"noise": noise, **{f"noise/{dim}": noise[dim] for dim in noise.dims}}
    return output.write(config.out, "phase", figure=figure, arrays=arrays)


def said(found: xr.Dataset) -> str:
    """What a refined map rests on, in a line."""
    about, points = found.attrs, found.computed
    share = f"{100 * float(points.mean()):.2g} % of {count(points.size, 'point')} computed"
    if not about["probes"]:
        return f"{share}, nothing probed"
    return (
        f"{share}; {about['failures']} of {about['probes']} random points among the others were "
        f"not as inferred, so with 95 % confidence at most {100 * about['bound']:.2g} % of the "
        "plane is wrong"
    )


def draw(
    config: Plane,
    found: Mapping[str, xr.Dataset],
    rule: Rule,
    closed: Mapping[str, np.ndarray],
    noise: xr.DataArray | None,
    own: Mapping[str, xr.DataArray],
) -> Figure:
    """The observable above, the regions below: a column for each engine, and for two of them a
    third one for the difference. `own` are lines of the rule."""
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
    shown = next(iter(found.values()))[config.observable]
    figure.colorbar(mesh, ax=axes[0, : len(maps)], label=textwrap.fill(label(shown), 30))
    if compared:
        (first, one), (second, other) = maps.items()
        decades = isinstance(norm, LogNorm)
        difference = xr.apply_ufunc(np.log10, one / other) if decades else one - other
        span = float(np.nanmax(np.abs(difference))) or 1.0
        mesh = plot_map(difference, Normalize(-span, span), ax=axes[0, 2], cmap="RdBu")
        what = "decades between" if decades else "difference in"
        figure.colorbar(mesh, ax=axes[0, 2], label=f"{what} {config.observable}")
        axes[0, 2].set_title("left over middle" if decades else "left minus middle")
        same = plot_agreement(areas[first], areas[second], ax=axes[1, 2])
        said = f"same region: {100 * same:.1f} % of the plane"
        if noise is not None:
            with_noise = diagram.with_noise(areas[second], noise)
            said += f"; {100 * float((areas[first] == with_noise).mean()):.1f} % with noise"
        print(said)
        axes[1, 2].set_title(said.replace("; ", "\n"), fontsize="medium")
    for ax in axes.flat:
        plot_lines(config, closed, ax=ax, bound=ax in axes[0, : len(maps)])
        plot_own(own, *map(str, next(iter(areas.values())).dims), ax=ax)
        if noise is not None:
            plot_noise(noise, ax=ax)
    codes = np.unique(np.concatenate([each.values.ravel() for each in areas.values()]))
    figure.legend(
        handles=legend(rule, closed, noise, codes, own),
        loc="outside lower center",
        ncols=4 if compared else 2,
        frameon=False,
    )
    figure.suptitle(textwrap.fill(config.title(), 34 * columns + 10))
    return figure
