"""Theories of the attention layer that take it in reduced form: flow and descent of the symmetric
reduction, with T infinite, finite or noisy.

A synthetic task with too many classes for a table is reduced from its settings.
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import PRNGKeyArray

from dynsim import Layer, Rule, SequenceClasses, Task, Trajectory, checks
from dynsim.classes.tasks import Overlapping, Syn, SynMedium, SynSmall
from dynsim.precision import DType
from dynsim.problem.memory import COPIES
from dynsim.training import loop
from dynsim.training.recording import Table
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times
from odes import symmetric
from odes.symmetric.reduction import DESCENDED, FULL_TABLE, TaskPair
from odes.symmetric.state import SymmetricTask
from odes.theory import FINITE, AnyTheory, Training, error_message
from sweeps.systems import budget
from sweeps.systems.base import RecordEntries, names_of
from sweeps.systems.training import Simulation

NOISE = "symmetric-noise"
"""Name of the theory of descent with noise."""


class SymmetricLayer(SymmetricTask):
    """A layer whose task is known in reduced form only, because its table would be too large."""

    length: float = eqx.field(static=True, kw_only=True)
    start: str = eqx.field(static=True, kw_only=True)

    @property
    def classes(self) -> SymmetricTask:
        """The reduced task, in place of the sequence classes of a `Layer`."""
        return self


AnyLayer = Layer | SymmetricLayer


def layer_of(run: Any) -> AnyLayer:
    """Return the layer of a run, in reduced form if the table of its task would be too large.
    Raises `ValueError` if such a task has no reduced form."""
    task = getattr(run.problem, "task", None)
    if task is not None and budget.is_large(task):
        reduced = reduce_synthetic(task)
        if reduced is not None:
            settings = {"length": run.problem.length, "start": run.problem.start}
            return SymmetricLayer(**vars(reduced), **settings)
    return run.built[0]


def classes_of(run: Any) -> SequenceClasses | SymmetricTask:
    """Return the sequence classes of a run, or a reduced task if their table would be too large."""
    return layer_of(run).classes


def reduce_synthetic(task: Task) -> SymmetricTask | None:
    """Reduce a synthetic task without making its table; None for any other task."""
    if type(task) is SynSmall:
        task = Syn(2, 1, layout=task.layout)
    elif type(task) is SynMedium:
        task = Syn(task.num_queries, 2, layout=task.layout)
    # Probabilities p of distinct and rho of common tokens, not normalised.
    if type(task) is Syn:
        num_queries, p = task.num_queries, np.linspace(0.1, 1, task.num_distinct)
        rho = np.ones(task.num_common)
    elif type(task) is Overlapping:
        num_queries, p = task.K, np.ones(5)
        rho = np.full(5 if task.overlap else 0, np.sqrt(task.overlap / (1 - task.overlap)))
    else:
        return None
    K, M = task.sizes
    total = p.sum() + rho.sum()
    return symmetric.merged(symmetric.symmetric_profiles(p / total, rho / total, K, M, num_queries))


class ReducedTask(eqx.Module):
    """A task as theories of the reduction take it.

    Attributes:
        task: the reduced task; with the full one if an observable needs full weights.
        length: sequence length T; inf for theories of infinite T.
        classes: number of classes whose noise is tracked; 0 without noise.
    """

    task: SymmetricTask | TaskPair
    length: float = eqx.field(static=True)
    classes: int = eqx.field(static=True, default=0)


def _reduce(layer: AnyLayer, record: RecordEntries, finite: bool) -> ReducedTask:
    """Return the reduced task, with the full one if an observable requires full weights."""
    length = float(layer.length) if finite else math.inf
    full = names_of(_of_full_weights(record))
    if isinstance(layer, SymmetricLayer):
        if full:
            known = ", ".join(DESCENDED.names())
            raise ValueError(
                f"record: {', '.join(full)} need all weights, which are too many for "
                f"K = {layer.K} classes; must be of {known}"
            )
        return ReducedTask(layer, length)
    pair = symmetric.with_full_task(layer.classes, merged=True)
    return ReducedTask(pair if full else pair.reduced, length)


def _of_full_weights(record: RecordEntries) -> RecordEntries:
    """Return the observables that need full weights."""
    reduced = DESCENDED.names()
    return tuple(entry for entry in record if entry not in reduced)


def at_finite_length(layer: Layer) -> Layer:
    """Return the layer; raises `ValueError` unless an expansion in 1/T describes it."""
    if math.isinf(layer.length):
        raise ValueError("length = inf: theories of finite T need a finite length")
    layer.check_population()
    return layer


def _why_not_reduced(layer: AnyLayer, theory: AnyTheory, finite: bool) -> str | None:
    if layer.start != "zero":
        return f"start = {layer.start!r}: {theory.name} starts from zero weights"
    if finite and isinstance(layer, SymmetricLayer):
        return (
            f"K = {layer.K}: theories of finite T need the table of a task, which would be too "
            "large"
        )
    return None


def _count_numbers(
    task: SequenceClasses | SymmetricTask, recorded: int, full_weights: bool = False
) -> int:
    """Count the numbers in memory: copies of the reduced variables, of all weights if an observable
    needs them, and `recorded` ones per class."""
    # Each kind of distinct token has four numbers, each kind of common token three.
    if isinstance(task, SymmetricTask):
        # Without a table, one class is recorded for all.
        return COPIES * 4 * (np.size(task.p) + np.size(task.rho)) + recorded
    weights = count_weights(task) if full_weights else 0
    return COPIES * (4 * task.support.shape[1] + weights) + recorded * task.K


def count_weights(task: SequenceClasses) -> int:
    return (task.M + task.num_queries) * task.M


# A function with a name, unlike a closure, can be part of the key of a program on disk.
def solve_reduced(reduced: ReducedTask, rule: Rule, times: Times, **options: Any) -> Trajectory:
    return symmetric.solve(reduced.task, rule, times, length=reduced.length, **options)


@dataclasses.dataclass(frozen=True)
class ReducedFlow(AnyTheory):
    """The flow of the reduction, also for tasks without a table."""

    def observables(self, problem: AnyLayer) -> Table:
        """Return observables of the weights, and those that only the reduction has."""
        del problem
        return FULL_TABLE

    def reduce(self, problem: AnyLayer, record: RecordEntries) -> ReducedTask:
        """Reduce the task."""
        return _reduce(problem, record, finite=self.name.endswith(FINITE))

    def why_not(
        self, problem: AnyLayer, rule: UpdateRule, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the task is not symmetric, or the rule has no flow."""
        if reason := _why_not_reduced(problem, self, finite=self.name.endswith(FINITE)):
            return reason
        # A reduced layer is symmetric.
        if isinstance(problem, SymmetricLayer):
            return None
        return super().why_not(problem, rule, batch, steps)

    def bytes_per_run(
        self, training: Training, times: int, record: RecordEntries, dtype: DType
    ) -> int:
        """Return the bytes of reduced variables, of recorded values, and of all weights if they are
        recorded."""
        full_weights = bool(_of_full_weights(record))
        return 8 * _count_numbers(training.problem.classes, times * len(record), full_weights)


