"""When attention moves fastest: the peak of f_n . g_n, measured, and that of gamma (Lemma 9)."""

import functools
from typing import Any

import jax
import numpy as np
import xarray as xr

import dynsim
import odes
import sweeps

STAGES = ("rise_end", "peak", "snap")
LATE = 10
"""Predicted peak, in steps, above which neighbouring steps are close in log t."""
COLUMNS = ["family", "theory", "points", "measured", "median_%", "worst_%"]
COLUMNS += [f"{name} (peak >= {LATE} steps)" for name in COLUMNS[-2:]]


def exact(run: sweeps.Experiment) -> dict[str, str]:
    """The exact flow and descent: of symmetric classes, or else of arbitrary ones."""
    layer, rule = run.built
    symmetric = odes.theories(layer)["symmetric"].why_not(layer, rule) is None
    names = ("symmetric", "symmetric-descent")
    return dict(zip(names, names if symmetric else ("plain", "descent"), strict=True))


def stages(eta_y: Any, task: dynsim.SequenceClasses) -> dict[str, np.ndarray]:
    """Class means of the stages in closed form (optimiser steps) at effective rates of Y."""
    rates = np.asarray(eta_y, np.float64)[..., None]
    rates, inverse = np.broadcast_arrays(rates, 1 / np.asarray(task.prior, np.float64))
    with jax.enable_x64(True):
        closed = odes.decoder.stages(rates, inverse, task.M)
        return {name: np.asarray(getattr(closed, name)).mean(-1) for name in STAGES}


def predicted(run: sweeps.Experiment) -> float:
    """Peak of gamma in closed form (optimiser steps), a mean over classes."""
    with jax.enable_x64(True):
        layer, rule = run.built
        return float(stages(odes.effective_rates(rule)[0], layer.classes)["peak"])


def measured(data: xr.Dataset) -> xr.DataArray:
    """Peak of the recorded speed (optimiser steps), a mean over classes, of every run."""
    dims = [["record" if "record" in data.dims else "time"]] * 2
    curves = data.time, data.speed.mean("class")
    return xr.apply_ufunc(odes.predictions.peak_time, *curves, input_core_dims=dims, vectorize=True)


def predicted_as_measured(run: sweeps.Experiment, times: int) -> float:
    """Peak of gamma (Eq. 85) measured as in `measured`, at as many recorded times: it differs from
    `predicted` by the error of measuring."""
    steps = np.asarray(run.steps_recorded(times), np.float64)
    with jax.enable_x64(True):
        layer, rule = run.built
        visits = steps[:, None] * np.asarray(layer.classes.prior, np.float64)  # s = P(n) t
        gamma = odes.decoder.gamma(visits, odes.effective_rates(rule)[0], layer.classes.M)
    return odes.predictions.peak_time(steps, np.asarray(gamma).mean(1))


def times_of(name, plan, data):
    """Peak times (optimiser steps) of a family: in closed form, that measured as in runs, and
    measured by theory."""
    training = plan[f"{name}-simulation"]
    gamma = functools.partial(predicted_as_measured, times=training.times)
    closed = {"predicted": sweeps.evaluate(training, predicted)}
    closed["gamma"] = sweeps.evaluate(training, gamma)
    theories = ("simulation", "symmetric", "symmetric-descent")
    runs = {theory: measured(sweeps.valid(data[f"{name}-{theory}"])) for theory in theories}
    return xr.Dataset(closed | runs)


def deviation(times, theory):
    """Relative deviation of measured peak times from the closed form, in %."""
    return 100 * (times[theory] / times.predicted - 1)


def lines(name, times):
    """Lines of the table: median and largest deviation of the mean over seeds, of all peaks and of
    late ones."""
    for theory in ("simulation", "symmetric", "symmetric-descent", "gamma"):
        error = deviation(times, theory)
        error = error.mean("seed") if "seed" in error.dims else error
        error, predicted = (each.values for each in xr.broadcast(error, times.predicted))
        known = np.isfinite(error)
        numbers = []
        for part in (error[known], error[known & (predicted >= LATE)]):
            largest = part[np.argmax(abs(part))] if part.size else np.nan
            numbers += [f"{value:+.2f}" for value in (np.median(part), largest)]
        yield [name, theory, error.size, known.sum(), *numbers]
