"""The interface of systems for sweeps, comparison and diagrams: problems, engines and labels. Also
the division of a problem and a rule into traced numbers by name, and arrays by position, for
compiled programs.

An engine computes the trajectories of a run (`sweeps.systems.experiment`); labels name the recorded
quantities.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Rule, Trajectory, decoding
from dynsim.precision import DType
from dynsim.problem.checks import has_population
from dynsim.schedules import NUMBERS
from dynsim.training.course import Checkpoint
from dynsim.training.recording import PRECONDITIONED, SHARPNESS, NamedFunction, Table
from sweeps.language.describe import docs_of

MOST_TIMES = 2**20
"""Maximum number of recorded times."""
Times = Literal["end"] | int | tuple[int, ...]
"""When to record: at the end; at step 0 and a number of logarithmically spaced steps; or at given
steps."""


class Template(NamedTuple):
    """A pytree without its numbers, hashable. `leaves` of `structure` are names of traced numbers,
    positions of shared arrays, or values in tuples of length one."""

    structure: Any
    leaves: tuple[str | int | tuple[Any], ...]

    def filled(self, numbers: Mapping[str, Any], arrays: tuple[Any, ...]) -> PyTree:
        """Insert numbers by name and arrays by position."""
        found = []
        for leaf in self.leaves:
            if isinstance(leaf, tuple):
                found.append(leaf[0])
            else:
                found.append(numbers[leaf] if isinstance(leaf, str) else arrays[leaf])
        return jax.tree.unflatten(self.structure, found)


class Taken(NamedTuple):
    """A pytree split into its template, its numbers by name, and its arrays."""

    template: Template
    numbers: dict[str, Any]
    arrays: tuple[Any, ...]


class Settings(NamedTuple):
    """Settings of all runs of one program besides their numbers, all hashable.

    Attributes:
        fixed: the value of `Experiment.fixed`.
        times: optimiser steps at which to record, or their number if the run chooses them.
        record: names of observables, or named functions.
        dtype: precision of the computation.
        rtol: relative tolerance of an adaptive solver, None for its default.
        checkpoint: as in `dynsim.train`, for engines whose runs can resume.

    Example:
        >>> settings = sweeps.Settings((), (0, 10), ("loss",), "float32", rtol=None)
        >>> settings.checkpoint
        False
    """

    fixed: Any
    times: tuple[int, ...] | int
    record: tuple[Any, ...]
    dtype: DType
    rtol: float | None
    checkpoint: Checkpoint | bool = False

    @property
    def num_times(self) -> int:
        """The number of recorded steps."""
        return self.times if isinstance(self.times, int) else len(self.times)

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize


class Engine(NamedTuple):
    """An engine computes runs.

    Attributes:
        run: function that computes one run from (settings, task, rule, key), with task and rule
            from `assemble`; vmappable. If `batched`, it computes all runs of one seed, from a rule
            with numbers (P,). With `draw`, it also receives the result of that.
        assemble: function that returns task and update rule of a run from (settings, prepared task,
            traced numbers); it is called inside the compiled program.
        observables: quantities that the engine can record.
        bytes_per_run: estimate of the memory per run, from (task, settings).
        check: function that raises `ValueError` if the engine does not describe (fixed, task,
            rule).
        adaptive: whether the runs of a batch wait for the stiffest run.
        tile: number of runs in a batch on a CPU, where small ones stay in the cache.
        prepare: function of the task and the names to record that returns a pytree of arrays, the
            program's input instead of the task.
        trains: whether it is descent in the precision of the run, not theory in float64.
        batched: see `run`.
        task: function that returns the part of a run to prepare, by default its trained problem.
        draw: function of (settings, prepared task, key) that returns the shared data of all runs of
            one seed, if it is worth caching between batches.
        variant: whether comparisons omit it unless it is requested.
        goes_on: whether its runs can save a checkpoint and resume from it.
        noisy: whether it is a stochastic theory, so that seeds differ.
        seeded: whether its runs depend on the seed when starting weights do.
        title: title for legends and tables.
        assumes: its assumptions, in words.

    Example:
        >>> from sweeps.systems import registry
        >>> sorted(registry.system("yz").engines)[:2]
        ['adam', 'adam-finite-t']
    """

    run: Callable[..., Trajectory]
    assemble: Callable[[Settings, Any, Mapping[str, Array]], tuple[Any, Any]]
    observables: Table
    bytes_per_run: Callable[[Any, Settings], int] = lambda task, settings: 2**16
    check: Callable[[Any, Any, Any], None] = lambda fixed, task, rule: None
    adaptive: bool = False
    tile: int = 16
    prepare: Callable[[Any, tuple[Any, ...]], Any] = lambda task, record: task
    trains: bool = False
    batched: bool = False
    task: Callable[[Any], Any] = lambda run: run.built[0]
    draw: Callable[[Settings, Any, PRNGKeyArray], PyTree] | None = None
    variant: bool = False
    goes_on: bool = False
    noisy: bool = False
    seeded: bool = True
    title: str = ""
    assumes: str = ""

    def check_run(self, run: Any) -> None:
        """Raise `ValueError` if it does not describe a run, a `sweeps.Experiment`."""
        self.check(run.fixed, self.task(run), run.rule.build())


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


def rates(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
    """Return the learning rate, or the sum over all groups."""
    found = [value for name, value in numbers.items() if _is_peak(name)]
    return np.sum(found, axis=0) if found else np.zeros_like(next(iter(numbers.values())))


def _is_peak(name: str) -> bool:
    """Return whether a name is `eta`, or `eta.NAME` of a group, and not a number of a schedule."""
    first, _, rest = name.removeprefix("rule.").partition(".")
    return first == "eta" and rest not in NUMBERS and "." not in rest


class System(NamedTuple):
    """A registered system.

    Attributes:
        name: its name in sweep files and on the command line.
        problems: classes of its problems; the first one has the name of the system.
        engines: its engines by name. Training is called "simulation".
        labels: names and units for its results.
        compare: class used by `dynsim compare NAME`, as "module:Class", a subclass of
            `sweeps.compare.comparison.Comparison`; None for that class itself.
        more: engines of theories that other packages register, looked up on demand.
        stiffness: function of the traced numbers that returns (P,) values that grow with the number
            of steps of an adaptive solver.

    Example:
        >>> from sweeps.systems import registry
        >>> registry.system("yz").name
        'yz'
    """

    name: str
    problems: tuple[type[Problem], ...]
    engines: Mapping[str, Engine]
    labels: Labels = Labels()
    compare: str | None = None
    more: Callable[[], Mapping[str, Engine]] = dict
    stiffness: Callable[[Mapping[str, np.ndarray]], np.ndarray] = rates


def names_of(record: tuple[str | NamedFunction, ...]) -> tuple[str, ...]:
    """Return the names of recorded quantities."""
    return tuple(each.name if isinstance(each, NamedFunction) else each for each in record)


def known(times: tuple[int, ...] | int) -> tuple[int, ...]:
    """Return the recorded steps of a run; only for rules that do not choose them."""
    if isinstance(times, int):
        raise TypeError("times: the runs of this system set their own")
    return times


def of_problem(problem: Problem) -> Taken:
    """Split a problem. Its numbers are fields annotated `float`, and floating-point scalars."""
    return _taken(problem, {*decoding.reals(problem)}, _path)


def of_rule(rule: Rule, problem: Problem) -> Taken:
    """Split a rule, in which everything is a number. Numbers named like a field of the problem are
    prefixed with `rule.`."""
    clashing = problem.__dataclass_fields__

    def name(path: tuple[Any, ...]) -> str:
        # `eta` for `eta.peak`, `eta.Y` for `eta.Y.peak`, `b1` for `numbers.b1`.
        words = _path(path).split(".")
        if words[0] == "eta" and words[-1] == "peak":
            words = words[:-1]
        found = ".".join(words[1:] if words[0] == "numbers" else words)
        return f"rule.{found}" if found in clashing else found

    return _taken(rule, None, name)


def _taken(tree: PyTree, reals: set[str] | None, name_of: Any) -> Taken:
    leaves, structure = jax.tree.flatten_with_path(tree)
    left_out = getattr(tree, "LEFT_OUT_AT_ZERO", ())
    kept: list[str | int | tuple[Any]] = []
    numbers: dict[str, Any] = {}
    arrays: list[Any] = []
    for path, leaf in leaves:
        name = name_of(path)
        array = isinstance(leaf, jax.Array | np.ndarray)
        scalar = array and np.ndim(leaf) == 0 and jax.numpy.issubdtype(leaf.dtype, np.floating)
        number = array or isinstance(leaf, float | int | np.number)
        zero = name in left_out and not np.ndim(leaf) and leaf == 0
        if isinstance(leaf, bool) or not number or zero:
            kept.append((0.0 if zero else leaf,))
        elif reals is None or name in reals or scalar or isinstance(leaf, float):
            if name in numbers:
                raise ValueError(f"{type(tree).__name__}: has two numbers named {name!r}")
            numbers[name] = leaf if array else float(leaf)
            kept.append(name)
        elif array:
            kept.append(len(arrays))
            arrays.append(leaf)
        else:
            kept.append((leaf,))
    return Taken(Template(structure, tuple(kept)), numbers, tuple(arrays))


def _path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
