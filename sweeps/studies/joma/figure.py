"""`dynsim figure joma`: Theorem 1 along training, growth up to the blow-up, entropy of attention.

After Figs. 2 to 4 of JoMA (arXiv:2310.00535), with settings from its code. Fig. 4 shows a toy model
whose entropy falls and rises; next to it we draw the entropy of trained attention [ours].
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
from dynsim.precision import precision
from dynsim.trajectory import log_times
from odes.joma import blow_up, toy
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.systems.experiment import Experiment, experiment

TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
ACTIVATIONS = ("linear", "relu", "tanh")
LENGTHS = (8, 32, math.inf)
DENSE_BATCH = 128
DENSE_KINDS = (("softmax", "relu", 0.3), ("softmax", "linear", 0.3), ("exp", "relu", 0.1))
"""Attention, activation and common learning rate of the runs at different lengths."""
MU = 3 * np.sort(np.random.default_rng(0).random(10)) + 1
FIRST, RATE, TOY_TEMPERATURE, TOY_STEPS = 0.05, 0.02, 1.5, 5000
"""Values from the paper's code: v += 0.02 (mu - v) o softmax(v^2/3), starting at 0.05."""


def sweeps(steps: int, seeds: int) -> dict[str, Sweep]:
    """Return sweeps on two classes, which any sequence identifies, and sweeps of `steps` steps and
    `seeds` seeds on twenty classes, which short sequences do not identify."""
    found, common = {}, {"scale": 0.1, "temperature": 0.5}
    two = experiment("joma", eta=0.5, steps=8000, **common)
    twenty = experiment("joma", task="joma-classes", steps=steps, **common)
    axes = {"temperature": TEMPERATURES, "seed": {"range": 4}}
    for activation in ACTIVATIONS:
        run = two.at({"activation": activation})
        record = ("entropy", "logits", "conserved", "loss")
        found[f"entropy/{activation}"] = Sweep(run, axes, "simulation", record, 200)
    axes = {"seed": {"range": seeds}}
    for attention, activation, eta in DENSE_KINDS:
        kind = twenty.at({"attention": attention, "activation": activation, "eta": eta})
        for length in LENGTHS:
            batch = DENSE_BATCH if math.isfinite(length) else math.inf
            run = kind.at({"length": length, "batch": batch})
            name = f"dense/{attention}-{activation}/{length:g}"
            found[name] = Sweep(run, axes, "simulation", ("entropy", "loss"), 200)
    return found


def toy_course() -> dict[str, np.ndarray]:
    """Return times and attention entropies of the toy model, by the paper's recursion and in closed
    form, and the limit of the entropy."""
    v, course = np.full(MU.size, FIRST), []
    for _ in range(TOY_STEPS + 1):
        course.append(v)
        v = v + RATE * (MU - v) * _attention(v)
    with precision("float64"):
        s = np.r_[0, np.geomspace(1e-3, 3, 600)]
        found = toy.under_softmax(s, MU, np.full(MU.size, FIRST), TOY_TEMPERATURE)
    t, weights = map(np.asarray, found)
    known = t <= RATE * TOY_STEPS
    return {
        "time": RATE * np.arange(TOY_STEPS + 1),
        "entropy": _entropy(_attention(np.array(course))),
        "closed/time": t[known],
        "closed/entropy": _entropy(_attention(weights[known])),
        "end": _entropy(_attention(MU)),
    }


def _attention(v: np.ndarray) -> np.ndarray:
    weight = np.exp(v**2 / (2 * TOY_TEMPERATURE))
    return weight / weight.sum(-1, keepdims=True)


def _entropy(weight: np.ndarray) -> np.ndarray:
    return -np.sum(weight * np.log(weight), axis=-1)


def toy_lines(course: dict[str, np.ndarray]) -> list[str]:
    """Report the entropy at its minimum, at the last step and in the limit."""
    entropy, closed = course["entropy"], course["closed/entropy"]
    least = int(entropy.argmin())
    return [
        f"toy: entropy {entropy[0]:.3f}, least {entropy[least]:.3f} at step {least}, "
        f"{entropy[-1]:.3f} at step {TOY_STEPS}, {float(course['end']):.3f} in the end; closed "
        f"form: least {closed.min():.3f} at step "
        f"{course['closed/time'][closed.argmin()] / RATE:.0f}"
    ]


def dense_lines(found: dict[str, xr.Dataset]) -> list[str]:
    """Report the entropy at the start, minimum and end for each attention and length."""
    lines = []
    for name, dataset in found.items():
        if not name.startswith("dense/"):
            continue
        _, kind, length = name.split("/")
        course, loss = (valid(dataset)[each].mean("seed").values for each in ("entropy", "loss"))
        least = int(course.argmin())
        lines.append(
            f"{kind}, length {length}: entropy {course[0]:.3f}, least {course[least]:.3f} at step "
            f"{dataset.time.values[least]:.0f}, end {course[-1]:.3f}; loss {loss[-1]:.3f}"
        )
    return lines


def error_lines(found: dict[str, xr.Dataset]) -> list[str]:
    """Report the final error of Theorem 1, relative to the change of z, and the entropy."""
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


