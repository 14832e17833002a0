"""Settings of a command for a system that brings none of its own."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import docstring_parser

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
    made.__doc__ = described(title, attributes(system.run) | attributes(options))
    return made


def attributes(cls: type) -> dict[str, str]:
    """What the documentation of a class says of each of its attributes, in their order."""
    style = docstring_parser.DocstringStyle.GOOGLE
    found = docstring_parser.parse(cls.__doc__ or "", style)
    return {each.arg_name: each.description or "" for each in found.params}


def about(cls: type) -> str:
    """What the documentation of a class says before its attributes, without the indentation that
    Python keeps before version 3.13."""
    return inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[0].rstrip()


def described(about: str, attributes: Mapping[str, str]) -> str:
    """The documentation of a class."""
    lines = [f"    {n}: " + text.replace("\n", "\n        ") for n, text in attributes.items()]
    return "\n".join([about, "", "Attributes:", *lines])


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
