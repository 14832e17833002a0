"""The attention layer in Y and Z (Scan and Snap) in sweeps: training, and all theories.

This module adds theories that `theories_of` cannot derive from a problem: flow and descent of the
symmetric reduction, with T infinite, finite or noisy, also for tasks with too many classes for a
table; and the standard deviation across seeds.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import PRNGKeyArray

from dynsim import (
    Layer,
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
from dynsim.precision import DType
from dynsim.problem.memory import COPIES
from dynsim.training import loop
from dynsim.training.recording import Table
from dynsim.trajectory import Times
from dynsim.yz.observables import DEFAULT_RECORD, OBSERVABLES
from odes import symmetric
from odes.batch_noise import STD
from odes.general import WHOLE
from odes.solver.linear_noise import check_described
from odes.symmetric.reduction import DESCENDED, FULL_TABLE, TaskPair
from odes.symmetric.state import SymmetricTask
from odes.theory import FINITE, AnyTheory, Training, error_message, named
from odes.yz import THEORIES, spread
from sweeps.systems import budget
from sweeps.systems.base import names_of
from sweeps.systems.training import Descent, Simulation, of_infinite_length


class Unlisted(SymmetricTask):
    """A reduced task whose table of classes would be too large, and the settings of its layer."""

    length: float = eqx.field(static=True, kw_only=True)
    start: str = eqx.field(static=True, kw_only=True)

    @property
    def classes(self) -> SymmetricTask:
        """The reduced task, in place of the sequence classes of a `Layer`."""
        return self


def layer_of(run: Any) -> Layer | Unlisted:
    """Return the layer of a run, or a reduced task if its table would be too large. Raises
    `ValueError` if such a task has no reduced form."""
    task = getattr(run.problem, "task", None)
    if task is not None and budget.is_large(task) and (found := reduced(task)) is not None:
        fields = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
        return Unlisted(**fields, length=run.problem.length, start=run.problem.start)
    return run.built[0]


def classes_of(run: Any) -> SequenceClasses | SymmetricTask:
    """Return the sequence classes of a run, or a reduced task if their table would be too large."""
    return layer_of(run).classes


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


AnyLayer = Layer | Unlisted
NOISE = "symmetric-noise"
MOST_CLASSES = 8
"""Maximum number of classes that noisy descent tracks."""


class Reduced(eqx.Module):
    """A task as the reduction takes it.

    Attributes:
        task: the reduced task; with the full one if an observable needs full weights.
        length: sequence length T; inf for theories of infinite T.
        classes: number of classes whose noise is tracked; 0 without noise.
    """

    task: SymmetricTask | TaskPair
    length: float = eqx.field(static=True)
    classes: int = eqx.field(static=True, default=0)


def of_finite_length(layer: Layer) -> Layer:
    """Return the layer; raises `ValueError` unless an expansion in 1/T describes it."""
    if math.isinf(layer.length):
        raise ValueError("length = inf: theories of finite T need a finite length")
    layer.check_population()
    return layer


def _merged(layer: AnyLayer, record: tuple[Any, ...], finite: bool) -> Reduced:
    """Return the reduced task, with the full one if an observable requires full weights."""
    length = float(layer.length) if finite else math.inf
    if isinstance(layer, Unlisted):
        if _takes_full_weights(record):
            known = ", ".join(DESCENDED.names())
            full = [name for name in names_of(record) if name not in DESCENDED.names()]
            raise ValueError(
                f"record: {', '.join(full)} need all weights, which are too many for "
                f"K = {layer.K} classes; must be of {known}"
            )
        return Reduced(layer, length)
    found = symmetric.with_full_task(layer.classes, merged=True)
    return Reduced(found if _takes_full_weights(record) else found.reduced, length)


def _takes_full_weights(record: tuple[Any, ...]) -> bool:
    return not set(record) <= set(DESCENDED.names())


def _why_not_reduced(problem: AnyLayer, name: str, finite: bool) -> str | None:
    if problem.start != "zero":
        return f"start = {problem.start!r}: {name} starts from zero weights"
    if finite and isinstance(problem, Unlisted):
        return (
            f"K = {problem.K}: theories of finite T need the table of a task, which would be too "
            "large"
        )
    return None


def weights(task: SequenceClasses) -> int:
    """Return the number of entries of Y and Z."""
    return (task.M + task.num_queries) * task.M


def _numbers(task: SequenceClasses | SymmetricTask, recorded: int, full: bool = False) -> int:
    """Return how many numbers a run holds: copies of the reduced variables, and of all weights if
    `full`, and those that it records."""
    # Each kind of distinct token has four numbers, each kind of common token three. Of a task
    # without a table, one class is recorded for all.
    if isinstance(task, SymmetricTask):
        return COPIES * 4 * (np.size(task.p) + np.size(task.rho)) + recorded
    of_weights = weights(task) if full else 0
    return COPIES * (4 * task.support.shape[1] + of_weights) + recorded * task.K


@dataclasses.dataclass(frozen=True)
class ReducedFlow(AnyTheory):
    """The flow of the reduction, also for tasks without a table."""

    @property
    def finite(self) -> bool:
        """Whether T is finite."""
        return self.name.endswith(FINITE)

    def observables(self, problem: Any) -> Table:
        """Return those of the weights, and those that only the reduction has."""
        del problem
        return FULL_TABLE

    def reduce(self, problem: AnyLayer, record: tuple[Any, ...]) -> Reduced:
        """Reduce the task."""
        return _merged(problem, record, self.finite)

    def why_not(
        self, problem: Any, rule: Any, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the task is not symmetric, or the rule has no flow."""
        if (why := _why_not_reduced(problem, self.name, self.finite)) is not None:
            return why
        of_table = isinstance(problem, SymmetricTask)
        return None if of_table else super().why_not(problem, rule, batch, steps)

    def bytes_per_run(
        self, training: Training, times: int, record: tuple[Any, ...], dtype: DType
    ) -> int:
        """Return the bytes of reduced variables, of recorded values, and of all weights if they are
        recorded."""
        full = _takes_full_weights(record)
        return 8 * _numbers(training.problem.classes, times * len(record), full)


