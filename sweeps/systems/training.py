"""The theories of a problem in sweeps: training, descent, and all that describe it; and the call of
one of them in a compiled program."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks, decoding, train
from dynsim.precision import DType, on_cpu
from dynsim.problem.base import as_built
from dynsim.problem.checks import table
from dynsim.problem.memory import bytes_of
from dynsim.problem.train import drawn as batches_of
from dynsim.training.recording import Table
from dynsim.training.steps import Checkpoint
from dynsim.trajectory import Static
from odes import hierarchy
from odes.hierarchy import of_class
from odes.theory import AnyTheory, Inapplicable, Training, describes_all, error_message
from sweeps.systems.base import Labels, System, described

DRAWN_AT_MOST = 2**24
"""Maximum bytes of one seed's batches to cache."""


def divided(training: Training) -> tuple[Training, Training, Training]:
    """Divide runs into the numbers that may differ between them, the arrays that they share, and
    the rest, which is static, with 1 in place of each number.

    Numbers are those of the rule, fields of the problem annotated `float`, and floating-point
    scalars. They may be arrays that broadcast, one entry per run.
    """
    problem = training.problem
    # A reduced problem has arrays alone.
    reals = {*decoding.reals(problem)} if isinstance(problem, Problem) else None
    left_out = getattr(problem, "LEFT_OUT_AT_ZERO", ())

    def kind(path: tuple[Any, ...], leaf: Any) -> str:
        array = isinstance(leaf, jax.Array | np.ndarray)
        if isinstance(leaf, bool) or not (array or isinstance(leaf, float | int | np.number)):
            return "static"
        if path[0].name == "rule":
            return "number"
        if reals is None:
            return "array"
        name = path_of(path[1:])
        if name in left_out and not np.ndim(leaf) and leaf == 0:
            return "zero"
        scalar = array and np.ndim(leaf) == 0 and jnp.issubdtype(leaf.dtype, np.floating)
        if name in reals or scalar or isinstance(leaf, float):
            return "number"
        return "array" if array else "static"

    kinds = jax.tree.map_with_path(kind, training)
    numbers = eqx.filter(training, jax.tree.map(lambda each: each == "number", kinds))
    arrays = eqx.filter(training, jax.tree.map(lambda each: each == "array", kinds))
    stand_ins = {"number": lambda _: 1.0, "zero": lambda _: 0.0, "array": lambda _: None}
    rest = jax.tree.map(lambda k, x: stand_ins.get(k, lambda _: x)(x), kinds, training)
    return numbers, arrays, rest


def names_of_numbers(numbers: Training) -> list[str]:
    """Return the names of the numbers of runs, in the order of their leaves: paths in the problem
    or the rule, such as "decay", or "eta.Y" for the peak of a schedule. Numbers of the rule that
    are named like a field of the problem are prefixed with `rule.`.

    Raises:
        ValueError: for two numbers of one name, which a store could not tell apart.
    """
    fields = getattr(numbers.problem, "__dataclass_fields__", {})

    def name(path: tuple[Any, ...]) -> str:
        words = path_of(path[1:]).split(".")
        if path[0].name != "rule":
            return ".".join(words)
        if words[0] == "eta" and words[-1] == "peak":
            words = words[:-1]
        found = ".".join(words[1:] if words[0] == "numbers" else words)
        return f"rule.{found}" if found in fields else found

    found: list[str] = []
    for path, _ in jax.tree.leaves_with_path(numbers):
        found.append(name(path))
        if found[-1] in found[:-1]:
            owner = type(getattr(numbers, path[0].name)).__name__
            raise ValueError(f"{owner}: has two numbers named {found[-1]!r}")
    return found