def plot_toy(course: dict[str, np.ndarray], ax: Axes) -> Axes:
    """Attention entropy of the toy model over time, with its closed form and its limit."""
    recursion = {"color": drawing.colour(0), "label": "recursion", **drawing.TRAINED}
    ax.plot(course["time"], course["entropy"], **recursion)
    ax.plot(course["closed/time"], course["closed/entropy"], "k--", lw=1, label="closed form")
    ax.axhline(float(course["end"]), color="0.5", ls=":", label=r"$v = \mu$")
    finished(ax, "entropy of attention (nat)")
    ax.set(xlabel="time", xlim=(0, course["time"][-1]))
    ax.set_title(r"toy, $v' = (\mu - v) \circ$ softmax$(v^2/3)$")
    return ax


def plot_dense(found: dict[str, xr.Dataset], kind: str, ax: Axes) -> Axes:
    """Draw the attention entropy of every run, for sequences of different lengths."""
    for i, length in enumerate(LENGTHS):
        course = valid(found[f"dense/{kind}/{length:g}"]).entropy.isel(time=slice(1, None))
        for seed in range(course.sizes["seed"]):
            label = f"length {length:g}".replace("inf", "∞") if seed == 0 else None
            how: dict[str, Any] = {"color": drawing.colour(i), "lw": 1.5}
            ax.plot(course.time, course.isel(seed=seed), label=label, **how)
    attention, activation = kind.split("-")
    ax.set(xscale="log", title=f"{attention}, {activation}, 20 classes, each run")
    return finished(ax, "entropy of attention (nat)")


def plot_entropy(found: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Entropy of softmax attention over training, by activation, at T = 0.5."""
    for i, activation in enumerate(ACTIVATIONS):
        course = found[f"entropy/{activation}"].entropy.sel(temperature=0.5)[:, 1:]
        style = {"color": drawing.colour(i), "lw": 2, "label": f"training, {activation}"}
        drawing.band(ax, course.time, course, style, ddof=0)
    ax.set(xscale="log", title="softmax, 2 classes, 4 seeds (band: sd)")
    return finished(ax, "entropy of attention (nat)")


def finished(ax: Axes, quantity: str) -> Axes:
    """Add a step axis, a grid and a legend."""
    return drawing.finished(ax, {}, xlabel="optimiser steps", ylabel=quantity)


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
        """All sweeps of the figure, by panel and theory."""
        record = ("weight", "loss")
        found = {
            f"growth/{theory}": Sweep(GROWTH, {"seed": {"range": 1}}, theory, record, 200)
            for theory in ("simulation", "erf")
        }
        return found | sweeps(self.dense_steps, self.dense_seeds)


def run(config: FigureJoMA) -> list[Path]:
    """Run or resume the sweeps, print the tables and write the figure."""
    found = computed(config)
    along: dict[Frequencies, tuple[np.ndarray, np.ndarray]] = {
        kind: invariance(fig2(kind), config.steps) for kind in SEQUENCES
    }
    course = toy_course()
    lines = [*invariance_lines(along), "", *toy_lines(course), ""]
    lines += [*error_lines(found), "", *dense_lines(found)]
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
    """Draw the invariant, growth and entropies from the sweeps, `invariance` and `toy_course`."""
    figure, axes = drawing.panels(2, 3)
    plot_invariance(along, ax=axes[0, 0])
    plot_growth(found, ax=axes[0, 1])
    plot_toy(course, ax=axes[0, 2])
    plot_entropy(found, ax=axes[1, 0])
    plot_dense(found, "softmax-relu", ax=axes[1, 1])
    plot_dense(found, "exp-relu", ax=axes[1, 2])
    return figure


def invariance(
    task: SequenceClasses, steps: int
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """Return times, and the correlation over tokens of z with its value by Theorem 1 from V."""
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
    """Report the correlations at a few steps."""
    lines = []
    for kind, (times, values) in along.items():
        cells = (
            f"{values[np.argmin(abs(times - t))]:.4f} at {times[np.argmin(abs(times - t))]:.0f}"
            for t in (100, 500, 1000, times[-1])
        )
        lines.append(f"{kind}: correlation {', '.join(cells)}")
    return lines


def plot_invariance(along: dict[Frequencies, tuple[np.ndarray, np.ndarray]], ax: Axes) -> Axes:
    """Correlation between the two sides of Theorem 1 over training."""
    for i, (kind, (times, values)) in enumerate(along.items()):
        ax.plot(times[1:], values[1:], color=drawing.colour(i), lw=2, label=SEQUENCES[kind])
    ax.axhline(1, color="k", ls="--", lw=1, label="Theorem 1")
    ax.set(xscale="log", title="softmax, temperature 0.5, cross-entropy", ylim=(None, 1.001))
    return finished(ax, "correlation of $z$ and Theorem 1")


def plot_growth(found: dict[str, xr.Dataset], ax: Axes) -> Axes:
    """Token weights during training with exp attention, and Theorem 2's prediction."""
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
    return finished(ax, "norm of the weights of a token")
