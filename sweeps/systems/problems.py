"""Any `dynsim.Problem`, trained by any rule, as a system: what `sweeps.Sweep(problem, rule, ...)`
runs.

The numbers of a problem and of its rule have names, by which they can be axes: fields of the
problem; `eta`, the peak of the rate, and `eta.warmup` and other numbers of its schedule; `eta.NAME`
of a group of weights; and what else the rule reads. All of them are traced.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import math
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks, decoding, train
from dynsim.decoding import CountOrInf, Field, Steps, plain
from dynsim.precision import DType
from dynsim.problem.checks import check_parts, check_rule, table
from dynsim.training.recording import Table
from dynsim.training.rule import OptaxRule, Rule
from dynsim.training.schedule import OfStep
from sweeps.systems.base import (
    Engine,
    Fields,
    Labels,
    Run,
    Settings,
    System,
    Times,
    known,
    steps_of,
)

BYTES = 2**14
"""Of a run besides copies of its weights and its batch."""
COPIES = 8
"""Of the weights that a step holds at once, about: gradient, update, memory and what is between."""


class Template(NamedTuple):
    """A pytree without its numbers, hashable: `structure` of `leaves`, of which each is the name of
    a traced number, the place of a shared array, or a value in a tuple of its own."""

    structure: Any
    leaves: tuple[str | int | tuple[Any], ...]

    def filled(self, numbers: Mapping[str, Any], arrays: tuple[Any, ...]) -> PyTree:
        """The pytree with numbers by name and arrays by place."""
        found = []
        for leaf in self.leaves:
            if isinstance(leaf, tuple):
                found.append(leaf[0])
            else:
                found.append(numbers[leaf] if isinstance(leaf, str) else arrays[leaf])
        return jax.tree.unflatten(self.structure, found)


class Taken(NamedTuple):
    """A pytree taken apart: its template, its numbers by name, and its arrays."""

    template: Template
    numbers: dict[str, Any]
    arrays: tuple[Any, ...]


class Fixed(NamedTuple):
    """What runs of one program share besides their arrays."""

    problem: Template
    rule: Template
    steps: int
    batch: int | float


@dataclasses.dataclass(frozen=True)
class Trained(Run[Fixed]):
    """One training of a problem.

    Attributes:
        problem: what is trained.
        rule: by which rule.
        steps: optimiser steps.
        batch: examples of a step; inf for the population loss.
        dtype: precision of training.
        task: "problem", whatever the problem.
        values: traced numbers that axes replace, by name.
        resumable: whether runs leave checkpoints, so that a schedule may be longer than they are.
    """

    problem: Any
    rule: Any
    steps: Steps = 1000
    batch: CountOrInf = 32
    dtype: DType = "float32"
    task: Literal["problem"] = "problem"
    values: Any = dataclasses.field(default_factory=dict)
    resumable: bool = False

    OWN: ClassVar = ("steps", "batch")

    @property
    def AXES(self) -> Fields:  # type: ignore[override]
        """What can be an axis: a property, as it depends on the problem and the rule."""
        whole = tuple(name for name, hint in _hints(self.problem).items() if _plain(hint) is int)
        unset = tuple(n for n in _options(self.rule) if n not in self.numbers())
        return Fields(
            traced=(*self.numbers(), *unset),
            static=(*whole, *self.OWN),
            whole=(*whole, "steps"),
            counts=("batch",),
        )

    def __post_init__(self) -> None:
        checks.kind("problem", self.problem, Problem)
        checks.kind("rule", self.rule, Rule, OptaxRule)
        super().__post_init__()

    def check(self) -> None:
        """Raise `ValueError` as `dynsim.train` does, and as problem and rule do of numbers."""
        super().check()
        check_parts(self.problem, not math.isinf(self.batch), False)
        taken, rule = self._problem, self.make_optimizer()
        problem = taken.template.filled(self.numbers(), taken.arrays)
        for made in (problem, rule, *rule.schedules.values()):
            for cls in type(made).__mro__:
                if check := vars(cls).get("__check_init__"):
                    check(made)
        check_rule(rule, self.steps, self.resumable)

    def kinds(self) -> dict[str, Field]:
        """Annotations of what can be a static axis."""
        return {**decoding.fields(type(self.problem)), **super().kinds()}

    def at(self, chosen: Mapping[str, Any]) -> "Trained":
        """The run at the `chosen` values of axes."""
        own = {name: chosen[name] for name in self.OWN if name in chosen}
        sizes = {
            name: chosen[name]
            for name in _hints(self.problem)
            if name in chosen and name not in self.numbers()
        }
        values = {name: v for name, v in chosen.items() if name not in own and name not in sizes}
        problem = dataclasses.replace(self.problem, **sizes) if sizes else self.problem
        return dataclasses.replace(self, problem=problem, values={**self.values, **values}, **own)

    def make_task(self) -> tuple[Any, ...]:
        """The arrays of the problem, which all runs share."""
        return self._problem.arrays

    def make_optimizer(self) -> Any:
        """The rule with the numbers of the axes in it."""
        taken = self._rule
        return taken.template.filled({**taken.numbers, **self.values}, taken.arrays)

    def numbers(self) -> dict[str, ArrayLike]:
        """Traced numbers of problem and rule by name."""
        found = {**self._problem.numbers, **self._rule.numbers}
        return {**found, **self.values}

    def fixed(self) -> Fixed:
        """What the program takes for granted."""
        return Fixed(self._problem.template, self._rule.template, self.steps, self.batch)

    @property
    def _problem(self) -> Taken:
        return taken(self.problem, _hints(self.problem))

    @property
    def _rule(self) -> Taken:
        own = tuple(_hints(self.problem))
        # A number that the rule leaves out is there as soon as an axis has it.
        added = {n: 1.0 for n in _options(self.rule) if n in self.values and n not in own}
        return taken(dataclasses.replace(self.rule, **added), {}, own)

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records."""
        return steps_of(times, self.steps)

    def as_json(self) -> dict[str, object]:
        """The problem and the rule by name, and all of their numbers."""
        cls, sizes = type(self.problem), _hints(self.problem)
        found: dict[str, object] = {"problem": f"{cls.__module__}:{cls.__qualname__}"}
        found["rule"] = _described(self.rule)
        for name in sizes:
            value = plain(getattr(self.problem, name))
            # Arrays are known by their contents.
            if name not in self.numbers() and not isinstance(value, jax.Array | np.ndarray):
                found[name] = value if isinstance(value, int | str | bool | None) else _words(value)
        found |= {name: plain(value) for name, value in self.numbers().items()}
        batch = "inf" if math.isinf(self.batch) else self.batch
        return found | {"steps": self.steps, "batch": batch, "dtype": self.dtype}

    def contents(self) -> dict[str, str]:
        """Hashes of the code of the problem and of its arrays: results of a changed loss, or of
        other data, are not mixed with those that are there."""
        found = {"problem_code": _hash(_code(type(self.problem)).encode())}
        arrays = [np.asarray(each) for each in self.make_task()]
        words = b"".join(repr((a.shape, str(a.dtype))).encode() + a.tobytes() for a in arrays)
        return found | ({"problem_holds": _hash(words)} if arrays else {})

    def own_system(self) -> System[Any]:
        """The system of runs of this problem."""
        return _system(type(self.problem), _Names(table(self.problem)))


