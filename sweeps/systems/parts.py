"""A problem or a rule taken apart: its traced numbers by name, its arrays, and what is static."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

import jax
import numpy as np
from jaxtyping import PyTree

from dynsim import Problem, Rule, decoding


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


def of_problem(problem: Problem) -> Taken:
    """A problem taken apart: numbers are what is annotated `float`, and floating-point scalars."""
    return _taken(problem, {*_reals(problem)}, _path)


def of_rule(rule: Rule, problem: Problem) -> Taken:
    """A rule taken apart: everything in it is a number. One called like a field of the problem is
    called `rule.NAME`."""
    clashing = hints_of(problem)

    def name(path: tuple[Any, ...]) -> str:
        # `eta` of `eta.peak`, `eta.Y` of `eta.Y.peak`, `b1` of `numbers.b1`.
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
        scalar = array and np.ndim(leaf) == 0 and np.issubdtype(leaf.dtype, np.floating)
        number = array or isinstance(leaf, float | int | np.number)
        zero = name in left_out and not np.ndim(leaf) and leaf == 0
        if isinstance(leaf, bool) or not number or zero:
            kept.append((0.0 if zero else leaf,))
        elif reals is None or name in reals or scalar or isinstance(leaf, float):
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


def _path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _reals(tree: Any, before: str = "") -> Iterator[str]:
    """Names of the fields that are real numbers, also in parts of a problem."""
    for name, hint in hints_of(tree).items():
        value = getattr(tree, name)
        if dataclasses.is_dataclass(value):
            yield from _reals(value, f"{before}{name}.")
        elif {float} == {float, tuple, dict, decoding.WHOLE} & {*decoding.parts_of(hint)}:
            yield before + name


def hints_of(problem: Any) -> dict[str, Any]:
    """Annotations of the fields of a problem, by name."""
    hints = get_type_hints(type(problem), include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(problem)}
