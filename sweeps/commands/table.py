"""The table of all `dynsim` commands, from which help, parsing and dispatch are derived.

The module of a command is imported on demand, so that help is fast.
"""

import functools
import importlib
import importlib.metadata
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sweeps.language.derived import PACKAGES, derived
from sweeps.language.fields import Field, Kind, Table, is_branch, normalise
from sweeps.language.grammar import Language, Pairs
from sweeps.lines import unstopped
from sweeps.systems import kinds

Run = Callable[..., list[Path] | list[str] | None]
FIGURES = "dynsim.figures"
"""Group of entry points that name figures."""
RUN_FIELD = "run"
"""Name of the field of a command whose value is its run."""
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
        # JAX crashes if a signal arrives while its library loads.
        with unstopped():
            if self.point:
                from dynsim import plugins

                cls: Any = plugins.load(FIGURES, self.point)
                return cls, cls.save
            module = importlib.import_module(path)
        cls = getattr(module, name)
        return cls, getattr(cls, "save", None) or module.run


COMMAND_LINES = """
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


COMMANDS: dict[str, Command] = {
    name.replace("/", " "): Command(
        settings,
        recorded="own" not in words,
        draws="still" not in words,
        talks="quick" not in words,
        reads="file" if "file" in words else "store" if "store" in words else "",
    )
    for name, settings, *words in map(str.split, COMMAND_LINES.strip().split("\n"))
} | {
    f"figure {point.name.replace('-', '_')}": Command(point.value, point=point.name)
    for point in importlib.metadata.entry_points(group=FIGURES)
}
# Figures come last, in the order of their numbers and then of their names.
COMMANDS = dict(
    sorted(COMMANDS.items(), key=lambda item: item[0].rjust(9) * ("figure " in item[0]))
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
    return {words[1]: names[words] for words in names if words[0] == first and words[1:]}


@functools.cache
def metadata(name: str) -> tuple[Kind, Table | None, Sequence[str]]:
    """Return the settings of a command; the defaults of its runs, None without runs; and its
    options without names."""

    def describe_settings() -> list[Any]:
        from sweeps.language.describe import describe

        cls, _ = COMMANDS[name].load()
        kind = describe(cls)
        usual = getattr(cls, "RUN", {}) if RUN_FIELD in kind.fields else None
        return [kind.to_json(), usual, getattr(cls, "POSITIONAL", ())]

    # The cache of facts depends on dynsim's code alone.
    if COMMANDS[name].settings.partition(".")[0] in PACKAGES:
        kind, usual, positional = derived(f"command-{file_name(name)}", describe_settings)
    else:
        kind, usual, positional = describe_settings()
    return Kind.from_json(kind), usual, positional


class ProblemNames(NamedTuple):
    """What options can name in runs of a built-in problem.

    Attributes:
        theories: names of its theories.
        training: names of its other methods, which train.
        observables: names of its observables.
        defaults: `System.defaults` of its system.
    """

    theories: Sequence[str]
    training: Sequence[str]
    observables: Sequence[str]
    defaults: Mapping[str, Table]


@functools.cache
def names_by_problem() -> dict[str, ProblemNames]:
    """Return the names of each built-in problem, by its word."""

    def collect() -> dict[str, Any]:
        from sweeps.systems import registry

        names = {}
        for system in map(registry.system, kinds.BUILT_IN):
            theories = [name for name, theory in system.theories.items() if not theory.trains]
            training = [name for name in system.theories if name not in theories]
            # An example that is made without a device: a command may have to connect to other
            # processes before JAX has one.
            assert system.like is not None
            recorded = system.theories["simulation"].observables(system.like)
            observables = [*dict.fromkeys((*recorded.functions, *recorded.provided))]
            for cls in system.problems:
                word = kinds.language().kind_of(cls).word
                names[word] = (theories, training, observables, {**system.defaults})
        return names

    return {word: ProblemNames(*names) for word, names in derived("names", collect).items()}


def defaults(command: str, problem: str) -> Table:
    """Return the defaults of a command that the system of a problem sets, by the problem's word."""
    built_in = names_by_problem()
    words = {normalise(word): word for word in (*built_in, *kinds.names())}
    word = words.get(normalise(problem))
    if word is None:
        return {}
    if word in built_in:
        return built_in[word].defaults.get(command, {})
    from sweeps.systems import registry

    return dict(registry.system(word).defaults.get(command, {}))