def taken(tree: PyTree, hints: Mapping[str, Any], clashing: tuple[str, ...] = ()) -> Taken:
    """A problem or a rule taken apart. A number called like one of the `clashing` names is called
    `rule.NAME`."""
    leaves, structure = jax.tree.flatten_with_path(tree)
    kept: list[str | int | tuple[Any]] = []
    numbers: dict[str, Any] = {}
    arrays: list[Any] = []
    for path, leaf in leaves:
        name = _name(path)
        whole = isinstance(leaf, int) and _plain(hints.get(name)) is not float and bool(hints)
        if isinstance(leaf, float | int | np.number) and not (whole or isinstance(leaf, bool)):
            name = f"rule.{name}" if name in clashing else name
            numbers[name] = float(leaf)
            kept.append(name)
        elif isinstance(leaf, jax.Array | np.ndarray):
            if np.ndim(leaf) == 0 and np.issubdtype(leaf.dtype, np.floating):
                numbers[name] = leaf
                kept.append(name)
            else:
                kept.append(len(arrays))
                arrays.append(leaf)
        else:
            kept.append((leaf,))
    return Taken(Template(structure, tuple(kept)), numbers, tuple(arrays))


def _name(path: tuple[Any, ...]) -> str:
    """The name of a number: `eta` of `eta.peak`, `eta.Y` of `eta.Y.peak`, `b1` of `numbers.b1`."""
    words = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
    if words[0] == "eta" and words[-1] == "peak":
        words = words[:-1]
    return ".".join(words[1:] if words[0] == "numbers" else words)


