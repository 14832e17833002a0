"""Engines of the symmetric reduction: its flow, its descent, with T infinite and finite, and its
descent with noise."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim import Trajectory, checks
from dynsim.training import loop
from dynsim.yz import finite_length
from dynsim.yz.layer import Layer, layer
from odes import symmetric
from odes.symmetric.reduction import DESCENDED, PLACED, Placed
from odes.symmetric.state import SymmetricTask
from odes.theory import FINITE, Theory, named
from odes.yz import THEORIES
from sweeps.systems.base import Engine, Settings, known, names_of
from sweeps.systems.engines import COPIES, solved
from sweeps.systems.yz import large

AnyTask = dynsim.SequenceClasses | SymmetricTask
NOISE = "symmetric-noise"
MOST_CLASSES = 8
"""Followed by descent with noise."""


def _symmetric(finite: bool) -> Theory:
    return next(each for each in THEORIES if each.name == named("symmetric", finite))


class Followed(NamedTuple):
    """A reduced task, and an array with an entry for each class to follow."""

    task: SymmetricTask
    classes: np.ndarray


def _layer(fixed: Any) -> Layer:
    """The layer without its arrays, of which a task in reduced form has none."""
    return fixed.problem.filled({}, (None,) * len(fixed.problem.leaves))


def _length(settings: Settings, finite: bool) -> int | float:
    return _layer(settings.fixed).length if finite else math.inf


def _assemble(
    settings: Settings, task: SymmetricTask | Placed, numbers: Mapping[str, Array]
) -> tuple[SymmetricTask | Placed, dynsim.Rule]:
    return task, settings.fixed.rule.filled(numbers, ())


def _solve(
    settings: Settings,
    task: SymmetricTask | Placed,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    theory: Theory,
) -> Trajectory:
    del key
    length = _length(settings, theory.name.endswith(FINITE))
    reduced = dataclasses.replace(theory, solve=symmetric.solve)
    return solved(reduced, settings, task, optimizer, length=length)


def _descend(
    settings: Settings,
    task: SymmetricTask | Followed,
    optimizer: dynsim.Rule,
    key: PRNGKeyArray,
    *,
    finite: bool,
) -> Trajectory:
    noise = {}
    if isinstance(task, Followed):
        noise = {"batch": settings.fixed.batch, "classes": len(task.classes)}
        # That of the batches in training.
        noise["key"] = loop.split_key(key)[1]
        task = task.task
    return symmetric.descend(
        task,
        optimizer,
        steps=settings.fixed.steps,
        length=_length(settings, finite),
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
        **noise,
    )


def _followed(task: AnyTask, record: tuple[str, ...]) -> Followed:
    """The reduced task, not merged: noise breaks the tie between tokens of equal probability."""
    del record
    found = task if isinstance(task, SymmetricTask) else symmetric.symmetric_task(task)
    return Followed(found, np.zeros(min(int(found.K), MOST_CLASSES)))


def _check_noise(fixed: Any, task: AnyTask, optimizer: dynsim.Rule) -> None:
    checks.integer("batch", fixed.batch, 1)
    finite = math.isfinite(_layer(fixed).length)
    theory = _symmetric(finite)
    _check(fixed, task, optimizer, theory=theory, descends=True)


def of_finite_length(task: dynsim.SequenceClasses) -> Layer:
    """The layer on the task; raises `ValueError` unless an expansion in 1/T describes it."""
    found = layer(task)
    if math.isinf(found.length):
        raise ValueError("length = inf: theories of finite T need a finite length")
    finite_length.check_length(found, found.length)
    return found


def _check(
    fixed: Any, task: AnyTask, optimizer: dynsim.Rule, *, theory: Theory, descends: bool
) -> None:
    """Descent, unlike the flow, has no rule that it does not describe."""
    start = _layer(fixed).start
    if start != "zero":
        raise ValueError(f"start = {start!r}: {theory.name} starts from zero weights")
    finite = theory.name.endswith(FINITE)
    if isinstance(task, SymmetricTask):
        if finite:
            raise ValueError(
                f"K = {task.K}: theories of finite T need the table of a task, which would be too "
                "large"
            )
    elif not descends:
        theory.check(task, optimizer)
    else:
        symmetric.placed(task)
        if finite:
            of_finite_length(task)


def _merged(task: AnyTask, record: tuple[str, ...]) -> SymmetricTask | Placed:
    """The reduced task, with the full one where something is recorded that takes full weights."""
    if isinstance(task, SymmetricTask):
        if _takes_full_weights(record):
            known = ", ".join(DESCENDED.names())
            full = [name for name in names_of(record) if name not in DESCENDED.names()]
            raise ValueError(
                f"record: {', '.join(full)} need all weights, which are too many for "
                f"K = {task.K} classes; must be of {known}"
            )
        return task
    found = symmetric.placed(task, merged=True)
    return found if _takes_full_weights(record) else found.reduced


def _takes_full_weights(record: tuple[str, ...]) -> bool:
    return not set(record) <= set(DESCENDED.names())


def recorded(task: Any, settings: Settings) -> int:
    """Bytes of what is recorded of a run."""
    # In reduced form all classes are one.
    classes = 1 if isinstance(task, SymmetricTask) else task.K
    return settings.width * settings.num_times * len(settings.record) * classes


def weights(task: Any) -> int:
    """How many numbers Y and Z have."""
    return (task.M + task.num_queries) * task.M


def _bytes(task: Any, settings: Settings, full: bool = False) -> int:
    """Of the numbers of the reduction, of what is recorded, and of all weights if `full`."""
    # Four numbers for a kind of distinct token, three for a kind of common token.
    if isinstance(task, SymmetricTask):
        numbers = 4 * (np.size(task.p) + np.size(task.rho))
    else:
        numbers = 4 * task.support.shape[1]
    numbers += weights(task) if full else 0
    return COPIES * settings.width * numbers + recorded(task, settings)


def _bytes_of_flow(task: Any, settings: Settings) -> int:
    return _bytes(task, settings, _takes_full_weights(settings.record))


def engines(finite: bool, theories: Mapping[str, Engine], descent: Engine) -> dict[str, Engine]:
    """The flow and the descent of the reduction, by name, from `theories` and the `descent` of the
    full layer."""
    theory = _symmetric(finite)
    return {
        theory.name: theories[theory.name]._replace(
            run=functools.partial(_solve, theory=theory),
            assemble=_assemble,
            observables=PLACED,
            bytes_per_run=_bytes_of_flow,
            prepare=_merged,
            check=functools.partial(_check, theory=theory, descends=False),
            task=large.classes_of,
        ),
        named("symmetric-descent", finite): Engine(
            functools.partial(_descend, finite=finite),
            _assemble,
            DESCENDED,
            _bytes,
            functools.partial(_check, theory=theory, descends=True),
            tile=4096,
            task=large.classes_of,
            prepare=_merged,
            trains=True,
            batched=True,
            variant=True,
            title=f"{descent.title}, reduced",
            assumes=f"{descent.assumes}, symmetric task, zero weights at the start",
        ),
    }


def noisy(descent: Engine) -> Engine:
    """Descent of the reduction with the noise of batches, from that of finite T without."""
    return descent._replace(
        check=_check_noise,
        prepare=_followed,
        tile=1024,
        noisy=True,
        title="descent of each class with the noise of batches, reduced",
        assumes="1/T^2 -> 0, normal noise, classes share no noise, symmetric task, zero weights at "
        "the start",
    )
