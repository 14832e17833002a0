"""A task and an optimiser, as the commands and sweep files describe them."""

import dataclasses
import hashlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import tyro
from pydantic import InstanceOf

import dynsim
from dynsim import checks
from dynsim.classes.files import SUFFIXES
from dynsim.classes.synthetic import Layout
from dynsim.decoding import Count, Decay, NotNegative, Rate, Size, SizeOrNone
from dynsim.problem.choice import Choice
from odes.symmetric.state import SymmetricTask
from sweeps.systems.problems import rules
from sweeps.systems.yz import large

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


@dataclasses.dataclass(frozen=True)
class Problem(rules.RuleOptions):
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

    DEFAULT_ETA_Y: ClassVar[float] = 1.0
    OPTIMIZERS: ClassVar = {**rules.OPTIMIZERS, "sgd": {"momentum": 0.0}}

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

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the task, the optimiser and the schedule read."""
        tasks = {name: kind.reads for name, kind in TASKS.items()}
        return (
            Choice("task", self.task if isinstance(self.task, str) else "of your own", tasks),
            *super().choices,
        )

    def value(self, name: str) -> Any:
        """A setting as it was given, or the default of what reads it; None where nothing does."""
        if name == "eta_y" and self.eta_y is None:
            return self.DEFAULT_ETA_Y if self.ratio is None else self.ratio * self.eta_z
        return super().value(name)

    def make_task(self) -> dynsim.SequenceClasses:
        """The task; `ValueError` for an unknown name, a bad file, or settings of other tasks."""
        self.choices[0].check(self)
        if isinstance(self.task, dynsim.SequenceClasses):
            return self.task
        if not isinstance(self.task, str):
            raise ValueError(f"task = {self.task!r}: must be a name or a SequenceClasses")
        if self.task in TASKS:
            reduced = TASKS[self.task].reduced(self)
            large.refuse(int(reduced.K), int(reduced.M))
            return TASKS[self.task].make(self)
        if self.task.endswith(SUFFIXES):
            return dynsim.load_task(self.task)
        if ":" in self.task:
            return _referred(self.task)
        if self.task in ("prompts", "two-stage", "two_stage"):
            raise ValueError(
                f"task = {self.task!r}: belongs to the system two_stage: dynsim compare two_stage"
            )
        if checks.called_now(self.task, TASKS):
            checks.choice("task", self.task, tuple(TASKS))
        raise ValueError(
            f"task = {self.task!r}: must be {', '.join(TASKS)}, the path of an .npz or .csv file, "
            "or MODULE:NAME of a SequenceClasses or of a function that makes one"
        )

    def make_reduced(self) -> SymmetricTask | None:
        """The reduced form of a task whose table is too large to be made; None for others."""
        if not isinstance(self.task, str) or self.task not in TASKS:
            return None
        self.choices[0].check(self)
        reduced = TASKS[self.task].reduced(self)
        return reduced if large.is_large(reduced.K, reduced.M) else None

    def make_optimizer(self) -> dynsim.Rule:
        """The optimiser; `ValueError` for rates that cannot be, or settings of another one. Its
        numbers may be arrays."""
        for choice in self.choices[1:]:
            choice.check(self)
        if self.ratio is not None:
            if self.eta_y is not None:
                raise ValueError(
                    f"eta_y = {self.eta_y}: ratio = {self.ratio} says it already, as "
                    "ratio * eta_z; leave one of them out"
                )
            checks.real("ratio", self.ratio, 0)
        rates = {"Y": self.value("eta_y"), "Z": self.eta_z}
        return rules.rule(self, {group: rules.schedule(self, eta) for group, eta in rates.items()})

    def contents(self) -> dict[str, str]:
        """A hash of what a task holds that a file or module may change under its name, by the name
        `task_holds`; nothing for built-in ones."""
        if isinstance(self.task, str) and self.task in TASKS:
            return {}
        task = self.make_task()
        digest = hashlib.sha256()
        for name in ("probs", "query", "next_token", "prior"):
            array = np.asarray(getattr(task, name))
            exact = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            digest.update(f"{name}{exact.shape}".encode() + exact.tobytes())
        return {"task_holds": digest.hexdigest()[:16]}


def _referred(reference: str) -> dynsim.SequenceClasses:
    try:
        found = pkgutil.resolve_name(reference)
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"task = {reference!r}: cannot be imported ({error})") from None
    task = found() if callable(found) else found
    if not isinstance(task, dynsim.SequenceClasses):
        raise ValueError(f"task = {reference!r}: must stand for a SequenceClasses, got {task!r}")
    return task


def _syn_numbers(problem: Problem) -> dict[str, Any]:
    given = {name: problem.value(name) for name in TASKS["syn"].reads}
    per_query = checks.integer("classes_per_query", given["classes_per_query"], 1)
    queries = given["num_queries"]
    if problem.K is not None:
        if problem.num_queries is not None:
            raise ValueError(
                f"num_queries = {problem.num_queries}: K = {problem.K} says it already, as "
                "K / classes_per_query; leave one of them out"
            )
        if checks.integer("K", problem.K, per_query) % per_query:
            raise ValueError(
                f"K = {problem.K}: must be a multiple of classes_per_query = {per_query}"
            )
        queries = problem.K // per_query
    checks.integer("num_queries", queries, 1)
    same = {name: given[name] for name in ("num_common", "num_distinct", "layout")}
    return {"num_queries": queries, "classes_per_query": per_query, **same}


def _syn_reduced(problem: Problem) -> SymmetricTask:
    reduced = large.syn(**_syn_numbers(problem))
    if problem.M is None:
        return reduced
    least = int(reduced.M)
    return dataclasses.replace(reduced, M=checks.integer("M", problem.M, least))


def _overlapping(problem: Problem) -> tuple[int, float]:
    """K and the overlap of the task overlapping."""
    overlap = problem.value("overlap")
    checks.real("overlap", overlap, 0, 1, open_maximum=True)
    if checks.integer("K", problem.value("K"), 1) == 1 and problem.overlap is not None:
        raise ValueError(
            f"overlap = {overlap}: K = 1 class overlaps with no other; must be left out"
        )
    return problem.value("K"), overlap


class NamedTask(NamedTuple):
    """How a task that comes along is built, its reduced form without the table, and which fields of
    a `Problem` it reads, with their defaults."""

    make: Callable[[Problem], dynsim.SequenceClasses]
    reduced: Callable[[Problem], SymmetricTask]
    reads: Mapping[str, Any]


_AUTHORS = {"layout": "authors"}
TASKS: dict[str, NamedTask] = {
    "syn-small": NamedTask(
        lambda p: dynsim.syn_small(p.value("layout")),
        lambda p: large.syn(2, 1, 10, 10, p.value("layout")),
        _AUTHORS,
    ),
    "syn-medium": NamedTask(
        lambda p: dynsim.syn_medium(p.value("num_queries"), p.value("layout")),
        lambda p: large.syn(
            checks.integer("num_queries", p.value("num_queries"), 1), 2, 10, 10, p.value("layout")
        ),
        {"num_queries": 3, **_AUTHORS},
    ),
    "syn": NamedTask(
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
    "overlapping": NamedTask(
        lambda p: dynsim.overlapping(*_overlapping(p)),
        lambda p: large.overlapping(*_overlapping(p)),
        {"K": 2, "overlap": 0.1},
    ),
}
"""Tasks by name."""
