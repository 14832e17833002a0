"""Theorem 1 along training, growth up to the blow-up, and the entropy of attention.

Attention stays a function of the MLP (Theorem 1, Fig. 2), weights grow as erf^-1 of time until one
token has all attention (Theorem 2, Fig. 3), and in a toy attention first becomes sparse and then
denser (Fig. 4). Next to the toy we draw the entropy of trained attention, on two classes, which any
sequence identifies, and on twenty, which short sequences do not [ours].
"""

import math
from typing import Annotated

import annotated_types as at

import dynsim
import sweeps
from papers import joma
from papers.joma import panels

ACTIVATIONS = ("linear", "relu", "tanh")
KINDS = {("softmax", "relu"): 0.3, ("softmax", "linear"): 0.3, ("exp", "relu"): 0.1}
"""Attention, activation and learning rate of the runs on twenty classes."""
LENGTHS = {"8": 128, "32": 128, "inf": math.inf}
"""Length and batch of these runs."""
GROWTH = sweeps.Experiment(
    dynsim.JoMA(attention="exp", head="signal", scale=0.0),
    dynsim.sgd({"Y": 0.05, "Z": 0.05}),
    steps=940,
    batch=math.inf,
    dtype="float64",
)


class FigureJoMA(sweeps.Figure):
    """Theorem 1 along training, growth up to the blow-up, and the entropy of attention.

    Attributes:
        dense_steps: optimiser steps of the runs on twenty classes.
        dense_seeds: number of these runs at each length.
    """

    NAME = "joma"
    STEPS = 1999

    dense_steps: Annotated[int, at.Ge(1)] = 20_000
    dense_seeds: Annotated[int, at.Ge(1)] = 2

    def sweeps(self):
        plan, one = {}, {"seed": [0]}
        for theory in ("simulation", "erf"):
            growth = sweeps.Sweep(GROWTH, one, theory, ("weight", "loss"), 200)
            plan[f"growth/{theory}"] = growth
        names, common = ("entropy", "logits", "conserved", "loss"), {"scale": 0.1}
        axes = {"temperature": (0.25, 0.5, 1.0, 2.0), "seed": {"range": 4}}
        for activation in ACTIVATIONS:
            run = sweeps.experiment("joma", eta=0.5, steps=8000, activation=activation, **common)
            plan[f"entropy/{activation}"] = sweeps.Sweep(run, axes, record=names, times=200)
        common |= {"task": "joma-classes", "temperature": 0.5, "steps": self.dense_steps}
        axes = {"seed": {"range": self.dense_seeds}}
        for (attention, activation), eta in KINDS.items():
            kind = {"attention": attention, "activation": activation, "eta": eta, **common}
            for length, batch in LENGTHS.items():
                run = sweeps.experiment("joma", length=float(length), batch=batch, **kind)
                sweep = sweeps.Sweep(run, axes, record=("entropy", "loss"), times=200)
                plan[f"dense/{attention}-{activation}/{length}"] = sweep
        return plan

    def draw(self, data):
        runs = {name: sweeps.valid(each) for name, each in data.items()}
        along = {kind: joma.invariance(kind, self.STEPS) for kind in panels.SEQUENCES}
        toy = joma.toy()
        arrays = {f"{kind}/correlation": values for kind, values in along.items()}
        arrays |= {"toy": toy, **data}
        figure = panels.draw(along, toy, runs, GROWTH)
        return sweeps.Picture(figure, arrays, "\n".join(report(along, toy, runs)))


def report(along, toy, runs):
    """Correlations at a few steps, and entropies at the start, at their minimum and at the end."""
    for kind, values in along.items():
        some = values.sel(time=[100, 500, 1000, values.time[-1]], method="nearest")
        cells = (f"{float(v):.4f} at {float(v.time):.0f}" for v in some)
        yield f"{kind}: correlation {', '.join(cells)}"
    entropy, closed = toy["entropy"], toy["closed/entropy"]
    least = toy["closed/time"][closed.argmin()] / joma.RATE
    yield (
        f"toy: entropy {course(entropy)}, {toy['end']:.3f} in the limit; least at step "
        f"{entropy.argmin()}; closed form: least {closed.min():.3f} at step {least:.0f}"
    )
    for name, each in runs.items():
        kind, *words = name.split("/")
        if kind == "entropy":
            error = joma.theorem1_error(each.isel(time=0), each.isel(time=-1), each.temperature)
            for T, means in zip(error.temperature, each.entropy.mean("seed"), strict=True):
                off = 100 * float(error.sel(temperature=T))
                yield f"{words[0]}, T = {T:g}: off by {off:.1f} %; entropy {course(means.values)}"
        if kind == "dense":
            entropy, loss = (each[name].mean("seed").values for name in ("entropy", "loss"))
            yield f"{', length '.join(words)}: entropy {course(entropy)}; loss {loss[-1]:.3f}"


def course(entropy):
    """The first, the least and the last value."""
    return f"{entropy[0]:.3f}, least {entropy.min():.3f}, end {entropy[-1]:.3f}"
