"""Pictures of JoMA, in-context regression and sparse attention, from made-up data."""

import math
from collections.abc import Callable

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from dynsim import Status
from sweeps.runner.spec import Sweep
from sweeps.studies import sparse_attention
from sweeps.studies.joma import figure as joma
from sweeps.studies.joma import invariant
from sweeps.studies.linear_icl import figure as linear_icl
from sweeps.studies.linear_icl import plateaus


def fallen(sweep: Sweep, tokens: int = 10) -> xr.Dataset:
    """Observables of a sweep's shape, each run falling, or its tokens rising, at another time."""
    axes = {dim.name: np.asarray(dim.axes[dim.name]) for dim in sweep.dims}
    sizes = tuple(len(values) for values in axes.values())
    steps = sweep.first.steps
    time = np.r_[0, np.geomspace(1, steps, 99)]
    switch = steps * np.linspace(0.1, 0.4, math.prod(sizes)).reshape(sizes)[..., None]
    loss = 1 / (1 + (time / switch) ** 4)
    rising = np.linspace(0.2, 1, tokens) * (1 - loss[..., None])
    values = {
        "loss": ((*axes, "time"), loss),
        "entropy": ((*axes, "time"), 2 + loss),
        "weight": ((*axes, "time", "token"), rising),
        "learned": ((*axes, "time", "component"), rising[..., -4:]),
        "status": ((*axes,), np.full(sizes, Status.OK)),
    }
    return xr.Dataset(values, {**axes, "time": time})


def of_joma() -> Figure:
    found = {name: fallen(sweep) for name, sweep in joma.FigureJoMA().sweeps().items()}
    time = np.geomspace(1, 2000, 100)
    along = dict.fromkeys(joma.SEQUENCES, (time, 1 - 0.02 * time / (500 + time)))
    fall, names = 3 - time / (500 + time), ("time", "entropy", "closed/time", "closed/entropy")
    course = dict(zip(names, (time, fall, time[::9], fall[::9] + 0.1), strict=True))
    return joma.draw(found, along, course | {"end": np.array(2.2)})


def of_invariant() -> Figure:
    config = invariant.JoMAInvariant()
    axes = {
        "temperature": list(config.temperatures),
        "num_common": list(config.common),
        "classes_per_query": list(config.classes),
    }
    errors = np.geomspace(1e-3, 3, 36).reshape(4, 3, 3)
    errors[0, 0, 0] = np.nan
    return invariant.draw({a: xr.DataArray(errors, axes) for a in invariant.ACTIVATIONS})


def of_regression() -> Figure:
    found = {name: fallen(sweep) for name, sweep in linear_icl.FigureLinearICL().sweeps().items()}
    kinds = {"merged": 1, "separate": 4, "ranks": 8}
    level = {name: np.linspace(1, 0.1, count + 1) for name, count in kinds.items()}
    return linear_icl.draw(found, dict.fromkeys(kinds, 0.5), level)


def of_plateaus() -> Figure:
    config = plateaus.LinearICLPlateaus()

    def read(name: str) -> xr.Dataset:
        axes = {dim.name: np.asarray(dim.axes[dim.name]) for dim in config.sweeps()[name].dims}
        sizes = tuple(len(values) for values in axes.values())
        place = np.indices(sizes).sum(0) / sum(sizes)
        values = {
            "plateaus": ((*axes,), np.round(4 * place)),
            "escape": ((*axes,), 10 ** (1 + 2 * place)),
            "end": ((*axes,), 1 - place),
            "level": (("ratio", "plateau"), np.tile([1, 0.6, 0.3, 0.1], (len(axes["ratio"]), 1))),
        }
        return xr.Dataset(values, axes)

    return plateaus.draw(config, {name: read(name) for name in config.sweeps()})


def of_retrieval() -> Figure:
    figure = sparse_attention.FigureSparseAttention()
    return sparse_attention.draw({name: fallen(s) for name, s in figure.sweeps().items()})


EXAMPLES: dict[str, Callable[[], Figure]] = {
    "joma": of_joma,
    "joma_invariant": of_invariant,
    "linear_icl": of_regression,
    "linear_icl_plateaus": of_plateaus,
    "sparse_attention": of_retrieval,
}
