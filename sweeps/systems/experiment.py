"""A run: what is trained, by which rule, for how long. A sweep is many of them.

The problem and the rule may be settings from which others are built.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike

from dynsim import Layer, Problem, Rule, SynSmall, checks, decoding, log_times
from dynsim.classes.task import Task
from dynsim.decoding import CountOrInf, Seed, Steps
from dynsim.precision import DType
from dynsim.problem.build import built
from dynsim.problem.checks import check_parts
from dynsim.training.rule import UpdateRule
from dynsim.training.steps import check_schedules, check_step_times
from odes.theory import Training
from sweeps.language import tree
from sweeps.language.describe import TRACED, Objects
from sweeps.language.fields import Field, Table, is_array, is_branch, is_by_group
from sweeps.language.grammar import Language
from sweeps.language.tree import build, check_fields, encode
from sweeps.systems import budget
from sweeps.systems.kinds import language

MOST_TIMES = 2**20
"""Maximum number of recorded times."""
RecordTimes = Literal["end"] | int | tuple[int, ...]
"""When to record: at the end; at step 0 and a number of logarithmically spaced steps; or at these
steps."""
AnySeed = Annotated[Seed, TRACED]


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A run.

    Numbers that can be traced may be arrays that broadcast; the object then stands for many runs.

    Attributes:
        problem: what is trained.
        rule: the update rule.
        steps: optimiser steps; omit them if the rule determines them.
        batch: examples per step; inf for the population loss.
        dtype: precision of training; theories are solved in float64.
        seed: seed of starting weights and data; runs with the same seed see the same batches.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> run = sweeps.Experiment(DeepLinear(), dynsim.sgd(0.1), steps=20, batch=32)
        >>> results = sweeps.run(sweeps.Sweep(run, {"eta": [0.01, 0.1], "seed": range(5)}))
    """

    problem: Problem
    rule: UpdateRule
    steps: Steps | None = 1000
    batch: CountOrInf = 32
    dtype: DType = "float32"
    seed: AnySeed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        checks.kind("problem", self.problem, Problem)
        if not isinstance(self.rule, UpdateRule):
            raise ValueError(
                f"rule = {self.rule!r}: must be a dynsim.Rule, such as dynsim.sgd(0.1); "
                "sweeps.experiment takes rules by their names"
            )

    def at(self, settings: Mapping[str, Any]) -> "Experiment":
        """Return the run with other settings, by full or abbreviated name, such as
        `{"rule": "adam", "steps": 50}`. Another rule keeps the numbers that all rules have.

        Raises:
            ValueError: for an unknown name or an invalid value.
        """
        checks.kind("settings", settings, Mapping)
        self.check_rates()
        objects: Objects = {}
        return _with_settings(encode(language(), self, objects, full=False), settings, objects)

    def check_rates(self) -> None:
        """Raise `ValueError` for a rule without a rate for one of the problem's groups. In text,
        such a group has the rate of all."""
        table = encode(language(), self, {}, full=False)
        rules: list[Any] = [run["rule"] for run in (table, language().complete(table))]
        own, completed = (rule.get("eta") for rule in rules)
        if is_by_group(own) and is_by_group(completed):
            missing = completed.keys() - own.keys()
            if missing:
                raise ValueError(
                    f"rule.eta: has no rate for the group {', '.join(map(repr, missing))} of "
                    f"{type(self.problem).__name__}"
                )

    def setting(self, name: str) -> Any:
        """Return the value of a setting in text form, by full or abbreviated name: a number, a
        word, or a table for a part of the run."""
        return language().resolve(encode(language(), self), name).value

    @property
    def about(self) -> str:
        """Describe the problem and its parts briefly, such as "qkv: syn-small"."""
        return problem_title(encode(language(), self.problem))

    @functools.cached_property
    def built(self) -> tuple[Any, Rule]:
        """The problem and the rule to train. Raises `ValueError` for settings that describe none,
        or for classes whose table would be too large."""
        task = getattr(self.problem, "task", None)
        if isinstance(task, Task):
            budget.check_table(task)
        return built(self.problem, self.rule)

    @functools.cached_property
    def bare(self) -> Any:
        """The problem to train; if the table of its task would be too large, with a small stand-in,
        which is enough for tracing."""
        # Some theories of the attention layer need no table.
        if isinstance(self.problem, Layer) and budget.is_large(self.problem.task):
            return dataclasses.replace(self.problem, task=SynSmall()).build(self.rule)
        return self.built[0]

    def check(self, *, resumed: bool = False, rounded: bool = True) -> None:
        """Raise `ValueError` for mistakes that the classes cannot detect in their constructors.

        Args:
            resumed: whether it may be resumed, in which case a schedule may end later.
            rounded: whether to check open ranges in the precision of the run too.
        """
        rule = self.rule.build()
        check_parts(self.bare, not math.isinf(self.batch), False)
        if self.steps is not None:
            check_schedules(rule, self.steps, resumed)
        elif self.spread is None:
            raise ValueError(f"steps = None: {rule.name} does not determine when a run ends")
        if rounded:
            for part in _parts(self):
                _check_rounding(part, self.dtype)

    def training(self, problem: Any = None) -> Training:
        """Return the run as theories take it, optionally with another problem."""
        problem = self.built[0] if problem is None else problem
        return Training(problem, self.rule.build(), self.batch, self.steps)

    @property
    def spread(self) -> Callable[[Rule, int], ArrayLike] | None:
        """The function (rule, number) -> that many recording steps, up to the end, of a rule that
        determines the number of steps."""
        return None if self.steps is not None else getattr(type(self.rule), "spread", None)

    def steps_recorded(self, times: RecordTimes) -> tuple[int, ...] | int:
        """Return the optimiser steps to record, or only their number if the rule determines them.
        Raises `ValueError` for invalid `times`."""
        if times == "end":
            return 1 if self.steps is None else (self.steps,)
        if not isinstance(times, int):
            check_step_times(times, np.iinfo(np.int32).max if self.steps is None else self.steps)
            return times
        if self.steps is None:
            return checks.integer("times", times, 2)
        number = checks.integer("times", times, 2, MOST_TIMES)
        return tuple(log_times(self.steps, number).tolist())

    @property
    def files(self) -> dict[str, str]:
        """Return hashes of the files that the settings refer to: a store must not be resumed with a
        different file of the same name."""
        return file_hashes(self)


