"""`dynsim figure joma`: Theorem 1 along training, growth up to the blow-up, entropy of attention.

As in Figs. 2 to 4 of JoMA (arXiv:2310.00535), whose settings were recovered from its code. Fig. 4
is about a toy; beside it stands the entropy of attention in training [ours].
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dynsim
from dynsim.classes.task import SequenceClasses
from dynsim.decoding import Count, Steps
from dynsim.joma import Frequencies, fig2
from dynsim.trajectory import log_times
from odes.joma import blow_up
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed
from sweeps.studies.joma import entropy
from sweeps.systems.experiment import Experiment

GROWTH = Experiment(
    dynsim.JoMA(attention="exp", head="signal", scale=0.0),
    dynsim.sgd({"Y": 0.05, "Z": 0.05}),
    steps=940,
    batch=math.inf,
    dtype="float64",
)
SEQUENCES: dict[Frequencies, str] = {
    "bumps": "distinct tokens in bumps",
    "random": "random frequencies",
}


@dataclasses.dataclass(frozen=True)
class FigureJoMA:
    """Theorem 1 along training, growth up to the blow-up, and the entropy of attention.

    Attributes:
        steps: optimiser steps of the first panel.
        dense_steps: optimiser steps of the last panel.
        dense_seeds: number of runs at each length in the last panel.
        out: folder for the figure, joma.npz and .json, and the stored sweeps, from which the
            command resumes.
    """

    steps: Steps = 1999
    dense_steps: Steps = 20_000
    dense_seeds: Count = 2
    out: Path = Path("out/joma")

    def sweeps(self) -> dict[str, Sweep]:
        """What is drawn of sweeps, by panel and engine."""
        record = ("weight", "loss")
        found = {
            f"growth/{engine}": Sweep(GROWTH, {"seed": {"range": 1}}, engine, record, 200)
            for engine in ("simulation", "erf")
        }
        return found | entropy.sweeps(self.dense_steps, self.dense_seeds)


def run(config: FigureJoMA) -> list[Path]:
    """Compute or resume, print the tables, draw and write."""
    found = computed(config)
    along: dict[Frequencies, tuple[np.ndarray, np.ndarray]] = {
        kind: invariance(fig2(kind), config.steps) for kind in SEQUENCES
    }
    course = entropy.toy_course()
    lines = [*invariance_lines(along), "", *entropy.toy_lines(course), ""]
    lines += [*entropy.error_lines(found), "", *entropy.dense_lines(found)]
    print("\n".join(lines))
    figure = draw(found, along, course)
    arrays = {f"{kind}/correlation": values for kind, (_, values) in along.items()}
    arrays |= {"toy": course, **found}
    return output.write(config.out, "joma", figure=figure, arrays=arrays, report={"lines": lines})


def draw(
    found: dict[str, xr.Dataset],
    along: dict[Frequencies, tuple[np.ndarray, np.ndarray]],
    course: dict[str, np.ndarray],
) -> Figure:
    """The invariant, growth and entropies, from the sweeps, `invariance` and `toy_course`."""
    figure, axes = drawing.panels(2, 3)
    plot_invariance(along, ax=axes[0, 0])
    plot_growth(found, ax=axes[0, 1])
    entropy.plot_toy(course, ax=axes[0, 2])
    entropy.plot_entropy(found, ax=axes[1, 0])
    entropy.plot_dense(found, "softmax-relu", ax=axes[1, 1])
    entropy.plot_dense(found, "exp-relu", ax=axes[1, 2])
    return figure


def invariance(
    task: SequenceClasses, steps: int
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """Times, and the correlation over tokens of z with what Theorem 1 makes of V and the start."""
    trained = dynsim.train(
        dynsim.JoMA(task, temperature=0.5),
        dynsim.sgd(0.1),
        jax.random.key(0),
        steps=steps,
        batch=math.inf,
        times=log_times(steps, 300),
        record=("logits", "conserved"),
    )
    z = 0.5 * np.asarray(trained["logits"])[:, 0]
    predicted = z - np.asarray(trained["conserved"]) + np.asarray(trained["conserved"])[:1]
    return np.asarray(trained.times), np.array(
        [np.corrcoef(a, b)[0, 1] for a, b in zip(z, predicted, strict=True)]
    )


def invariance_lines(along: dict[Frequencies, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """The correlations at a few steps."""
    lines = []
    for kind, (times, values) in along.items():
        cells = (
            f"{values[np.argmin(abs(times - t))]:.4f} at {times[np.argmin(abs(times - t))]:.0f}"
            for t in (100, 500, 1000, times[-1])
        )
        lines.append(f"{kind}: correlation {', '.join(cells)}")
    return lines


def plot_invariance(along: dict[Frequencies, tuple[np.ndarray, np.ndarray]], ax: Axes) -> Axes:
    """Correlation of both sides of Theorem 1 over training."""
    for i, (kind, (times, values)) in enumerate(along.items()):
        ax.plot(times[1:], values[1:], color=drawing.colour(i), lw=2, label=SEQUENCES[kind])
    ax.axhline(1, color="k", ls="--", lw=1, label="Theorem 1")
    ax.set(xscale="log", title="softmax, temperature 0.5, cross-entropy", ylim=(None, 1.001))
    return entropy.finished(ax, "correlation of $z$ and Theorem 1")


def plot_growth(found: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Weights of tokens over training under exp attention, with Theorem 2."""
    trained, theory = (found[f"growth/{e}"].isel(seed=0) for e in ("simulation", "erf"))
    tokens = np.argsort(-trained.weight.isel(time=-1).values)[[0, 3, 6, 9]]
    for i, token in enumerate(tokens):
        how = {"color": drawing.colour(i), "label": f"training, token {token}", **drawing.TRAINED}
        ax.plot(trained.time, trained.weight[:, token], **how)
    for token in tokens:
        label = "Theorem 2, erf" if token == tokens[0] else None
        ax.plot(theory.time, theory.weight[:, token], "k--", lw=1, label=label)
    problem: Any = GROWTH.built[0]
    end = float(blow_up(problem, GROWTH.built[1]))
    ax.axvline(end, color="0.5", ls=":", label="blow-up $t^*$")
    ax.set_title("exp attention, linear activation, fixed signal")
    return entropy.finished(ax, "norm of the weights of a token")
