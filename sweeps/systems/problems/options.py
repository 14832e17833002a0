"""The settings of a problem for a command line and for sweep files, made from its class."""

import dataclasses
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import jax

from dynsim import Problem
from dynsim.decoding import CountOrInf, Steps
from dynsim.precision import DType
from dynsim.problem.choice import Choice
from odes.theory import Theory
from sweeps.systems.base import Engine, Fields, Labels, System, field_names
from sweeps.systems.problems import rules
from sweeps.systems.problems.engines import Like, engines_of, of_theory
from sweeps.systems.problems.parts import hints_of, is_real, plain, replaced
from sweeps.systems.problems.run import ProblemRun
from sweeps.systems.settings import attributes


class Options(rules.ReadsRule, ProblemRun):
    """A training of a problem that flat settings describe.

    Attributes:
        MADE: the problem at its defaults.
        FIELDS: names of the fields of the problem that are settings.
        GROUPS: names of its groups of weights, by the setting of their learning rate.
        NAME: of the system.
    """

    MADE: ClassVar[Any]
    FIELDS: ClassVar[tuple[str, ...]]
    GROUPS: ClassVar[Mapping[str, str]]
    NAME: ClassVar[str]
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
        self.check_read()
        return replaced(self.MADE, {name: getattr(self, name) for name in self.FIELDS})

    @property
    def rule(self) -> Any:
        """The rule; `ValueError` for numbers that cannot be."""
        self.check_read()
        if not self.GROUPS:
            eta: Any = rules.schedule(self, self.eta)
        else:
            eta = {g: rules.schedule(self, getattr(self, n)) for n, g in self.GROUPS.items()}
        return rules.rule(self, eta)

    def own_system(self) -> System[Any] | None:
        """None: it is registered, by its name."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is made, and found again by the name of the system.
        return _again, (self.NAME, {n: getattr(self, n) for n in field_names(type(self))})


def _again(name: str, values: Mapping[str, Any]) -> Any:
    return pkgutil.resolve_name("sweeps.systems.registry:system")(name).run(**values)


def options_of(problem: Problem, name: str, task: str = "", **defaults: Any) -> type[Options]:
    """Settings of a problem, whose field values are the defaults.

    Args:
        name: of the system.
        task: what the setting `task` has to be; there is none if this is empty.
        **defaults: of settings that have others than usual.
    """
    cls, hints = type(problem), hints_of(problem)
    own = {n: h for n, h in hints.items() if _is_setting(h)}
    groups = _groups(problem)
    renamed = {n: f"rule_{n}" for n in rules.NUMBERS if n in own}
    fields: list[tuple[str, Any, Any]] = [("task", Literal[task], task)] if task else []  # type: ignore[valid-type]
    fields += [(n, hint, getattr(problem, n)) for n, hint in own.items()]
    for each in dataclasses.fields(rules.OneRate):
        if each.name == "eta" and groups:
            fields += [(n, each.type, each.default) for n in groups]
        else:
            fields.append((renamed.get(each.name, each.name), each.type, each.default))
    fields += [("steps", Steps, 1000), ("batch", CountOrInf, 32), ("dtype", DType, "float32")]
    fields = [(n, hint, defaults.get(n, value)) for n, hint, value in fields]
    numbers = [n for n, hint in own.items() if is_real(hint)]
    whole = [n for n, hint in own.items() if plain(hint) == (int,)]
    counts = [n for n, hint in own.items() if set(plain(hint)) == {int, float}]
    of_rule = (*(groups or ("eta",)), *rules.SCHEDULED, *(renamed.get(n, n) for n in rules.NUMBERS))
    namespace = {
        "MADE": problem,
        "FIELDS": tuple(own),
        "GROUPS": groups,
        "RENAMED": renamed,
        "NAME": name,
        "AXES": Fields(
            traced=(*of_rule, *numbers),
            static=(*whole, *counts, "steps", "batch"),
            whole=(*whole, "steps"),
            counts=(*counts, "batch"),
        ),
        **({} if task else {"task": name}),
    }
    made = dataclasses.make_dataclass(
        cls.__name__,
        [(n, hint, dataclasses.field(default=value)) for n, hint, value in fields],
        bases=(Options,),
        namespace=namespace,
        frozen=True,
    )
    title = (cls.__doc__ or f"Training of {cls.__name__}.").partition("\n")[0]
    about = {"steps": "optimiser steps of a run.", "task": f"{task}."}
    about |= {"batch": "examples per step; inf for the population loss."}
    about |= {"dtype": "precision of training; theories are solved in float64."}
    about |= {
        n: f"learning rate of {group}, the peak of a schedule." for n, group in groups.items()
    }
    of_rules = attributes(rules.OneRate) + attributes(rules.RuleOptions)
    for old, new in renamed.items():
        of_rules = of_rules.replace(f"        {old}: ", f"        {new}: ")
    lines = [attributes(cls), of_rules]
    lines += [f"        {n}: {text}\n" for n, text in about.items() if n in made.__annotations__]
    made.__doc__ = f"{title}\n\n    Attributes:\n{''.join(lines)}"
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
    theories: Iterable[Theory[Any, Any]] = (),
    registered: Any = None,
    labels: Labels = Labels(),  # noqa: B008  (immutable)
    tile: int = 16,
    run: type[ProblemRun] | None = None,
    **defaults: Any,
) -> System[Any]:
    """The system of a problem by its name: settings made from its class, and its engines.

    Args:
        problem: at its defaults.
        name: by which sweep files and the command line ask for it.
        task: name of its task, if it has one.
        theories: besides those that it says itself and the flows of every problem.
        registered: theories of other packages by name, looked up when they are needed.
        labels: names and units.
        tile: runs in a batch on a CPU.
        run: its settings, where they are not made from its class.
        **defaults: of settings that have others than usual.
    """
    like = Like(problem)
    engines = {**engines_of(like, tile), **{t.name: of_theory(t, like) for t in theories}}

    def more() -> dict[str, Engine[Any]]:
        found = registered() if registered else {}
        return {n: of_theory(t, like) for n, t in found.items() if set(t.needs) <= {"init", "key"}}

    run = run or options_of(problem, name, task, **defaults)
    return System(name, (task,) if task else (name,), run, engines, labels, more=more)
