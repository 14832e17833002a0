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
    """

    command: Command
    kind: Kind
    run: Table | None
    positional: tuple[str, ...]

    @property
    def recorded(self) -> bool:
        """Whether a record of the settings is kept beside what it writes."""
        return self.command.recorded and "out" in self.kind.fields

    @property
    def options(self) -> dict[str, Field]:
        """The options of the command, with those that commands share."""
        own = {name: field for name, field in self.kind.fields.items() if name != RUN}
        recorded = {"overwrite": OVERWRITE} if self.recorded else {}
        drawn = {"style": STYLE, "format": FORMAT} if self.command.draws else {}
        talks = {"quiet": QUIET} if self.command.talks else {}
        return own | recorded | drawn | talks

    def load(self) -> tuple[type, Any]:
        """The class of the settings, and what runs them."""
        return self.command.load()


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
    kind, run, positional = commands[f"{name} {word}".strip()]
    return Offer(command, Kind.from_json(kind), run, tuple(positional))
