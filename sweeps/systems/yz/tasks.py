"""Sequence classes as the commands and sweep files describe them, for every system that has them,
and the rates of two groups of weights, Y and Z."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import tyro
from pydantic import InstanceOf

import dynsim
from dynsim import checks
from dynsim.classes.files import SUFFIXES
from dynsim.classes.synthetic import Layout
from dynsim.classes.task import FIELDS
from dynsim.decoding import Count, Decay, NotNegative, Rate, Size, SizeOrNone
from odes.symmetric.state import SymmetricTask
from sweeps.systems.problems import rules
from sweeps.systems.problems.tasks import TaskOptions
from sweeps.systems.yz import large
from sweeps.systems.yz.memory import LIKE

Given = Annotated[
    str | InstanceOf[dynsim.SequenceClasses],
    # The hint that tyro writes itself has the default as the list of its words.
    tyro.conf.arg(
        constructor=str,
        metavar="STR",
        help_behavior_hint=lambda default: "(default: " + default.strip("[]'") + ")",
    ),
]
"""A task, which a command line can only name."""


class NamedClasses(NamedTuple):
    """How a task is built, its reduced form without the table, and which settings it reads, with
    their defaults."""

    table: Callable[[Any], dynsim.SequenceClasses]
    reduced: Callable[[Any], SymmetricTask]
    reads: Mapping[str, Any]

    def make(self, options: Any) -> dynsim.SequenceClasses:
        """The task; `ValueError` for one whose table would be too large."""
        reduced = self.reduced(options)
        large.refuse(int(reduced.K), int(reduced.M))
        return self.table(options)


def _syn_numbers(options: Any) -> dict[str, Any]:
    given = {name: options.value(name) for name in options.TASKS["syn"].reads}
    per_query = checks.integer("classes_per_query", given["classes_per_query"], 1)
    queries = given["num_queries"]
    if options.K is not None:
        if options.num_queries is not None:
            raise ValueError(
                f"num_queries = {options.num_queries}: K = {options.K} says it already, as "
                "K / classes_per_query; leave one of them out"
            )
        if checks.integer("K", options.K, per_query) % per_query:
            raise ValueError(
                f"K = {options.K}: must be a multiple of classes_per_query = {per_query}"
            )
        queries = options.K // per_query
    checks.integer("num_queries", queries, 1)
    same = {name: given[name] for name in ("num_common", "num_distinct", "layout")}
    return {"num_queries": queries, "classes_per_query": per_query, **same}


def _syn_reduced(options: Any) -> SymmetricTask:
    reduced = large.syn(**_syn_numbers(options))
    if options.M is None:
        return reduced
    least = int(reduced.M)
    return dataclasses.replace(reduced, M=checks.integer("M", options.M, least))


def _overlapping(options: Any) -> tuple[int, float]:
    """K and the overlap of the task overlapping."""
    overlap = options.value("overlap")
    checks.real("overlap", overlap, 0, 1, open_maximum=True)
    if checks.integer("K", options.value("K"), 1) == 1 and options.overlap is not None:
        raise ValueError(
            f"overlap = {overlap}: K = 1 class overlaps with no other; must be left out"
        )
    return options.value("K"), overlap


_AUTHORS = {"layout": "authors"}
TASKS: dict[str, NamedClasses] = {
    "syn-small": NamedClasses(
        lambda p: dynsim.syn_small(p.value("layout")),
        lambda p: large.syn(2, 1, 10, 10, p.value("layout")),
        _AUTHORS,
    ),
    "syn-medium": NamedClasses(
        lambda p: dynsim.syn_medium(p.value("num_queries"), p.value("layout")),
        lambda p: large.syn(
            checks.integer("num_queries", p.value("num_queries"), 1), 2, 10, 10, p.value("layout")
        ),
        {"num_queries": 3, **_AUTHORS},
    ),
    "syn": NamedClasses(
        lambda p: dynsim.syn(M=p.M, **_syn_numbers(p)),
        _syn_reduced,
        {
            "num_queries": 3,
            "classes_per_query": 2,
            "num_common": 10,
            "num_distinct": 10,
            "K": None,
            "M": None,
            **_AUTHORS,
        },
    ),
    "overlapping": NamedClasses(
        lambda p: dynsim.overlapping(*_overlapping(p)),
        lambda p: large.overlapping(*_overlapping(p)),
        {"K": 2, "overlap": 0.1},
    ),
}
"""Tasks by name."""


@dataclasses.dataclass(frozen=True)
class ClassOptions(rules.RuleOptions, TaskOptions):
    """A task and an optimiser. An omitted setting has the default of the task or optimiser that
    uses it; giving a setting that neither uses is an error.

    Attributes:
        task: syn-small, syn-medium, syn or overlapping; or the path of an .npz file with arrays
            probs (K, M), query (K,) and optionally next_token (K,) and prior (K,); or of a .csv
            file with one row per class and columns of these names, every other column being a
            token; or MODULE:NAME of your own `SequenceClasses`, or of a function without arguments
            that returns one. In Python also a `SequenceClasses`.
        eta_y: learning rate of the decoder Y; 1 if omitted.
        eta_z: learning rate of the attention logits Z.
        ratio: eta_y / eta_z, instead of `eta_y`.
        num_queries: for syn-medium and syn: number of queries; 3 if omitted.
        classes_per_query: for syn: number of next tokens of each query; 2 if omitted.
        num_common: for syn: number of tokens common to all classes; 10 if omitted.
        num_distinct: for syn: number of distinct tokens of each class; 10 if omitted.
        K: number of classes. overlapping: 2 if omitted. syn: sets num_queries to
            K / classes_per_query.
        M: for syn: vocabulary size; the smallest possible if omitted.
        overlap: for overlapping: f_n . f_n' at zero weights; 0.1 if omitted.
        layout: token layout of the syn tasks: authors (the default; M = 34 for syn-small) or paper
            (M = 30).
    """

    MADE: ClassVar = LIKE.problem
    TASKS: ClassVar = TASKS
    DEFAULT_ETA_Y: ClassVar[float] = 1.0
    GROUPS: ClassVar = {"eta_y": "Y", "eta_z": "Z"}
    KIND: ClassVar = dynsim.SequenceClasses
    HASHED: ClassVar = FIELDS
    SUFFIXES: ClassVar = SUFFIXES
    STATIC: ClassVar = ("overlap",)
    SAME: ClassVar = (
        (("eta_y", "ratio"), "ratio = eta_y / eta_z"),
        (("K", "num_queries"), "K = num_queries * classes_per_query"),
    )

    task: Given = "syn-small"
    eta_y: Rate | None = None
    eta_z: Rate = 0.1
    ratio: NotNegative | None = None
    num_queries: Count | None = None
    classes_per_query: Size | None = None
    num_common: SizeOrNone | None = None
    num_distinct: SizeOrNone | None = None
    K: Count | None = None
    M: Size | None = None
    overlap: Decay | None = None
    layout: Layout | None = None

    @functools.cached_property
    def held(self) -> dynsim.SequenceClasses:
        """The task; `ValueError` as of `TaskOptions`."""
        if isinstance(self.task, str) and self.task in ("prompts", "two-stage", "two_stage"):
            raise ValueError(
                f"task = {self.task!r}: belongs to the system two_stage: dynsim compare two_stage"
            )
        return super().held

    @staticmethod
    def load(path: str) -> dynsim.SequenceClasses:
        """The task in a file."""
        return dynsim.load_task(path)

    def value(self, name: str) -> Any:
        """A setting as it was given, or the default of what reads it; None where nothing does."""
        if name == "eta_y" and self.eta_y is None:
            return self.DEFAULT_ETA_Y if self.ratio is None else self.ratio * self.eta_z
        return super().value(name)

    def check_read(self) -> None:
        """Raise `ValueError` for a setting that was given and that nothing reads, and for a rate
        that is given twice."""
        super().check_read()
        if self.ratio is None:
            return
        if self.eta_y is not None:
            raise ValueError(
                f"eta_y = {self.eta_y}: ratio = {self.ratio} says it already, as "
                "ratio * eta_z; leave one of them out"
            )
        checks.real("ratio", self.ratio, 0)

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        ratio = "ratio" in axes or ("eta_y" not in axes and self.ratio is not None)
        if field in ("eta_y", "ratio"):
            return (field == "ratio") == ratio
        return super().reads(field, axes)

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those that were left out at their defaults."""
        return {**super().as_json(), "eta_y": self.value("eta_y")}

    def make_reduced(self) -> SymmetricTask | None:
        """The reduced form of a task whose table is too large to be made; None for others."""
        named = self.TASKS.get(self.task) if isinstance(self.task, str) else None
        if not isinstance(named, NamedClasses):
            return None
        self.choices[0].check(self)
        reduced = named.reduced(self)
        return reduced if large.is_large(reduced.K, reduced.M) else None
