"""The engine of the spread over seeds: what training scatters around, and how far."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

import dynsim
from dynsim import Trajectory, checks
from dynsim.problem.train import started
from dynsim.training import loop
from dynsim.training.recording import Table
from dynsim.yz.observables import DEFAULT_RECORD, OBSERVABLES
from odes.batch_noise import STD
from odes.yz import spread
from sweeps.systems.base import Engine, Settings, known, names_of
from sweeps.systems.engines import COPIES
from sweeps.systems.yz import reduced

DRIFT = "_drift"
"""How the names of what noise adds to a mean end."""
DRAWS = 1
"""Draws of the noise for each start over which a drift is averaged: a sweep has several starts, or
seeds, over which it is averaged once more."""
_FUNCTIONS = {name: OBSERVABLES[name] for name in DEFAULT_RECORD}


def _solve(
    settings: Settings,
    task: dynsim.Layer,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    squares: bool = False,
) -> Trajectory:
    fixed = settings.fixed
    asked = names_of(settings.record)
    bases = (_base(each) if isinstance(each, str) else each for each in settings.record)
    common: dict[str, Any] = {
        "batch": fixed.batch,
        "length": task.length,
        "init": started(task, key, None, settings.dtype).params,
        "record": tuple(dict.fromkeys(bases)),
        "dtype": settings.dtype,
        "squares": squares,
    }
    times = np.asarray(known(settings.times))
    found = spread.solve(task, optimizer, times, **common)
    values = {**found.observables, **{name + STD: value for name, value in found.std.items()}}
    if any(name.endswith(DRIFT) for name in asked):
        # Of the key that draws the batches in training.
        draw = loop.split_key(key)[1]
        moved = spread.drift(task, optimizer, times, draw, draws=DRAWS, **common)
        values |= {name + DRIFT: value for name, value in moved.observables.items()}
    recorded = {name: values[name] for name in asked}
    return dataclasses.replace(found, observables=recorded, covariance=None)


def _base(name: str) -> str:
    return name.removesuffix(STD).removesuffix(DRIFT)


def _check(fixed: Any, task: dynsim.Layer, optimizer: dynsim.Rule) -> None:
    del optimizer
    checks.integer("batch", fixed.batch, 1)
    task.check_population()


def _bytes(task: dynsim.Layer, settings: Settings) -> int:
    # Of each number recorded a derivative by all weights, and states from one kept to the next.
    shapes = len(settings.record) * task.K + 2 * math.isqrt(settings.fixed.steps)
    return COPIES * settings.width * shapes * reduced.weights(task)


def engine(simulation: Engine, squares: bool = False) -> Engine:
    """From the engine of training. Records means without noise, and under their names with `STD`
    and `DRIFT` what noise does; with `squares` what Adam divides by has noise in it."""
    names = {n + end: f for end in ("", STD, DRIFT) for n, f in _FUNCTIONS.items()}
    return simulation._replace(
        run=functools.partial(_solve, squares=squares),
        observables=Table(names),
        bytes_per_run=_bytes,
        check=_check,
        trains=False,
        goes_on=False,
        draw=None,
        variant=True,
        title="descent, T finite, batch infinite, and spread over seeds"
        + ", noise in Adam's denominator" * squares,
        assumes="1/T^2 -> 0, noise of batches to first order",
    )
