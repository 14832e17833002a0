"""What a sweep is: one training as a starting point, and axes along which it varies."""

import dataclasses
import functools
import json
import math
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import annotated_types as at
import numpy as np
from jaxtyping import PyTree
from pydantic import InstanceOf

from dynsim import checks, decoding
from dynsim.decoding import Seed, shown
from dynsim.precision import DType
from dynsim.problem.base import Problem as DynsimProblem
from dynsim.training.recording import Own
from sweeps.runner.axes import Dimension, dimensions
from sweeps.runner.names import OF_STORES, check_names
from sweeps.runner.store.base import BY_WORD, CHECKPOINT
from sweeps.systems import budget, registry
from sweeps.systems.base import Engine, Run, Settings, System, Times, names_of
from sweeps.systems.problems import parts

Axes = Annotated[Mapping[str, Any], decoding.Says("a mapping from names of axes")]
AnyRun = InstanceOf[Run[Any]]
Names = Annotated[
    tuple[str | InstanceOf[Own], ...], decoding.Says("names of observables, such as ('loss',)")
]
Groups = Annotated[tuple[tuple[str, ...], ...], decoding.Says("a list of lists of axes")]
Tolerance = Annotated[float, at.Ge(1e-13), at.Lt(1)]

USUAL = ("loss", "accuracy", "entropy")
FEW = 64
"""Combinations of values of static axes up to which all are looked at before anything runs."""


class Problem(NamedTuple):
    """What the runs at one combination of static values share: their task, the names of their
    traced numbers, and what an engine is told."""

    task: PyTree
    numbers: tuple[str, ...]
    settings: Settings[Any]


