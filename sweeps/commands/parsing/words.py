"""From the words behind a command to its settings; what is wrong with them, in a line."""

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import tyro

from dynsim import checks, decoding
from sweeps.commands.parsing.options import Options, known

SettingsT = TypeVar("SettingsT")
REFUSED = re.compile(
    r"Error parsing --(?P<option>[\w-]+):.*'(?P<value>[^']*)'\]?\.?$"
    r"|invalid choice '(?P<choice>.*?)' for argument '(?:--)?(?P<argument>[\w-]+)'"
)
"""What the parser says of a value that an option does not take."""
FRAME = " ╭╮╰╯│─+|-"
"""What frames are drawn with; the dashes, where the output has no others."""


def parse(settings: type[SettingsT], words: Sequence[str], prog: str) -> SettingsT:
    """The settings that the words behind a command ask for.

    Raises:
        ValueError: for an option that the command does not have, with the one that is meant, or a
            value that its type does not have.
        SystemExit: once help or a completion script is printed.
    """
    command = prog[len("dynsim ") :]
    if known(command) is None:
        options(settings).check(command, words)
    said = io.StringIO()
    shown: Any = with_defaults(settings, words) if {"-h", "--help"} & set(words) else settings
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(shown, args=whole_numbers(settings, words), prog=prog)
    except SystemExit as stop:
        if not stop.code:
            raise
        told = in_a_line(said.getvalue())
        check_value(settings, told)
        missing = re.match(r"Missing from .*?: \S+ (.*) \(required\)", told)
        told = f"needs {missing[1]}" if missing else told
        raise ValueError(f"{command}: {told}") from None


def check_value(settings: Any, told: str) -> None:
    """Raise `ValueError` in the words of sweep files and of Python for a value that the parser
    refused and `told` so."""
    found = REFUSED.match(told)
    types = typing.get_type_hints(settings, include_extras=True)
    name = (found["option"] or found["argument"]).replace("-", "_") if found else ""
    if not found or name not in types:
        return
    value = found["value"] or found["choice"]
    hint = checks.hint(value, decoding.choices(types[name]))
    allowed = decoding.allowed(types[name], kind=True)
    raise ValueError(f"{name} = {value!r}: {hint}must be {allowed}")


def whole_numbers(settings: Any, options: Sequence[str]) -> list[str]:
    """The words behind a command, with 1e3 as 1000 where an option takes integers alone."""
    fields = {field.name for field in dataclasses.fields(settings)}
    found, name = [], ""
    for word in options:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = option[2:].replace("-", "_") if option else name
        if name in fields and not value.lstrip("+-").isdigit():
            with contextlib.suppress(ValueError):
                number = decoding.whole(settings, name, float(value))
                value = str(number) if isinstance(number, int) else value
        found.append(f"{option}{equals}{value}")
        name = "" if equals else name
    return found


def options(settings: Any) -> Options:
    """What the options of settings are, for a first look at the words behind a command."""
    types = typing.get_type_hints(settings, include_extras=True)
    placed = tyro.conf.Positional
    fields = [
        field.name
        for field in dataclasses.fields(settings)
        if placed not in getattr(types[field.name], "__metadata__", ())
    ]
    lists = [name for name in fields if typing.get_origin(_plain(types[name])) is tuple]
    also = [f"no_{name}" for name in fields if bool in decoding.flat(types[name])[0]]
    return Options({name: _takes(types[name]) for name in fields}, lists, also)


def _takes(kind: Any) -> str:
    """What an option takes, where a word alone tells whether it is that."""
    if decoding.words(kind):
        return decoding.allowed(kind)
    numbers = not set(decoding.flat(kind)[0]) - {int, float}
    return decoding.allowed(kind, kind=True) if numbers else ""


def _plain(kind: Any) -> Any:
    return kind.__origin__ if typing.get_origin(kind) is Annotated else kind


def in_a_line(framed: str) -> str:
    """What a framed message of the parser says first, without its title and frame."""
    lines = [line.strip(FRAME) for line in framed.splitlines()[1:]]
    parts = ("\n".join(lines)).strip("\n").split("\n\n")
    return " ".join(parts[0].split("\n"))


def with_defaults(settings: type, options: Sequence[str]) -> type:
    """The settings for a page of help: it says what stands for a setting that is left out, and the
    names that settings can have."""
    words = [part for option in options for part in option.split("=", 1)]
    chosen = {}
    if "--preset" in words[:-1]:
        chosen["preset"] = words[words.index("--preset") + 1]
    try:
        made = settings(**chosen)
        values = {n: made.value(n) for n in _left_out(made)} if hasattr(made, "value") else {}
    except (TypeError, ValueError):
        # It needs more than defaults, or there is no such preset; parsing says so.
        values = {}
    types = typing.get_type_hints(settings, include_extras=True)
    fields = [
        (
            name,
            Annotated[types[name], tyro.conf.arg(help_behavior_hint=f"(default: {value})")],
            dataclasses.field(default=None),
        )
        for name, value in values.items()
        if value is not None
    ]
    found = dataclasses.make_dataclass(
        settings.__name__, fields, bases=(settings,), frozen=True, kw_only=True
    )
    found.__doc__ = _listed(settings)
    return found


def _left_out(settings: Any) -> list[str]:
    fields = [field.name for field in dataclasses.fields(settings)]
    return [name for name in fields if getattr(settings, name) is None]


def _listed(settings: type) -> str:
    """The description of settings, with the names of engines or of sweeps where they take some."""
    from sweeps import recipes
    from sweeps.systems import registry
    from sweeps.systems.settings import about, attributes, described

    text = about(settings)
    fields = {field.name for field in dataclasses.fields(settings)}
    system = getattr(settings, "SYSTEM", None)
    if system and fields & {"engine", "theories"}:
        names = ", ".join(registry.engines(registry.system(system)))
        text += f"\n\nEngines of {system}: {names}."
    if {"file", "set"} <= fields:
        text += f"\n\nBuilt-in sweeps: {', '.join(recipes.names())}."
        text += f"\nSystems: {', '.join(registry.names())}."
    return described(text, attributes(settings))
