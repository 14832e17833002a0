"""The engines of the attention layer: simulation, descent and every theory of the ladder."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim import Trajectory
from dynsim.yz.observables import OBSERVABLES
from odes import symmetric
from odes.solver.tolerances import DEFAULT_TOLERANCES
from odes.symmetric.placement import Placed
from odes.symmetric.state import SymmetricTask
from odes.yz import ladder
from sweeps.systems.base import Engine, Settings, num_times
from sweeps.systems.yz.settings import Training

ATOL_SHARE = 0.01
"""Absolute tolerance of an adaptive solver over its relative one, as in its defaults."""
STATE_COPIES = {"sgd": 2, "momentum": 3, "adam": 4}
"""Arrays of the size of the parameters that a step holds: weights, gradient, moments."""
SOLVER_STAGES = 9
"""Sets of such arrays that an adaptive solver holds."""


def _assemble(
    settings: Settings, task: Any, numbers: Mapping[str, Array]
) -> tuple[Any, dynsim.Optimizer]:
    return task, dataclasses.replace(settings.run.make_optimizer(), **numbers)


def _start(settings: Settings, task: dynsim.SequenceClasses, key: PRNGKeyArray) -> Any:
    """Starting weights of a run: None for zero, so that theories that hold from zero alone work.
    They are drawn in the precision of the simulation."""
    if settings.run.init == "zero":
        return None
    return dynsim.initial_weights(task, settings.run.init, key, settings.run.dtype)


def _simulate(
    settings: Settings,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
    init: dynsim.YZ | None = None,
) -> Trajectory:
    run = settings.run
    return dynsim.simulate(
        task,
        optimizer,
        key,
        steps=run.steps,
        length=run.length,
        batch=run.batch,
        init=init or run.init,
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
    infinite = dataclasses.replace(settings.run, length=math.inf, batch=math.inf)
    start = _start(settings, task, key)
    return _simulate(settings._replace(run=infinite), task, optimizer, key, start)


def _solve(
    settings: Settings,
    task: dynsim.SequenceClasses,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
) -> Trajectory:
    start = _start(settings, task, key)
    options = {} if start is None else {"init": start}
    return _integrate(ladder.THEORIES[settings.engine].solve, settings, task, optimizer, **options)


def _solve_symmetric(
    settings: Settings,
    task: SymmetricTask | Placed,
    optimizer: dynsim.Optimizer,
    key: PRNGKeyArray,
) -> Trajectory:
    del key
    return _integrate(symmetric.solve, settings, task, optimizer)


def _integrate(
    solve: Callable[..., Trajectory],
    settings: Settings,
    task: dynsim.SequenceClasses | SymmetricTask | Placed,
    optimizer: dynsim.Optimizer,
    **options: Any,
) -> Trajectory:
    if settings.rtol is not None:
        options["tolerances"] = DEFAULT_TOLERANCES[settings.dtype]._replace(
            rtol=settings.rtol, atol=settings.rtol * ATOL_SHARE
        )
    times = np.asarray(settings.times, settings.dtype)
    return solve(task, optimizer, times, record=settings.record, dtype=settings.dtype, **options)


def _descend_symmetric(
    settings: Settings, task: SymmetricTask, optimizer: dynsim.Optimizer, key: PRNGKeyArray
) -> Trajectory:
    del key
    return symmetric.descend(
        task,
        optimizer,
        steps=settings.run.steps,
        times=settings.times,
        record=settings.record,
        dtype=settings.dtype,
    )


def _merged(task: dynsim.SequenceClasses, record: tuple[str, ...]) -> SymmetricTask | Placed:
    """The reduced task, with the full one where something is recorded that takes full weights."""
    found = symmetric.placed(task, merged=True)
    return found if _takes_full_weights(record) else found.reduced


def _takes_full_weights(record: tuple[str, ...]) -> bool:
    return not set(record) <= {*symmetric.OBSERVABLES, "relative_loss"}


def _applies(theory: str) -> Callable[[Training, dynsim.SequenceClasses, dynsim.Optimizer], None]:
    """The check of an engine that rests on a theory."""

    def check(run: Training, task: dynsim.SequenceClasses, optimizer: dynsim.Optimizer) -> None:
        ladder.theory(theory, task, optimizer, run.init == "zero")

    return check


def _always_applies(
    run: Training, task: dynsim.SequenceClasses, optimizer: dynsim.Optimizer
) -> None:
    """Descent needs nothing beyond what task and optimiser check themselves."""


def _memory(
    parameters: Callable[[dynsim.SequenceClasses], int],
    examples: Callable[[dynsim.SequenceClasses, Training], float],
    stages: int = 1,
) -> Callable[[dynsim.SequenceClasses, Settings], int]:
    """An estimate of bytes: weights, gradient and moments, in each stage of an adaptive solver;
    the forward and the backward pass over the examples of a step, which keep a few arrays of
    (examples, M); and what is recorded."""

    def bytes_per_run(task: dynsim.SequenceClasses, settings: Settings) -> int:
        width = 8 if settings.dtype == "float64" else 4
        copies = STATE_COPIES[settings.run.make_optimizer().kind] * stages
        passes = 4 * int(examples(task, settings.run)) * task.M
        recorded = num_times(settings.times) * len(settings.record) * task.K
        return width * (copies * parameters(task) + passes + recorded)

    return bytes_per_run


def _parameters(task: dynsim.SequenceClasses) -> int:
    return (task.M + task.num_queries) * task.M


def _reduced_parameters(task: dynsim.SequenceClasses) -> int:
    # Four numbers for a kind of distinct token, three for a kind of common token.
    return 4 * task.support.shape[1]


def _batch(task: dynsim.SequenceClasses, run: Training) -> float:
    return run.batch if math.isfinite(run.batch) else task.K


def _classes(task: dynsim.SequenceClasses, run: Training) -> int:
    del run
    return task.K


def _none(task: dynsim.SequenceClasses, run: Training) -> int:
    del task, run
    return 0


def _theory(name: str) -> Engine:
    return Engine(
        Training,
        _solve,
        _assemble,
        _applies(name),
        tuple(OBSERVABLES),
        _memory(_parameters, _classes, SOLVER_STAGES),
        adaptive=True,
        tile=32,
    )


def _reduced_memory(task: dynsim.SequenceClasses, settings: Settings) -> int:
    """Of the reduced flow, and of the full layer where something is measured on it."""
    bytes_per_run = _memory(_reduced_parameters, _none, SOLVER_STAGES)(task, settings)
    if _takes_full_weights(settings.record):
        bytes_per_run += _memory(_parameters, _classes)(task, settings)
    return bytes_per_run


_MEASURED = tuple(name for name in OBSERVABLES if name != "B")
ENGINES: dict[str, Engine] = {
    "simulation": Engine(
        Training,
        _simulate,
        _assemble,
        _always_applies,
        (*_MEASURED, "batch_loss", "relative_loss"),
        _memory(_parameters, _batch),
        adaptive=False,
        tile=16,
        trains=True,
    ),
    "descent": Engine(
        Training,
        _descend,
        _assemble,
        _always_applies,
        (*_MEASURED, "relative_loss"),
        _memory(_parameters, _classes),
        adaptive=False,
        tile=16,
    ),
    **{name: _theory(name) for name in ladder.THEORIES if name != "symmetric"},
    "symmetric": Engine(
        Training,
        _solve_symmetric,
        _assemble,
        _applies("symmetric"),
        (*symmetric.OBSERVABLES, *(n for n in _MEASURED if n not in symmetric.OBSERVABLES)),
        _reduced_memory,
        adaptive=True,
        tile=64,
        prepare=_merged,
    ),
    "symmetric-descent": Engine(
        Training,
        _descend_symmetric,
        _assemble,
        _applies("symmetric"),
        (*symmetric.OBSERVABLES, "relative_loss"),
        _memory(_reduced_parameters, _none),
        adaptive=False,
        tile=4096,
        prepare=_merged,
        trains=True,
        batched=True,
    ),
}
"""Engines by the name under which a sweep asks for them: training, training with T and batch
infinite (on all parameters, or on those that a symmetric task leaves), every rung of the ladder."""
