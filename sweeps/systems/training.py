"""The theories of a problem in sweeps: training, descent and flows; and a run of one of them inside
a compiled program."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray, PyTree

from dynsim import Problem, Rule, Trajectory, checks, decoding, train
from dynsim.precision import DType, on_cpu
from dynsim.problem.build import as_built
from dynsim.problem.memory import bytes_of
from dynsim.problem.observables import table
from dynsim.problem.train import drawn as batches_of
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.recording import Table
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Static, Times
from odes import hierarchy
from odes.hierarchy import of_class
from odes.theory import AnyTheory, Inapplicable, Training, describes_all, error_message
from sweeps.systems.base import Labels, RecordEntries, System, docstring_labels

DRAWN_AT_MOST = 2**24
"""Maximum bytes of one seed's batches to cache."""


def partition(training: Training) -> tuple[Training, Training, Training]:
    """Split runs into the numbers that vary between them, the arrays that they share, and the
    static rest, in which 1 stands for each number.

    Numbers are those of the rule, fields of the problem annotated `float`, and floating-point
    scalars. They may be arrays that broadcast, one entry per run.
    """
    problem = training.problem
    # A reduced problem has arrays alone.
    reals = {*decoding.reals(problem)} if isinstance(problem, Problem) else None
    absent_at_zero = getattr(problem, "LEFT_OUT_AT_ZERO", ())

    def kind(path: KeyPath, leaf: Any) -> str:
        is_array = isinstance(leaf, jax.Array | np.ndarray)
        # In Python, True is an integer.
        if isinstance(leaf, bool) or not (is_array or isinstance(leaf, float | int | np.number)):
            return "static"
        if path[0].name == "rule":
            return "number"
        if reals is None:
            return "array"
        name = path_of(path[1:])
        # The program of exactly zero leaves a term out, so this zero is not an argument of it.
        if name in absent_at_zero and not np.ndim(leaf) and leaf == 0:
            return "zero"
        is_scalar = is_array and np.ndim(leaf) == 0 and jnp.issubdtype(leaf.dtype, np.floating)
        if name in reals or is_scalar or isinstance(leaf, float):
            return "number"
        return "array" if is_array else "static"

    kinds = jax.tree.map_with_path(kind, training)
    numbers = eqx.filter(training, jax.tree.map(lambda kind: kind == "number", kinds))
    arrays = eqx.filter(training, jax.tree.map(lambda kind: kind == "array", kinds))
    stand_ins = {"number": 1.0, "zero": 0.0, "array": None}
    rest = jax.tree.map(lambda kind, leaf: stand_ins.get(kind, leaf), kinds, training)
    return numbers, arrays, rest


def names_of_numbers(numbers: Training) -> list[str]:
    """Return the names of the numbers of runs, in the order of their leaves: paths in the problem
    or the rule, such as "decay", or "eta.Y" for the peak of a schedule. Numbers of the rule that
    are named like a field of the problem are prefixed with `rule.`.

    Raises:
        ValueError: for two numbers of one name, which a store could not tell apart.
    """
    fields = getattr(numbers.problem, "__dataclass_fields__", {})
    names: list[str] = []
    for path, _ in jax.tree.leaves_with_path(numbers):
        part, *words = path_of(path).split(".")
        if part == "rule":
            # As in settings: "eta" is the peak of its schedule, and a number of an optax rule has
            # no prefix.
            if words[0] == "eta" and words[-1] == "peak":
                words = words[:-1]
            if words[0] == "numbers":
                words = words[1:]
        name = ".".join(words)
        if part == "rule" and name in fields:
            name = f"rule.{name}"
        if name in names:
            owner = type(getattr(numbers, part)).__name__
            raise ValueError(f"{owner}: has two numbers named {name!r}")
        names.append(name)
    return names


