"""`dynsim figure joma`: Theorem 1 along training, growth up to the blow-up, entropy of attention.

As in Figs. 2 to 4 of JoMA (arXiv:2310.00535), whose settings were recovered from its code.
"""

import dataclasses
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes

import dynsim
from dynsim import Shape, checks
from dynsim.classes.task import SequenceClasses
from odes.joma import blow_up
from sweeps import output
from sweeps.runner.cluster import hosts
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.systems.joma import JoMA

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
GROWTH = JoMA(
    attention="exp", head="signal", scale=0.0, eta_y=0.05, eta_z=0.05, steps=940, dtype="float64"
)
SEQUENCES = {"gaussian": "distinct tokens in bumps", "random": "random frequencies"}
TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
ACTIVATIONS = ("linear", "relu", "tanh")
ENTROPY = JoMA(scale=0.1, eta_y=0.5, eta_z=0.5, steps=8000, temperature=0.5)


@dataclasses.dataclass(frozen=True)
class FigureJoMA:
    """Theorem 1 along training, growth up to the blow-up, and the entropy of attention.

    Attributes:
        steps: optimiser steps of the first panel.
        out: directory for joma.png, .npz and .json, and the stored sweeps, which resume.
    """

    steps: int = 1999
    out: Path = Path("out/joma")

    def sweeps(self) -> dict[str, Sweep]:
        """What is drawn of sweeps, by panel and engine."""
        record = ("weight", "loss")
        found = {
            f"growth/{engine}": Sweep({"seed": {"range": 1}}, GROWTH, engine, record, 200)
            for engine in ("simulation", "erf")
        }
        axes = {"temperature": TEMPERATURES, "seed": {"range": 4}}
        for activation in ACTIVATIONS:
            run = dataclasses.replace(ENTROPY, activation=activation)
            record = ("entropy", "logits", "conserved", "loss")
            found[f"entropy/{activation}"] = Sweep(axes, run, "simulation", record, 200)
        return found


def run(config: FigureJoMA) -> list[Path]:
    """Compute or resume, print the tables, draw and write."""
    checks.steps("steps", config.steps)
    output.check_directory(config.out)
    wanted = config.sweeps()
    for sweep in wanted.values():
        sweep.check()
    hosts.use_all_cores()
    found = {name: run_sweep(s, config.out / name).load() for name, s in wanted.items()}
    along = {kind: invariance(recovered(kind), config.steps) for kind in SEQUENCES}
    lines = [*invariance_lines(along), "", *error_lines(found)]
    print("\n".join(lines))
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")
    plot_invariance(along, ax=axes[0])
    plot_growth(found, ax=axes[1])
    plot_entropy(found, ax=axes[2])
    arrays = {f"{kind}/correlation": values for kind, (_, values) in along.items()}
    for name, dataset in found.items():
        arrays |= {f"{name}/{each}": dataset[each].values for each in dataset.data_vars}
    return output.write(config.out, "joma", figure=figure, arrays=arrays, report={"lines": lines})


def recovered(kind: str) -> SequenceClasses:
    """20 classes of one query and 20 tokens, the first ten "gaussian" over classes or "random"."""
    X = np.random.default_rng(0).random((20, 20)) / 2
    if kind == "gaussian":
        tokens, classes = np.arange(10)[:, None], np.arange(20)[None]
        X[:10] = np.exp(-((tokens - 10 * classes / 20) ** 2) / 30)
    return dynsim.sequence_classes((X / X.sum(0)).T, [0] * 20, range(20))


