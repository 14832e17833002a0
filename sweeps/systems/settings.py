"""Settings of a command for a system that brings none of its own."""

import dataclasses
import itertools
from typing import Any, TypeVar

from dynsim import checks, decoding
from sweeps.systems.base import System, field_names

OptionsT = TypeVar("OptionsT")


def settings_class(
    name: str, system: System[Any], options: type[OptionsT], title: str
) -> type[OptionsT]:
    """The fields of a run of the system with `options` of a command behind them, called `name`.

    Raises:
        ValueError: for a run with a field that is an option as well.
    """
    taken = set(field_names(system.run)) & set(field_names(options))
    if taken:
        raise ValueError(
            f"system {system.name!r}: {name.lower()} has an option {sorted(taken)[0]!r} as well"
        )
    made = dataclasses.make_dataclass(
        name, [], bases=(options, system.run), namespace={"SYSTEM": system.name}, frozen=True
    )
    # The description of the command line: attributes of both, so that each has its help.
    about = "".join(map(attributes, (system.run, options)))
    made.__doc__ = f"{title}\n\n    Attributes:\n{about}"
    return made


def attributes(cls: type) -> str:
    """What the documentation of a class says of its attributes, one after the other."""
    found = (cls.__doc__ or "").partition("Attributes:\n")[2]
    lines = itertools.takewhile(
        lambda line: not line or line.startswith(" " * 8), found.split("\n")
    )
    return "\n".join(lines).rstrip() + "\n"


def given(cls: type[OptionsT], function: str, **settings: Any) -> OptionsT:
    """Settings as the arguments of a `function` give them.

    Raises:
        ValueError: for one that there is not, with the one that is meant, or a value that its field
            does not take.
    """
    for name in settings:
        if name not in field_names(cls):
            checks.choice(f"{function}: setting", name, field_names(cls))
    found = cls(**settings)
    decoding.check(found)
    return found
