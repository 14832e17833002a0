"""Settings of in-context regression by linear attention."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import annotated_types as at
import numpy as np
from jaxtyping import ArrayLike, Float

from dynsim import checks
from dynsim.decoding import CountOrInf, Decay, Positive, Rate, Size, Steps
from dynsim.linear_icl.model import Attention, Heads
from dynsim.linear_icl.simulate import Data
from dynsim.linear_icl.task import Regression, Spectrum, regression
from dynsim.precision import DType
from dynsim.training.constant.descent import Descent, Kind
from sweeps.systems.base import Fields, Run, Times, steps_of
from sweeps.systems.choice import RULES, Choice, Chooses, descent

RATES = ("eta", "momentum", "b1", "b2", "eps")
NUMBERS = (*RATES, "scale", "ratio")
Ratio = Annotated[float, at.Gt(0), at.Le(1)]
"""Of neighbouring eigenvalues."""
STATIC = ("D", "N", "heads", "rank", "steps", "batch")
SPECTRA: dict[str, dict[str, Any]] = {"linear": {}, "white": {}, "geometric": {"ratio": 0.5}}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "merged": {},
    "separate": {"rank": 1},
    "network": {},
}
"""What each spectrum and each kind of attention reads, with defaults."""


class Fixed(NamedTuple):
    """What runs of one program share besides their numbers, as in `LinearICL`."""

    spectrum: Spectrum
    heads: Heads
    kind: Kind
    steps: int
    batch: int | float
    data: Data
    dtype: DType


@dataclasses.dataclass(frozen=True)
class LinearICL(Chooses, Run[Fixed]):
    """In-context linear regression by linear attention.

    Attributes:
        task: linear-icl.
        D: dimension of x.
        N: number of pairs (x, y) in the context.
        spectrum: eigenvalues of the covariance of x: linear (proportional to D, ..., 1; trace 1),
            white (all 1) or geometric (see `ratio`; trace 1).
        ratio: for geometric: ratio of neighbouring eigenvalues; 0.5 if omitted.
        attention: merged or separate key and query; or network, the fully connected linear network
            on cubic features that is equivalent to merged attention.
        heads: number of heads H, or of hidden units of the network.
        rank: for separate: rank R of the key and query of a head; 1 if omitted.
        scale: standard deviation of the starting weights.
        optimizer: update rule; all weights share one learning rate.
        eta: learning rate; the paper's tau is 1/(2 eta) steps.
        momentum: for momentum: heavy-ball coefficient mu in [0, 1); 0.9 if omitted.
        b1: for adam: decay of the first moment; 0.9 if omitted.
        b2: for adam: decay of the second moment; 0.999 if omitted.
        eps: for adam: epsilon; 1e-8 if omitted.
        steps: optimiser steps of a run.
        batch: sequences per step; inf for the population loss.
        data: fresh sequences at every step, or one fixed set.
        dtype: precision of training; theories are solved in float64.
    """

    AXES: ClassVar = Fields(
        traced=NUMBERS,
        static=STATIC,
        whole=("D", "N", "heads", "rank", "steps"),
        counts=("batch",),
    )

    task: Literal["linear-icl"] = "linear-icl"
    D: Size = 4
    N: Size = 31
    spectrum: Spectrum = "linear"
    ratio: Ratio | None = None
    attention: Attention = "separate"
    heads: Size = 5
    rank: Size | None = None
    scale: Positive = 0.02
    optimizer: Kind = "sgd"
    eta: Rate = 0.5
    momentum: Decay | None = None
    b1: Decay | None = None
    b2: Decay | None = None
    eps: Positive | None = None
    steps: Steps = 8000
    batch: CountOrInf = 256
    data: Data = "fresh"
    dtype: DType = "float32"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the spectrum, the attention and the optimiser read."""
        return (
            Choice("spectrum", self.spectrum, SPECTRA),
            Choice("attention", self.attention, ATTENTIONS),
            Choice("optimizer", self.optimizer, RULES),
        )

    def make_task(self) -> Regression:
        """The task; `ValueError` for numbers that describe none."""
        self.check_read()
        # Along an axis it is traced, and the task of each run is made of that.
        ratio = SPECTRA["geometric"]["ratio"]
        if self.ratio is not None and np.ndim(self.ratio) == 0:
            ratio = self.ratio
        return regression(self.D, self.N, self.spectrum, ratio)

    def make_optimizer(self) -> Descent:
        """The update rule; `ValueError` for numbers that cannot be."""
        return descent(self)

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser, the scale and the ratio by name."""
        checks.real("scale", self.scale, 0, open_minimum=True)
        ratio = SPECTRA["geometric"]["ratio"] if self.ratio is None else self.ratio
        checks.real("ratio", ratio, 0, 1, open_minimum=True)
        optimizer = self.make_optimizer()
        rates = {name: getattr(optimizer, name) for name in RATES}
        return {**rates, "scale": self.scale, "ratio": ratio}

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        checks.choice("task", self.task, ("linear-icl",))
        checks.choice("data", self.data, ("fresh", "fixed"))
        checks.choice("dtype", self.dtype, ("float32", "float64"))
        checks.steps("steps", self.steps)
        checks.count_or_inf("batch", self.batch, 1)
        self.make_task()
        self.fixed()

    def fixed(self) -> Fixed:
        """What its program takes for granted."""
        heads = Heads(self.attention, self.heads, self.value("rank") or 1).check()
        return Fixed(
            self.spectrum, heads, self.optimizer, self.steps, self.batch, self.data, self.dtype
        )

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records; `ValueError` unless they increase within
        [0, steps]."""
        return steps_of(times, self.steps)

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The learning rate."""
        return numbers["eta"]
