"""Settings of the commands: frozen dataclasses that the Python API and the CLI share."""

import dataclasses
import math
from pathlib import Path
from typing import Literal

import dynsim
from dynsim import checks
from sweeps.output import check_directory


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task and an optimiser.

    Attributes:
        task: syn-small, syn-medium, or the path of an .npz file with arrays probs (K, M), query
            (K,) and optionally next_token (K,) and prior (K,).
        eta_y: learning rate of the decoder Y.
        eta_z: learning rate of the attention logits Z.
        optimizer: update rule; sgd uses `momentum`.
        momentum: heavy-ball coefficient mu in [0, 1).
        num_queries: number of queries of syn-medium.
        layout: token layout of the synthetic tasks: authors (M = 34 for syn-small) or paper (30).
    """

    task: str = "syn-small"
    eta_y: float = 1.0
    eta_z: float = 0.1
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    num_queries: int = 3
    layout: dynsim.tasks.Layout = "authors"

    def make_task(self) -> dynsim.SequenceClasses:
        """The task; `ValueError` for an unknown name or a bad file."""
        if self.task == "syn-small":
            return dynsim.syn_small(self.layout)
        if self.task == "syn-medium":
            return dynsim.syn_medium(self.num_queries, self.layout)
        if self.task.endswith(".npz"):
            return dynsim.load_task(self.task)
        raise ValueError(
            f"task = {self.task!r}: must be syn-small, syn-medium or the path of an .npz file"
        )

    def make_optimizer(self) -> dynsim.Optimizer:
        """The optimiser; `ValueError` for rates that cannot be."""
        checks.choice("optimizer", self.optimizer, ("sgd", "adam"))
        if self.optimizer == "adam":
            if self.momentum != 0:
                raise ValueError(f"momentum = {self.momentum}: must be left out with adam")
            return dynsim.adam(self.eta_y, self.eta_z)
        if self.momentum == 0:
            return dynsim.sgd(self.eta_y, self.eta_z)
        return dynsim.momentum(self.eta_y, self.eta_z, self.momentum)


@dataclasses.dataclass(frozen=True)
class Compare(Problem):
    """Train an attention layer, integrate the theories, and compare them.

    Attributes:
        steps: optimiser steps of a run.
        seeds: number of runs.
        out: directory for compare.png, compare.json and compare.npz.
        length: sequence length T, the query included; inf for P(l|n) in place of counts.
        batch: sequences per step; inf (with --length inf) for the population loss.
        init: starting weights, zero or uniform on +-1/sqrt(M).
        theories: names of the theories to compare with; all that apply if left out.
        num_times: number of logarithmically spaced times to record.
        seed: root of the random keys; run i uses fold_in(key(seed), i).
        dtype: precision of the simulation; theories are integrated in float64.
        json: print the report as JSON alone on standard output.
    """

    steps: int = 1000
    seeds: int = 8
    out: Path = Path("out/compare")
    length: int | float = 128
    batch: int | float = 128
    init: Literal["zero", "uniform"] = "zero"
    theories: tuple[str, ...] = ()
    num_times: int = 64
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    json: bool = False

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        checks.integer("steps", self.steps, 1)
        checks.integer("seeds", self.seeds, 1)
        checks.integer("seed", self.seed, 0)
        checks.integer("num_times", self.num_times, 2)
        checks.count_or_inf("length", self.length, 2)
        checks.count_or_inf("batch", self.batch, 1)
        if math.isinf(self.batch) and not math.isinf(self.length):
            raise ValueError(f"batch = inf, length = {self.length}: needs length = inf as well")
        check_directory(self.out)

    def as_json(self) -> dict[str, object]:
        """The settings as JSON values."""
        plain = dataclasses.asdict(self)
        plain["out"] = str(self.out)
        for name in ("length", "batch"):
            plain[name] = "inf" if math.isinf(plain[name]) else plain[name]
        return plain
