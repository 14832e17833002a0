"""The options of all commands and the settings of runs, as a file keeps them.

They are read from the file because describing the classes imports JAX, which takes seconds.
"""

import functools
import importlib.metadata
import json
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.commands.table import COMMANDS, OF_PROBLEM, Command
from sweeps.language.fields import Field, Kind, Table, fold, is_branch
from sweeps.language.grammar import Language, Pairs
from sweeps.systems.kinds import of_package, of_packages

FILE = Path(__file__).with_suffix(".json")
USUAL = "yz"
"""The problem of a command that names none."""
RUN = "run"
"""The field of a command that is the run."""
SWITCH = Field(types=("boolean",), default=False)
OVERWRITE = SWITCH._replace(doc="overwrite existing results in OUT")
QUIET = SWITCH._replace(doc="suppress progress output")
STYLE = Field(types=("text", "none"), doc="Matplotlib style name or style file")
FORMAT = Field(
    types=("none",),
    words=("png", "svg", "pdf"),
    doc="file format of the figure; if omitted, that of the style, or png",
)


class Offer(NamedTuple):
    """What a command offers.

    Attributes:
        command: of the table.
        kind: of its settings.
        options: its own settings, and the options that commands share.
        run: whether it takes a run.
        usual: the settings by which its runs differ from others.
        positional: the options that are given without their names.
        recorded: whether a record of the settings is kept beside what it writes.
        language: of the options, and of the settings of its run.
    """

    command: Command
    kind: Kind
    options: dict[str, Field]
    run: bool
    usual: Pairs
    positional: tuple[str, ...]
    recorded: bool
    language: Language

    def chosen(self, given: Pairs) -> Table:
        """The settings that are given, and the others that are usual for the command."""
        first = [pair for pair in given if fold(pair[0]) == "problem"]
        problem, usual = self.language.assign({}, first), self.language.assign({}, self.usual)
        # What is usual for the problem of the command says nothing of another one.
        other = problem and problem["problem"] != usual.get("problem")
        rest = [pair for pair in given if pair not in first]
        return self.language.assign(problem if other else usual, rest)

    def word(self, given: Table) -> str:
        """The word of the problem that is chosen."""
        value = given.get("problem")
        return str(value["kind"]) if is_branch(value) else ""

    def run_of(self, given: Table) -> Table:
        """The settings of the run alone."""
        return {n: value for n, value in given.items() if n not in (*self.options, "kind")}


@functools.cache
def _file() -> dict[str, Any]:
    return json.loads(FILE.read_text())


@functools.cache
def kinds() -> tuple[Kind, ...]:
    """The classes of this project that describe runs; the first one is that of a run."""
    return tuple(map(Kind.from_json, _file()["kinds"]))


@functools.cache
def language() -> Language:
    """The settings of runs, as `sweeps.systems.kinds.language` has them."""
    return Language(kinds(), of_package, of_packages)


def names_for(problem: str, option: str) -> list[str]:
    """What `--theories`, `--theory`, `--engine` or `--observable` may name of a problem of this
    project; empty for others, and where packages register more of them."""
    group = "observables" if option == "observable" else "theories"
    if importlib.metadata.entry_points(group=f"dynsim.{group}"):
        return []
    theories, others, observables = _file()["engines"].get(problem, ([], [], []))
    return {"observable": observables, "theories": theories}.get(option, [*others, *theories])


def offer(name: str, problem: str = "") -> Offer:
    """What a command of the table offers, for runs of a problem."""
    commands, command, own = _file()["commands"], COMMANDS[name], OF_PROBLEM.get(name, {})
    asked = fold(problem or (commands[name][1] or {}).get("problem", USUAL))
    # The word of a preset begins with that of its system.
    if word := next((each for each in own if asked.startswith(fold(each))), ""):
        command = command._replace(settings=own[word])
    about, usual, positional = commands[f"{name} {word}".strip()]
    kind = Kind.from_json(about)
    recorded = command.recorded and "out" in kind.fields
    options = {name: field for name, field in kind.fields.items() if name != RUN}
    options |= {"overwrite": OVERWRITE} if recorded else {}
    options |= {"style": STYLE, "format": FORMAT} if command.draws else {}
    options |= {"quiet": QUIET} if command.talks else {}
    run = {} if usual is None else kinds()[0].fields
    root = kind._replace(word="command", fields={**options, **run, **options})
    language = Language([*kinds(), root], of_package, of_packages, root.word)
    settings = list((usual or {}).items())
    return Offer(command, kind, options, bool(run), settings, tuple(positional), recorded, language)
