"""The interface of systems for sweeps, comparison and diagrams: what computes runs, and labels.

A run is a pytree, `odes.Training`: a problem, a rule, and static settings. A sweep gives its
numbers a leading axis. `odes.Theory` has the methods that compute it; training is a subclass,
`sweeps.systems.training.Simulation`. Labels name the recorded quantities.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, decoding
from dynsim.precision import DType
from dynsim.problem.base import as_built
from dynsim.problem.checks import has_population
from dynsim.training.course import Checkpoint
from dynsim.training.recording import PRECONDITIONED, SHARPNESS, NamedFunction
from dynsim.trajectory import Static
from odes.theory import AnyTheory, Training
from sweeps.language.describe import docs_of

MOST_TIMES = 2**20
"""Maximum number of recorded times."""
Times = Literal["end"] | int | tuple[int, ...]
"""When to record: at the end; at step 0 and a number of logarithmically spaced steps; or at given
steps."""


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


class Labels(NamedTuple):
    """Descriptions of the axes and observables of a system.

    Attributes:
        about: long name and unit, where the name alone is insufficient.
        inner_dims: names of the axes of observables that are arrays.
        values: coordinate values along such an axis, if it has any.

    Example:
        >>> from sweeps.systems import registry
        >>> isinstance(registry.system("yz").labels, sweeps.Labels)
        True
    """

    about: Mapping[str, tuple[str, str]] = MappingProxyType({})
    inner_dims: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    values: Mapping[str, np.ndarray] = MappingProxyType({})


def described(problem: Problem) -> dict[str, tuple[str, str]]:
    """Parse the observables under `Attributes:` in the docstring of the class; their unit is in
    square brackets after the name."""
    found = {}
    fields = {field.name for field in dataclasses.fields(problem)}
    for name, text in docs_of(type(problem)).items():
        if name not in fields and not hasattr(Problem, name):
            words, _, unit = re.split("[.:;]", text)[0].partition(" [")
            found[name] = (words, unit.rstrip("]") or "1")
    loss = "population loss" if has_population(problem) else "loss of the next batch"
    return found | {
        SHARPNESS: (f"largest eigenvalue of the Hessian of the {loss}", "1"),
        PRECONDITIONED: (f"sharpness of the {loss} in units in which the edge is 2", "1"),
    }


class Row(NamedTuple):
    """A row of the table of `dynsim explain`.

    Attributes:
        quantity: what is predicted.
        prediction: its value; NaN if it has none.
        error: estimated error of the prediction, 0 if it is exact, NaN if unknown.
        strained: the assumption that is strained, the theories that make it, and by how much; empty
            if none is.
        worst: optimiser step at which it is most strained, NaN if it is so in the whole run.

    Example:
        >>> sweeps.Row("plateau ends at step", 120.0).prediction
        120.0
    """

    quantity: str
    prediction: float | str
    error: float = math.nan
    strained: str = ""
    worst: float = math.nan


class Prediction(NamedTuple):
    """The solution from which `dynsim explain` starts, and what it tests against it.

    Attributes:
        theory: title of the theory.
        training: the training that it describes. If its problem is a `dynsim.Problem`, the loss is
            compared with descent, and at a finite batch linear noise with trainings.
        solved: the loss, and any other observables, over optimiser steps.
        sizes: sizes to print after the name of the problem.
        exact: whether the theory makes each step of descent, so that its numbers have no error.
        has_limit: whether it assumes small steps or large batches.

    Example:
        >>> solved = odes.descent(DeepLinear(), dynsim.sgd(0.1), [0, 9], key=jax.random.key(0))
        >>> training = odes.Training(DeepLinear(), dynsim.sgd(0.1), steps=9)
        >>> made = sweeps.Prediction("descent", training, solved, exact=True)
    """

    theory: str
    training: Training
    solved: Trajectory
    sizes: str = ""
    exact: bool = False
    has_limit: bool = True


def rates(training: Training) -> Float[np.ndarray, "*P"]:
    """Return the learning rate, or the sum over all groups."""
    peaks = [np.asarray(each.peak) for each in training.rule.schedules.values()]
    return functools.reduce(np.add, peaks)


class System(NamedTuple):
    """A registered system.

    Attributes:
        name: its name in sweep files and on the command line.
        problems: classes of its problems; the first one has the name of the system.
        theories: its theories by name, and training, which is called "simulation".
        labels: names and units for its results.
        more: theories that other packages register, looked up on demand.
        like: a problem with the observables of all of them, made without touching a device; None if
            each run's own problem is to be asked.
        stiffness: function of the runs, whose numbers have shape (P,), that returns values (P,)
            that grow with the number of steps of an adaptive solver.
        predict: function of an `Experiment` that returns the `Prediction` of `dynsim explain`; None
            for the first theory that describes the run and predicts its loss.
        rows: function (experiment, prediction) -> further rows of the table of `dynsim explain`,
            such as transition times, or assumptions of the theories that the run strains.

    Example:
        >>> from sweeps.systems import registry
        >>> registry.system("yz").name
        'yz'
    """

    name: str
    problems: tuple[type[Problem], ...]
    theories: Mapping[str, AnyTheory]
    labels: Labels = Labels()
    more: Callable[[], Mapping[str, AnyTheory]] = dict
    like: Problem | None = None
    stiffness: Callable[[Training], np.ndarray] = rates
    predict: Callable[[Any], Prediction] | None = None
    rows: Callable[[Any, Prediction], Iterable[Row]] = lambda run, prediction: ()


def names_of(record: tuple[str | NamedFunction, ...]) -> tuple[str, ...]:
    """Return the names of recorded quantities."""
    return tuple(each.name if isinstance(each, NamedFunction) else each for each in record)


def known(times: tuple[int, ...] | int) -> tuple[int, ...]:
    """Return the recorded steps of a run; only for rules that do not choose them."""
    if isinstance(times, int):
        raise TypeError("times: the runs of this system set their own")
    return times
