"""The table of all `dynsim` commands, from which help, parsing and dispatch are derived.

The module of a command is imported on demand, so that help is fast.
"""

import functools
import importlib
import importlib.metadata
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sweeps.language.derived import PACKAGES, derived
from sweeps.language.fields import Field, Kind, Table, fold
from sweeps.language.grammar import Language, Pairs
from sweeps.lines import unstopped
from sweeps.systems import kinds

Run = Callable[[Any], list[Path] | list[str] | None]
FIGURES = "dynsim.figures"
"""Group of entry points that name figures."""
RUN = "run"
"""Name of the field of a command that holds its run."""
SWITCH = Field(types=("boolean",), default=False)
SHARED = {
    "overwrite": SWITCH._replace(doc="overwrite existing results in OUT"),
    "style": Field(types=("text", "none"), doc="Matplotlib style name or style file"),
    "format": Field(
        types=("none",),
        words=("png", "svg", "pdf"),
        doc="file format of the figure; if omitted, that of the style, or png",
    ),
    "quiet": SWITCH._replace(doc="suppress progress output"),
}
"""Options that many commands share."""


class Command(NamedTuple):
    """A command.

    Attributes:
        settings: "module:Class" of the frozen dataclass whose fields are the options. It is a
            `sweeps.Figure`, or its module has `run`, which receives the settings and returns the
            paths or addresses that it wrote, if any.
        recorded: whether results in `out` are protected from being overwritten by those of other
            settings; stores of sweeps check this themselves.
        draws: whether it writes figures, whose style and format are options.
        talks: whether it may take long and shows progress.
        reads: the kind of path in its first word, if any.
        point: name of the entry point of a figure, if it is one.
    """

    settings: str
    recorded: bool = True
    draws: bool = True
    talks: bool = True
    reads: Literal["", "store", "file"] = ""
    point: str = ""

    def load(self) -> tuple[type, Run]:
        """Return the class of the settings, and the function that runs them.

        Raises:
            ValueError: naming the package, if a figure of another package cannot be loaded.
        """
        path, name = self.settings.split(":")
        with unstopped():
            if self.point:
                from dynsim import plugins

                cls: Any = plugins.load(FIGURES, self.point)
                return cls, cls.save
            module = importlib.import_module(path)
        cls = getattr(module, name)
        return cls, getattr(cls, "save", None) or module.run


TABLE = """
compare sweeps.comparison.command:Compare
explain sweeps.commands.explain:Explain still
sweep sweeps.commands.sweep:SweepCommand own still file
info sweeps.commands.reading:Info still quick store
check sweeps.commands.reading:Check still store
plot sweeps.commands.views.plot:Plot quick store
movie sweeps.commands.views.movie:Movie own still store
explore sweeps.commands.views.explore:Explore own still store
export sweeps.commands.reading:Export own still quick store
phase sweeps.studies.phase.figure:Phase
spectrum sweeps.studies.spectrum.figure:Spectrum
validity sweeps.studies.validity:Validity
list sweeps.commands.contents:List own still quick
schema sweeps.commands.schema:Schema own still quick
figure/optimum sweeps.studies.optimum.figure:Optimum
figure/edge sweeps.studies.edge:Edge
figure/phase sweeps.studies.phase.figure:Phase
figure/scaling sweeps.studies.scaling.figure:ScalingFigure
"""
"""Name and settings class of each command, and its differences from most commands: `own` (not
recorded), `still` (no figures), `quick` (no progress), and the path it reads."""


def _command(settings: str, *words: str) -> Command:
    reads = words[-1] if words and words[-1] in ("file", "store") else ""
    recorded, draws, talks = (each not in words for each in ("own", "still", "quick"))
    return Command(settings, recorded, draws, talks, reads)


COMMANDS: dict[str, Command] = {
    name.replace("/", " "): _command(*words)
    for name, *words in map(str.split, TABLE.strip().split("\n"))
} | {
    f"figure {point.name.replace('-', '_')}": Command(point.value, point=point.name)
    for point in importlib.metadata.entry_points(group=FIGURES)
}
# Figures come last, in the order of their numbers and then of their names.
COMMANDS = dict(
    sorted(COMMANDS.items(), key=lambda each: each[0].rjust(9) * ("figure " in each[0]))
)
"""All commands by name; a name has one word, or two. Figures are those of all packages."""
OF_PROBLEM = (
    "compare",
    "explain",
    "phase",
    "validity",
    "figure edge",
    "figure optimum",
    "figure scaling",
)
"""Commands whose next word may be a problem."""


def group(first: str) -> dict[str, Command]:
    """Return the commands of two words that begin with `first`, by the second word."""
    names = {tuple(name.split()): command for name, command in COMMANDS.items()}
    return {words[1]: found for words, found in names.items() if words[0] == first and words[1:]}


@functools.cache
def described(name: str) -> tuple[Kind, dict[str, Any] | None, Sequence[str]]:
    """Return the settings of a command; the defaults of its runs, None without runs; and its
    options without names."""
    if COMMANDS[name].settings.partition(".")[0] not in PACKAGES:
        # The facts that are kept depend on dynsim's code alone.
        kind, usual, positional = _described(name)
    else:
        kind, usual, positional = derived(f"command-{file_name(name)}", lambda: _described(name))
    return Kind.from_json(kind), usual, positional


