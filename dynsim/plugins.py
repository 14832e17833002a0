"""What other packages add, by entry points: looked up once, by group."""

import functools
import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
        return point.load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_described(point)}: cannot be loaded ({error!r})") from error


def described(group: str, name: str) -> str:
    """An entry point as errors name it."""
    return _described(entry_points(group)[name])


def _described(point: EntryPoint) -> str:
    return f"entry point {point.name} = {point.value} of {_owner(point)}"


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"
