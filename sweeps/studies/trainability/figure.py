"""The plane of learning rates: where training succeeds, and how rough the boundary is.

A run counts as trained where its relative loss is below 1 (Sohl-Dickstein 2024, arXiv:2402.06184).
A coarse grid over (log eta_Y, log eta_Z) is refined only where the outcome changes, by
`sweeps.studies.phase.refinement` without probes. Boundary pieces that are not connected to those on
the coarse grid are missed, so counts are lower bounds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import xarray as xr
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dynsim import Status, checks
from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import Line, begin, described, heat_map, line
from sweeps.studies.phase.panels import plot_lines
from sweeps.studies.phase.plane import sampled
from sweeps.studies.phase.refinement import CORNERS, Lattice, Level, Refinement
from sweeps.studies.trainability import limits
from sweeps.systems.experiment import Experiment, experiment

Levels = Annotated[int, Ge(2), Le(12)]
"""Each level about doubles the runs; 12 levels divide a cell into 4096 along each side."""

COLOUR = "magenta"
"""Colour of the edge, which neither trained nor untrained runs have."""


@dataclasses.dataclass(frozen=True)
class Trainability:
    """Map of trained and untrained runs over both learning rates, refined at its boundary.

    Attributes:
        run: the run that is varied, of the attention layer; all runs share its seed. With the
            default length, some sequences show no token of their class, and their loss grows with
            the rates.
        theory: simulation, or a theory, which assumes infinite T and batch.
        eta_y: first and last learning rate of Y (1/step).
        eta_z: first and last learning rate of Z (1/step).
        cells: number of cells along each side of the coarse grid.
        levels: number of refinements, each of which doubles the resolution.
        fit: first and last level of the fit of the dimension; from 1 to the last if omitted.
        edge: also draw the edge of stability, at the start and along the flow of all weights.
        out: folder for the figure, trainability.npz and the stored sweeps, from which the command
            resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 100, "length": 4, "batch": 32}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Trainability.RUN))
    theory: Literal["simulation", "descent", "symmetric-descent"] = "simulation"
    eta_y: tuple[float, float] = (30.0, 1e4)
    eta_z: tuple[float, float] = (1e-3, 1e5)
    cells: Count = 16
    levels: Levels = 4
    fit: tuple[int, int] | None = None
    edge: bool = False
    out: Path = Path("out/trainability")

    def rates(self, places: Float[np.ndarray, "*P 2"]) -> Float[np.ndarray, "*P 2"]:
        """Return (eta_Y, eta_Z) at places in [0, 1] x [0, 1], with logarithmic spacing."""
        low, high = np.log([self.eta_y, self.eta_z]).T
        return np.exp(low + places * (high - low))

    def axes(self, cells: int) -> dict[str, np.ndarray]:
        """Learning rates at the corners of `cells` cells along each side."""
        eta_y, eta_z = self.rates(np.arange(cells + 1)[:, None] / cells).T
        return {"eta_y": eta_y, "eta_z": eta_z}