class _Names:
    """A table that equals another one of the same names."""

    def __init__(self, table: Table) -> None:
        self.table, self.names = table, tuple(table.functions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Names) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)


@functools.lru_cache(maxsize=64)
def _system(cls: type[Problem], names: _Names) -> System[Any]:
    """The same for equal problems, so that compiled programs are found again."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    engine = Engine(
        _train,
        _assemble,
        names.table,
        _bytes,
        trains=True,
        goes_on=True,
        title="training",
    )
    return System(name, ("problem",), Trained, {"simulation": engine}, Labels())


def _assemble(
    settings: Settings[Fixed], arrays: tuple[Array, ...], numbers: Mapping[str, Array]
) -> tuple[Problem, Any]:
    fixed = settings.fixed
    return fixed.problem.filled(numbers, arrays), fixed.rule.filled(numbers, ())


def _train(settings: Settings[Fixed], problem: Problem, rule: Any, key: PRNGKeyArray) -> Trajectory:
    fixed = settings.fixed
    return train(
        problem,
        rule,
        key,
        steps=fixed.steps,
        batch=fixed.batch,
        times=np.asarray(known(settings.times)),
        record=settings.record,
        dtype=settings.dtype,
        checkpoint=settings.checkpoint,
    )


def _bytes(arrays: tuple[Any, ...], settings: Settings[Fixed]) -> int:
    """Copies of the weights and of a batch."""
    fixed = settings.fixed
    names = [name for name in fixed.problem.leaves if isinstance(name, str)]
    problem = fixed.problem.filled(dict.fromkeys(names, 1.0), arrays)

    def held(key: PRNGKeyArray) -> list[Array]:
        batch = () if math.isinf(fixed.batch) else problem.draw(key, int(fixed.batch))
        return [x for x in jax.tree.leaves((problem.init(key), batch)) if eqx.is_array(x)]

    made = jax.eval_shape(held, jax.random.key(0))
    return COPIES * settings.width * sum(math.prod(x.shape) for x in made) + BYTES


def _hints(problem: Problem) -> dict[str, Any]:
    return get_type_hints(type(problem), include_extras=True)


def _plain(hint: Any) -> Any:
    """An annotation without its range and unit."""
    return getattr(hint, "__origin__", hint)


def _options(rule: Any) -> tuple[str, ...]:
    """Numbers that a rule can leave out."""
    return ("decay", "clip", "noise") if isinstance(rule, Rule) else ()


def _hash(words: bytes) -> str:
    return hashlib.sha256(words).hexdigest()[:16]


def _code(cls: type) -> str:
    """The code of a class and of those between it and `Problem`, without comments and layout; where
    there is no source, as in some consoles, nothing."""
    found = []
    for each in cls.__mro__[: cls.__mro__.index(Problem)]:
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            found.append(ast.dump(ast.parse(textwrap.dedent(inspect.getsource(each)))))
    return "\n".join(found)


def _words(value: Any) -> str:
    """A value as text that is the same in another process. A function is known by its name, and by
    its code where the name could be that of another one.

    Raises:
        ValueError: for a value whose text has an address of this process in it.
    """
    if callable(value):
        name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', repr(value))}"
        code = getattr(value, "__code__", None)
        if "<" not in name or code is None:
            return name
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        words = repr((code.co_code.hex(), code.co_consts, code.co_names, held))
        return f"{name} {_hash(words.encode())}"
    words = repr(value)
    if " at 0x" in words:
        raise ValueError(
            f"{words}: cannot be told from others in a store; give the field a function of a "
            "module, or a value that has a text of its own"
        )
    return words


def _described(rule: Any) -> str:
    """A rule by its kind and the kinds of its schedules, without its numbers."""
    if isinstance(rule, OptaxRule):
        return _words(rule.make)
    rates = [
        f"{group}: " * bool(group)
        + type(each).__name__
        + (f" {_words(each.function)}" if isinstance(each, OfStep) else "")
        for group, each in rule.schedules.items()
    ]
    return f"{rule.kind}{' decoupled' * rule.decoupled} ({', '.join(rates)})"