def _described(name: str) -> list[Any]:
    from sweeps.language.describe import describe

    cls, _ = COMMANDS[name].load()
    kind = describe(cls)
    usual = getattr(cls, "RUN", {}) if RUN in kind.fields else None
    return [kind.to_json(), usual, getattr(cls, "POSITIONAL", ())]


@functools.cache
def names_by_problem() -> dict[str, tuple[list[str], list[str], list[str], dict[str, Table]]]:
    """Return the names of theories, of training and of observables, and `System.defaults`, by the
    word of a built-in problem."""
    return derived("names", _names_by_problem)


def _names_by_problem() -> dict[str, Any]:
    from sweeps.systems import registry

    found = {}
    for name in kinds.BUILT_IN:
        system = registry.system(name)
        names = [each for each, theory in system.theories.items() if not theory.trains]
        others = [each for each in system.theories if each not in names]
        # Made without a device: a command may have to find other processes before JAX has one.
        assert system.like is not None
        known = system.theories["simulation"].observables(system.like)
        observables = [*dict.fromkeys((*known.functions, *known.provided))]
        for cls in system.problems:
            word = kinds.language().kind_of(cls).word
            found[word] = [names, others, observables, {**system.defaults}]
    return found


def defaults(command: str, problem: str) -> Table:
    """Return the defaults of a command that the system of a problem sets, by the problem's word."""
    words = {fold(each): each for each in (*names_by_problem(), *kinds.names())}
    if (word := words.get(fold(problem))) in names_by_problem():
        return names_by_problem()[word][3].get(command, {})
    if word is None:
        return {}
    from sweeps.systems import registry

    return dict(registry.system(word).defaults.get(command, {}))


def summary(name: str) -> str:
    """Return a one-line summary of a command, from the docstring of its settings; or why a figure
    of another package cannot be loaded, which concerns nobody who does not run it."""
    try:
        about = described(name)[0].about
    except ValueError as error:
        return str(error)
    return textwrap.shorten(re.split(r"[:;] |\.(?: (?=[A-Z])|$)", about)[0], 88, placeholder=" ...")


def file_name(command: str) -> str:
    """Return a file or folder name for the words of a command."""
    return re.sub(r"\W+", "_", command)


class Offer(NamedTuple):
    """The options of a command.

    Attributes:
        command: the command in the table.
        kind: kind of its settings.
        options: its own settings, and the options that commands share.
        run: whether it has a run.
        usual: the command's default settings of its runs.
        positional: options that are given without their names.
        recorded: whether a record of the settings is written next to its results.
        language: language of the options and of the run's settings.
    """

    command: Command
    kind: Kind
    options: dict[str, Field]
    run: bool
    usual: Table
    positional: Sequence[str]
    recorded: bool
    language: Language

    @classmethod
    def of(cls, name: str, problem: str = "") -> "Offer":
        """Return the options of a command for runs of a problem."""
        command = COMMANDS[name]
        kind, usual, positional = described(name)
        usual = defaults(name, problem) or usual
        recorded = command.recorded and "out" in kind.fields
        options = {name: field for name, field in kind.fields.items() if name != RUN}
        wanted = recorded, command.draws, command.draws, command.talks
        options |= {n: SHARED[n] for n, there in zip(SHARED, wanted, strict=True) if there}
        run = {} if usual is None else kinds.language().kinds[0].fields
        root = kind._replace(word="command", fields={**options, **run, **options})
        language = kinds.language().rooted(root)
        return cls(command, kind, options, bool(run), usual or {}, positional, recorded, language)

    def chosen(self, given: Pairs) -> Table:
        """Return the given settings, completed by the defaults of the command."""
        first = [pair for pair in given if fold(pair[0]) == "problem"]
        rest = [pair for pair in given if pair not in first]
        problem = self.language.assign({}, first)
        of_system = "problem" not in self.usual
        usual = self.language.assign(problem if of_system else {}, self.usual.items())
        # Defaults for the command's own problem do not apply to another one.
        other = problem and problem["problem"] != usual.get("problem") and not of_system
        return self.language.assign(problem if other else usual, rest)

    def run_of(self, given: Table) -> Table:
        """Return only the settings of the run."""
        return {n: value for n, value in given.items() if n not in (*self.options, "kind")}

    def names(self, option: str, given: Table) -> list[str]:
        """Return the allowed values of `--theories`, `--theory`, `--against` or `--observable` for
        a built-in problem; empty for others, and where packages may add some."""
        group = "observables" if option == "observable" else "theories"
        problem: Any = given.get("problem", {"kind": ""})
        known = names_by_problem().get(problem["kind"])
        if not known or importlib.metadata.entry_points(group=f"dynsim.{group}"):
            return []
        theories, others, observables, _ = known
        return {"observable": observables, "theories": theories}.get(option, [*others, *theories])
