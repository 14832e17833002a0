"""A task and an optimiser, as the commands and sweep files describe them."""

import dataclasses
import pkgutil
from collections.abc import Callable
from typing import Literal

import dynsim
from dynsim import checks
from dynsim.classes.synthetic import Layout


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task and an optimiser.

    Attributes:
        task: syn-small, syn-medium, syn, overlap; the path of an .npz file with arrays probs
            (K, M), query (K,) and optionally next_token (K,) and prior (K,); or MODULE:NAME of a
            `SequenceClasses` of your own, or of a function without arguments that makes one.
        eta_y: learning rate of the decoder Y.
        eta_z: learning rate of the attention logits Z.
        ratio: eta_y / eta_z; given instead of `eta_y`.
        optimizer: update rule; sgd uses `momentum`, adam `b1`, `b2` and `eps`.
        momentum: heavy-ball coefficient mu in [0, 1).
        b1: decay of Adam's first moment.
        b2: decay of Adam's second moment.
        eps: Adam's epsilon.
        num_queries: number of queries of syn-medium and syn.
        classes_per_query: number of next tokens of each query, of syn.
        num_common: number of tokens common to all classes, of syn.
        num_distinct: number of distinct tokens of each class, of syn.
        K: number of classes, of overlap; of syn, where num_queries is then K / classes_per_query.
        M: vocabulary size, of syn; the smallest possible if left out.
        overlap: f_n . f_n' at zero weights, of overlap.
        layout: token layout of the synthetic tasks: authors (M = 34 for syn-small) or paper (30).
    """

    task: str = "syn-small"
    eta_y: float = 1.0
    eta_z: float = 0.1
    ratio: float | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    num_queries: int = 3
    classes_per_query: int = 2
    num_common: int = 10
    num_distinct: int = 10
    K: int | None = None
    M: int | None = None
    overlap: float = 0.1
    layout: Layout = "authors"

    def make_task(self) -> dynsim.SequenceClasses:
        """The task; `ValueError` for an unknown name or a bad file."""
        if self.task in TASKS:
            return TASKS[self.task][0](self)
        if self.task.endswith(".npz"):
            return dynsim.load_task(self.task)
        if ":" in self.task:
            return _referred(self.task)
        if self.task in ("prompts", "two-stage", "two_stage"):
            raise ValueError(
                f"task = {self.task!r}: belongs to the system two_stage: dynsim compare two_stage"
            )
        raise ValueError(
            f"task = {self.task!r}: must be {', '.join(TASKS)}, the path of an .npz file, or "
            "MODULE:NAME of a SequenceClasses or of a function that makes one"
        )

    def make_optimizer(self) -> dynsim.Optimizer:
        """The optimiser; `ValueError` for rates that cannot be. Its numbers may be arrays."""
        checks.choice("optimizer", self.optimizer, ("sgd", "adam"))
        eta_y = self.eta_y
        if self.ratio is not None:
            checks.real("ratio", self.ratio, 0)
            eta_y = self.ratio * self.eta_z
        if self.optimizer == "adam":
            if self.uses_momentum:
                raise ValueError(f"momentum = {self.momentum}: must be left out with adam")
            return dynsim.adam(eta_y, self.eta_z, self.b1, self.b2, self.eps)
        if not self.uses_momentum:
            return dynsim.sgd(eta_y, self.eta_z)
        return dynsim.momentum(eta_y, self.eta_z, self.momentum)

    @property
    def uses_momentum(self) -> bool:
        """Whether the rule carries a velocity: always when momentum is an array or traced."""
        return not isinstance(self.momentum, int | float) or self.momentum != 0


def _referred(reference: str) -> dynsim.SequenceClasses:
    try:
        found = pkgutil.resolve_name(reference)
    except (ValueError, ImportError, AttributeError) as error:
        raise ValueError(f"task = {reference!r}: cannot be imported ({error})") from None
    task = found() if callable(found) else found
    if not isinstance(task, dynsim.SequenceClasses):
        raise ValueError(f"task = {reference!r}: must stand for a SequenceClasses, got {task!r}")
    return task


def _syn(problem: Problem) -> dynsim.SequenceClasses:
    per_query = checks.integer("classes_per_query", problem.classes_per_query, 1)
    queries = problem.num_queries
    if problem.K is not None:
        if checks.integer("K", problem.K, per_query) % per_query:
            raise ValueError(
                f"K = {problem.K}: must be a multiple of classes_per_query = {per_query}"
            )
        queries = problem.K // per_query
    return dynsim.syn(
        queries,
        per_query,
        num_common=problem.num_common,
        num_distinct=problem.num_distinct,
        vocabulary=problem.M,
        layout=problem.layout,
    )


_SYN_FIELDS = ("num_queries", "classes_per_query", "num_common", "num_distinct", "K", "M")
TASKS: dict[str, tuple[Callable[[Problem], dynsim.SequenceClasses], tuple[str, ...]]] = {
    "syn-small": (lambda problem: dynsim.syn_small(problem.layout), ()),
    "syn-medium": (
        lambda problem: dynsim.syn_medium(problem.num_queries, problem.layout),
        ("num_queries",),
    ),
    "syn": (_syn, _SYN_FIELDS),
    "overlap": (
        lambda p: dynsim.overlapping(2 if p.K is None else p.K, p.overlap),
        ("K", "overlap"),
    ),
}
"""Named tasks: how each is built, and which numeric fields of a `Problem` it reads."""
