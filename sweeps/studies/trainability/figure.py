"""Where training succeeds in the plane of learning rates, and how rough its boundary is."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import xarray as xr
from annotated_types import Ge, Le
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.studies.axes import described
from sweeps.studies.options import Line, begin
from sweeps.studies.phase.lattice import CORNERS, Level
from sweeps.studies.phase.panels import plot_lines
from sweeps.studies.phase.refinement import Refinement
from sweeps.studies.trainability import edge
from sweeps.studies.trainability.boundary import Window, box_dimension, refine
from sweeps.systems.experiment import Experiment, experiment

Levels = Annotated[int, Ge(2), Le(12)]
"""Each level about doubles the runs; 12 of them resolve a cell into 4096."""

COLOUR = "magenta"
"""Of the edge, which neither trained nor untrained runs have."""


@dataclasses.dataclass(frozen=True)
class Trainability:
    """Map of trained and untrained runs over both learning rates, refined at its boundary.

    Attributes:
        run: of the attention layer; all runs share its seed. The usual length is so short that
            some sequences show nothing of their class, and their loss grows with the rates.
        engine: what computes the runs; all but simulation have T and batch infinite.
        eta_y: first and last learning rate of Y (1/step).
        eta_z: first and last learning rate of Z (1/step).
        cells: number of cells along each side of the coarse grid.
        levels: number of refinements, each of which doubles the resolution.
        fit: first and last level of the fit of the dimension; 1 and the last one if left out.
        edge: also draw the edge of stability, at the start and along the flow of all weights.
        out: directory for the picture, trainability.npz and the stored sweeps, which resume.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 100, "length": 4, "batch": 32}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Trainability.RUN))
    engine: Literal["simulation", "descent", "symmetric-descent"] = "simulation"
    eta_y: tuple[float, float] = (30.0, 1e4)
    eta_z: tuple[float, float] = (1e-3, 1e5)
    cells: Count = 16
    levels: Levels = 4
    fit: tuple[int, int] | None = None
    edge: bool = False
    out: Path = Path("out/trainability")