def summary_of(name: str) -> str:
    """Return a one-line summary of a command, from the docstring of its settings; or why a figure
    of another package cannot be loaded, which concerns nobody who does not run it."""
    try:
        about = metadata(name)[0].about
    except ValueError as error:
        return str(error)
    return textwrap.shorten(re.split(r"[:;] |\.(?: (?=[A-Z])|$)", about)[0], 88, placeholder=" ...")


def file_name(command: str) -> str:
    """Return a file or folder name for the words of a command."""
    return re.sub(r"\W+", "_", command)


class CommandOptions(NamedTuple):
    """The options of a command.

    Attributes:
        command: the command in the table.
        kind: kind of its settings.
        fields: fields of its own settings, and of the options that commands share.
        has_run: whether its settings contain a run.
        usual: the command's default settings of its runs.
        positional: options whose names may be omitted.
        recorded: whether a record of the settings is written next to its results.
        language: language of the options and of the run's settings.
    """

    command: Command
    kind: Kind
    fields: dict[str, Field]
    has_run: bool
    usual: Table
    positional: Sequence[str]
    recorded: bool
    language: Language

    @classmethod
    def of(cls, name: str, problem: str = "") -> "CommandOptions":
        """Return the options of a command for runs of a problem."""
        command = COMMANDS[name]
        kind, usual, positional = metadata(name)
        usual = defaults(name, problem) or usual
        has_run = usual is not None
        recorded = command.recorded and "out" in kind.fields
        fields = {name: field for name, field in kind.fields.items() if name != RUN_FIELD}
        is_shared = recorded, command.draws, command.draws, command.talks
        fields |= {n: SHARED[n] for n, shared in zip(SHARED, is_shared, strict=True) if shared}
        of_run = kinds.language().kinds[0].fields if has_run else {}
        # Own options come first, and replace settings of the run that have the same name.
        root = kind._replace(word="command", fields={**fields, **of_run, **fields})
        language = kinds.language().rooted(root)
        return cls(command, kind, fields, has_run, usual or {}, positional, recorded, language)

    def with_defaults(self, pairs: Pairs) -> Table:
        """Return settings, completed by the defaults of the command."""
        problem_pairs = [pair for pair in pairs if normalise(pair[0]) == "problem"]
        others = [pair for pair in pairs if pair not in problem_pairs]
        problem = self.language.assign({}, problem_pairs)
        # Defaults without a problem are those of the system of the chosen one.
        of_system = "problem" not in self.usual
        usual = self.language.assign(problem if of_system else {}, self.usual.items())
        # Defaults for the command's own problem do not apply to another one.
        other = problem and problem["problem"] != usual.get("problem") and not of_system
        return self.language.assign(problem if other else usual, others)

    def run_of(self, table: Table) -> Table:
        """Return only the settings of the run."""
        return {n: value for n, value in table.items() if n not in (*self.fields, "kind")}

    def names(self, option: str, table: Table) -> Sequence[str]:
        """Return the allowed values of `--theories`, `--theory`, `--against` or `--observable` for
        a built-in problem; empty for others, and where packages may add some."""
        group = "observables" if option == "observable" else "theories"
        problem = table.get("problem")
        names = names_by_problem().get(problem["kind"]) if is_branch(problem) else None
        if names is None or importlib.metadata.entry_points(group=f"dynsim.{group}"):
            return []
        if option == "observable":
            return names.observables
        return [*(names.training if option != "theories" else ()), *names.theories]
