"""All commands of `dynsim`, by name: from this table help, parsing and dispatch are made.

The module of a command is imported when somebody asks for it, so that help costs nothing.
"""

import functools
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sweeps.language.fields import Field, Kind, Table, fold
from sweeps.language.grammar import Language, Pairs
from sweeps.lines import unstopped
from sweeps.systems import kinds

Run = Callable[[Any], list[Path] | list[str] | None]
RUN = "run"
"""The field of a command that is the run."""
USUAL = "yz"
"""The problem of a command that names none."""
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
"""Options of many commands."""


class Command(NamedTuple):
    """A command.

    Attributes:
        settings: "module:Class", below `sweeps`, of the frozen dataclass whose fields are the
            options. The module also has `run`, which takes the settings and returns the paths or
            addresses that it wrote, if any.
        help: what it does, in a line.
        recorded: whether results that it writes to `out` are kept from being written over by those
            of other settings; stores of sweeps look after that themselves.
        draws: whether it writes pictures, whose style and format can be asked for.
        talks: whether it may take long and says how far it is.
        reads: what its first word has to be the place of, if anything.
    """

    settings: str
    help: str
    recorded: bool = True
    draws: bool = True
    talks: bool = True
    reads: Literal["", "store", "file"] = ""

    def load(self) -> tuple[type, Run]:
        """The class of the settings, and what runs them."""
        path, name = self.settings.split(":")
        with unstopped():
            module = importlib.import_module(f"sweeps.{path}")
        return getattr(module, name), module.run


FIGURES = """
3 paper.closed_forms:Figure3 growth factor chi(t) and its phase transition
4 paper.attention_maps:Figure4 attention over training by SGD
5 paper.attention_maps:Figure5 attention over training by Adam
6 paper.figure6:Figure6 entropy of attention after training, with theory
7 paper.figure7:Figure7 attention over training on text, 1 and 3 layers
8 paper.closed_forms:Figure8 the decoder by discrete steps and by the flow
9 paper.closed_forms:Figure9 growth bound B(t) at a fixed ratio of rates
10 paper.figure10:Figure10 entropy of attention on text against the rate
11 paper.recall:Figure11 recall of distinct tokens by attention
12 paper.recall:Figure12 Fig. 11 at other numbers of queries
collapse transitions.collapse:Collapse transition times on one line
corpus words.figure:CorpusFigure predicted and trained fate of the words of a text
finite_size finite_size.figure:FiniteSize accuracy of the finite-length, finite-batch theory
joma joma.figure:FigureJoMA JoMA: attention from the weights of an MLP, and its growth
joma_invariant joma.invariant:JoMAInvariant error of JoMA's Theorem 1 along training
linear_icl linear_icl.figure:FigureLinearICL plateaus of in-context regression
linear_icl_plateaus linear_icl.diagram:LinearICLPlateaus where heads learn one at a time
optimum optimum.figure:Optimum best learning rate against batch, width, ...; also `optimum NAME`
edge transitions.edge.figure:Edge sharpness at the edge of stability, with gradient and central flow
phase phase.figure:Phase same as `dynsim phase`
qkv qkv.figure:FigureQKV theory in Y and Z against training of W_Q, W_K, W_V
scaling transitions.scaling.figure:ScalingFigure transition or crossover; also `scaling NAME`
snap transitions.snap:Snap how the learning rates set transition time and sparsity
sparse_attention sparse_attention.figure:FigureSparseAttention how long until attention is sparse
spectrum spectrum.figure:Spectrum same as `dynsim spectrum`
trainability trainability.figure:Trainability which learning rates train at all
two_stage two_stage.figure:FigureTwoStage two-stage training, claim by claim
two_stage_finite two_stage.finite:TwoStageFinite effect of finite length and batch on the two stages
two_stage_phase two_stage.phase:TwoStagePhase where component Q can be learned
validity phase.validity:Validity where each theory holds
"""
"""Figures: name, class of the settings below `sweeps.studies`, and what is in them."""
_printed = functools.partial(Command, draws=False, talks=False)
_stores = functools.partial(Command, draws=False, recorded=False)
COMMANDS: dict[str, Command] = {
    "compare": Command(
        "compare.command:Compare",
        "train, solve the theories, and compare; `compare NAME` for another system",
    ),
    "explain": _printed(
        "commands.explain:Explain",
        "predict a run from theory, without running it; `explain NAME` for another system",
    ),
    "sweep": _stores(
        "commands.sweep:SweepCommand", "run a sweep, or resume an interrupted one", reads="file"
    ),
    "info": _printed(
        "commands.info:Info", "show a stored sweep's configuration and progress", reads="store"
    ),
    "check": Command(
        "commands.check:Check",
        "verify every checksum of a stored sweep",
        draws=False,
        reads="store",
    ),
    "plot": Command(
        "commands.views.plot:Plot",
        "plot a recorded quantity of a stored sweep",
        talks=False,
        reads="store",
    ),
    "explore": _stores(
        "commands.views.explore:Explore",
        "write stored sweeps as an interactive page, with theory next to the runs",
        reads="store",
    ),
    "export": _stores(
        "commands.export:Export",
        "export a stored sweep as netCDF, zarr or a table",
        talks=False,
        reads="store",
    ),
    "phase": Command(
        "studies.phase.figure:Plane",
        "draw a phase diagram over two settings; `phase NAME` for another system",
    ),
    "spectrum": Command(
        "studies.spectrum.figure:Spectrum",
        "measure what singular directions of trained weights contribute",
    ),
    "validate": Command(
        "studies.tables.validate:Validate", "measure the accuracy of the theories", recorded=False
    ),
    "schema": _stores(
        "commands.schema:Schema", "write a JSON Schema of sweep files, for editors", talks=False
    ),
    **{
        f"figure {name}": Command(f"studies.{settings}", about)
        for name, settings, about in (line.split(" ", 2) for line in FIGURES.strip().split("\n"))
    },
    "figure theories": Command("compare.theories:Theories", "every theory next to simulation"),
}
"""All commands by name; a name has one word, or two."""
OF_PROBLEM: dict[str, dict[str, str]] = {
    "compare": {"two_stage": "studies.two_stage.compare:CompareTwoStage"},
    "explain": {},
    "phase": {"yz": "studies.phase.figure:Phase"},
    "figure optimum": {"yz": "studies.optimum.figure:OptimumOfLayer"},
    "figure scaling": {"yz": "studies.transitions.scaling.figure:ScalingOfLayer"},
}
"""Commands that take a problem as their second word, and their settings for those that have their
own."""


