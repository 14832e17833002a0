"""The settings of a problem for a command line and for sweep files, made from its class."""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, get_type_hints

import jax

from dynsim import Problem
from dynsim.decoding import CountOrInf, Steps, words
from dynsim.precision import DType
from dynsim.problem.choice import Choice
from odes.theory import Theory
from sweeps.systems.base import Engine, Fields, Labels, System, field_names
from sweeps.systems.problems import rules
from sweeps.systems.problems.engines import Like, descent, engines_of, of_theory
from sweeps.systems.problems.labels import sharpness_of
from sweeps.systems.problems.parts import contents, hints_of, plain, replaced
from sweeps.systems.problems.run import ProblemRun
from sweeps.systems.settings import attributes, described


class Options(rules.ReadsRule, ProblemRun):
    """A training of a problem that flat settings describe.

    Attributes:
        MADE: the problem at its defaults.
        FIELDS: names of the fields of the problem that are settings, by the setting.
        GROUPS: names of its groups of weights, by the setting of their learning rate.
        NAME: of the system.
        TASKS: what its problem can hold, by name; see `sweeps.systems.problems.tasks`.
        STATIC: real numbers of its own that decide shapes, so that programs cannot share them.
        SHARED: settings that choose a word which all runs of a sweep have in common.
    """

    MADE: ClassVar[Any]
    FIELDS: ClassVar[Mapping[str, str]] = {}
    GROUPS: ClassVar[Mapping[str, str]] = {}
    NAME: ClassVar[str]
    TASKS: ClassVar[Mapping[str, Any]] = {}
    STATIC: ClassVar[tuple[str, ...]] = ()
    SHARED: ClassVar[tuple[str, ...]] = ("task", "dtype")
    eta: Any

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What settings of the problem, the optimiser and the schedule read."""
        own = type(self.MADE).CHOICES
        of_problem = (Choice(name, getattr(self, name), own[name]) for name in own)
        return (*of_problem, *super().choices)

    @property
    def problem(self) -> Any:
        """The problem; `ValueError` for settings that describe none."""
        return self.bare

    @property
    def usual(self) -> Any:
        """The problem at its defaults."""
        return self.MADE

    @functools.cached_property
    def bare(self) -> Any:  # type: ignore[override]
        """The problem of the settings that are its fields."""
        self.check_read()
        given = {field: getattr(self, name) for name, field in self.FIELDS.items()}
        return replaced(self.usual, given)

    @property
    def rule(self) -> Any:
        """The rule; `ValueError` for numbers that cannot be."""
        self.check_read()
        if not self.GROUPS:
            eta: Any = rules.schedule(self, self.eta)
        else:
            eta = {g: rules.schedule(self, self.value(n)) for n, g in self.GROUPS.items()}
        return rules.rule(self, eta)

    def contents(self) -> dict[str, str]:
        """Hashes of the code of the problem and of its arrays, which no setting changes."""
        return contents(self.MADE)

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is made, and found again by the name of the system.
        return _again, (self.NAME, {n: getattr(self, n) for n in field_names(type(self))})


def _again(name: str, values: Mapping[str, Any]) -> Any:
    return pkgutil.resolve_name("sweeps.systems.registry:system")(name).run(**values)


def options_of(
    problem: Problem,
    name: str,
    task: str = "",
    options: type[Options] = Options,
    names: Mapping[str, str] | None = None,
    **defaults: Any,
) -> type[Options]:
    """Settings of a problem, whose field values are the defaults.

    Args:
        name: of the system.
        task: what the setting `task` has to be; there is none if this is empty.
        options: what to derive from: a dataclass with settings of its own, which go before those of
            the problem and the rule, such as one of `sweeps.systems.problems.tasks.TaskOptions`.
        names: of settings that are not called like their fields, by the field.
        **defaults: of settings that have others than usual.

    Raises:
        ValueError: for a field that is called like a setting of every run.
    """
    cls, called = type(problem), names or {}
    own = {n: (h, called.get(n, n)) for n, h in hints_of(problem).items() if _is_setting(h)}
    of_problem = {setting: hint for hint, setting in own.values()}
    groups = _groups(problem)
    renamed = {n: f"rule_{n}" for n in rules.NUMBERS if n in own}
    fields: list[tuple[str, Any, Any]] = [("task", Literal[task], task)] if task else []  # type: ignore[valid-type]
    fields += [(setting, hint, getattr(problem, n)) for n, (hint, setting) in own.items()]
    for each in dataclasses.fields(rules.OneRate):
        if each.name == "eta" and groups:
            fields += [(n, each.type, each.default) for n in groups]
        else:
            fields.append((renamed.get(each.name, each.name), each.type, each.default))
    fields += [("steps", Steps, 1000), ("batch", CountOrInf, 32), ("dtype", DType, "float32")]
    hints = get_type_hints(options, include_extras=True)
    given = {n: hints[n] for n in field_names(options)} if dataclasses.is_dataclass(options) else {}
    mine = of_problem.keys() - given
    others = [n for n, _, _ in fields[bool(task) + len(own) :]]
    others += ["seed", *(n for n in mine if hasattr(options, n))]
    options.check_fields(problem, mine, others)
    fields = [(n, hint, value) for n, hint, value in fields if n not in given]
    fields += [(n, given[n], value) for n, value in defaults.items() if n in given]
    fields = [(n, hint, defaults.get(n, value)) for n, hint, value in fields]
    of_rule = (*(groups or ("eta",)), *rules.SCHEDULED, *(renamed.get(n, n) for n in rules.NUMBERS))
    axes = {n: plain(h) for n, h in (given | of_problem).items() if n not in of_rule}
    real = [n for n, kind in axes.items() if kind == (float,)]
    whole = [n for n, kind in axes.items() if kind == (int,)]
    counts = [n for n, kind in axes.items() if set(kind) == {int, float}]
    every = {n: words(hint) for n, hint in {**given, **{f[0]: f[1] for f in fields}}.items()}
    worded = {n: found for n, found in every.items() if found and n not in options.SHARED}
    namespace = {
        "__module__": __name__,
        "MADE": problem,
        "FIELDS": {setting: n for n, (_, setting) in own.items()},
        "GROUPS": groups,
        "RENAMED": renamed,
        "NAME": name,
        "AXES": Fields(
            traced=(*of_rule, *(n for n in real if n not in options.STATIC)),
            static=(*whole, *options.STATIC, *counts, "steps", "batch", *worded),
            whole=(*whole, "steps"),
            counts=(*counts, "batch"),
            words=worded,
        ),
        **({} if task or "task" in given else {"task": name}),
    }
    made = dataclasses.make_dataclass(
        cls.__name__,
        [(n, hint, dataclasses.field(default=value)) for n, hint, value in fields],
        bases=(options,),
        namespace=namespace,
        frozen=True,
    )
    title = (cls.__doc__ or f"Training of {cls.__name__}.").partition("\n")[0]
    whole_too = "; inf for the population loss" * problem.has("population_loss")
    rate = "learning rate of {}, the peak of a schedule."
    of_rules = attributes(rules.OneRate) | attributes(rules.RuleOptions)
    texts = {called.get(n, n): text for n, text in attributes(cls).items()}
    texts |= {renamed.get(n, n): text for n, text in of_rules.items()}
    of_runs = {"steps": "optimiser steps of a run.", "task": f"{task}."}
    of_runs |= {"batch": f"examples per step{whole_too}."}
    of_runs |= {"dtype": "precision of training; theories are solved in float64."}
    of_runs |= {n: rate.format(group) for n, group in groups.items() if n not in given}
    texts |= {n: text for n, text in of_runs.items() if n in made.__annotations__}
    made.__doc__ = described(title, texts)
    return made


def _is_setting(hint: Any) -> bool:
    """Whether a field can be written on a command line."""
    return getattr(hint, "__origin__", None) is Literal or all(
        part in (int, float, str, bool) or getattr(part, "__origin__", None) is Literal
        for part in plain(hint)
    )


def _groups(problem: Problem) -> dict[str, str]:
    """Names of the groups of weights, by the setting of their learning rate."""
    if not problem.has("groups"):
        return {}

    def names() -> None:
        # A key is made here, because no device may be used before somebody computes.
        found.update(jax.tree.leaves(problem.groups(problem.init(jax.random.key(0)))))

    found: set[str] = set()
    jax.eval_shape(names)
    return {f"eta_{group.lower()}": group for group in sorted(found)}


def problem_system(
    problem: Problem,
    name: str,
    *,
    task: str = "",
    options: type[Options] = Options,
    names: Mapping[str, str] | None = None,
    theories: Iterable[Theory[Any, Any]] = (),
    registered: Any = None,
    labels: Labels = Labels(),  # noqa: B008  (immutable)
    tile: int = 16,
    run: type[ProblemRun] | None = None,
    descends: Callable[[Any], Problem] | None = None,
    **defaults: Any,
) -> System[Any]:
    """The system of a problem by its name: settings made from its class, and its engines.

    Args:
        problem: at its defaults.
        name: by which sweep files and the command line ask for it.
        task: name of its task, if it has one.
        options, names: as of `options_of`.
        theories: besides those that it says itself and the flows of every problem.
        registered: theories of other packages by name, looked up when they are needed.
        labels: names and units.
        tile: runs in a batch on a CPU.
        run: its settings, where they are not made from its class.
        descends: the problem whose population loss descent is on, from the problem.
        **defaults: of settings that have others than usual.
    """
    like = Like(problem)
    engines = {**engines_of(like, tile), **{t.name: of_theory(t, like) for t in theories}}
    if descends is not None:
        engines["descent"] = descent(like, tile, descends)

    def more() -> dict[str, Engine[Any]]:
        found = registered() if registered else {}
        known = {"init", "key", *hints_of(problem)}
        return {n: of_theory(t, like) for n, t in found.items() if set(t.needs) <= known}

    run = run or options_of(problem, name, task, options, names, **defaults)
    tasks = (task,) if task else tuple(options.TASKS) or (name,)
    labels = labels._replace(about=sharpness_of(problem) | dict(labels.about))
    return System(name, tasks, run, engines, labels, more=more)