def run(config: Trainability) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure."""
    begin(config)
    window = Window(config.eta_y, config.eta_z)
    window.check()
    fit = config.fit or (1, config.levels)
    if not 0 <= fit[0] < fit[1] <= config.levels:
        raise ValueError(
            f"fit = {fit}: must increase and lie within the levels 0 to {config.levels}"
        )
    asked = {name: getattr(config, name) for name in ("engine", "cells", "levels", "out")}
    found = refine(config.run, window, **asked)
    levels = found.levels()
    dimension = box_dimension(levels, fit)
    edges = edges_of(config, window) if config.edge else {}
    for said in (*edge.outside(edges), *edge.shares(edges, levels[0])):
        print(said)
    named = {f"line/{name}": values.values for name, values in edges.items()}
    return output.write(
        config.out,
        "trainability",
        figure=draw(config, found, dimension, fit, edges),
        arrays=arrays(levels, window, dimension, fit) | named,
    )


def edges_of(config: Trainability, window: Window) -> dict[str, xr.DataArray]:
    """The lines of the edge over the points of the coarse grid; none, with the reason in a line,
    for a rule that has no edge."""
    places = np.arange(config.cells + 1)[:, None] / config.cells
    eta_y, eta_z = window.rates(places).T.tolist()
    axes = {"eta_z": eta_z, "eta_y": eta_y}
    try:
        flows = edge.flow_of(config.run, axes)
    except ValueError as error:
        print(f"edge of stability: left out, {error}")
        return {}
    return edge.lines(flows, axes, config.out / edge.WHOLE.name)


def draw(
    config: Trainability,
    found: Refinement,
    dimension: Line,
    fit: tuple[int, int],
    edges: Mapping[str, xr.DataArray],
) -> Figure:
    """The map with the lines of the edge, and beside it how its boundary cells are counted."""
    figure, ((left, right),) = drawing.panels(1, 2, width=5, height=4.4, width_ratios=[1.6, 1])
    plot(found, Window(config.eta_y, config.eta_z), ax=left)
    if drawn := list(edge.drawn(edges, COLOUR)):
        plot_lines(drawn, ax=left)
        keys = [drawing.key(each.text, color=COLOUR, ls=each.style[1]) for each in drawn]
        left.legend(handles=keys, fontsize="small", loc="lower left")
    figure.suptitle(title(config), fontsize="medium")
    levels = found.levels()
    left.set_title(summary(levels, dimension, fit), fontsize="medium")
    plot_counts(levels, dimension, fit, ax=right)
    return figure


def title(config: Trainability) -> str:
    """What was run, in a line."""
    return f"{config.engine}: {described(config.run, ('eta',))}"


def summary(levels: Sequence[Level], dimension: Line, fit: tuple[int, int]) -> str:
    """The dimension of the boundary in words."""
    if np.isnan(dimension.slope):
        return f"no boundary: {'every' if levels[0].region.all() else 'no'} run trained"
    if np.isnan(dimension.error):
        # A line through two points fits whatever they are.
        return f"levels {fit[0]} and {fit[1]} alone give no box-counting dimension"
    slope = f"box-counting slope {dimension.slope:.2f} ± {dimension.error:.2f}"
    return f"{slope} (levels {fit[0]} to {fit[1]})"


def plot(found: Refinement, window: Window, ax: Axes) -> Axes:
    """Relative loss over both learning rates, trained and untrained in colours of their own, with
    the boundary cells of the last level."""
    (region, values, _), last = found.infer(), found.levels()[-1]
    ok, side = region == 1, len(values) - 1
    middles = (np.arange(side + 2) - 0.5) / side
    y, x = window.rates(np.stack([middles, middles], axis=-1)).T
    scales = {
        "trained": (ok, "viridis", LogNorm(1e-2, 1), "min", 0),
        "untrained": (~ok, "Reds", LogNorm(1, 1e2), "max", 0.54),
    }
    for name, (chosen, colours, norm, extend, bottom) in scales.items():
        if chosen.any():
            # A loss that is not finite is a large one, and one of 0 has a place on no log scale.
            shown = np.where(np.isnan(values), np.inf, np.maximum(values, norm.vmin))
            mesh = ax.pcolormesh(
                x, y, np.ma.array(shown, mask=~chosen), cmap=colours, norm=norm, rasterized=True
            )
            bar = ax.inset_axes((1.02, bottom, 0.025, 0.46))
            ax.figure.colorbar(mesh, cax=bar, extend=extend, label=f"relative loss, {name}")
    if len(last.boundary):
        edges = np.arange(side + 1) / side
        cell_y, cell_x = window.rates(np.stack([edges, edges], axis=-1)).T
        inside = np.zeros((side, side))
        inside[tuple(last.boundary.T)] = 1
        ax.pcolormesh(
            cell_x,
            cell_y,
            np.ma.masked_equal(inside, 0),
            cmap=ListedColormap(["black"]),
            rasterized=True,
        )
    ax.set(xscale="log", yscale="log", xlim=window.eta_z, ylim=window.eta_y)
    ax.set(xlabel=r"learning rate $\eta_Z$ (1/step)", ylabel=r"learning rate $\eta_Y$ (1/step)")
    return ax


def plot_counts(levels: Sequence[Level], dimension: Line, fit: tuple[int, int], ax: Axes) -> Axes:
    """Number of boundary cells against their side, with the fit and the slopes in between."""
    eps = np.array([level.eps for level in levels])
    counts = np.array([len(level.boundary) for level in levels])
    ax.set(xlabel=r"side of a cell $\epsilon$ (share of the window)", ylabel=r"boundary cells $N$")
    ax.set_title("numbers: slopes between levels", fontsize="medium")
    if np.isnan(dimension.slope):
        ax.text(0.5, 0.5, summary(levels, dimension, fit), ha="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])
        return ax
    ax.loglog(eps, counts, "o", color="k", label="boundary cells")
    if not np.isnan(dimension.error):
        part = eps[fit[0] : fit[1] + 1]
        line = np.exp(dimension.intercept) * part**-dimension.slope
        text = f"fit: slope {dimension.slope:.2f} ± {dimension.error:.2f}"
        ax.loglog(part, line, color=drawing.colour(1), label=text)
    slopes = np.diff(np.log(counts)) / -np.diff(np.log(eps))
    for a, b, slope in zip(range(len(eps)), range(1, len(eps)), slopes, strict=False):
        at = (np.sqrt(eps[a] * eps[b]), np.sqrt(counts[a] * counts[b]))
        ax.annotate(f"{slope:.2f}", at, (6, 6), textcoords="offset points", fontsize="small")
    ax.set_xticks(eps, [f"1/{1 / side:.0f}" for side in eps])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(fontsize="small", loc="upper right")
    ax.grid(alpha=0.25, which="both")
    return ax


def arrays(
    levels: Sequence[Level], window: Window, dimension: Line, fit: tuple[int, int]
) -> dict[str, np.ndarray]:
    """The plotted numbers by name: boundary cells as (eta_y, eta_z) of their four corners."""
    named = {
        "eps": np.array([level.eps for level in levels]),
        "N": np.array([len(level.boundary) for level in levels]),
        "fit": np.array(fit),
        "dimension": np.array([dimension.slope, dimension.error]),
    }
    for i, level in enumerate(levels):
        eta_y, eta_z = window.rates(level.places).T
        corners = (level.boundary[:, None] + CORNERS).reshape(-1, 2) * level.eps
        named |= {
            f"level-{i}/eta_y": eta_y,
            f"level-{i}/eta_z": eta_z,
            f"level-{i}/relative_loss": level.value,
            f"level-{i}/trained": level.region == 1,
            f"level-{i}/boundary": window.rates(corners).reshape(-1, 4, 2),
        }
    return named
