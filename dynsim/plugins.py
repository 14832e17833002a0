"""Entry points of other packages, looked up once per group."""

import contextlib
import functools
import importlib.metadata
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax

EntryPoint = Any
"""An entry point of the standard library, or of the package importlib_metadata, which replaces it
if it is imported."""


@functools.cache
def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name.

    Raises:
        ValueError: if two packages define the same name.
    """
    points: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        # The first one of a name on the path is the one that Python would import.
        other = points.setdefault(point.name, point)
        # A package that is on the path twice, as after an editable installation, counts once.
        if other is not point and (other.value, _owner(other)) != (point.value, _owner(point)):
            raise ValueError(f"{_described(point)}: {_described(other)} has the same name")
    return MappingProxyType(points)


@functools.cache
def load(group: str, name: str) -> object:
    """Import and return the object of the entry point `name` of a group.

    Raises:
        ValueError: naming the package, if it cannot be loaded.
    """
    point = entry_points(group)[name]
    # The import of foreign code may raise anything, including SystemExit.
    try:
        with x64_unchanged(_described(point)):
            return point.load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_described(point)}: cannot be loaded ({error!r})") from error


@contextlib.contextmanager
def x64_unchanged(who: str) -> Iterator[None]:
    """Restore `jax_enable_x64` after an import that changes it, which would affect all programs of
    the process, and warn, naming `who`."""
    before = jax.enable_x64.value
    try:
        yield
    finally:
        after = jax.enable_x64.value
        if after != before:
            jax.config.update("jax_enable_x64", before)
            warnings.warn(
                f"{who}: its import set jax_enable_x64 = {after}, which is reset to {before}; use "
                "dtype='float64' or the context jax.enable_x64",
                stacklevel=2,
            )


def described(group: str, name: str) -> str:
    """Describe an entry point for error messages."""
    return _described(entry_points(group)[name])


def _described(point: EntryPoint) -> str:
    return f"entry point {point.name} = {point.value} of {_owner(point)}"


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"