def invariance(
    task: SequenceClasses, steps: int
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """Times, and the correlation over tokens of z with what Theorem 1 makes of V and the start."""
    trained = dynsim.simulate_joma(
        task,
        dynsim.sgd(0.1, 0.1),
        jax.random.key(0),
        shape=Shape("softmax", "linear", "cross-entropy"),
        temperature=0.5,
        steps=steps,
        record=("logits", "conserved"),
    )
    z = 0.5 * np.asarray(trained["logits"])[:, 0]
    predicted = z - np.asarray(trained["conserved"]) + np.asarray(trained["conserved"])[:1]
    return np.asarray(trained.times), np.array(
        [np.corrcoef(a, b)[0, 1] for a, b in zip(z, predicted, strict=True)]
    )


def invariance_lines(along: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[str]:
    """The correlations at a few steps."""
    lines = []
    for kind, (times, values) in along.items():
        cells = (
            f"{values[np.argmin(abs(times - t))]:.4f} at {times[np.argmin(abs(times - t))]:.0f}"
            for t in (100, 500, 1000, times[-1])
        )
        lines.append(f"{kind}: correlation {', '.join(cells)}")
    return lines


def error_lines(found: dict[str, xr.Dataset]) -> list[str]:
    """How far Theorem 1 is from z at the end, over how far z has moved, and the entropy."""
    lines = []
    for activation in ACTIVATIONS:
        dataset = found[f"entropy/{activation}"]
        for T in dataset["temperature"].values:
            runs = dataset.sel(temperature=T)
            drift = runs.conserved.isel(time=-1) - runs.conserved.isel(time=0)
            moved = T * (runs.logits.isel(time=-1, query=0) - runs.logits.isel(time=0, query=0))
            error = float(np.sqrt((drift**2).mean()) / np.sqrt((moved**2).mean()))
            course = runs.entropy.mean("seed").values
            lines.append(
                f"{activation}, T = {T:g}: off by {100 * error:.1f} %; entropy "
                f"{course[0]:.3f}, least {course.min():.3f}, end {course[-1]:.3f}"
            )
    return lines


def plot_invariance(
    along: dict[str, tuple[np.ndarray, np.ndarray]], ax: Axes | None = None
) -> Axes:
    """Correlation of both sides of Theorem 1 over training."""
    ax = ax or plt.gca()
    for colour, (kind, (times, values)) in zip(COLOURS, along.items(), strict=False):
        ax.plot(times[1:], values[1:], color=colour, lw=2, label=SEQUENCES[kind])
    ax.axhline(1, color="k", ls="--", lw=1, label="Theorem 1")
    ax.set(xscale="log", title="softmax attention, T = 0.5, cross-entropy", ylim=(None, 1.001))
    return _finished(ax, "correlation of $z$ and Theorem 1")


def plot_growth(found: dict[str, xr.Dataset], ax: Axes | None = None) -> Axes:
    """Weights of tokens over training under exp attention, with Theorem 2."""
    ax = ax or plt.gca()
    trained, theory = (found[f"growth/{e}"].isel(seed=0) for e in ("simulation", "erf"))
    tokens = np.argsort(-trained.weight.isel(time=-1).values)[[0, 3, 6, 9]]
    for colour, token in zip(COLOURS, tokens, strict=True):
        label = f"training, token {token}"
        ax.plot(trained.time, trained.weight[:, token], color=colour, lw=3, alpha=0.5, label=label)
        label = "Theorem 2, erf" if token == tokens[0] else None
        ax.plot(theory.time, theory.weight[:, token], "k--", lw=1, label=label)
    end = float(blow_up(GROWTH.make_task(), GROWTH.make_optimizer()))
    ax.axvline(end, color="0.5", ls=":", label="blow-up $t^*$")
    ax.set_title("exp attention, linear activation, fixed signal")
    return _finished(ax, "norm of the weights of a token")


def plot_entropy(found: dict[str, xr.Dataset], ax: Axes | None = None) -> Axes:
    """Entropy of softmax attention over training, by activation, at T = 0.5."""
    ax = ax or plt.gca()
    for colour, activation in zip(COLOURS, ACTIVATIONS, strict=False):
        course = found[f"entropy/{activation}"].entropy.sel(temperature=0.5)[:, 1:]
        mean, around = course.mean("seed"), course.std("seed")
        ax.plot(course.time, mean, color=colour, lw=2, label=f"training, {activation}")
        ax.fill_between(course.time, mean - around, mean + around, color=colour, alpha=0.2, lw=0)
    ax.set(xscale="log", title="softmax attention, cross-entropy, T = 0.5, four seeds")
    return _finished(ax, "entropy of attention (nat)")


def _finished(ax: Axes, quantity: str) -> Axes:
    ax.set(xlabel="optimiser steps", ylabel=quantity)
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8)
    return ax