@dataclasses.dataclass(frozen=True)
class ReducedDescent(Simulation):
    """Descent of the reduction at infinite batch, all runs of a seed at once."""

    at_once: int = 4096
    resumes: bool = False
    variant: bool = True

    batched: ClassVar[bool] = True

    def is_finite(self, layer: AnyLayer) -> bool:
        """Return whether T is finite."""
        del layer
        return self.name.endswith(FINITE)

    def observables(self, problem: AnyLayer) -> Table:
        """Return observables of the reduction."""
        del problem
        return DESCENDED

    def reduce(self, problem: AnyLayer, record: RecordEntries) -> ReducedTask:
        """Reduce the task."""
        return _reduce(problem, record, finite=self.is_finite(problem))

    def why_not(
        self, problem: AnyLayer, rule: UpdateRule, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the task is not symmetric; descent supports all rules."""
        finite = self.is_finite(problem)
        if reason := _why_not_reduced(problem, self, finite):
            return reason
        if isinstance(problem, SymmetricLayer):
            return None
        reason = error_message(symmetric.with_full_task, problem.classes)
        return reason or (error_message(at_finite_length, problem) if finite else None)

    def bytes_per_run(
        self, training: Training, times: int, record: RecordEntries, dtype: DType
    ) -> int:
        """Return the bytes of reduced variables and of recorded values."""
        numbers = _count_numbers(training.problem.classes, times * len(record))
        return np.dtype(dtype).itemsize * numbers

    def draws(self, training: Training) -> bool:
        """Return False: there are no batches."""
        return False

    def run(
        self,
        training: Training,
        key: PRNGKeyArray,
        times: Times,
        *,
        record: RecordEntries,
        dtype: DType,
        **_: Any,
    ) -> Trajectory:
        """Descend the population loss, with the noise of batches if classes are tracked."""
        reduced, noise = training.problem, {}
        if reduced.classes:
            noise = {"batch": training.batch, "classes": reduced.classes}
            # The key that draws the batches in training.
            noise["key"] = loop.split_key(key)[1]
        assert training.steps is not None
        return symmetric.descend(
            reduced.task,
            training.rule,
            steps=training.steps,
            length=reduced.length,
            times=times,
            record=record,
            dtype=dtype,
            **noise,
        )


MOST_TRACKED = 8
"""Maximum number of classes that noisy descent tracks."""


@dataclasses.dataclass(frozen=True)
class NoisyDescent(ReducedDescent):
    """Descent of the reduction with the noise of batches, at the T of the layer."""

    at_once: int = 1024
    drawn: bool = True

    def is_finite(self, layer: AnyLayer) -> bool:
        """Return whether the layer's T is finite."""
        return math.isfinite(layer.length)

    def reduce(self, problem: AnyLayer, record: RecordEntries) -> ReducedTask:
        """Reduce the task. Tokens of equal probability are not merged: noise breaks their tie."""
        del record
        task = problem.classes
        reduced = task if isinstance(task, SymmetricTask) else symmetric.symmetric_task(task)
        return ReducedTask(reduced, float(problem.length), min(int(reduced.K), MOST_TRACKED))

    def why_not(
        self, problem: AnyLayer, rule: UpdateRule, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the task is not symmetric, or that there is no batch."""
        reason = error_message(checks.integer, "batch", batch, 1)
        return reason or super().why_not(problem, rule, batch, steps)
