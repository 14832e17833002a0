"""The code that is not ours and decides numbers, as a hash: what its author changes is another
sweep, not the rest of the one that is there."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from dynsim import plugins

OURS = ("dynsim", "odes", "sweeps")
LIBRARIES = {"jax", "jaxlib", "numpy", "optax", "equinox", "diffrax", "jaxtyping", "xarray"}
"""Known by their versions."""


def fingerprint(*values: Any) -> str:
    """Hash of the code from outside that functions, classes, and what is made of them name: their
    source without comments and layout, that of what it calls in its own package, and that
    package's version. Empty where nothing is from outside.

    A class or a function that has a text `version` is known by that alone.
    """
    found: dict[str, str] = {}
    for value in values:
        _collect(value, found, set())
    tops = {name.partition(".")[0] for name in found}
    found |= {f"version of {top}": version for top in tops if (version := plugins.version(top))}
    return digest(repr(sorted(found.items())).encode()) if found else ""


def digest(content: bytes) -> str:
    """A hash, short enough to be read."""
    return hashlib.sha256(content).hexdigest()[:16]


def is_outside(value: Any) -> bool:
    """Whether a class or a function is neither ours nor one of a library."""
    top = _top(value)
    return bool(top) and top not in {*OURS, *LIBRARIES, *sys.stdlib_module_names}


def _collect(value: Any, found: dict[str, str], seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, functools.partial):
        parts: Iterator[Any] = iter((value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, MethodType):
        parts = iter((value.__func__, type(value.__self__)))
    elif isinstance(value, type):
        parts = _of_class(value, found)
    elif isinstance(value, FunctionType):
        parts = _of_function(value, found)
    elif dataclasses.is_dataclass(value):
        fields = (getattr(value, field.name, None) for field in dataclasses.fields(value))
        parts = (each for each in fields if callable(each))
    else:
        # Compiled and other wrapped functions.
        parts = iter((getattr(value, "__wrapped__", None),))
    for part in parts:
        _collect(part, found, seen)


def _of_class(cls: type, found: dict[str, str]) -> Iterator[Any]:
    if not is_outside(cls):
        return
    found[_name(cls)] = _told(cls) or _source(cls) or ""
    yield from cls.__bases__
    if not _told(cls):
        for each in vars(cls).values():
            function = getattr(each, "fget", None) or getattr(each, "__func__", each)
            if isinstance(function, FunctionType) and _name(function).startswith(_name(cls)):
                yield from _named(function)


def _of_function(function: FunctionType, found: dict[str, str]) -> Iterator[Any]:
    held = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    yield from (each for each in held if callable(each))
    if not is_outside(function):
        return
    plain = [each for each in held if isinstance(each, str | int | float | bool | tuple)]
    told = _told(function) or _source(function) or repr(_compiled(function.__code__))
    found[_name(function)] = f"{told} {plain}" if plain else told
    if not _told(function):
        yield from _named(function)


def _named(function: FunctionType) -> Iterator[Any]:
    """What a function names in its own package."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if callable(value) and _top(value) == _top(function):
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _compiled(code: CodeType) -> tuple[Any, ...]:
    """What is left of a function without source, as in some consoles."""
    consts = (_compiled(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code.hex(), tuple(consts), code.co_names


def _source(value: Any) -> str | None:
    if value.__name__ == "<lambda>":
        # Its source is a line, on which there may be others.
        return None
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(value))))
    return None


def _told(value: Any) -> str | None:
    version = vars(value).get("version")
    return f"version {version}" if isinstance(version, str) else None


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _top(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