def group(first: str) -> dict[str, Command]:
    """Commands of two words that begin with `first`, by their second one: the figures."""
    names = {tuple(name.split()): command for name, command in COMMANDS.items()}
    return {words[1]: found for words, found in names.items() if words[0] == first and words[1:]}


def file_name(command: str) -> str:
    """The words of a command as the name of a file or folder."""
    return re.sub(r"\W+", "_", command)


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
    usual: Table
    positional: Sequence[str]
    recorded: bool
    language: Language

    @classmethod
    def of(cls, name: str, problem: str = "") -> "Offer":
        """What a command of the table offers, for runs of a problem."""
        commands = kinds.metadata()["commands"]
        command, own = COMMANDS[name], OF_PROBLEM.get(name, {})
        asked = fold(problem or (commands[name][1] or {}).get("problem", USUAL))
        # The word of a preset begins with that of its system.
        if word := next((each for each in own if asked.startswith(fold(each))), ""):
            command = command._replace(settings=own[word])
        about, usual, positional = commands[f"{name} {word}".strip()]
        kind = Kind.from_json(about)
        recorded = command.recorded and "out" in kind.fields
        options = {name: field for name, field in kind.fields.items() if name != RUN}
        wanted = recorded, command.draws, command.draws, command.talks
        options |= {n: SHARED[n] for n, there in zip(SHARED, wanted, strict=True) if there}
        run = {} if usual is None else kinds.language().kinds[0].fields
        root = kind._replace(word="command", fields={**options, **run, **options})
        language = kinds.language().rooted(root)
        return cls(command, kind, options, bool(run), usual or {}, positional, recorded, language)

    def chosen(self, given: Pairs) -> Table:
        """The settings that are given, and the others that are usual for the command."""
        first = [pair for pair in given if fold(pair[0]) == "problem"]
        problem, usual = (self.language.assign({}, each) for each in (first, self.usual.items()))
        # What is usual for the problem of the command says nothing of another one.
        other = problem and problem["problem"] != usual.get("problem")
        rest = [pair for pair in given if pair not in first]
        return self.language.assign(problem if other else usual, rest)

    def run_of(self, given: Table) -> Table:
        """The settings of the run alone."""
        return {n: value for n, value in given.items() if n not in (*self.options, "kind")}

    def names(self, option: str, given: Table) -> list[str]:
        """What `--theories`, `--theory`, `--engine` or `--observable` may name of the problem that
        is chosen, if it is one of this project; empty for others, and where packages add some."""
        group = "observables" if option == "observable" else "theories"
        problem: Any = given.get("problem", {"kind": ""})
        known = kinds.metadata()["engines"].get(problem["kind"])
        if not known or importlib.metadata.entry_points(group=f"dynsim.{group}"):
            return []
        theories, others, observables = known
        return {"observable": observables, "theories": theories}.get(option, [*others, *theories])