def run(config: Trainability) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure."""
    begin(config)
    for name in ("eta_y", "eta_z"):
        ends = getattr(config, name)
        checks.real(name, ends, 0, open_minimum=True)
        if not ends[0] < ends[1]:
            raise ValueError(f"{name} = {ends}: must increase")
    fit = config.fit or (1, config.levels)
    if not 0 <= fit[0] < fit[1] <= config.levels:
        raise ValueError(
            f"fit = {fit}: must increase and lie within the levels 0 to {config.levels}"
        )
    found = refine(config)
    levels = found.levels()
    dimension = box_dimension(levels, fit)
    edges = edges_of(config) if config.edge else {}
    for said in (*limits.outside(edges), *limits.shares(edges, levels[0])):
        print(said)
    figure = draw(config, found, dimension, fit, edges)
    kept = arrays(config, levels) | {
        "fit": np.array(fit),
        "dimension": np.array([dimension.slope, dimension.error]),
        **{f"line/{name}": values.values for name, values in edges.items()},
    }
    return output.write(config.out, "trainability", figure=figure, arrays=kept)


def refine(config: Trainability) -> Refinement:
    """Map where training succeeds, as stored sweeps: level-0, level-1, ..., and level-1-1,
    level-1-2, ... for cells reached by following the boundary. Stored runs are reused. Regions of
    the lattice are 1 for trained runs and 0 for others; it also has the relative losses."""
    side = config.cells * 2**config.levels
    rule = dataclasses.replace(config.run.rule, eta={"Y": 1.0, "Z": 1.0})
    plane = Sweep(
        dataclasses.replace(config.run, rule=rule),
        axes={**config.axes(side), "seed": [config.run.seed]},
        theory=config.theory,
        record=("relative_loss",),
        title="trainability",
    )

    def measure(name: str, points: Int[np.ndarray, "P 2"]) -> tuple[np.ndarray, np.ndarray]:
        found = run_sweep(sampled(plane, points, name), config.out / name).load()
        relative_loss = found.relative_loss.values[:, 0]
        return trained(relative_loss, found.status.values[:, 0]).astype(int), relative_loss

    return Refinement(Lattice((side, side), (config.cells, config.cells), config.levels), measure)


def trained(
    relative_loss: Float[np.ndarray, "*P"], status: Int[np.ndarray, "*P"]
) -> Bool[np.ndarray, "*P"]:
    """Return whether a run trained: not diverged, with a relative loss below 1 (and not NaN)."""
    return (status == Status.OK) & (relative_loss < 1)


def box_dimension(levels: Sequence[Level], fit: tuple[int, int]) -> Line:
    """Fit ln N against ln 1/eps over the levels `fit`, both ends included. The slope is the
    box-counting dimension of the boundary; NaN without a boundary."""
    # Only the coarse grid can lack a boundary: a mixed cell has a mixed child.
    if not len(levels[0].boundary):
        return Line(np.nan, np.nan, np.nan)
    part = levels[fit[0] : fit[1] + 1]
    x = -np.log([level.eps for level in part])
    return line(x, np.log([len(level.boundary) for level in part]))


def edges_of(config: Trainability) -> dict[str, xr.DataArray]:
    """Compute the lines of the edge over the points of the coarse grid. For a rule without an edge,
    print the reason and return none."""
    rates = config.axes(config.cells)
    axes = {name: rates[name].tolist() for name in ("eta_z", "eta_y")}
    try:
        flows = limits.flow_of(config.run, axes)
    except ValueError as error:
        print(f"edge of stability: left out, {error}")
        return {}
    return limits.edge_lines(flows, axes, config.out / limits.WHOLE.name)


def draw(
    config: Trainability,
    found: Refinement,
    dimension: Line,
    fit: tuple[int, int],
    edges: Mapping[str, xr.DataArray],
) -> Figure:
    """Draw the map with the lines of the edge, and next to it the number of boundary cells."""
    figure, ((left, right),) = drawing.panels(1, 2, width=5, height=4.4, width_ratios=[1.6, 1])
    plot(config, found, ax=left)
    if drawn := list(limits.drawn(edges, COLOUR)):
        plot_lines(drawn, ax=left)
        keys = [drawing.key(each.text, color=COLOUR, ls=each.style[1]) for each in drawn]
        left.legend(handles=keys, loc="lower left")
    figure.suptitle(f"{config.theory}: {described(config.run, ('eta',))}")
    levels = found.levels()
    left.set_title(summary(levels, dimension, fit))
    plot_counts(levels, dimension, fit, ax=right)
    return figure


def summary(levels: Sequence[Level], dimension: Line, fit: tuple[int, int]) -> str:
    """Describe the dimension of the boundary."""
    if np.isnan(dimension.slope):
        return f"no boundary: {'every' if levels[0].region.all() else 'no'} run trained"
    if np.isnan(dimension.error):
        # Any two points lie on a line.
        return f"levels {fit[0]} and {fit[1]} alone give no box-counting dimension"
    slope = f"box-counting slope {dimension.slope:.2f} ± {dimension.error:.2f}"
    return f"{slope} (levels {fit[0]} to {fit[1]})"


def plot(config: Trainability, found: Refinement, ax: Axes) -> Axes:
    """Draw the relative loss over both learning rates, with separate colours for trained and
    untrained runs, and the boundary cells of the last level."""
    (region, values, _), boundary = found.infer(), found.levels()[-1].boundary
    side = len(values) - 1
    # Losses that are not finite count as large: the colour scale has no value for them.
    losses = xr.DataArray(np.where(np.isfinite(values), values, np.inf), config.axes(side))
    losses = losses.transpose("eta_z", "eta_y")
    scales = {
        "trained": (region.T == 1, "viridis", LogNorm(1e-2, 1), "min", 0),
        "untrained": (region.T == 0, "Reds", LogNorm(1, 1e2), "max", 0.54),
    }
    for name, (chosen, colours, norm, extend, bottom) in scales.items():
        if chosen.any():
            shown = losses.clip(norm.vmin, norm.vmax).where(chosen)
            mesh = heat_map(ax, shown, "log", cmap=colours, norm=norm)
            bar = ax.inset_axes((1.02, bottom, 0.025, 0.46))
            ax.figure.colorbar(mesh, cax=bar, extend=extend, label=f"relative loss, {name}")
    if len(boundary):
        inside = np.full((side, side), np.nan)
        inside[tuple(boundary.T)] = 1
        corners = config.axes(side)
        black = {"cmap": ListedColormap(["black"]), "rasterized": True}
        ax.pcolormesh(corners["eta_z"], corners["eta_y"], inside, **black)
    ax.set(xscale="log", yscale="log", xlim=config.eta_z, ylim=config.eta_y)
    ax.set(xlabel=r"learning rate $\eta_Z$ (1/step)", ylabel=r"learning rate $\eta_Y$ (1/step)")
    return ax


def plot_counts(levels: Sequence[Level], dimension: Line, fit: tuple[int, int], ax: Axes) -> Axes:
    """Draw the number of boundary cells against their side, with the fit and local slopes."""
    eps = np.array([level.eps for level in levels])
    counts = np.array([len(level.boundary) for level in levels])
    ax.set(xlabel=r"side of a cell $\epsilon$ (share of the window)", ylabel=r"boundary cells $N$")
    ax.set_title("numbers: slopes between levels")
    if np.isnan(dimension.slope):
        ax.text(0.5, 0.5, summary(levels, dimension, fit), ha="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])
        return ax
    ax.loglog(eps, counts, "o", color="k", label="boundary cells")
    if not np.isnan(dimension.error):
        part = eps[fit[0] : fit[1] + 1]
        fitted = np.exp(dimension.intercept) * part**-dimension.slope
        text = f"fit: slope {dimension.slope:.2f} ± {dimension.error:.2f}"
        ax.loglog(part, fitted, color=drawing.colour(1), label=text)
    slopes = np.diff(np.log(counts)) / -np.diff(np.log(eps))
    x, y = (np.sqrt(each[1:] * each[:-1]) for each in (eps, counts))
    for i, slope in enumerate(slopes):
        at = (x[i], y[i])
        ax.annotate(f"{slope:.2f}", at, (6, 6), textcoords="offset points", fontsize="small")
    ax.set_xticks(eps, [f"1/{1 / side:.0f}" for side in eps])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(loc="upper right")
    ax.grid(alpha=0.25, which="both")
    return ax


def arrays(config: Trainability, levels: Sequence[Level]) -> dict[str, np.ndarray]:
    """Return the measured arrays by name; boundary cells as (eta_y, eta_z) of their corners."""
    named = {
        "eps": np.array([level.eps for level in levels]),
        "N": np.array([len(level.boundary) for level in levels]),
    }
    for i, level in enumerate(levels):
        eta_y, eta_z = config.rates(level.places).T
        corners = (level.boundary[:, None] + CORNERS) * level.eps
        named |= {
            f"level-{i}/eta_y": eta_y,
            f"level-{i}/eta_z": eta_z,
            f"level-{i}/relative_loss": level.value,
            f"level-{i}/trained": level.region == 1,
            f"level-{i}/boundary": config.rates(corners),
        }
    return named