@dataclasses.dataclass(frozen=True)
class ReducedDescent(Simulation):
    """Descent of the reduction at infinite batch, all runs of a seed at once."""

    at_once: int = 4096
    resumes: bool = False
    variant: bool = True

    batched: ClassVar[bool] = True

    def observables(self, problem: Any) -> Table:
        """Return those of the reduction."""
        del problem
        return DESCENDED

    def reduce(self, problem: AnyLayer, record: tuple[Any, ...]) -> Reduced:
        """Reduce the task."""
        return _merged(problem, record, self.name.endswith(FINITE))

    def why_not(
        self, problem: Any, rule: Any, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the task is not symmetric; descent supports all rules."""
        return self._why_not(problem, self.name.endswith(FINITE))

    def _why_not(self, problem: AnyLayer, finite: bool) -> str | None:
        if (why := _why_not_reduced(problem, self.name, finite)) is not None:
            return why
        if isinstance(problem, SymmetricTask):
            return None
        why = error_message(symmetric.with_full_task, problem.classes)
        return why or (error_message(of_finite_length, problem) if finite else None)

    def bytes_per_run(
        self, training: Training, times: int, record: tuple[Any, ...], dtype: DType
    ) -> int:
        """Return the bytes of reduced variables and of recorded values."""
        return np.dtype(dtype).itemsize * _numbers(training.problem.classes, times * len(record))

    def draws(self, training: Training) -> bool:
        """Return False: there are no batches."""
        return False

    def run(
        self,
        training: Training,
        key: PRNGKeyArray,
        times: Any,
        *,
        record: Any,
        dtype: DType,
        **_: Any,
    ) -> Trajectory:
        """Descend the population loss, with the noise of batches if classes are tracked."""
        given, noise = training.problem, {}
        if given.classes:
            noise = {"batch": training.batch, "classes": given.classes}
            # The key that draws the batches in training.
            noise["key"] = loop.split_key(key)[1]
        assert training.steps is not None
        return symmetric.descend(
            given.task,
            training.rule,
            steps=training.steps,
            length=given.length,
            times=times,
            record=record,
            dtype=dtype,
            **noise,
        )


@dataclasses.dataclass(frozen=True)
class NoisyDescent(ReducedDescent):
    """Descent of the reduction with the noise of batches, which breaks the tie of equal
    probabilities, so that tokens are not merged."""

    at_once: int = 1024
    drawn: bool = True

    def reduce(self, problem: AnyLayer, record: tuple[Any, ...]) -> Reduced:
        """Reduce the task without merging tokens."""
        del record
        task = problem.classes
        found = task if isinstance(task, SymmetricTask) else symmetric.symmetric_task(task)
        return Reduced(found, float(problem.length), min(int(found.K), MOST_CLASSES))

    def why_not(
        self, problem: Any, rule: Any, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the task is not symmetric, or that there is no batch."""
        why = error_message(checks.integer, "batch", batch, 1)
        return why or self._why_not(problem, math.isfinite(problem.length))


def _reduced_flow(finite: bool) -> ReducedFlow:
    theory = next(each for each in THEORIES if each.name == named("symmetric", finite))

    def solve(given: Reduced, rule: Rule, times: Times, **options: Any) -> Trajectory:
        return symmetric.solve(given.task, rule, times, length=given.length, **options)

    fields: dict[str, Any] = {n.name: getattr(theory, n.name) for n in dataclasses.fields(theory)}
    fields["solve"] = solve
    return ReducedFlow(**fields)


DRIFT = "_drift"
"""Suffix for the shift of a mean by noise."""
DRAWS = 1
"""Noise draws per start for the average of a drift; a sweep also averages over its starts."""
_FUNCTIONS = {name: OBSERVABLES[name] for name in DEFAULT_RECORD}


def _spread(
    layer: Layer,
    rule: Rule,
    times: Times,
    *,
    init: Any,
    key: PRNGKeyArray,
    batch: int,
    record: tuple[Any, ...],
    dtype: DType,
    squares: bool,
) -> Trajectory:
    asked = names_of(record)
    bases = (
        each.removesuffix(STD).removesuffix(DRIFT) if isinstance(each, str) else each
        for each in record
    )
    common: dict[str, Any] = {
        "batch": batch,
        "length": layer.length,
        "init": init,
        "record": tuple(dict.fromkeys(bases)),
        "dtype": dtype,
        "squares": squares,
    }
    found = spread.solve(layer, rule, times, **common)
    values = {**found.observables, **{name + STD: value for name, value in found.std.items()}}
    if any(name.endswith(DRIFT) for name in asked):
        # Split from the key that draws the batches in training.
        draw = loop.split_key(key)[1]
        moved = spread.drift(layer, rule, times, draw, draws=DRAWS, **common)
        values |= {name + DRIFT: value for name, value in moved.observables.items()}
    recorded = {name: values[name] for name in asked}
    return dataclasses.replace(found, observables=recorded, covariance=None)


def _memory_of_spread(training: Training, times: int, record: tuple[Any, ...]) -> int:
    del times
    # Per recorded number, its derivative by all weights; and the states between checkpoints.
    task, states = training.problem.classes, 2 * math.isqrt(training.steps or 1)
    return 8 * COPIES * (len(record) * task.K + states) * weights(task)


def _inapplicable_spread(training: Training) -> str | None:
    batch, problem = training.batch, training.problem
    return (
        error_message(checks.integer, "batch", batch, 1)
        or error_message(problem.check_population)
        or error_message(check_described, training.rule)
    )


@dataclasses.dataclass(frozen=True)
class _Spread(AnyTheory):
    """Linear noise, which records noise-free means, and with suffixes `STD` and `DRIFT` the effects
    of noise. Each recorded time costs a backward pass."""

    records: ClassVar[int | None] = 9

    def observables(self, problem: Any) -> Table:
        del problem
        return Table({n + end: f for end in ("", STD, DRIFT) for n, f in _FUNCTIONS.items()})


def _of_spread(squares: bool = False) -> AnyTheory:
    """Return the theory of linear noise; with `squares`, Adam's denominator is noisy."""
    return _Spread(
        "spread-squares" if squares else "spread",
        "descent, T finite, batch infinite, and spread over seeds"
        + ", noise in Adam's denominator" * squares,
        "1/T^2 -> 0, noise of batches to first order",
        functools.partial(_spread, squares=squares),
        _inapplicable_spread,
        variant=squares,
        needs=("init", "key", "batch"),
        adaptive=False,
        at_once=16,
        memory=_memory_of_spread,
    )


FLOWS = {each.name: each for each in map(_reduced_flow, (True, False))}
SPREADS = {each.name: each for each in map(_of_spread, (False, True))}


def theories(found: Mapping[str, AnyTheory]) -> dict[str, AnyTheory]:
    """Return training, training with an infinite batch (on all parameters, or on the reduced ones
    of a symmetric task), all theories, and those of finite-batch effects."""
    infinite: Any = of_infinite_length(found)["descent"]
    finite = dataclasses.replace(
        infinite,
        at=of_finite_length,
        variant=False,
        title="descent, T finite, batch infinite",
        assumes="1/T^2 -> 0, batch -> infinity",
    )
    infinite = dataclasses.replace(
        infinite,
        variant=False,
        title="descent, T infinite, batch infinite",
        assumes="T -> infinity, batch -> infinity",
    )

    def reduced(finite: bool, descent: Descent) -> ReducedDescent:
        assumes = f"{descent.assumes}, symmetric task, zero weights at the start"
        name = named("symmetric-descent", finite)
        return ReducedDescent(name, f"{descent.title}, reduced", assumes)

    noisy = NoisyDescent(
        NOISE,
        "descent of each class with the noise of batches, reduced",
        "1/T^2 -> 0, normal noise, classes share no noise, symmetric task, zero weights at the "
        "start",
    )
    every = [
        *(reduced(True, finite), found[WHOLE.name], *SPREADS.values(), reduced(False, infinite)),
        *(noisy, found["central"]),
    ]
    return {
        "simulation": found["simulation"],
        named("descent", finite=True): finite,
        "descent": infinite,
        **{each.name: FLOWS.get(each.name, each) for each in THEORIES},
        **{each.name: each for each in every},
    }
