"""Engines of the symmetric reduction: its flow and its descent, with T infinite and finite."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim import Trajectory
from dynsim.yz import finite_length
from dynsim.yz.layer import Layer, layer
from odes import symmetric
from odes.symmetric.observables import DESCENDED, PLACED
from odes.symmetric.placement import Placed
from odes.symmetric.state import SymmetricTask
from odes.theory import named
from odes.yz import ladder
from sweeps.systems.base import Engine, Settings, known
from sweeps.systems.problems.engines import COPIES, Like, of_theory
from sweeps.systems.solving import integrate
from sweeps.systems.yz import memory


def _layer(fixed: Any) -> Layer:
    """The layer without its arrays, of which a task in reduced form has none."""
    return fixed.problem.filled({}, (None,) * len(fixed.problem.leaves))


def _length(settings: Settings[Any], finite: bool) -> int | float:
    return _layer(settings.fixed).length if finite else math.inf


def _assemble(
    settings: Settings[Any], task: SymmetricTask | Placed, numbers: Mapping[str, Array]
) -> tuple[SymmetricTask | Placed, dynsim.Rule]:
    return task, settings.fixed.rule.filled(numbers, ())


def _solve(
    settings: Settings[Any],
    task: SymmetricTask | Placed,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    finite: bool,
) -> Trajectory:
    del key
    length = _length(settings, finite)
    return integrate(symmetric.solve, settings, task, optimizer, length=length)


def _descend(
    settings: Settings[Any],
    task: SymmetricTask,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    finite: bool,
) -> Trajectory:
    del key
    return symmetric.descend(
        task,
        optimizer,
        steps=settings.fixed.steps,
        length=_length(settings, finite),
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
    )


def _task(run: Any) -> dynsim.SequenceClasses | SymmetricTask:
    """The task of a run, without a table where that would be too large."""
    return run.make_reduced() or run.make_task()


def of_finite_length(task: dynsim.SequenceClasses) -> Layer:
    """The layer on the task; raises `ValueError` unless an expansion in 1/T describes it."""
    found = layer(task)
    if math.isinf(found.length):
        raise ValueError("length = inf: leaves nothing to theories of finite T; use those without")
    finite_length.check_length(found, found.length)
    return found


def _check(
    fixed: Any,
    task: dynsim.SequenceClasses | SymmetricTask,
    optimizer: dynsim.Rule,
    *,
    theory: ladder.Theory,
    descends: bool,
) -> None:
    """Descent, unlike the flow, has no rule that it does not describe."""
    start = _layer(fixed).start
    if start != "zero":
        raise ValueError(f"init = {start!r}: {theory.name} starts from zero weights")
    finite = "length" in theory.needs
    if not isinstance(task, SymmetricTask):
        if descends:
            symmetric.placed(task)
            if finite:
                of_finite_length(task)
        else:
            ladder.theory(theory, task, optimizer)
    elif finite:
        raise ValueError(
            f"K = {task.K}: theories of finite T need the table of a task, which would be too large"
        )


def _merged(
    task: dynsim.SequenceClasses | SymmetricTask, record: tuple[str, ...]
) -> SymmetricTask | Placed:
    """The reduced task, with the full one where something is recorded that takes full weights."""
    if isinstance(task, SymmetricTask):
        if _takes_full_weights(record):
            known = ", ".join(DESCENDED.names())
            raise ValueError(
                f"record: {', '.join(set(record) - set(DESCENDED.names()))} need all weights, of "
                f"which K = {task.K} classes have too many; must be of {known}"
            )
        return task
    found = symmetric.placed(task, merged=True)
    return found if _takes_full_weights(record) else found.reduced


def _takes_full_weights(record: tuple[str, ...]) -> bool:
    return not set(record) <= set(DESCENDED.names())


def _bytes(task: dynsim.SequenceClasses | SymmetricTask, settings: Settings[Any]) -> int:
    """Of the reduced flow, and of the full layer where something is measured on it."""
    found = memory.of_reduction(task, settings)
    if _takes_full_weights(settings.record):
        found += COPIES * settings.width * memory.weights(task)  # type: ignore[arg-type]
    return found


def engines(finite: bool, descent: Engine[Any], like: Like) -> dict[str, Engine[Any]]:
    """The flow and the descent of the reduction, by name; `descent` of the full layer."""
    theory = ladder.THEORIES[named("symmetric", finite)]
    return {
        theory.name: of_theory(theory, like)._replace(
            run=functools.partial(_solve, finite=finite),
            assemble=_assemble,
            observables=PLACED,
            bytes_per_run=_bytes,
            prepare=_merged,
            check=functools.partial(_check, theory=theory, descends=False),
            task=_task,
        ),
        named("symmetric-descent", finite): Engine(
            functools.partial(_descend, finite=finite),
            _assemble,
            DESCENDED,
            memory.of_reduction,
            functools.partial(_check, theory=theory, descends=True),
            tile=4096,
            task=_task,
            prepare=_merged,
            trains=True,
            batched=True,
            variant=True,
            title=f"{descent.title}, reduced",
            assumes=f"{descent.assumes}, symmetric task, zero weights at the start",
        ),
    }
