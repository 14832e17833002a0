"""Engines of the attention layer in Y and Z (Scan and Snap): training, and all theories.

This module adds engines that `engines_of` cannot derive from a problem: flow and descent of the
symmetric reduction, with T infinite, finite or noisy, also for tasks with too many classes for a
table; and the standard deviation across seeds.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, PRNGKeyArray

from dynsim import (
    Overlapping,
    Rule,
    SequenceClasses,
    Syn,
    SynMedium,
    SynSmall,
    Task,
    Trajectory,
    checks,
)
from dynsim.problem.train import started
from dynsim.training import loop
from dynsim.training.recording import Table
from dynsim.yz import finite_length
from dynsim.yz.layer import Layer, layer
from dynsim.yz.observables import DEFAULT_RECORD, OBSERVABLES
from odes import symmetric
from odes.batch_noise import STD
from odes.general import WHOLE
from odes.symmetric.reduction import DESCENDED, PLACED, Placed
from odes.symmetric.state import SymmetricTask
from odes.theory import FINITE, Theory, named
from odes.yz import THEORIES, spread
from sweeps.systems import budget
from sweeps.systems.base import Engine, Settings, known, names_of
from sweeps.systems.engines import COPIES, descent, of_infinite_length, solved


def classes_of(run: Any) -> SequenceClasses | SymmetricTask:
    """Return the sequence classes of a run of the attention layer, in reduced form if their table
    would be too large. Raises `ValueError` if such a task has no reduced form."""
    task = getattr(run.problem, "task", None)
    if task is not None and budget.is_large(task) and (found := reduced(task)) is not None:
        return found
    return run.built[0]


def reduced(task: Task) -> SymmetricTask | None:
    """Reduce a synthetic task without making its table; None for any other task."""
    if type(task) is SynSmall:
        task = Syn(2, 1, layout=task.layout)
    elif type(task) is SynMedium:
        task = Syn(task.num_queries, 2, layout=task.layout)
    if type(task) is Overlapping:
        num_queries, p = task.K, np.ones(5)
        rho = np.full(5 if task.overlap else 0, np.sqrt(task.overlap / (1 - task.overlap)))
    elif type(task) is Syn:
        num_queries, p = task.num_queries, np.linspace(0.1, 1, task.num_distinct)
        rho = np.ones(task.num_common)
    else:
        return None
    K, M = task.sizes
    total = p.sum() + rho.sum()
    return symmetric.merged(symmetric.symmetric_profiles(p / total, rho / total, K, M, num_queries))


AnyTask = SequenceClasses | SymmetricTask
NOISE = "symmetric-noise"
MOST_CLASSES = 8
"""Maximum number of classes that noisy descent tracks."""


def _symmetric(finite: bool) -> Theory:
    return next(each for each in THEORIES if each.name == named("symmetric", finite))


class Followed(NamedTuple):
    """A reduced task, and an array with one entry per tracked class."""

    task: SymmetricTask
    classes: np.ndarray


def _layer(fixed: Any) -> Layer:
    """Return the layer without its arrays, which reduced tasks do not have."""
    return fixed.problem.filled({}, (None,) * len(fixed.problem.leaves))


def _length(settings: Settings, finite: bool) -> int | float:
    return _layer(settings.fixed).length if finite else math.inf


def _assemble(
    settings: Settings, task: SymmetricTask | Placed, numbers: Mapping[str, Array]
) -> tuple[SymmetricTask | Placed, Rule]:
    return task, settings.fixed.rule.filled(numbers, ())


def _solve(
    settings: Settings,
    task: SymmetricTask | Placed,
    optimizer: Rule,
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
    optimizer: Rule,
    key: PRNGKeyArray,
    *,
    finite: bool,
) -> Trajectory:
    noise = {}
    if isinstance(task, Followed):
        noise = {"batch": settings.fixed.batch, "classes": len(task.classes)}
        # The key that draws the batches in training.
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
    """Reduce the task without merging tokens: noise breaks the tie of equal probabilities."""
    del record
    found = task if isinstance(task, SymmetricTask) else symmetric.symmetric_task(task)
    return Followed(found, np.zeros(min(int(found.K), MOST_CLASSES)))


def _check_noise(fixed: Any, task: AnyTask, optimizer: Rule) -> None:
    checks.integer("batch", fixed.batch, 1)
    finite = math.isfinite(_layer(fixed).length)
    theory = _symmetric(finite)
    _check(fixed, task, optimizer, theory=theory, descends=True)


def of_finite_length(task: SequenceClasses) -> Layer:
    """Return the layer on the task; raises `ValueError` unless an expansion in 1/T describes it."""
    found = layer(task)
    if math.isinf(found.length):
        raise ValueError("length = inf: theories of finite T need a finite length")
    finite_length.check_length(found, found.length)
    return found


def _check(fixed: Any, task: AnyTask, optimizer: Rule, *, theory: Theory, descends: bool) -> None:
    """Check the task and, for the flow only, the rule: descent supports all rules."""
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
    """Return the reduced task, with the full one if an observable requires full weights."""
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
    """Return the bytes that a run records."""
    # Reduced tasks record one class for all.
    classes = 1 if isinstance(task, SymmetricTask) else task.K
    return settings.width * settings.num_times * len(settings.record) * classes


def weights(task: Any) -> int:
    """Return the number of entries of Y and Z."""
    return (task.M + task.num_queries) * task.M


def _bytes(task: Any, settings: Settings, full: bool = False) -> int:
    """Return the bytes of reduced variables, of recorded values, and of all weights if `full`."""
    # Each kind of distinct token has four numbers, each kind of common token three.
    if isinstance(task, SymmetricTask):
        numbers = 4 * (np.size(task.p) + np.size(task.rho))
    else:
        numbers = 4 * task.support.shape[1]
    numbers += weights(task) if full else 0
    return COPIES * settings.width * numbers + recorded(task, settings)


def _bytes_of_flow(task: Any, settings: Settings) -> int:
    return _bytes(task, settings, _takes_full_weights(settings.record))


def of_reduction(
    finite: bool, theories: Mapping[str, Engine], descent: Engine
) -> dict[str, Engine]:
    """Return the engines of flow and descent of the reduction by name, from `theories` and the
    `descent` of the full layer."""
    theory = _symmetric(finite)
    return {
        theory.name: theories[theory.name]._replace(
            run=functools.partial(_solve, theory=theory),
            assemble=_assemble,
            observables=PLACED,
            bytes_per_run=_bytes_of_flow,
            prepare=_merged,
            check=functools.partial(_check, theory=theory, descends=False),
            task=classes_of,
        ),
        named("symmetric-descent", finite): Engine(
            functools.partial(_descend, finite=finite),
            _assemble,
            DESCENDED,
            _bytes,
            functools.partial(_check, theory=theory, descends=True),
            tile=4096,
            task=classes_of,
            prepare=_merged,
            trains=True,
            batched=True,
            variant=True,
            title=f"{descent.title}, reduced",
            assumes=f"{descent.assumes}, symmetric task, zero weights at the start",
        ),
    }


def noisy(descent: Engine) -> Engine:
    """Return the engine of noisy reduced descent, from that of finite T without noise."""
    return descent._replace(
        check=_check_noise,
        prepare=_followed,
        tile=1024,
        noisy=True,
        title="descent of each class with the noise of batches, reduced",
        assumes="1/T^2 -> 0, normal noise, classes share no noise, symmetric task, zero weights at "
        "the start",
    )


DRIFT = "_drift"
"""Suffix for the shift of a mean by noise."""
DRAWS = 1
"""Noise draws per start for the average of a drift; a sweep also averages over its starts."""
_FUNCTIONS = {name: OBSERVABLES[name] for name in DEFAULT_RECORD}


def _spread(
    settings: Settings,
    task: Layer,
    optimizer: Rule,
    key: PRNGKeyArray,
    *,
    squares: bool = False,
) -> Trajectory:
    fixed = settings.fixed
    asked = names_of(settings.record)
    bases = (
        each.removesuffix(STD).removesuffix(DRIFT) if isinstance(each, str) else each
        for each in settings.record
    )
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
        # Split from the key that draws the batches in training.
        draw = loop.split_key(key)[1]
        moved = spread.drift(task, optimizer, times, draw, draws=DRAWS, **common)
        values |= {name + DRIFT: value for name, value in moved.observables.items()}
    recorded = {name: values[name] for name in asked}
    return dataclasses.replace(found, observables=recorded, covariance=None)


def _check_spread(fixed: Any, task: Layer, optimizer: Rule) -> None:
    del optimizer
    checks.integer("batch", fixed.batch, 1)
    task.check_population()


def _bytes_of_spread(task: Layer, settings: Settings) -> int:
    # Per recorded number, its derivative by all weights; and the states between checkpoints.
    shapes = len(settings.record) * task.K + 2 * math.isqrt(settings.fixed.steps)
    return COPIES * settings.width * shapes * weights(task)


def of_spread(simulation: Engine, squares: bool = False) -> Engine:
    """Return the engine of linear noise, from that of training. It records noise-free means, and
    with suffixes `STD` and `DRIFT` the effects of noise; with `squares`, Adam's denominator is
    noisy."""
    names = {n + end: f for end in ("", STD, DRIFT) for n, f in _FUNCTIONS.items()}
    return simulation._replace(
        run=functools.partial(_spread, squares=squares),
        observables=Table(names),
        bytes_per_run=_bytes_of_spread,
        check=_check_spread,
        trains=False,
        goes_on=False,
        draw=None,
        variant=True,
        title="descent, T finite, batch infinite, and spread over seeds"
        + ", noise in Adam's denominator" * squares,
        assumes="1/T^2 -> 0, noise of batches to first order",
    )


BY_CLASS = {"lemma3": 24, "eq10": 12, "theorem4": 3, "fixed_attention": 1}
"""Number of (K, M) arrays in theories without an array of all weights, by the part of the name
before the first dash."""


def engines(found: Mapping[str, Engine]) -> dict[str, Engine]:
    """Return the engines of training, of training with an infinite batch (on all parameters, or on
    the reduced ones of a symmetric task), of all theories, and of finite-batch effects."""
    finite_t = named("descent", finite=True)
    descents = {
        finite_t: descent(found["simulation"], of_finite_length)._replace(
            variant=False,
            title="descent, T finite, batch infinite",
            assumes="1/T^2 -> 0, batch -> infinity",
        ),
        "descent": of_infinite_length(found)["descent"]._replace(
            variant=False,
            title="descent, T infinite, batch infinite",
            assumes="T -> infinity, batch -> infinity",
        ),
    }
    theories = {each.name: _theory(each.name, found[each.name]) for each in THEORIES}
    reduced_finite = of_reduction(True, theories, descents[finite_t])
    return {
        "simulation": found["simulation"],
        **descents,
        **theories,
        **reduced_finite,
        WHOLE.name: found[WHOLE.name],
        "spread": of_spread(found["simulation"]),
        "spread-squares": of_spread(found["simulation"], squares=True),
        **of_reduction(False, theories, descents["descent"]),
        NOISE: noisy(reduced_finite[named("symmetric-descent", finite=True)]),
    }


def _theory(name: str, engine: Engine) -> Engine:
    """Adjust the memory estimate of a theory's engine if it holds such arrays."""
    if not (arrays := BY_CLASS.get(name.split("-")[0])):
        return engine

    def bytes_per_run(task: SequenceClasses, settings: Settings) -> int:
        return settings.width * arrays * task.K * task.M + recorded(task, settings)

    return engine._replace(bytes_per_run=bytes_per_run)