def path_of(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as text, such as "task.probs"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


class Call(NamedTuple):
    """What a compiled program computes: runs that differ in numbers, arrays and keys. Hashable.

    Attributes:
        theory: the theory, or training, that computes the runs.
        rest: the static rest of the runs, with 1 in place of each number.
        times: optimiser steps at which to record, or their number if the run chooses them.
        record: names of observables, or named functions.
        dtype: precision of the computation.
        rtol: relative tolerance of an adaptive solver, None for its default.
        checkpoint: as in `dynsim.train`, for theories whose runs can resume.
        draws: whether the runs of a seed share data that `draw` returns.
        spread: (rule, number) -> that many recording steps up to the end, for such rules.
    """

    theory: AnyTheory
    rest: Static
    times: tuple[int, ...] | int
    record: tuple[Any, ...]
    dtype: DType
    rtol: float | None = None
    draws: bool = False
    checkpoint: Checkpoint | bool = False
    spread: Callable[[Any, int], Any] | None = None

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
            return self.theory.run(
                training,
                key,
                self._times(training.rule),
                record=self.record,
                dtype=self.dtype,
                rtol=self.rtol,
                checkpoint=self.checkpoint,
                drawn=drawn,
            )

    def draw(self, arrays: Training, key: PRNGKeyArray) -> PyTree:
        """Draw the data that the runs of one seed share, whatever their numbers."""
        return self.theory.draw(eqx.combine(arrays, self.rest.tree), key)

    def _times(self, rule: Any) -> Any:
        if not isinstance(self.times, int):
            return np.asarray(self.times)
        assert self.spread is not None
        return jnp.rint(jnp.asarray(self.spread(rule, self.times)))


@dataclasses.dataclass(frozen=True)
class Runs:
    """All runs of one program.

    Attributes:
        training: the runs, whose numbers are arrays that broadcast.
        numbers, arrays: parts of them as the theory takes them: those that differ, and those that
            all runs share.
        call: the program.
    """

    training: Training
    numbers: Training
    arrays: Training
    call: Call

    @property
    def bytes_per_run(self) -> int:
        """An estimate of the memory of a run."""
        _, arrays, rest = divided(self.training)
        call = self.call
        one = eqx.combine(arrays, rest)
        return call.theory.bytes_per_run(one, call.num_times, call.record, call.dtype)


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
        self, problem: Any, rule: Any, batch: float = math.inf, steps: int | None = None
    ) -> None:
        """Raise `ValueError` with the reason why a run cannot be trained in this way."""
        if reason := self.why_not(problem, rule, batch, steps):
            raise ValueError(reason)

    def bytes_per_run(
        self, training: Training, times: int, record: tuple[Any, ...], dtype: DType
    ) -> int:
        """Return the bytes for copies of the weights, batch and shared data."""
        del times, record
        return bytes_of(training.problem, training.batch, training.steps, dtype, trains=True)

    def draws(self, training: Training) -> bool:
        """Return whether all runs of a seed have a pool of examples, or see the same batches."""
        return training.problem.has("prepare") or not _has_numbers(training)

    def draw(self, training: Training, key: PRNGKeyArray) -> PyTree:
        """Draw what the runs of a seed share: the arrays of `Problem.prepare`, or all batches.
        The latter only on a CPU, where small tiles would draw them again and again."""
        problem, steps, batch = training.problem, training.steps, training.batch
        if problem.has("prepare"):
            with jax.enable_x64(False):
                return {"shared": problem.prepare(key)[1]}
        if steps is None or math.isinf(batch) or not on_cpu():
            return None
        draw = functools.partial(batches_of, problem, key, steps, int(batch))
        leaves = jax.tree.leaves(jax.eval_shape(draw))
        needed = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        return {"data": draw()} if needed <= DRAWN_AT_MOST else None

    def run(
        self,
        training: Training,
        key: PRNGKeyArray,
        times: Any,
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
    """Training at infinite batch. `at` maps the problem to the one to train."""

    name: str = "descent"
    title: str = "descent, batch infinite"
    assumes: str = "batch -> infinity"
    variant: bool = True
    at: Callable[[Any], Problem] = lambda problem: problem

    trains: ClassVar[bool] = False

    def why_not(
        self, problem: Any, rule: Any, batch: float = math.inf, steps: int | None = None
    ) -> str | None:
        """Return why the problem has no population loss."""
        return error_message(lambda: self.at(problem).check_population())

    def draws(self, training: Training) -> bool:
        """Return False: there are no batches."""
        return False

    def run(self, training: Training, key: PRNGKeyArray, times: Any, **options: Any) -> Trajectory:
        """Descend the population loss."""
        problem = self.at(training.problem)
        whole = Training(problem, training.rule, math.inf, training.steps)
        return super().run(whole, key, times, **options)


def _at_infinite_length(problem: Any) -> Problem:
    return dataclasses.replace(problem, length=math.inf)


def of_infinite_length(found: Mapping[str, AnyTheory]) -> Mapping[str, AnyTheory]:
    """Replace descent by that of infinitely long sequences."""
    descent: Any = found["descent"]
    return {**found, "descent": dataclasses.replace(descent, at=_at_infinite_length)}


def theories_of(problem: Problem, at_once: int = 16, resumes: bool = True) -> dict[str, AnyTheory]:
    """Return training and the theories of a problem, by name."""
    shared = {"at_once": at_once, "resumes": resumes}
    found: dict[str, AnyTheory] = {"simulation": Simulation(**shared)}
    if problem.has("population_loss"):
        found["descent"] = Descent(**shared)
    known = of_class(type(problem)).items()
    return found | {name: each for name, each in known if each.reads(problem)}


MOST_ASKED = 1000
"""Maximum number of runs to check individually with a theory."""


def check_runs(theory: AnyTheory, runs: Training) -> None:
    """Raise `ValueError` if a theory does not describe all of the runs, whose numbers may be
    arrays that broadcast."""
    given = runs.batch, runs.steps
    try:
        each = [runs] if theory.why_not(runs.problem, runs.rule, *given) else []
    except Exception:
        # Numbers of axes are arrays, for which `if problem.a > 1` would be ambiguous.
        each = _single(runs)
    with checks.code_of_user(f"theory {theory.name!r}, inapplicable"):
        for one in each:
            theory.check(one.problem, one.rule, *given)


def _single(runs: Training) -> Iterator[Training]:
    """Yield runs one by one, with scalars. Of very many, only the first, the last and some between
    them."""
    numbers, arrays, rest = divided(runs)
    shape = np.broadcast_shapes(*map(np.shape, jax.tree.leaves(numbers)))
    size = math.prod(shape)
    for place in np.unique(np.linspace(0, size - 1, min(size, MOST_ASKED)).astype(int)):
        at = jax.tree.map(lambda x, i=place: np.broadcast_to(x, shape).flat[i].item(), numbers)
        yield eqx.combine(at, arrays, rest)


def _has_numbers(training: Training) -> bool:
    return bool(jax.tree.leaves(divided(training)[0].problem))


def system(
    problem: Problem,
    name: str,
    *,
    problems: tuple[type[Problem], ...] = (),
    theories: Callable[[Mapping[str, AnyTheory]], Mapping[str, AnyTheory]] = lambda found: found,
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

    def registered() -> dict[str, AnyTheory]:
        built_in, every = of_class(type(problem)), hierarchy.theories(problem).items()
        return {n: each for n, each in every if n not in built_in and each.reads(problem)}

    labels = labels._replace(about={**described(problem), **labels.about})
    found = theories(theories_of(problem, at_once, resumes))
    known = {"labels": labels, "more": registered, "like": problem, **options}
    return System(name, problems or (type(problem),), found, **known)
