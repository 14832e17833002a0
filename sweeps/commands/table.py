"""All commands of `dynsim`, by name: from this table help, parsing and dispatch are made.

The module of a command is imported when somebody asks for it, so that help costs nothing.
"""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sweeps.lines import unstopped

Run = Callable[[Any], list[Path] | list[str] | None]


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


_FIGURES = {
    "3": ("studies.paper.closed_forms:Figure3", "growth factor chi(t) and its phase transition"),
    "4": ("studies.paper.attention_maps:Figure4", "attention over training by SGD"),
    "5": ("studies.paper.attention_maps:Figure5", "attention over training by Adam"),
    "6": ("studies.paper.figure6:Figure6", "entropy of attention after training, with theory"),
    "7": ("studies.paper.figure7:Figure7", "attention over training on text, 1 and 3 layers"),
    "8": ("studies.paper.closed_forms:Figure8", "the decoder by discrete steps and by the flow"),
    "9": ("studies.paper.closed_forms:Figure9", "growth bound B(t) at a fixed ratio of rates"),
    "10": ("studies.paper.figure10:Figure10", "entropy of attention on text against the rate"),
    "11": ("studies.paper.recall:Figure11", "recall of distinct tokens by attention"),
    "12": ("studies.paper.recall:Figure12", "Fig. 11 at other numbers of queries"),
    "collapse": ("studies.transitions.collapse:Collapse", "transition times on one line"),
    "corpus": (
        "studies.words.figure:CorpusFigure",
        "predicted and trained fate of the words of a text",
    ),
    "finite_size": (
        "studies.finite_size.figure:FiniteSize",
        "accuracy of the finite-length, finite-batch theory",
    ),
    "joma": (
        "studies.joma.figure:FigureJoMA",
        "JoMA: attention from the weights of an MLP, and its growth",
    ),
    "joma_invariant": (
        "studies.joma.invariant:JoMAInvariant",
        "error of JoMA's Theorem 1 along training",
    ),
    "linear_icl": (
        "studies.linear_icl.figure:FigureLinearICL",
        "plateaus of in-context regression",
    ),
    "linear_icl_plateaus": (
        "studies.linear_icl.diagram:LinearICLPlateaus",
        "where heads learn one at a time",
    ),
    "optimum": (
        "studies.optimum.figure:Optimum",
        "best learning rate against batch, width or another setting; also `optimum NAME`",
    ),
    "edge": (
        "studies.transitions.edge.figure:Edge",
        "sharpness at the edge of stability: training, gradient flow and central flow",
    ),
    "phase": ("studies.phase.figure:Phase", "same as `dynsim phase`"),
    "qkv": ("studies.qkv.figure:FigureQKV", "theory in Y and Z against training of W_Q, W_K, W_V"),
    "scaling": (
        "studies.transitions.scaling.figure:ScalingFigure",
        "transition or crossover: the step of an observable for several sizes; also `scaling NAME`",
    ),
    "snap": (
        "studies.transitions.snap:Snap",
        "how the learning rates set transition time and sparsity",
    ),
    "sparse_attention": (
        "studies.sparse_attention.figure:FigureSparseAttention",
        "how long attention takes to become sparse",
    ),
    "spectrum": ("studies.spectrum.figure:Spectrum", "same as `dynsim spectrum`"),
    "theories": ("compare.theories:Theories", "every theory next to simulation"),
    "trainability": (
        "studies.trainability.figure:Trainability",
        "which learning rates train at all",
    ),
    "two_stage": ("studies.two_stage.figure:FigureTwoStage", "two-stage training, claim by claim"),
    "two_stage_finite": (
        "studies.two_stage.finite:TwoStageFinite",
        "effect of finite length and batch on two-stage training",
    ),
    "two_stage_phase": (
        "studies.two_stage.phase:TwoStagePhase",
        "where component Q can be learned",
    ),
    "validity": ("studies.phase.validity:Validity", "where each theory holds"),
}
COMMANDS: dict[str, Command] = {
    "compare": Command(
        "compare.command:Compare",
        "train, solve the theories, and compare; `compare NAME` for another system",
    ),
    "explain": Command(
        "commands.explain:Explain",
        "predict a run from theory, without running it; `explain NAME` for another system",
        draws=False,
        talks=False,
    ),
    "sweep": Command(
        "commands.sweep:SweepCommand",
        "run a sweep, or resume an interrupted one",
        recorded=False,
        draws=False,
        reads="file",
    ),
    "info": Command(
        "commands.info:Info",
        "show a stored sweep's configuration and progress",
        draws=False,
        talks=False,
        reads="store",
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
    "explore": Command(
        "commands.views.explore:Explore",
        "write stored sweeps as an interactive page, with theory next to the runs",
        recorded=False,
        draws=False,
        reads="store",
    ),
    "export": Command(
        "commands.export:Export",
        "export a stored sweep as netCDF, zarr or a table",
        recorded=False,
        draws=False,
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
    "schema": Command(
        "commands.schema:Schema",
        "write a JSON Schema of sweep files, for editors",
        recorded=False,
        draws=False,
        talks=False,
    ),
    **{f"figure {name}": Command(*about) for name, about in _FIGURES.items()},
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
