"""Settings of the commands: frozen dataclasses that the Python API and the CLI share."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import dynsim
from dynsim import checks
from dynsim.precision import DType
from sweeps.output import check_directory


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task and an optimiser.

    Attributes:
        task: syn-small, syn-medium, syn, overlap, or the path of an .npz file with arrays probs
            (K, M), query (K,) and optionally next_token (K,) and prior (K,).
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
    layout: dynsim.tasks.Layout = "authors"

    def make_task(self) -> dynsim.SequenceClasses:
        """The task; `ValueError` for an unknown name or a bad file."""
        if self.task in TASKS:
            return TASKS[self.task][0](self)
        if self.task.endswith(".npz"):
            return dynsim.load_task(self.task)
        raise ValueError(
            f"task = {self.task!r}: must be {', '.join(TASKS)} or the path of an .npz file"
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


@dataclasses.dataclass(frozen=True)
class Training(Problem):
    """How the attention layer is trained on the problem.

    Attributes:
        steps: optimiser steps of a run.
        length: sequence length T, the query included; inf for P(l|n) in place of counts.
        batch: sequences per step; inf (with --length inf) for the population loss.
        init: starting weights, zero or uniform on +-1/sqrt(M).
        dtype: precision of the simulation; theories are integrated in float64.
    """

    steps: int = 1000
    length: int | float = 128
    batch: int | float = 128
    init: Literal["zero", "uniform"] = "zero"
    dtype: DType = "float32"

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        checks.integer("steps", self.steps, 1)
        checks.count_or_inf("length", self.length, 2)
        checks.count_or_inf("batch", self.batch, 1)
        checks.choice("init", self.init, ("zero", "uniform"))
        checks.choice("dtype", self.dtype, ("float32", "float64"))
        if math.isinf(self.batch) and not math.isinf(self.length):
            raise ValueError(f"batch = inf, length = {self.length}: needs length = inf as well")

    def as_json(self) -> dict[str, object]:
        """The settings as JSON values."""
        plain = dataclasses.asdict(self)
        for name, value in plain.items():
            if isinstance(value, Path):
                plain[name] = str(value)
            elif isinstance(value, float) and math.isinf(value):
                plain[name] = "inf"
        return plain


@dataclasses.dataclass(frozen=True)
class Compare(Training):
    """Train an attention layer, integrate the theories, and compare them.

    Attributes:
        seeds: number of runs.
        out: directory for compare.png, compare.json and compare.npz.
        theories: names of the theories to compare with; all that apply if left out.
        num_times: number of logarithmically spaced times to record.
        seed: root of the random keys; run i uses fold_in(key(seed), i).
        json: print the report as JSON alone on standard output.
    """

    seeds: int = 8
    out: Path = Path("out/compare")
    theories: tuple[str, ...] = ()
    num_times: int = 64
    seed: int = 0
    json: bool = False

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        checks.integer("seeds", self.seeds, 1)
        checks.integer("seed", self.seed, 0)
        checks.integer("num_times", self.num_times, 2)
        check_directory(self.out)
