"""What other packages add, by entry points: looked up once, by group."""

import functools
import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType


@functools.cache
def entry_points(group: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """The entry points of a group by name.

    Raises:
        ValueError: for a name that two packages want.
    """
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in importlib.metadata.entry_points(group=group):
        if entry.name in found and entry.value != found[entry.name].value:
            owners = " and ".join(_owner(each) for each in (found[entry.name], entry))
            raise ValueError(f"entry point {entry.name!r} of {group}: is in {owners}")
        found[entry.name] = entry
    return MappingProxyType(found)


@functools.cache
def load(group: str, name: str) -> object:
    """What the entry point `name` of a group stands for.

    Raises:
        ValueError: naming the package, where it cannot be loaded.
    """
    entry = entry_points(group)[name]
    try:
        return entry.load()
    except Exception as error:
        raise ValueError(
            f"entry point {name!r} of {group} in {_owner(entry)}: {entry.value} cannot be loaded "
            f"({type(error).__name__}: {error})"
        ) from error


def _owner(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unnamed package"
