"""In-context regression by linear attention: settings, engines and labels."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import annotated_types as at
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from dynsim import Trajectory, checks
from dynsim.decoding import CountOrInf, Decay, Positive, Rate, Size, Steps
from dynsim.linear_icl.model import Attention, Heads
from dynsim.linear_icl.observables import TABLE, TRAINED
from dynsim.linear_icl.simulate import Data, initial_regression, simulate_regression
from dynsim.linear_icl.task import Regression, Spectrum, eigenvalues, regression
from dynsim.precision import DType
from dynsim.training.descent import Descent, Kind
from odes.linear_icl import ladder, whole
from odes.solver.tolerances import Tolerances
from odes.theory import Theory
from sweeps.systems.base import (
    Engine,
    Fields,
    Labels,
    Run,
    Settings,
    System,
    Times,
    known,
    steps_of,
)
from sweeps.systems.choice import RULES, Choice, Chooses, descent

RATES = ("eta", "momentum", "b1", "b2", "eps")
NUMBERS = (*RATES, "scale", "ratio")
Ratio = Annotated[float, at.Gt(0), at.Le(1)]
"""Of neighbouring eigenvalues."""
STATIC = ("D", "N", "heads", "rank", "steps", "batch")
SPECTRA: dict[str, dict[str, Any]] = {"linear": {}, "white": {}, "geometric": {"ratio": 0.5}}
ATTENTIONS: dict[str, dict[str, Any]] = {"merged": {}, "separate": {"rank": 1}}
"""What each spectrum and each kind of attention reads, with defaults."""
ATOL_SHARE = 1e-4
"""Absolute tolerance of an adaptive solver over its relative one: weights start small."""
TOLERANCES = Tolerances(1e-8, 1e-12)


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
        N: pairs (x, y) in the context.
        spectrum: eigenvalues of the covariance of x: linear (D, ..., 1, trace 1), white (all 1),
            geometric (by `ratio`, trace 1).
        ratio: of neighbouring eigenvalues, of geometric; 0.5 if left out.
        attention: merged or separate key and query.
        heads: number of heads H.
        rank: rank R of a separate head's key and query, 1 if left out.
        scale: standard deviation of a starting weight.
        optimizer: update rule; all weights have one learning rate.
        eta: learning rate; the paper's tau is 1/(2 eta) steps.
        momentum: heavy-ball coefficient mu in [0, 1), of momentum; 0.9 if left out.
        b1: decay of Adam's first moment, 0.9 if left out.
        b2: decay of Adam's second moment, 0.999 if left out.
        eps: Adam's epsilon, 1e-8 if left out.
        steps: optimiser steps of a run.
        batch: sequences per step; inf for the population loss.
        data: fresh sequences at every step, or the same fixed ones.
        dtype: precision of the simulation; theories are integrated in float64.
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
        super().check()
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


def _assemble(
    settings: Settings[Fixed], task: Regression, numbers: Mapping[str, Array]
) -> tuple[Regression, tuple[Descent, Array]]:
    optimizer = Descent(**{name: numbers[name] for name in RATES}, kind=settings.fixed.kind)
    if settings.fixed.spectrum == "geometric":
        task = dataclasses.replace(
            task, spectrum=eigenvalues("geometric", task.D, numbers["ratio"])
        )
    return task, (optimizer, numbers["scale"])


def _simulate(
    settings: Settings[Fixed],
    task: Regression,
    rules: tuple[Descent, Array],
    key: PRNGKeyArray,
) -> Trajectory:
    fixed = settings.fixed
    optimizer, scale = rules
    return simulate_regression(
        task,
        optimizer,
        key,
        heads=fixed.heads,
        scale=scale,
        steps=fixed.steps,
        batch=fixed.batch,
        data=fixed.data,
        times=known(settings.times),
        record=settings.record,
        dtype=settings.dtype,
    )


def _solve(
    settings: Settings[Fixed],
    task: Regression,
    rules: tuple[Descent, Array],
    key: PRNGKeyArray,
    *,
    theory: Theory[Regression, Descent],
) -> Trajectory:
    optimizer, scale = rules
    # Drawn in the precision of the simulation.
    start = initial_regression(task, key, settings.fixed.heads, scale, settings.fixed.dtype)
    options: dict[str, Any] = {}
    if theory.name not in whole.COURSES:
        rtol = settings.rtol
        options["tolerances"] = TOLERANCES if rtol is None else Tolerances(rtol, rtol * ATOL_SHARE)
    times = np.asarray(known(settings.times), settings.dtype)
    return theory.solve(
        task,
        optimizer,
        times,
        init=start,
        record=settings.record,
        dtype=settings.dtype,
        **options,
    )


def _described(
    fixed: Fixed, task: Regression, optimizer: Descent, *, theory: Theory[Regression, Descent]
) -> None:
    ladder.theory(theory, task, optimizer)
    if theory.name in whole.COURSES:
        problem = whole.inapplicable(task, optimizer, name=theory.name, shape=fixed.heads)
        if problem:
            raise ValueError(f"theory {theory.name!r} does not apply: {problem}")


def _weights(task: Regression, fixed: Fixed) -> int:
    each = task.D**2 if fixed.heads.attention == "merged" else 2 * fixed.heads.rank * task.D
    return fixed.heads.heads * (1 + each)


def _bytes(task: Regression, settings: Settings[Fixed]) -> int:
    fixed = settings.fixed
    drawn = 0 if np.isinf(fixed.batch) else int(fixed.batch) * (2 * task.D + 1)
    return settings.width * (8 * _weights(task, fixed) + 2 * drawn + settings.num_times * task.D)


def _rung(theory: Theory[Regression, Descent]) -> Engine[Fixed]:
    closed = theory.name in whole.COURSES
    return Engine(
        functools.partial(_solve, theory=theory),
        _assemble,
        whole.TABLE if closed else TABLE,
        _bytes,
        functools.partial(_described, theory=theory),
        adaptive=not closed,
        tile=64,
        variant=theory.variant,
        title=theory.title,
        assumes=theory.assumes,
    )


def _registered() -> dict[str, Engine[Fixed]]:
    """Engines of the theories of other packages that need starting weights at most."""
    found = ladder.registered()
    return {name: _rung(each) for name, each in found.items() if set(each.needs) <= {"init"}}


SYSTEM = System(
    name="linear_icl",
    tasks=("linear-icl",),
    run=LinearICL,
    engines={
        "simulation": Engine(_simulate, _assemble, TRAINED, _bytes, tile=256, trains=True),
        **{name: _rung(theory) for name, theory in ladder.THEORIES.items()},
    },
    labels=Labels(
        about={
            "eta": ("learning rate", "1/step"),
            "scale": ("standard deviation of a starting weight", "1"),
            "ratio": ("ratio of neighbouring eigenvalues", "1"),
            "steps": ("optimiser steps", "step"),
            "loss": ("population mean square error", "1"),
            "batch_loss": ("mean square error of the next batch", "1"),
            "learned": ("share of a principal component that is learned", "1"),
            "stage": ("principal components learned by half", "1"),
            "values": ("value weights", "1"),
        },
        inner_dims={
            "learned": ("component",),
            **dict.fromkeys(("values", "imbalance"), ("head",)),
            "matrix": ("row", "column"),
        },
    ),
    more=_registered,
)
