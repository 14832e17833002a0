"""What other packages add, by entry points: looked up once, by group."""

import contextlib
import functools
import importlib.metadata
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax

EntryPoint = Any
"""Of the standard library, or of the package importlib_metadata, which takes its place wherever it
is imported."""


@functools.cache
def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name.

    Raises:
        ValueError: for a name that two packages want.
    """
    found: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        other = found.setdefault(point.name, point)
        # A package that stands twice on the path, as after an editable installation, is one.
        if other is not point and (other.value, _owner(other)) != (point.value, _owner(point)):
            raise ValueError(f"{_described(point)}: {_described(other)} has the same name")
    return MappingProxyType(found)


@functools.cache
def load(group: str, name: str) -> object:
    """What the entry point `name` of a group stands for.

    Raises:
        ValueError: naming the package, where it cannot be loaded.
    """
    point = entry_points(group)[name]
    # Whatever a foreign module raises while it is imported, a wish to end the program included.
    try:
        with x64_kept(_described(point)):
            return point.load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_described(point)}: cannot be loaded ({error!r})") from error


@contextlib.contextmanager
def x64_kept(who: str) -> Iterator[None]:
    """Keep `jax_enable_x64` as it is while something is imported: it would change the numbers of
    everybody's programs. Warns, naming `who`, where the import sets it."""
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
    """An entry point as errors name it."""
    return _described(entry_points(group)[name])


def _described(point: EntryPoint) -> str:
    return f"entry point {point.name} = {point.value} of {_owner(point)}"


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"