def path_of(path: KeyPath) -> str:
    """Return the path of a leaf as text, such as "task.probs"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


class Call(NamedTuple):
    """The static arguments of a compiled program, all hashable; its other arguments are numbers,
    arrays and keys.

    Attributes:
        theory: the theory, or training, that computes the runs.
        rest: the static rest of the runs, as `partition` returns it.
        times: optimiser steps at which to record, or their number if the run chooses them.
        record: observables.
        dtype: precision of the computation.
        rtol: relative tolerance of an adaptive solver, None for its default.
        checkpoint: as in `dynsim.train`, for theories whose runs can resume.
        draws: whether the runs of a seed share data that `draw` returns.
        spread: function (rule, number) -> that many recording steps up to the end, for a rule that
            determines when its run ends.
    """

    theory: AnyTheory
    rest: Static
    times: tuple[int, ...] | int
    record: RecordEntries
    dtype: DType
    rtol: float | None = None
    draws: bool = False
    checkpoint: Checkpoint | bool = False
    spread: Callable[[Rule, int], ArrayLike] | None = None

    @property
    def num_times(self) -> int:
        """The number of recorded steps."""
        return self.times if isinstance(self.times, int) else len(self.times)

    def run(
        self, numbers: Training, arrays: Training, key: PRNGKeyArray, drawn: PyTree = None
    ) -> Trajectory:
        """Compute a run."""
        training = eqx.combine(numbers, arrays, self.rest.tree)
        with as_built():
            if isinstance(self.times, int):
                assert self.spread is not None
                times = jnp.rint(jnp.asarray(self.spread(training.rule, self.times)))
            else:
                times = np.asarray(self.times)
            return self.theory.run(
                training,
                key,
                times,
                record=self.record,
                dtype=self.dtype,
                rtol=self.rtol,
                checkpoint=self.checkpoint,
                drawn=drawn,
            )

    def draw(self, arrays: Training, key: PRNGKeyArray) -> PyTree:
        """Draw the data that the runs of one seed share, whatever their numbers."""
        return self.theory.draw(eqx.combine(arrays, self.rest.tree), key)


@dataclasses.dataclass(frozen=True)
class Runs:
    """All runs of one program.

    Attributes:
        training: the runs, whose numbers are arrays that broadcast.
        numbers, arrays: what varies between runs and the arrays that they share, of the problem as
            the theory reduces it.
        call: the program.
    """

    training: Training
    numbers: Training
    arrays: Training
    call: Call

    @property
    def bytes_per_run(self) -> int:
        """An estimate of the memory of a run."""
        call, (_, arrays, rest) = self.call, partition(self.training)
        # A run whose numbers are all 1, as memory does not depend on them.
        training = eqx.combine(arrays, rest)
        return call.theory.bytes_per_run(training, call.num_times, call.record, call.dtype)


@dataclasses.dataclass(frozen=True)
class Simulation(AnyTheory):
    """Training, `dynsim.train`, in the form of a theory."""

    name: str = "simulation"
    title: str = "training"
    assumes: str = ""
    solve: Callable[..., Trajectory] = train
    inapplicable: Inapplicable = describes_all
    needs: tuple[str, ...] = ("key",)
    adaptive: bool = False
    at_once: int = 16
    resumes: bool = True

    trains: ClassVar[bool] = True

    def observables(self, problem: Problem) -> Table:
        """Return what training can record."""
        return table(problem)

    def check(
        self, problem: Problem, rule: UpdateRule, batch: float = math.inf, steps: int | None = None
    ) -> None:
        """Raise `ValueError` with the reason why a run cannot be trained in this way."""
        if reason := self.why_not(problem, rule, batch, steps):
            raise ValueError(reason)

    def bytes_per_run(
        self, training: Training, times: int, record: RecordEntries, dtype: DType
    ) -> int:
        """Return the bytes for copies of the weights, batch and shared data."""
        del times, record
        return bytes_of(training.problem, training.batch, training.steps, dtype, trains=True)

    def draws(self, training: Training) -> bool:
        """Return whether all runs of a seed have a pool of examples, or see the same batches."""
        numbers, _, _ = partition(training)
        # Batches may depend on any number of the problem.
        return training.problem.has("prepare") or not jax.tree.leaves(numbers.problem)

    def draw(self, training: Training, key: PRNGKeyArray) -> PyTree:
        """Draw what the runs of a seed share: the arrays of `Problem.prepare`, or all batches."""
        problem, steps, batch = training.problem, training.steps, training.batch
        if problem.has("prepare"):
            with jax.enable_x64(False):
                return {"shared": problem.prepare(key)[1]}
        # On a CPU, small tiles would draw the same batches again and again.
        if steps is None or math.isinf(batch) or not on_cpu():
            return None
        draw = functools.partial(batches_of, problem, key, steps, int(batch))
        leaves = jax.tree.leaves(jax.eval_shape(draw))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        return {"data": draw()} if size <= DRAWN_AT_MOST else None

    def run(
        self,
        training: Training,
        key: PRNGKeyArray,
        times: Times,
        *,
        rtol: float | None = None,
        drawn: Mapping[str, PyTree] | None = None,
        **options: Any,
    ) -> Trajectory:
        """Train; `options` are the record, the precision and the checkpoint of `dynsim.train`."""
        del rtol
        return train(
            training.problem,
            training.rule,
            key,
            steps=training.steps,
            batch=training.batch,
            times=times,
            **(drawn or {}),
            **options,
        )


@dataclasses.dataclass(frozen=True)
class Descent(Simulation):
    """Training at infinite batch of the problem `at(problem)`."""

    name: str = "descent"
    title: str = "descent, batch infinite"
    assumes: str = "batch -> infinity"
    variant: bool = True
    at: Callable[[Any], Problem] = lambda problem: problem

    trains: ClassVar[bool] = False

    def why_not(
        self, problem: Problem, rule: UpdateRule, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the problem has no population loss."""
        return error_message(lambda: self.at(problem).check_population())

    def draws(self, training: Training) -> bool:
        """Return False: there are no batches."""
        return False

    def run(
        self, training: Training, key: PRNGKeyArray, times: Times, **options: Any
    ) -> Trajectory:
        """Descend the population loss."""
        problem = self.at(training.problem)
        population = Training(problem, training.rule, math.inf, training.steps)
        return super().run(population, key, times, **options)


