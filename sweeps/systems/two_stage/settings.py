"""The two-stage system as the sweep engine and the commands see it: its settings."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import annotated_types as at
import numpy as np
from jaxtyping import ArrayLike, Float

from dynsim import checks
from dynsim.decoding import Count, NotNegative, Positive, Share, Size, Tokens
from dynsim.precision import DType
from dynsim.training.run_checks import check_step_times
from dynsim.two_stage.noisy_sgd import Control, NoisySGD, controlled, noisy_sgd
from dynsim.two_stage.presets import PRESETS, Preset
from dynsim.two_stage.task import Core, Prompts, prompts
from sweeps.systems.base import Fields, Run, Times

TASK_NUMBERS = ("gamma0", "s1", "s2", "r", "coupling")
RATES = ("eta_1", "eta_2", "decay", "tau", "tau_0", "stage_2")
SIZES = ("d", "length", "batch", "pool", "num_test")
Tests = Annotated[int, at.Ge(2), at.Le(2**31 - 1)]
"""How many prompts a loss is measured on."""
OPTIMIZER_NUMBERS = tuple(field.name for field in dataclasses.fields(NoisySGD))


class Fixed(NamedTuple):
    """What runs of one program share besides their numbers, as in `TwoStage`.

    Attributes:
        coupled: whether the loss of the sum of the components counts.
    """

    batch: int
    pool: int
    num_test: int
    coupled: bool
    core: Core
    bias: bool


@dataclasses.dataclass(frozen=True)
class TwoStage(Run[Fixed]):
    """Two-stage training on prompts. Omitted numbers are those of the preset.

    Attributes:
        task: prompts.
        preset: default (each component has its own loss), fast (smaller and quicker) or joint (one
            loss of the summed outputs, with a larger r).
        control: none; forever (keep the large rate to the end); small (use the small rate from the
            start); or smallinit (small, with starting weights stationary for that rate).
        d: size of each of the two blocks of a token.
        length: prompt length L including the query.
        gamma0: margin of component P.
        s1: standard deviation of the Gaussian part of P.
        s2: standard deviation of the Gaussian part of Q.
        r: length of the shift that marks the negative class of Q.
        coupling: c of the loss (1 - c)(K1 + K2) + c J, in [0, 1].
        decay: weight decay lambda.
        tau: stationary standard deviation of a weight's noise at eta_1.
        tau_0: standard deviation of the starting weights; tau if omitted, unless the control sets
            it.
        eta_1: learning rate of the first stage, which lasts 1/(4 lambda) in eta-time.
        eta_2: learning rate of the second stage.
        stage_2: length of the second stage in eta-time, in units of 1/lambda.
        batch: prompts per step.
        pool: number of training prompts.
        num_test: number of fresh prompts to measure losses and accuracies on.
        core: Gaussian part of Q: fresh for every token, or one fixed vector.
        bias: also train a scalar that is added to the output of component Q.
        dtype: precision of training; the theory is solved in float64.
    """

    AXES: ClassVar = Fields(
        traced=(*TASK_NUMBERS, *RATES),
        static=SIZES,
        whole=SIZES,
    )

    task: Literal["prompts"] = "prompts"
    preset: Preset = "default"
    control: Control = "none"
    d: Size | None = None
    length: Tokens | None = None
    gamma0: NotNegative | None = None
    s1: NotNegative | None = None
    s2: NotNegative | None = None
    r: Positive | None = None
    coupling: Share | None = None
    decay: Positive | None = None
    tau: NotNegative | None = None
    tau_0: NotNegative | None = None
    eta_1: Positive | None = None
    eta_2: Positive | None = None
    stage_2: Positive | None = None
    batch: Count | None = None
    pool: Count | None = None
    num_test: Tests = 2048
    core: Core = "fresh"
    bias: bool = False
    dtype: DType = "float32"

    def value(self, name: str) -> Any:
        """The field `name`, or that of the preset where it is left out."""
        checks.choice("preset", self.preset, tuple(PRESETS))
        given = getattr(self, name)
        return PRESETS[self.preset].get(name) if given is None else given

    def make_task(self) -> Prompts:
        """The prompts; `ValueError` for parameters that cannot be."""
        numbers = {name: self.value(name) for name in TASK_NUMBERS}
        return prompts(self.value("d"), self.value("length"), **numbers, core=self.core)

    def make_optimizer(self) -> NoisySGD:
        """The schedule; `ValueError` for rates that cannot be."""
        found = noisy_sgd(
            self.value("eta_1"),
            self.value("eta_2"),
            self.value("decay"),
            self.value("tau"),
            stage_2=self.value("stage_2"),
        )
        found = controlled(found, self.control)
        if self.tau_0 is not None:
            found = dataclasses.replace(found, init=self.tau_0)
        return found

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the task and of the schedule by name."""
        task, optimizer = self.make_task(), self.make_optimizer()
        return {
            **{name: getattr(task, name) for name in TASK_NUMBERS},
            **{name: getattr(optimizer, name) for name in OPTIMIZER_NUMBERS},
        }

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        self.numbers()

    def check_axes(self, axes: Collection[str]) -> None:
        """Raise `ValueError` for axes that these runs do not read."""
        if self.control == "forever" and "eta_2" in axes:
            raise ValueError("axes.eta_2: control = 'forever' does not read it")

    def reads(self, field: str, axes: Collection[str]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        return not (field == "eta_2" and self.control == "forever")

    def steps_recorded(self, times: Times) -> tuple[int, ...] | int:
        """The steps if they are given, else their number: they follow from the rates."""
        if times == "end":
            return 1
        if isinstance(times, int):
            return checks.integer("times", times, 2)
        check_step_times(times, np.iinfo(np.int32).max)
        return times

    def fixed(self) -> Fixed:
        """What its program takes for granted."""
        coupling = self.value("coupling")
        return Fixed(
            batch=self.value("batch"),
            pool=self.value("pool"),
            num_test=self.value("num_test"),
            # An axis couples the components, at any value.
            coupled=not isinstance(coupling, int | float) or coupling != 0,
            core=self.core,
            bias=self.bias,
        )

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The rate at which Q grows without noise, which rises with r."""
        return numbers["r"]

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values, those of the preset written out."""
        preset = PRESETS[self.preset]
        plain = super().as_json()
        del plain["preset"]
        return {n: preset.get(n) if value is None else value for n, value in plain.items()}
