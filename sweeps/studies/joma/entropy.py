"""Entropy of attention: in JoMA's toy, where it falls and rises (arXiv:2310.00535, Fig. 4), and in
training [ours]."""

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from dynsim.precision import precision
from odes.joma import toy
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import experiment

TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
ACTIVATIONS = ("linear", "relu", "tanh")
LENGTHS = (8, 32, math.inf)
DENSE_BATCH = 128
DENSE_KINDS = (("softmax", "relu", 0.3), ("softmax", "linear", 0.3), ("exp", "relu", 0.1))
"""Attention, activation and both rates of training at different lengths."""
MU = 3 * np.sort(np.random.default_rng(0).random(10)) + 1
FIRST, RATE, TOY_TEMPERATURE, TOY_STEPS = 0.05, 0.02, 1.5, 5000
"""Of the paper's code: v += 0.02 (mu - v) o softmax(v^2/3) from 0.05."""


def sweeps(steps: int, seeds: int) -> dict[str, Sweep]:
    """Training on two classes, which every sequence tells apart, and over `steps` steps from
    `seeds` seeds on twenty, which short sequences do not tell apart."""
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
    """Times and entropy of attention in the toy, by the paper's recursion and in closed form, and
    the entropy in the end."""
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
    """Where the entropy is least, at the last step and in the end."""
    entropy, closed = course["entropy"], course["closed/entropy"]
    least = int(entropy.argmin())
    return [
        f"toy: entropy {entropy[0]:.3f}, least {entropy[least]:.3f} at step {least}, "
        f"{entropy[-1]:.3f} at step {TOY_STEPS}, {float(course['end']):.3f} in the end; closed "
        f"form: least {closed.min():.3f} at step "
        f"{course['closed/time'][closed.argmin()] / RATE:.0f}"
    ]


def dense_lines(found: dict[str, xr.Dataset]) -> list[str]:
    """Entropy at the start, where it is least, and at the end, by attention and length."""
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


def plot_toy(course: dict[str, np.ndarray], ax: Axes) -> Axes:
    """Entropy of attention in the toy over time, with its closed form and its limit."""
    recursion = {"color": drawing.colour(0), "label": "recursion", **drawing.TRAINED}
    ax.plot(course["time"], course["entropy"], **recursion)
    ax.plot(course["closed/time"], course["closed/entropy"], "k--", lw=1, label="closed form")
    ax.axhline(float(course["end"]), color="0.5", ls=":", label=r"$v = \mu$")
    finished(ax, "entropy of attention (nat)")
    ax.set(xlabel="time", xlim=(0, course["time"][-1]))
    ax.set_title(r"toy, $v' = (\mu - v) \circ$ softmax$(v^2/3)$")
    return ax


def plot_dense(found: dict[str, xr.Dataset], kind: str, ax: Axes) -> Axes:
    """Entropy of attention over training on sequences of different lengths, run by run."""
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
    """An axis of steps, a grid and a legend."""
    return drawing.finished(ax, {}, xlabel="optimiser steps", ylabel=quantity)