class _OfProblems(type):
    """Lets a sweep be made of a problem and a rule instead of a run."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if args and isinstance(args[0], DynsimProblem):
            return cls.of(*args, **options)  # pyright: ignore[reportAttributeAccessIssue]
        return super().__call__(*args, **options)


@dataclasses.dataclass(frozen=True)
class Sweep(metaclass=_OfProblems):
    """Many trainings, or many solves of a theory, over named axes.

    `Sweep(problem, rule, axes, steps=..., batch=...)` sweeps any `dynsim.Problem`; axes are fields
    of the problem, numbers of the rule (`eta`, which scales a schedule, `eta.warmup`, `decay`,
    `clip`, ...), `steps`, `batch` and `seed`. Fields of the problem that are a `Literal` of words
    are axes as well. It records `batch_loss` unless told otherwise.

    Attributes:
        axes: values by field, in the order of the dimensions: a list of numbers or of words; or a
            table with one entry, `linspace` or `logspace`, each [first, last, number of values], or
            `range`, a number n for 0 .. n-1 or [first, end]. `seed` chooses starting weights and
            data, so runs of one seed see the same batches whatever their learning rates. A run
            leaves out numbers that its words do not read; along an axis of such numbers, runs are
            equal.
        run: the training of which each run is a variation; what is an axis is ignored here. Its
            class decides the system; by default that of the attention layer in Y and Z.
        engine: one of the system's: "simulation"; in Y and Z also "descent" (T and batch infinite)
            or a theory of the ladder; or "best", the most exact theory that describes all runs.
        record: names of observables; in Python also `{"mine": function}`, whose function takes what
            the observables of the system take. If omitted, loss, accuracy and entropy as far as
            the system has them.
        times: "end"; the number of logarithmically spaced steps at which to record, besides step 0;
            or the steps themselves.
        zip: groups of axes that vary together instead of forming a grid.
        rtol: relative tolerance of an adaptive solver; by default that of the theory.
        root: root of the random keys; a run uses fold_in(key(root), seed).
        checkpoint: whether to keep what each run ended with, its weights and the memory of its
            update rule, so that a sweep of more steps can go on from there.
        title: one line for people.
    """

    axes: Axes
    run: AnyRun = dataclasses.field(default_factory=lambda: registry.system("yz").run())
    engine: str = "simulation"
    record: Names = None  # pyright: ignore[reportAssignmentType]
    times: Times = "end"
    zip: Groups = ()
    rtol: Tolerance | None = None
    root: Seed = 0
    checkpoint: bool = False
    title: str = ""

    def __post_init__(self) -> None:
        decoding.made_plain(self)
        if self.engine == registry.BEST:
            planes = map(self.plane, self.some_slices())
            object.__setattr__(self, "engine", registry.best(self.system, tuple(planes)))
        if self.record is None:
            object.__setattr__(self, "record", self._usual())
        record: Any = (self.record,) if isinstance(self.record, str | Mapping) else self.record
        if not isinstance(record, tuple):
            return
        asked: list[Any] = []
        for each in record:
            asked += [Own(*own) for own in each.items()] if isinstance(each, Mapping) else [each]
        object.__setattr__(self, "record", tuple(asked))

    def _usual(self) -> tuple[str, ...]:
        """What is recorded unless asked otherwise; `check` says what is wrong with the run."""
        try:
            known = self.rules.observables.names()
        except (ValueError, AttributeError):
            return USUAL
        return tuple(name for name in USUAL if name in known) or known[:1]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what is recorded."""
        return names_of(self.record)

    @classmethod
    def of(
        cls,
        problem: DynsimProblem,
        rule: Any,
        axes: Mapping[str, Any],
        steps: int,
        batch: int | float = 32,
        engine: str = "simulation",
        record: Any = ("batch_loss",),
        dtype: DType = "float32",
        **options: Any,
    ) -> "Sweep":
        """The sweep of a problem by a rule: what `Sweep(problem, rule, axes, ...)` returns."""
        # Loaded when it is asked for: it imports all that runs of problems do.
        trained = pkgutil.resolve_name("sweeps.systems.problems.trained:Trained")
        run = trained(problem, rule, steps, batch, dtype)
        return cls(axes, run, engine, record, **options)

    @functools.cached_property
    def dims(self) -> tuple[Dimension, ...]:
        """The dimensions of the array of runs."""
        return dimensions(self.axes, self.zip, self.run.AXES)

    @functools.cached_property
    def system(self) -> System[Any]:
        """The system of the runs."""
        return registry.system_of(self.run)

    @functools.cached_property
    def rules(self) -> Engine[Any]:
        """How the runs are computed; `ValueError` if the system has no such engine."""
        known = registry.engines(self.system)
        return known[checks.choice("engine", self.engine, (*known, registry.BEST))]

    @property
    def fields(self) -> dict[str, tuple[Any, ...]]:
        """Values by axis."""
        return {name: values for dim in self.dims for name, values in dim.axes.items()}

    @property
    def dtype(self) -> DType:
        """Precision of the runs."""
        return self.run.dtype if self.rules.trains else "float64"

    def point(self, chosen: Mapping[str, Any]) -> Run[Any]:
        """The run at the `chosen` values of axes, numbers or arrays that broadcast."""
        return self.run.at({name: value for name, value in chosen.items() if name != "seed"})

    def plane(self, chosen: Mapping[str, Any]) -> Run[Any]:
        """The runs at the `chosen` values of static axes: one run whose other axes hold all of
        their values, as arrays that broadcast, each dimension along its own."""
        return self.point({**self._grid, **chosen})

    @functools.cached_property
    def first(self) -> Run[Any]:
        """The run that stands for what all have in common, at the first word of each axis of words:
        other settings may be such that not every word reads them."""
        words = {n: values[0] for n, values in self.fields.items() if n in self.run.AXES.words}
        return self.run.at(words) if words else self.run

    @functools.cached_property
    def _grid(self) -> dict[str, np.ndarray]:
        varied = [dim for dim in self.dims if not dim.static and dim.name != "seed"]
        grid: dict[str, np.ndarray] = {}
        for i, dim in enumerate(varied):
            along = [1] * len(varied)
            along[i] = -1
            grid |= {name: np.reshape(values, along) for name, values in dim.axes.items()}
        return grid

    @functools.cached_property
    def _static(self) -> tuple[Dimension, ...]:
        return tuple(dim for dim in self.dims if dim.static)

    def slices(self) -> Iterator[dict[str, Any]]:
        """Every combination of values along static dimensions."""
        return map(self._slice, np.ndindex(*(dim.size for dim in self._static)))

    def some_slices(self) -> list[dict[str, Any]]:
        """All of these combinations where they are few. Of many, the one of all smallest and of all
        largest values, those that hold one of the ends of a dimension, or one of its words, beside
        what is first in the others, and others from first to last."""
        shape = tuple(dim.size for dim in self._static)
        number = math.prod(shape)
        if number <= FEW:
            return list(self.slices())
        words, ends = self.run.AXES.words, []
        for dim in self._static:
            values = next((v for name, v in dim.axes.items() if name not in words), (0,))
            own = (v for name, v in dim.axes.items() if name in words)
            firsts = [i for v in own for i in np.unique(v, return_index=True)[1].tolist()]
            ends.append([int(np.argmin(values)), *firsts, int(np.argmax(values))])
        found: list[tuple[int, ...]] = [tuple(end[i] for end in ends) for i in (0, -1)]
        for i, each in enumerate(ends):
            found += [tuple(end if i == j else 0 for j in range(len(shape))) for end in each]
        between = np.linspace(0, number - 1, FEW // 4).astype(int)
        found += zip(*(each.tolist() for each in np.unravel_index(between, shape)), strict=True)
        return [self._slice(index) for index in dict.fromkeys(found)]

    def _slice(self, index: tuple[int, ...]) -> dict[str, Any]:
        return {
            name: values[i]
            for dim, i in zip(self._static, index, strict=True)
            for name, values in dim.axes.items()
        }

    def static_values(self, region: tuple[slice, ...]) -> dict[str, Any]:
        """The values of static axes that the runs of a region, one chunk, have in common."""
        return {
            name: values[part.start]
            for dim, part in zip(self.dims, region, strict=True)
            if dim.static
            for name, values in dim.axes.items()
        }

    def check(self) -> None:
        """Raise `ValueError`, naming the field, the value and what is allowed."""
        if not isinstance(self.axes, Mapping) or not self.axes:
            raise ValueError(f"axes = {shown(self.axes)}: needs a mapping with at least one axis")
        if not isinstance(self.run, Run):
            raise ValueError(
                f"run = {shown(self.run)}: must be the run of a system, such as Training()"
            )
        decoding.check(self)
        decoding.check(self.run, "run.")
        names = self.fields
        self.run.check_axes(names)
        if self.rtol is not None and not self.rules.adaptive:
            raise ValueError(f"rtol = {self.rtol}: engine {self.engine!r} does not read it")
        for pick in (min, max):
            if "seed" in names:
                checks.seed("axes.seed", pick(names["seed"]))
        if self.checkpoint and not self.rules.goes_on:
            able = [name for name, each in registry.engines(self.system).items() if each.goes_on]
            raise ValueError(
                f"checkpoint = true: engine {self.engine!r} of {self.system.name} keeps none; "
                f"those that do: {', '.join(able) or 'none of this system'}"
            )
        if CHECKPOINT in self.names:
            raise ValueError(f"record = {CHECKPOINT!r}: is no observable; set checkpoint = true")
        if not self.record:
            raise ValueError("record = []: needs at least one observable")
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise ValueError(f"record = {twice[0]!r}: is named twice")
        self.rules.observables.resolve(self.record)
        check_names(("", OF_STORES), ("axes", names), ("record", self.names))
        self._check_budget()
        for dim in self._static:
            kinds = self.run.kinds()
            # Zipped axes that are traced are checked with the runs.
            for name in filter(kinds.__contains__, dim.axes):
                for value in dim.axes[name]:
                    decoding.check_value(name, value, kinds[name])
        for chosen in self.some_slices():
            problem = self.problem(chosen)
            budget.check_memory(self.rules.bytes_per_run(problem.task, problem.settings))

    def problem(self, chosen: Mapping[str, Any]) -> Problem:
        """The task and the settings of the runs at the `chosen` values of static axes. Of very many
        of them, `check` has looked at some: raises `ValueError` as it does."""
        runs = self.plane(chosen)
        runs.check()
        if not self.checkpoint:
            runs.check_whole()
        if self.rules.trains:
            decoding.rounded(runs, self.dtype)
        numbers = tuple(runs.numbers())
        times = runs.steps_recorded(self.times)
        fixed = runs.fixed()
        task = self.rules.task(runs)
        self.rules.check(fixed, task, runs.make_optimizer())
        settings = Settings(fixed, times, self.record, self.dtype, self.rtol, self.checkpoint)
        return Problem(task, numbers, settings)

    def _check_budget(self) -> None:
        """Raise `ValueError` for more than anybody can run, before anything is made of it."""
        static = math.prod(dim.size for dim in self.dims if dim.static)
        times = self.times if isinstance(self.times, int) else len(self.times)
        steps = max(self.fields.get("steps", (getattr(self.run, "steps", 1),)))
        runs = math.prod(dim.size for dim in self.dims)
        budget.check_runs(runs, static, times * len(self.record), int(steps))

    def as_json(self) -> dict[str, Any]:
        """The settings that decide the numbers, as JSON values, and the title. The code that does
        is known by its programs, `sweeps.runner.identity`."""
        # Named where it is asked for alone: stores of older versions are resumed as they are.
        kept: dict[str, Any] = {CHECKPOINT: True} if self.checkpoint else {}
        own = [each for each in self.record if isinstance(each, Own)]
        if own:
            kept["functions"] = {each.name: parts.words(each.function) for each in own}
        base, told = self.first, set(self.fields)
        if by_word := self.run.by_word(self.fields):
            kept[BY_WORD] = by_word
            told |= {n for each in by_word.values() for reads in each.values() for n in reads}
        run = {
            name: value
            for name, value in base.as_json().items()
            if name not in told and base.reads(name, self.fields)
        }
        return kept | {
            "title": self.title,
            "system": self.system.name,
            "engine": self.engine,
            "record": list(self.names),
            "times": list(self.times) if isinstance(self.times, tuple) else self.times,
            "root": self.root,
            "rtol": self.rtol,
            "zip": [list(group) for group in self.zip],
            "axes": {
                name: ["inf" if v == math.inf else v for v in values]
                if math.inf in values
                else list(values)
                for name, values in self.fields.items()
            },
            # As it will be read again: JSON has lists for tuples, however deep they are.
            "run": json.loads(json.dumps(run | base.contents())),
        }
