"""How far Theorem 1 is from training [ours].

For softmax attention the theorem assumes attention that hardly changes. We measure its error when
the loss has fallen to half, over temperature, number of classes, overlap and activation; and for
several queries, where only the sum over queries obeys the theorem.
"""

from typing import Annotated

import annotated_types as at
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import PercentFormatter

import dynsim
import sweeps
from papers import joma
from sweeps import drawing

ACTIVATIONS = ("linear", "relu", "tanh", "quadratic")
DISTINCT = 10
"""Distinct tokens per class; with c common tokens, the overlap of classes is c / (c + 10)."""
AXES = {
    "temperature": (0.25, 0.5, 1.0, 2.0),
    "num_common": (1, 10, 40),
    "classes_per_query": (2, 4, 8),
}


class JoMAInvariant(sweeps.Figure):
    """Error of JoMA's Theorem 1 at half the loss, and for several queries at the end.

    Attributes:
        seeds: number of runs at each point.
        steps: optimiser steps per run, on the population loss.
    """

    NAME = "joma_invariant"

    seeds: Annotated[int, at.Ge(1)] = 4
    steps: Annotated[int, at.Ge(1)] = 6000

    def sweeps(self):
        common, seeds = {"eta": 0.2, "scale": 0.03, "steps": self.steps}, {"range": self.seeds}
        names, plan = ("loss", "logits", "conserved"), {}
        for activation in ACTIVATIONS:
            task = dynsim.Syn(1, num_distinct=DISTINCT)
            run = sweeps.experiment("joma", task=task, activation=activation, **common)
            axes = {**AXES, "seed": seeds}
            plan[f"map/{activation}"] = sweeps.Sweep(run, axes, record=names, times=200)
        common |= {"task": "syn-medium", "activation": "tanh"}
        for attention in ("exp", "softmax"):
            run = sweeps.experiment("joma", attention=attention, **common)
            axes, record = {"num_queries": (1, 2, 3, 5), "seed": seeds}, (*names, "weight")
            plan[f"queries/{attention}"] = sweeps.Sweep(run, axes, record=record, times=200)
        return plan

    def draw(self, data):
        data = {tuple(name.split("/")): sweeps.valid(each) for name, each in data.items()}
        errors = {"map": {}, "queries": {}}
        for (kind, name), runs in data.items():
            errors[kind][name] = (halved if kind == "map" else of_queries)(runs)
        maps = errors["map"]
        figure, axes = drawing.panels(4, 3, height=2.2, sharex=True, sharey=True)
        for row, (activation, values) in zip(axes, maps.items(), strict=True):
            for ax, (K, each) in zip(row, values.groupby("classes_per_query"), strict=True):
                each = each.squeeze("classes_per_query").transpose("num_common", "temperature")
                # As in all figures, light colours show where a theory is accurate.
                colours = {"norm": LogNorm(0.01, 10.0), "cmap": "cividis_r"}
                across = [f"{T:g}" for T in each.temperature.values]
                up = [f"{c / (c + DISTINCT):.2f}" for c in each.num_common.values]
                mesh = drawing.table(ax, each.values, percent, across, up, **colours)
                ax.set_title(f"{activation}, K = {K}")
        drawing.outer(axes, "temperature", "overlap of classes")
        label = "error of Theorem 1 / displacement of $z$"
        options = {"label": label, "format": PercentFormatter(1.0, symbol=" %"), "shrink": 0.6}
        figure.colorbar(mesh, ax=axes, extend="both", **options)
        return sweeps.Picture(figure, errors, "\n".join(report(errors)))


def halved(runs):
    """Error when the loss of a run first halves; NaN where no run does this."""
    below = runs.loss <= runs.loss.isel(time=0) / 2
    then = runs.isel(time=below.argmax("time")).where(below.any("time"))
    return joma.theorem1_error(runs.isel(time=0), then, runs.temperature)


def of_queries(runs):
    """Error at the end for the sum over queries, and of a single query by the law of exp."""
    first, last = runs.isel(time=0), runs.isel(time=-1)
    moved, over = last.logits - first.logits, ("token", "seed", "query")
    own = moved - (last.weight**2 - first.weight**2) / 2  # z - v^2 / 2 is conserved
    own = np.sqrt((own**2).mean(over) / (moved**2).mean(over))
    return {"sum": joma.theorem1_error(first, last), "own": own}


def percent(error):
    """An error in %, with a digit more below 10 %; or that no run came so far."""
    return f"{100 * error:.{0 if error >= 0.1 else 1}f} %" if np.isfinite(error) else "never"


def report(errors):
    """The errors in % of how far z has moved."""
    tables = {f"{name}, at half the loss": each for name, each in errors["map"].items()}
    for kind, values in errors["queries"].items():
        tables[f"{kind}, sum over queries, at the end"] = values["sum"]
    tables["exp, each query by itself, at the end"] = errors["queries"]["exp"]["own"]
    for name, each in tables.items():
        table = (100 * each).to_series()
        table = table.unstack("temperature") if "temperature" in each.dims else table
        text = table.to_string(float_format="{:.3g}".format, na_rep="never")
        yield f"{name}, in %\n{text}"
