"""A problem or a rule taken apart: its traced numbers by name, its arrays, and what is static; and
the text by which a store knows it."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_type_hints

import jax
import numpy as np
from jaxtyping import PyTree

from dynsim import OptaxRule, Problem
from dynsim.schedules.schedule import OfStep
from dynsim.schedules.shapes import NUMBERS
from dynsim.training.rules import KNOWN


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


def taken(tree: PyTree, hints: Mapping[str, Any] | None, clashing: tuple[str, ...] = ()) -> Taken:
    """A problem or a rule taken apart. Of a problem, with the annotations `hints` of its fields,
    numbers are what is annotated `float`, and floating-point scalars; of a rule everything. A
    number called like one of the `clashing` names is called `rule.NAME`."""
    leaves, structure = jax.tree.flatten_with_path(tree)
    kept: list[str | int | tuple[Any]] = []
    numbers: dict[str, Any] = {}
    arrays: list[Any] = []
    for path, leaf in leaves:
        name = _name(path, hints is None)
        array = isinstance(leaf, jax.Array | np.ndarray)
        scalar = array and np.ndim(leaf) == 0 and np.issubdtype(leaf.dtype, np.floating)
        number = array or isinstance(leaf, float | int | np.number)
        if isinstance(leaf, bool) or not number:
            kept.append((leaf,))
        elif hints is None or is_real(hints.get(name)) or scalar or isinstance(leaf, float):
            name = f"rule.{name}" if name in clashing else name
            if name in numbers:
                raise ValueError(f"{type(tree).__name__}: has two numbers of the name {name!r}")
            numbers[name] = leaf if array else float(leaf)
            kept.append(name)
        elif array:
            kept.append(len(arrays))
            arrays.append(leaf)
        else:
            kept.append((leaf,))
    return Taken(Template(structure, tuple(kept)), numbers, tuple(arrays))


def replaced(problem: Problem, settings: Mapping[str, Any]) -> Problem:
    """The problem with other settings, of which numbers may be arrays: those of many runs."""
    arrays = {name: value for name, value in settings.items() if np.ndim(value)}
    firsts = {name: np.ravel(value)[0].item() for name, value in arrays.items()}
    made = dataclasses.replace(problem, **{**settings, **firsts})
    if not arrays:
        return made
    # Fields are numbers; those of many runs at once are put in afterwards.
    apart = taken(made, hints_of(made))
    return apart.template.filled({**apart.numbers, **arrays}, apart.arrays)


def hints_of(problem: Problem | type[Problem]) -> dict[str, Any]:
    """Annotations of the fields of a problem, by name."""
    cls = problem if isinstance(problem, type) else type(problem)
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def plain(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows besides None, without range and unit."""
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    parts = tuple(part for part in get_args(hint) if part is not type(None))
    if parts and all(isinstance(p, type) or hasattr(p, "__metadata__") for p in parts):
        return tuple(each for part in parts for each in plain(part))
    return (hint,)


def is_real(hint: Any) -> bool:
    """Whether a field is a real number, which is traced."""
    return plain(hint) == (float,)


def _name(path: tuple[Any, ...], of_rule: bool) -> str:
    """The name of a number; `of_rule`: `eta` of `eta.peak`, `eta.Y` of `eta.Y.peak`, `b1` of
    `numbers.b1`."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    if not of_rule:
        return name
    words = name.split(".")
    if words[0] == "eta" and words[-1] == "peak":
        words = words[:-1]
    return ".".join(words[1:] if words[0] == "numbers" else words)


def is_peak(name: str) -> bool:
    """Whether a number of this name is a learning rate: `eta`, or `eta.NAME` of a group, which is
    none of the numbers of a schedule."""
    first, _, rest = name.removeprefix("rule.").partition(".")
    return first == "eta" and rest not in NUMBERS and "." not in rest


def words(value: Any) -> str:
    """A value as text that is the same in another process. Functions and objects are known by
    their names here; what they do is part of the program that they are compiled to."""
    text = repr(value)
    if not callable(value) and " at 0x" not in text:
        return text
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def described(rule: Any) -> str:
    """A rule by its kind and the kinds of its schedules, without its numbers."""
    if isinstance(rule, OptaxRule):
        return words(rule.make)
    rates = [
        f"{group}: " * bool(group)
        + type(each).__name__
        + (f" {words(each.function)}" if isinstance(each, OfStep) else "")
        for group, each in rule.schedules.items()
    ]
    kind = rule.name if type(rule) in KNOWN else words(type(rule))
    static = [
        f"{field.name} = {value!r}"
        for field in dataclasses.fields(rule)
        if field.metadata.get("static") and (value := getattr(rule, field.name))
    ]
    return f"{' '.join([kind, *static])} ({', '.join(rates)})"


def contents(problem: Problem) -> dict[str, str]:
    """A hash of the arrays of a problem: results of other data are not mixed with those that are
    there. Those of dynsim itself follow from their settings."""
    if type(problem).__module__.split(".")[0] == "dynsim":
        return {}
    arrays = [np.asarray(each) for each in taken(problem, hints_of(problem)).arrays]
    held = b"".join(repr((a.shape, str(a.dtype))).encode() + a.tobytes() for a in arrays)
    return {"problem_holds": hashlib.sha256(held).hexdigest()[:16]} if arrays else {}
