"""`dynsim figure qkv`: errors of the theory in Y and Z for training its factors W_Q, W_K and W_V.

Compares descent on the factors, on the population loss, with the plain flow in (Y, Z) of section 3
of Scan and Snap (arXiv:2305.16380) and with the factor flow (`odes.qkv`), over the embedding width
d and the scale s of the starting weights. The learning rate of W_Q and W_K is eta_Z d / (2 s^2):
at the start the preconditioners K K^T/d and Q Q^T/d add up to 2 s^2/d on average, so the plain
flow at eta_Z is most accurate at this rate. U is frozen, orthonormal for d >= M and Gaussian
otherwise; the decoder is tied, and Y = 0 at the start.
"""

import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import dynsim
from dynsim import checks
from dynsim import qkv as embedded
from dynsim.classes.task import SequenceClasses
from dynsim.decoding import Count, Positive, Steps
from dynsim.precision import precision
from dynsim.training import loop
from dynsim.trajectory import Trajectory
from odes.qkv import FACTORS
from odes.solver.integrate import Tolerances
from odes.yz import population
from sweeps import output
from sweeps.output import drawing
from sweeps.studies.options import begin

THEORIES = {"plain": "plain flow in (Y, Z)", "factors": "flow of the factors"}
MEASURES = {"attention": "attention $c_n$", "loss": "loss"}
TOLERANCES = Tolerances(rtol=1e-7, atol=1e-9)


@dataclasses.dataclass(frozen=True)
class FigureQKV:
    """Errors of the plain flow and of the factor flow against descent on the factors.

    Attributes:
        out: folder for the figure and qkv.npz.
        width: width of the embedding; the vocabulary has 34 tokens (Syn-Small).
        scale: standard deviations of the starting W_Q and W_K, times sqrt(d).
        eta_y: learning rate of W_V.
        eta_z: learning rate of Z in the plain flow.
        steps: optimiser steps.
        seeds: number of starting weights; errors are root mean squares over them.
    """

    out: Path = Path("out/figures")
    width: tuple[int, ...] = (16, 34, 68, 136)
    scale: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    eta_y: Positive = 0.2
    eta_z: Positive = 0.2
    steps: Steps = 200
    seeds: Count = 2


def run(config: FigureQKV) -> list[Path]:
    """Compute, print, draw and write the figure."""
    begin(config)
    for field in ("width", "scale"):
        values = getattr(config, field)
        if not values or list(values) != sorted(set(values)):
            raise ValueError(f"{field} = {values}: must be a list of increasing numbers")
    for width in config.width:
        checks.integer("width", width, 1)
    checks.real("scale", config.scale, 0, open_minimum=True)
    task = dynsim.SynSmall().build()
    errors = {name: np.zeros((2, len(config.width), len(config.scale))) for name in THEORIES}
    for column, width in enumerate(config.width):
        for name, values in width_errors(config, task, width).items():
            errors[name][:, column] = values
    print(table(config, errors))
    arrays = {"width": np.array(config.width), "scale": np.array(config.scale)}
    for name, values in errors.items():
        arrays |= {f"{name}/{key}": values[i] for i, key in enumerate(MEASURES)}
    return output.write(config.out, "qkv", figure=draw(config, errors, task.M), arrays=arrays)


def draw(config: FigureQKV, errors: dict[str, np.ndarray], M: int) -> Figure:
    """Draw a column for each theory and a row for each of `MEASURES`."""
    figure, axes = drawing.panels(2, 2, width=4.2, height=3.3, sharex=True)
    for row, measure in enumerate(MEASURES):
        for column, name in enumerate(THEORIES):
            ax = plot(config, errors[name][row], ax=axes[row, column])
            ax.set_title(f"{THEORIES[name]}: {MEASURES[measure]}")
            if row == len(MEASURES) - 1:
                ax.set_xlabel(f"width $d$ (overlapping below M = {M})")
    how = "distance from descent on the factors, relative to how far descent goes"
    figure.suptitle(how)
    return figure