def experiment(problem: str | Problem = "yz", **settings: Any) -> Experiment:
    """Make a run from settings with full or abbreviated names, as on the command line.

    Args:
        problem: a word such as "yz" or "qkv", a class as "my_package:Net", or a problem.
        settings: values by name; others have the defaults of the problem.

    Raises:
        ValueError: for an unknown name or an invalid value.

    Example:
        >>> run = sweeps.experiment(task="overlapping", overlap=0.2, eta_y=2.0, momentum=0.9)
        >>> run = sweeps.experiment("qkv", rule="adam", eta=0.01, width=64, steps=200)
    """
    return _with_settings({}, {"problem": problem, **settings}, {})


def _with_settings(table: Table, settings: Mapping[str, Any], objects: Objects) -> Experiment:
    # Encoding the settings adds the objects among them to `objects`.
    pairs = encode(language(), settings, objects).items()
    return build(language(), language().assign(table, pairs), objects)


def groups_of(language: Language, field: Field, part: Table) -> tuple[str, ...] | None:
    """Return the names of the groups of weights of a problem, from its table; None if it has none,
    and () for one that only its rule determines. Only the shapes of its arrays matter."""
    arrays = {
        each["array"]: np.zeros(each["shape"], each["dtype"]) for each in _array_references(part)
    }
    problem = tree.to_object(language, field, part, ("problem",), {**language.classes, **arrays})
    if type(problem).build is not Problem.build:
        return ()
    weights = eqx.filter_eval_shape(problem.init, jax.random.key(0))
    return tuple(dict.fromkeys(jax.tree.leaves(problem.groups(weights)))) or None


def _array_references(value: Any) -> Iterator[dict[str, Any]]:
    if is_array(value):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _array_references(inner)


def _check_rounding(part: Any, dtype: str) -> None:
    """Raise `ValueError` for a number that leaves its open range when rounded to `dtype`: in
    float32, 1 - 1e-9 becomes 1, and 1e39 infinity."""
    for name, hint in typing.get_type_hints(type(part), include_extras=True).items():
        exact = getattr(part, name, None)
        if not isinstance(exact, float | np.ndarray) or np.asarray(exact).dtype != np.float64:
            continue
        exact, bounds = np.asarray(exact), decoding.bounds_of(decoding.parts_of(hint))
        with np.errstate(over="ignore"):
            rounded = exact.astype(dtype).astype(np.float64)
        open_ends = [bounds[end] for end in ("lt", "gt") if end in bounds]
        to_end, to_infinity = np.isin(rounded, open_ends), np.isinf(rounded)
        bad = (to_infinity & ~np.isinf(exact)) | (to_end & (rounded != exact))
        if bad.any():
            raise ValueError(
                f"{name} = {exact[bad][0].item()!r}: is {rounded[bad][0]:g} in {dtype}, which is "
                "out of range; choose another number, or dtype = 'float64'"
            )


def as_experiment(
    run: Experiment | str | Problem, rule: Any = None, /, **settings: Any
) -> Experiment:
    """Return a run with an update rule and settings: by `Experiment.at`, or by `experiment` for a
    problem."""
    settings = settings if rule is None else {"rule": rule, **settings}
    checks.kind("run", run, Experiment, str, Problem)
    return run.at(settings) if isinstance(run, Experiment) else experiment(run, **settings)


def file_hashes(tree: Any) -> dict[str, str]:
    """Return `Experiment.files` of a run, or of a part of one."""
    hashes: dict[str, str] = {}
    for part in _parts(tree):
        if hasattr(part, "contents"):
            hashes |= part.contents()
    return hashes


def _parts(tree: Any) -> Iterator[Any]:
    """Yield a run and all of its parts that are dataclasses."""
    if isinstance(tree, dict):
        for inner in tree.values():
            yield from _parts(inner)
    elif dataclasses.is_dataclass(tree):
        yield tree
        for field in dataclasses.fields(tree):
            if field.init:
                yield from _parts(getattr(tree, field.name))


def problem_title(problem: Table) -> str:
    """Return `Experiment.about`, from the text form of a problem."""
    parts = [problem, *filter(is_branch, problem.values())]
    # A class of another package is "my_package:Net".
    name, *others = (part.get("path") or part["kind"].rpartition(":")[2] for part in parts)
    return f"{name}: {', '.join(others)}" if others else name
