"""What a command offers: its settings, with the options that commands share."""

import dataclasses
import pkgutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sweeps.commands.table import COMMANDS, FOR_SYSTEMS, Command, Run, file_name


def load(name: str) -> tuple[type, Run]:
    """Settings and what runs them, of a name that `find` returned."""
    if name in COMMANDS:
        return COMMANDS[name].load()
    first, system = name.split()
    return pkgutil.resolve_name(FOR_SYSTEMS[first])(system)


class Offer(NamedTuple):
    """What a command offers.

    Attributes:
        command: of the table.
        settings: its settings.
        run: what runs them.
        recorded: whether a record of them is kept beside what it writes.
        options: the settings with the options that commands share: to write over results of
            others, how pictures look, to be quiet.
    """

    command: Command
    settings: type
    run: Run
    recorded: bool
    options: type


def offered(name: str) -> Offer:
    """What a command offers of a name that `find` returned. A command that was asked for a system
    has a folder of its own."""
    settings, run = load(name)
    command = COMMANDS.get(name) or COMMANDS[name.split()[0]]
    has_out = any(field.name == "out" for field in dataclasses.fields(settings))
    recorded = command.recorded and has_out
    fields: list[Any] = []
    texts = {}
    if recorded:
        fields.append(("overwrite", bool, dataclasses.field(default=False)))
        texts["overwrite"] = "overwrite existing results in OUT."
    if recorded and name not in COMMANDS:
        folder = Path("out") / file_name(name)
        fields.append(("out", Path, dataclasses.field(default=folder)))
    if command.draws:
        fields.append(("style", str | None, dataclasses.field(default=None)))
        texts["style"] = "Matplotlib style name or style file."
        kinds = Literal["png", "svg", "pdf"] | None
        fields.append(("format", kinds, dataclasses.field(default=None)))
        texts["format"] = "file format of the figure; if omitted, that of the style, or png."
    if command.talks:
        fields.append(("quiet", bool, dataclasses.field(default=False)))
        texts["quiet"] = "suppress progress output."
    from sweeps.systems.settings import about, attributes, described

    made = dataclasses.make_dataclass(
        settings.__name__, fields, bases=(settings,), frozen=True, kw_only=True
    )
    made.__doc__ = described(about(settings), attributes(settings) | texts)
    return Offer(command, settings, run, recorded, made)
