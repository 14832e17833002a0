"""Noise of batches: predicted over measured standard deviation across seeds, and the mean loss.

Theory is linear noise, or the second order in 1/B with the tails of the counts, whose draws come in
groups so that their differences show the error of drawing.
"""

import itertools
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pandas as pd
import xarray as xr

import dynsim
import odes
import sweeps
from sweeps import drawing

OBSERVABLES = {
    "loss": "loss",
    "entropy": "entropy",
    "z_top_distinct": "top distinct logit",
    "z_top_common": "top common logit",
}
"""Names in legends."""
GROUPS = 8


def second_order(
    rules: Mapping[float, dynsim.Rule],
    batches: Sequence[int],
    steps: int,
    length: int,
    draws: int,
) -> xr.Dataset:
    """Solve Syn-Small for each rule (by its rate eta_Z) and batch: mean, standard deviation `_std`,
    and the relative error of the latter from the draws, `_drawn`."""
    task, rows = dynsim.SynSmall().build(), []
    options = {"length": length, "record": [*OBSERVABLES], "squares": True, "tails": True}
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), GROUPS)
        for (eta_z, rule), batch in itertools.product(rules.items(), batches):

            def solve(key, rule=rule, batch=batch):
                more = {"batch": batch, "draws": -(-draws // GROUPS), "key": key}
                return odes.spread.solve(task, rule, [steps], **more, **options)

            run = jax.vmap(solve)(keys)
            values = {"status": np.asarray(run.status)[0]}
            for name in OBSERVABLES:
                variance = np.asarray(run.std[name])[:, -1] ** 2
                error = variance.std(0, ddof=1) / GROUPS**0.5 / variance.mean(0) / 2
                values[name] = np.asarray(run[name])[:, -1].mean(0)
                values |= {name + "_std": variance.mean(0) ** 0.5, name + "_drawn": error}
            variables = {name: (["class"][: each.ndim], each) for name, each in values.items()}
            rows.append(xr.Dataset(variables).expand_dims(eta_z=[eta_z], batch=[batch]))
    return xr.merge([xr.combine_by_coords(rows)])


def ratio(trained: xr.Dataset, theory: xr.Dataset) -> xr.Dataset:
    """Predicted over measured standard deviation of each observable, both root mean squares over
    classes, and its error from the number of runs and from the theory's draws."""

    def pooled(values: xr.DataArray) -> xr.DataArray:
        return values.mean("class") if "class" in values.dims else values

    runs, theory, ratios = sweeps.valid(trained), sweeps.valid(theory), {}
    for name in OBSERVABLES:
        expected = pooled(theory[name + "_std"] ** 2)  # variances add, not deviations
        ratios[name] = (expected / pooled(runs[name].var("seed", ddof=1))) ** 0.5
        number = pooled(runs[name].notnull()).sum("seed")  # of valid runs
        drawn = pooled(theory.get(name + "_drawn", xr.zeros_like(expected)))
        ratios[name + "_error"] = ratios[name] * (1 / (2 * (number - 1)) + drawn**2) ** 0.5
    return xr.Dataset(ratios)


def distance(trained: xr.Dataset, theories: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Relative distance of each predicted mean loss from the runs' mean, and its standard error."""
    losses = sweeps.valid(trained)["loss"]
    mean = losses.mean("seed")
    distances = {name: sweeps.valid(theory)["loss"] / mean - 1 for name, theory in theories.items()}
    error = losses.std("seed", ddof=1) / losses.notnull().sum("seed") ** 0.5
    return xr.Dataset({**distances, "error": error / mean})


def plot_ratios(results, rules, ax):
    """Predicted over measured standard deviations, with a mark for each rate and batch."""
    ax.axhline(1, color="k", lw=1)
    for end, style in (("", {"ms": 3}), ("/second", {"ms": 4, "mfc": "w"})):
        for column, rule in enumerate(rules):
            for row, name in enumerate(OBSERVABLES):
                each = results[rule + end]
                values, errors = each[name].values.ravel(), each[f"{name}_error"].values.ravel()
                at = column + 0.2 * (row - 1.5) + np.linspace(-0.07, 0.07, values.size)
                color = drawing.colour(row)
                ax.errorbar(at, values, errors, fmt="os^D"[row], color=color, **style)
    for row, name in enumerate(OBSERVABLES.values()):
        ax.plot([], [], "os^D"[row], color=drawing.colour(row), label=name)
    ax.set_xticks(range(len(rules)), rules)
    title = "standard deviation across seeds\nfilled: linear noise, open: second order"
    ax.set(yscale="log", ylabel="predicted / measured", title=title)
    drawing.ticks(ax.yaxis, (0.1, 0.2, 0.5, 1, 2, 5))
    ax.grid(alpha=0.25, axis="y")


def tables(results, rules):
    """Ratios of standard deviations, and distances of mean losses, by rule, rate and batch."""
    for title, end, scale in (
        ("Predicted over measured standard deviation across seeds, first order in 1/B:", "", 1),
        ("The same to second order:", "/second", 1),
        ("Predicted from measured mean loss, and the error of the latter, in %:", "/mean", 100),
    ):
        frames = {
            name: scale * results[name + end].drop_vars("time", errors="ignore").to_dataframe()
            for name in rules
        }
        table = pd.concat(frames, names=["rule"]).to_string(float_format="{:.3f}".format)
        yield f"{title}\n{table}"
