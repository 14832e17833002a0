"""Engines of the symmetric reduction: its flow and its descent, with T infinite and finite."""

import functools
import math

from jaxtyping import PRNGKeyArray

import dynsim
from dynsim import Trajectory
from odes import symmetric
from odes.symmetric.observables import DESCENDED, PLACED
from odes.symmetric.placement import Placed
from odes.symmetric.state import SymmetricTask
from odes.theory import named
from odes.yz import ladder
from sweeps.systems.base import Engine, Settings, known
from sweeps.systems.solving import integrate
from sweeps.systems.yz import memory
from sweeps.systems.yz.problem import Problem
from sweeps.systems.yz.rungs import assemble, check_applies, check_finite, rung
from sweeps.systems.yz.settings import Fixed


def _solve(
    settings: Settings[Fixed],
    task: SymmetricTask | Placed,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    finite: bool,
) -> Trajectory:
    del key
    length = settings.fixed.length if finite else math.inf
    return integrate(symmetric.solve, settings, task, optimizer, length=length)


def _descend(
    settings: Settings[Fixed],
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
        length=settings.fixed.length if finite else math.inf,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
    )


def _task(run: Problem) -> dynsim.SequenceClasses | SymmetricTask:
    """The task of a run, without a table where that would be too large."""
    return run.make_reduced() or run.make_task()


def _check(
    fixed: Fixed,
    task: dynsim.SequenceClasses | SymmetricTask,
    optimizer: dynsim.Rule,
    *,
    theory: ladder.Theory,
) -> None:
    if not isinstance(task, SymmetricTask):
        check_applies(fixed, task, optimizer, theory=theory)
        return
    if fixed.init != "zero":
        raise ValueError(f"init = {fixed.init!r}: {theory.name} starts from zero weights")
    if "length" in theory.needs:
        raise ValueError(
            f"K = {task.K}: theories of finite T need the table of a task, which would be too large"
        )


def _check_descent(
    fixed: Fixed,
    task: dynsim.SequenceClasses | SymmetricTask,
    optimizer: dynsim.Rule,
    *,
    theory: ladder.Theory,
) -> None:
    """As `_check`; but descent, unlike the flow, has no rule that it does not describe."""
    if isinstance(task, SymmetricTask):
        _check(fixed, task, optimizer, theory=theory)
        return
    if fixed.init != "zero":
        raise ValueError(f"init = {fixed.init!r}: the reduction holds from zero weights alone")
    symmetric.placed(task)
    if "length" in theory.needs:
        check_finite(fixed, task)


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


def _bytes(task: dynsim.SequenceClasses | SymmetricTask, settings: Settings[Fixed]) -> int:
    """Of the reduced flow, and of the full layer where something is measured on it."""
    bytes_per_run = memory.bytes_of(memory.reduced_parameters, memory.none, memory.SOLVER_STAGES)(
        task, settings
    )
    if _takes_full_weights(settings.record):
        bytes_per_run += memory.bytes_of(memory.parameters, memory.classes)(task, settings)
    return bytes_per_run


def engines(finite: bool, descent: Engine[Fixed]) -> dict[str, Engine[Fixed]]:
    """The flow and the descent of the reduction, by name; `descent` of the full layer."""
    theory = ladder.THEORIES[named("symmetric", finite)]
    return {
        theory.name: rung(theory)._replace(
            run=functools.partial(_solve, finite=finite),
            observables=PLACED,
            bytes_per_run=_bytes,
            tile=64,
            prepare=_merged,
            check=functools.partial(_check, theory=theory),
            task=_task,
        ),
        named("symmetric-descent", finite): Engine(
            functools.partial(_descend, finite=finite),
            assemble,
            DESCENDED,
            memory.bytes_of(memory.reduced_parameters, memory.none),
            functools.partial(_check_descent, theory=theory),
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
