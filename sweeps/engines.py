"""What computes the runs of a sweep: simulation, descent or any theory, behind one signature."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

import dynsim
from dynsim import Trajectory, checks
from dynsim.observables import OBSERVABLES
from dynsim.optim import Kind
from odes import ladder, symmetric
from odes.solve import DEFAULT_TOLERANCES, Tolerances
from odes.symmetric_state import SymmetricTask
from sweeps.config import Training

ATOL_SHARE = 0.01
"""Absolute tolerance of an adaptive solver over its relative one, as in its defaults."""

Applicable = Callable[[dynsim.SequenceClasses, dynsim.Optimizer, bool], None]


class Settings(NamedTuple):
    """What all runs of one compiled program share, in hashable form. `start_dtype` is the
    precision in which random starting weights are drawn: that of the simulation; `rtol` the
    relative tolerance of an adaptive solver, None for its default."""

    engine: str
    kind: Kind
    steps: int
    length: int | float
    batch: int | float
    init: str
    times: tuple[int, ...]
    record: tuple[str, ...]
    dtype: str
    start_dtype: str
    rtol: float | None


class Engine(NamedTuple):
    """How runs are computed.

    Attributes:
        run: one run, from (settings, prepared task, optimizer, key); vmappable. If `batched`,
            all runs of one seed, from an optimiser with numbers (P,).
        prepare: what `run` takes instead of the task: a pytree of arrays.
        check: raises `ValueError` where it does not describe (task, optimizer, zero start).
        observables: names that it can record.
        adaptive: whether the runs of a batch wait for the stiffest of them.
        tile: number of runs in a batch on a CPU, where small ones stay in the cache.
        trains: whether it is descent in the precision of the training, not theory in float64.
        batched: see `run`.
        parameters: how many numbers the weights of a run are.
    """

    run: Callable[[Settings, Any, dynsim.Optimizer, PRNGKeyArray], Trajectory]
    check: Applicable
    observables: tuple[str, ...]
    adaptive: bool
    tile: int
    prepare: Callable[[dynsim.SequenceClasses], Any] = lambda task: task
    trains: bool = False
    batched: bool = False
    parameters: Callable[[dynsim.SequenceClasses], int] = lambda task: (
        (task.M + task.num_queries) * task.M
    )


def settings(
    engine: str,
    training: Training,
    *,
    times: tuple[int, ...],
    record: tuple[str, ...],
    dtype: str,
    rtol: float | None,
) -> Settings:
    """The `Settings` of runs like `training`."""
    return Settings(
        engine,
        training.make_optimizer().kind,
        training.steps,
        training.length,
        training.batch,
        training.init,
        times,
        record,
        dtype,
        training.dtype,
        rtol,
    )


def _start(settings: Settings, task: dynsim.SequenceClasses, key: PRNGKeyArray) -> Any:
    """Starting weights of a run: None for zero, so that theories that hold from zero alone work."""
    if settings.init == "zero":
        return None
    return dynsim.initial_weights(task, settings.init, key, settings.start_dtype)


def _simulate(
    settings: Settings,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
    init: dynsim.YZ | None = None,
) -> Trajectory:
    return dynsim.simulate(
        task,
        optimizer,
        key,
        steps=settings.steps,
        length=settings.length,
        batch=settings.batch,
        init=init or settings.init,
        times=settings.times,
        record=tuple(name for name in settings.record if name != "batch_loss"),
        dtype=settings.dtype,
    )


def _descend(
    settings: Settings,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
) -> Trajectory:
    infinite = settings._replace(length=math.inf, batch=math.inf)
    return _simulate(infinite, task, optimizer, key, _start(settings, task, key))


def _solve(
    settings: Settings,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
) -> Trajectory:
    start = _start(settings, task, key)
    options = {} if start is None else {"init": start}
    if settings.rtol is not None:
        options["tolerances"] = _tolerances(settings)
    return ladder.THEORIES[settings.engine].solve(
        task,
        optimizer,
        np.asarray(settings.times, settings.dtype),
        record=settings.record,
        dtype=settings.dtype,
        **options,
    )


def _solve_symmetric(
    settings: Settings, task: SymmetricTask, optimizer: dynsim.Optimizer, key: PRNGKeyArray
) -> Trajectory:
    del key
    return symmetric.solve(
        task,
        optimizer,
        np.asarray(settings.times, settings.dtype),
        record=settings.record,
        dtype=settings.dtype,
        tolerances=None if settings.rtol is None else _tolerances(settings),
    )


def _descend_symmetric(
    settings: Settings, task: SymmetricTask, optimizer: dynsim.Optimizer, key: PRNGKeyArray
) -> Trajectory:
    del key
    return symmetric.descend(
        task,
        optimizer,
        steps=settings.steps,
        times=settings.times,
        record=settings.record,
        dtype=settings.dtype,
    )


def _tolerances(settings: Settings) -> Tolerances:
    return DEFAULT_TOLERANCES[settings.dtype]._replace(
        rtol=settings.rtol, atol=settings.rtol * ATOL_SHARE
    )


def _merged(task: dynsim.SequenceClasses) -> SymmetricTask:
    return symmetric.merged(symmetric.symmetric_task(task))


def _reduced_parameters(task: dynsim.SequenceClasses) -> int:
    # Four numbers for a kind of distinct token, three for a kind of common token.
    return 4 * task.support.shape[1]


def _check_symmetric(
    task: dynsim.SequenceClasses, optimizer: dynsim.Optimizer, zero_start: bool
) -> None:
    ladder.theory("symmetric", task, optimizer, zero_start)


def _theory(name: str) -> Engine:
    def check(task: dynsim.SequenceClasses, optimizer: dynsim.Optimizer, zero_start: bool) -> None:
        ladder.theory(name, task, optimizer, zero_start)

    return Engine(_solve, check, tuple(OBSERVABLES), adaptive=True, tile=32)


_MEASURED = tuple(name for name in OBSERVABLES if name != "B")
ENGINES: dict[str, Engine] = {
    "simulation": Engine(
        _simulate,
        lambda *_: None,
        (*_MEASURED, "batch_loss", "relative_loss"),
        adaptive=False,
        tile=16,
        trains=True,
    ),
    "descent": Engine(
        _descend, lambda *_: None, (*_MEASURED, "relative_loss"), adaptive=False, tile=16
    ),
    **{name: _theory(name) for name in ladder.THEORIES},
    "symmetric": Engine(
        _solve_symmetric,
        _check_symmetric,
        tuple(symmetric.OBSERVABLES),
        adaptive=True,
        tile=64,
        prepare=_merged,
        parameters=_reduced_parameters,
    ),
    "symmetric-descent": Engine(
        _descend_symmetric,
        _check_symmetric,
        (*symmetric.OBSERVABLES, "relative_loss"),
        adaptive=False,
        tile=4096,
        prepare=_merged,
        trains=True,
        batched=True,
        parameters=_reduced_parameters,
    ),
}
"""Engines by the name under which a sweep asks for them: training, training with T and batch
infinite (on all parameters, or on those that a symmetric task leaves), every rung of the ladder."""


def engine(name: str) -> Engine:
    """The engine called `name`; raises `ValueError` if there is none."""
    return ENGINES[checks.choice("engine", name, tuple(ENGINES))]
