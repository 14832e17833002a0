"""The options of all commands and the settings of runs, as a file keeps them.

They are read from the file because describing the classes imports JAX, which takes seconds.
"""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.commands.table import COMMANDS, OF_PROBLEM, Command
from sweeps.language.fields import Field, Kind, Table, fold
from sweeps.language.grammar import Language

FILE = Path(__file__).with_suffix(".json")
USUAL = "yz"
"""The problem of a command that names none."""
RUN = "run"
"""The field of a command that is the run."""
OVERWRITE = Field(types=("boolean",), default=False, doc="overwrite existing results in OUT")
STYLE = Field(types=("text", "none"), doc="Matplotlib style name or style file")
FORMAT = Field(
    types=("none",),
    words=("png", "svg", "pdf"),
    doc="file format of the figure; if omitted, that of the style, or png",
)
QUIET = Field(types=("boolean",), default=False, doc="suppress progress output")


class Offer(NamedTuple):
    """What a command offers.

    Attributes:
        command: of the table.
        kind: of its settings.
        run: the settings by which its runs differ from the usual ones; None for a command that
            takes no run.
        positional: the options that are given without their names.
        recorded: whether a record of the settings is kept beside what it writes.
        options: of the command, with those that commands share.
    """

    command: Command
    kind: Kind
    run: Table | None
    positional: tuple[str, ...]
    recorded: bool
    options: dict[str, Field]


@functools.cache
def _file() -> dict[str, Any]:
    return json.loads(FILE.read_text())


@functools.cache
def language() -> Language:
    """The settings of runs, as `sweeps.systems.kinds.language` has them."""
    from sweeps.systems.kinds import of_package, of_packages

    return Language(map(Kind.from_json, _file()["kinds"]), of_package, of_packages)


def offer(name: str, problem: str = "") -> Offer:
    """What a command of the table offers, for runs of a problem."""
    commands, command, own = _file()["commands"], COMMANDS[name], OF_PROBLEM.get(name, {})
    asked = fold(problem or (commands[name][1] or {}).get("problem", USUAL))
    # The word of a preset begins with that of its system.
    if word := next((each for each in own if asked.startswith(fold(each))), ""):
        command = command._replace(settings=own[word])
    about, run, positional = commands[f"{name} {word}".strip()]
    kind = Kind.from_json(about)
    recorded = command.recorded and "out" in kind.fields
    options = {name: field for name, field in kind.fields.items() if name != RUN}
    options |= {"overwrite": OVERWRITE} if recorded else {}
    options |= {"style": STYLE, "format": FORMAT} if command.draws else {}
    options |= {"quiet": QUIET} if command.talks else {}
    return Offer(command, kind, run, tuple(positional), recorded, options)
