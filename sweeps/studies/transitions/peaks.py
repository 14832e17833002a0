"""Measured and predicted times at which the speed coefficient peaks."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

import dynsim
from dynsim import Layer
from dynsim.precision import precision
from odes import decoder
from odes.solver.posed import Rescaled, why_not_described
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import Experiment


def peak_time(times: np.ndarray, values: np.ndarray) -> float:
    """Time of the maximum of a positive curve, between the times at which it was recorded.

    Fits a parabola in (ln t, ln value) through the largest value and its two neighbours. The speed
    coefficient rises like t and decays nearly like 1/t, so its maximum is nearly symmetric in these
    logarithms.

    Args:
        times: (S,) increasing, in optimiser steps; t <= 0 and NaN padding are left out.
        values: (S,).

    Returns:
        The time in optimiser steps; NaN where the largest value is the first or the last one, so
        that the maximum may lie outside, or where a required value is not positive.

    Raises:
        ValueError: for other shapes or times that do not increase.
    """
    times, values = np.asarray(times, np.float64), np.asarray(values, np.float64)
    if times.ndim != 1 or values.shape != times.shape:
        raise ValueError(f"values: shape {values.shape}: must be that of times, {times.shape} (S,)")
    inside = times > 0
    times, values = times[inside], values[inside]
    if (np.diff(times) <= 0).any():
        raise ValueError("times: must increase")
    if not (times.size and np.isfinite(values).all()):
        return np.nan
    top = int(np.argmax(values))
    around = slice(top - 1, top + 2)
    if top in (0, times.size - 1) or (values[around] <= 0).any():
        return np.nan
    x, y = np.log(times[around] / times[top]), np.log(values[around] / values[top])
    # y = a x + b x^2 through the neighbours, with the largest value at the origin.
    # The one before is smaller, as the first of equal values counts as the largest: b is not 0.
    a, b = np.linalg.solve(np.stack([x, x**2], 1)[::2], y[::2])
    return float(times[top] * np.exp(-a / (2 * b)))


def measured_peak(dataset: xr.Dataset, name: str = "speed") -> xr.DataArray:
    """`peak_time` of an observable, averaged over classes, for every run of a sweep."""
    recorded = "record" if "record" in dataset.dims else "time"
    if recorded not in dataset.dims:
        raise ValueError("times = 'end': a peak needs several recorded times")
    curve = dataset[name].mean("class")
    return xr.apply_ufunc(
        peak_time,
        dataset["time"].astype(np.float64),
        curve.astype(np.float64),
        input_core_dims=[[recorded], [recorded]],
        vectorize=True,
    )


def over_points(sweep: Sweep, function: Callable[[Experiment], float]) -> xr.DataArray:
    """Evaluate `function` on the run at every point of a sweep, over its axes except the seed."""
    dims = [dim for dim in sweep.dims if dim.name != "seed"]
    values = np.empty([dim.size for dim in dims])
    for index in np.ndindex(*values.shape):
        chosen = {
            name: axis[i]
            for dim, i in zip(dims, index, strict=True)
            for name, axis in dim.axes.items()
        }
        run = sweep.point(chosen)
        if not isinstance(run.problem, Layer):
            raise ValueError(
                f"problem = {run.problem!r}: closed forms are those of the layer in Y and Z"
            )
        values[index] = function(run)
    coordinates = {name: (dim.name, list(axis)) for dim in dims for name, axis in dim.axes.items()}
    return xr.DataArray(values, coordinates, [dim.name for dim in dims])


def predicted_stage(run: Experiment, stage: str) -> float:
    r"""Class mean of a field of `odes.decoder.Stages` (rise_end, peak or snap), in optimiser steps.
    The rate under momentum is :math:`\eta_Y / (1 - \mu)`; `ValueError` for Adam."""
    with precision("float64"):
        rate, prior, M = _decoder(run)
        return float(jnp.mean(getattr(decoder.stages(rate, 1 / prior, M), stage)))


def predicted_peak(run: Experiment) -> float:
    r"""Class mean of the exact peak of :math:`\gamma`, in optimiser steps."""
    return predicted_stage(run, "peak")


def gamma_peak(run: Experiment, times: Sequence[float]) -> float:
    r"""`peak_time` of :math:`\gamma` (Eq. 85), averaged over classes and recorded at `times` (S,).
    It differs from `predicted_peak` by the error of measuring at these times."""
    with precision("float64"):
        rate, prior, M = _decoder(run)
        t = jnp.asarray(times, jnp.float64)
        gamma = decoder.gamma(prior[:, None] * t[None], rate, M)
        return peak_time(np.asarray(times), np.asarray(gamma.mean(0)))


def effective_rates(
    optimizer: dynsim.Rule,
) -> tuple[Float[Array, "*P"], Float[Array, "*P"]]:
    r"""Return :math:`\eta_Y` and :math:`\eta_Z` over :math:`1 - \mu`, the rates in closed forms
    without inertia. Each has the shape of its rate, broadcast with that of :math:`\mu`.
    `ValueError` for Adam."""
    problem = why_not_described(optimizer, "the closed form")
    if problem:
        raise ValueError(problem)
    rescaled = Rescaled.of(optimizer)
    rate = jnp.asarray(rescaled.rate)
    return rate * jnp.asarray(rescaled.eta_y), rate * jnp.asarray(rescaled.eta_z)


def _decoder(run: Experiment) -> tuple[jax.Array, jax.Array, int]:
    """Return effective eta_Y, prior (K,) and M."""
    layer, rule = run.built
    task = layer.classes
    eta_y, _ = effective_rates(rule)
    return eta_y, jnp.asarray(task.prior, jnp.float64), task.M