# A function with a name, unlike a lambda, can be part of the key of a program on disk.
def _at_infinite_length(problem: Any) -> Problem:
    return dataclasses.replace(problem, length=math.inf)


def of_infinite_length(theories: Mapping[str, AnyTheory]) -> dict[str, AnyTheory]:
    """Replace descent by that of infinitely long sequences."""
    descent = dataclasses.replace(theories["descent"], at=_at_infinite_length)
    return {**theories, "descent": descent}


MOST_CHECKED = 1000
"""Maximum number of runs to check individually with a theory."""


def check_runs(theory: AnyTheory, runs: Training) -> None:
    """Raise `ValueError` if a theory does not describe all of the runs, whose numbers may be
    arrays that broadcast."""
    batch, steps = runs.batch, runs.steps
    try:
        if not theory.why_not(runs.problem, runs.rule, batch, steps):
            return
        doubtful = iter([runs])
    except Exception:
        # For numbers that are arrays, `if problem.a > 1` is ambiguous.
        doubtful = _one_by_one(runs)
    with checks.code_of_user(f"theory {theory.name!r}, inapplicable"):
        for run in doubtful:
            theory.check(run.problem, run.rule, batch, steps)


def _one_by_one(runs: Training) -> Iterator[Training]:
    """Yield runs with scalars; of very many, only the first, the last and some between them."""
    numbers, arrays, rest = partition(runs)
    shape = np.broadcast_shapes(*map(np.shape, jax.tree.leaves(numbers)))
    size = math.prod(shape)
    for i in np.unique(np.linspace(0, size - 1, min(size, MOST_CHECKED)).astype(int)):
        scalars = jax.tree.map(lambda x, i=i: np.broadcast_to(x, shape).flat[i].item(), numbers)
        yield eqx.combine(scalars, arrays, rest)


def make_system(
    problem: Problem,
    name: str,
    *,
    problems: tuple[type[Problem], ...] = (),
    theories: Callable[[dict[str, AnyTheory]], dict[str, AnyTheory]] = lambda known: known,
    labels: Labels = Labels(),  # noqa: B008  (immutable)
    at_once: int = 16,
    resumes: bool = True,
    **options: Any,
) -> System:
    """Make the system of a problem: its theories and labels.

    Args:
        problem: the problem as trained.
        name: its name in sweep files and on the command line.
        problems: classes of settings for such a problem; by default the class of the problem.
        theories: function that returns the system's theories, from training and those of the
            problem.
        labels: names and units, in addition to those of the docstring.
        at_once: training runs per batch on a CPU.
        resumes: whether training can save a checkpoint and resume from it.
        **options: further fields of `System`.
    """
    shared, built_in = {"at_once": at_once, "resumes": resumes}, of_class(type(problem))
    known: dict[str, AnyTheory] = {"simulation": Simulation(**shared)}
    if problem.has("population_loss"):
        known["descent"] = Descent(**shared)
    # A theory that needs more than a run has, such as an option of its solver, is left out.
    known |= {name: theory for name, theory in built_in.items() if theory.reads(problem)}

    # Looked up on demand, because that imports packages.
    def registered() -> dict[str, AnyTheory]:
        every = hierarchy.theories(problem).items()
        return {name: each for name, each in every if name not in built_in and each.reads(problem)}

    fields: dict[str, Any] = {
        "labels": labels._replace(about={**docstring_labels(problem), **labels.about}),
        "more": registered,
        "like": problem,
        **options,
    }
    return System(name, problems or (type(problem),), theories(known), **fields)