def width_errors(config: FigureQKV, task: SequenceClasses, width: int) -> dict[str, np.ndarray]:
    """Return the (2, scales) errors of each theory at one width, in the order of `MEASURES`."""
    times = np.unique(np.linspace(0, config.steps, 11).astype(int))
    record = tuple(MEASURES)

    def runs(scale: jax.Array, seed: jax.Array) -> dict[str, Trajectory]:
        embedding = "orthogonal" if width >= task.M else "gaussian"
        problem = dynsim.QKV(task, np.inf, width=width, value_scale=0.0, embedding=embedding)
        problem = eqx.tree_at(lambda problem: problem.scale, problem, scale)
        # A float64 start, unlike the usual one.
        init = problem.init(loop.split_key(jax.random.key(seed))[0])
        rates = {"Y": config.eta_y, "Z": config.eta_z * width / (2 * scale**2)}
        rule, plain = dynsim.sgd(rates), dynsim.sgd(config.eta_y, config.eta_z)
        options = {"init": init, "record": record, "dtype": "float64"}
        solver = {"record": record, "dtype": "float64", "tolerances": TOLERANCES}
        layer = embedded.effective(init, task)
        return {
            "descent": dynsim.train(
                problem, rule, steps=config.steps, batch=np.inf, times=times, **options
            ),
            "plain": population.solve(task, plain, times, init=layer, **solver),
            "factors": FACTORS.solve(problem, rule, times, init=init, **solver),
        }

    with precision("float64"):
        over_seeds = jax.vmap(runs, in_axes=(None, 0))
        scales, seeds = jnp.asarray(config.scale), jnp.arange(config.seeds)
        found = jax.jit(jax.vmap(over_seeds, in_axes=(0, None)))(scales, seeds)
    descent = found.pop("descent")
    return {
        name: np.stack([_error(theory, descent, measure) for measure in MEASURES])
        for name, theory in found.items()
    }


def _error(theory: Trajectory, descent: Trajectory, name: str) -> np.ndarray:
    """Return the (scales,) distance over time relative to how far descent moved, root mean square
    over seeds; NaN where a run is not valid to its end."""
    got, want = np.asarray(theory[name]), np.asarray(descent[name])
    axes = tuple(range(2, want.ndim))
    missed = np.sum((got - want) ** 2, axis=axes)
    gone = np.sum((want - want[:, :, :1]) ** 2, axis=axes)
    ok = np.asarray(theory.ok) & np.asarray(descent.ok)
    return np.sqrt(np.mean(np.where(ok, missed / gone, np.nan), axis=1))


def table(config: FigureQKV, errors: dict[str, np.ndarray]) -> str:
    """Format the errors in %, with a line for each width and scale."""
    heads = [f"{name} {measure}" for measure in MEASURES for name in THEORIES]
    lines = [f"{'d':>5} {'s':>6} " + " ".join(f"{head:>20}" for head in heads)]
    for i, width in enumerate(config.width):
        for j, scale in enumerate(config.scale):
            values = [errors[name][row, i, j] for row in range(2) for name in THEORIES]
            cells = " ".join(f"{100 * value:>18.3g} %" for value in values)
            lines.append(f"{width:>5} {scale:>6g} {cells}")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2g} %" if value < 99 else f"{value:.0f} %"


def plot(config: FigureQKV, values: np.ndarray, ax: Axes) -> Axes:
    """Heat map (widths, scales) of one error, with its values in %."""
    widths = [str(width) for width in config.width]
    scales = [f"{scale:g}" for scale in config.scale]
    colours = {"norm": LogNorm(0.1, 200), "cmap": "cividis_r"}
    drawing.table(ax, 100 * values.T, _percent, widths, scales, **colours)
    ax.set(ylabel=r"scale $s$ of $W_Q$, $W_K$")
    return ax
