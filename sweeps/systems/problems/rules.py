"""Update rules as settings: what a command line and a sweep file say of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

import dynsim
from dynsim import Rule, schedules
from dynsim.decoding import Decay, NotNegative, Positive, Rate
from dynsim.problem.choice import Choice, Chooses
from dynsim.schedules import shapes

Optimizer = Literal["sgd", "momentum", "nesterov", "rmsprop", "adam", "adamw", "sign"]
Shape = Literal[
    "constant", "linear", "cosine", "exponential", "inverse-sqrt", "warmup-stable-decay", "step"
]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9},
    "rmsprop": {"b2": 0.9, "eps": 1e-8},
    "adam": {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
    "adamw": {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
    "sign": {"momentum": 0.0},
}
"""What each rule reads besides what all of them do, with defaults."""
SHAPES: dict[str, dict[str, Any]] = {
    "constant": {"eta_warmup": None},
    "linear": {"eta_steps": None, "eta_end": 0.0, "eta_warmup": None},
    "cosine": {"eta_steps": None, "eta_end": 0.0, "eta_warmup": None},
    "exponential": {"eta_steps": None, "eta_factor": 0.5, "eta_warmup": None},
    "inverse-sqrt": {"eta_warmup": 10.0},
    "warmup-stable-decay": {
        "eta_warmup": 10.0,
        "eta_stable": None,
        "eta_cooldown": 10.0,
        "eta_end": 0.0,
    },
    "step": {"eta_steps": None, "eta_factor": 0.1, "eta_warmup": None},
}
"""The same for schedules. A number of steps without a default is that of the run."""


class ReadsRule(Chooses):
    """What runs have in common whose settings describe an update rule."""

    RENAMED: ClassVar[Mapping[str, str]] = {}
    optimizer: str
    schedule: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the optimiser and the schedule read."""
        called = self.RENAMED
        optimizers = {
            word: {called.get(name, name): usual for name, usual in reads.items()}
            for word, reads in OPTIMIZERS.items()
        }
        return (
            Choice("optimizer", self.optimizer, optimizers),
            Choice("schedule", self.schedule, SHAPES),
        )

    def value(self, name: str) -> Any:
        """As of `Chooses`; steps of a schedule that are left out are those of the run."""
        found = super().value(name)
        if found is None and SHAPES[self.schedule].get(name, 0) is None:
            return from_steps(self, name)
        return found

    def reads(self, field: str, axes: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the numbers of a sweep over `axes` depend on the value of `field` here."""
        own = {new: old for old, new in self.RENAMED.items()}.get(field, field)
        if own not in LATER or (field == own and field in self.RENAMED):
            return super().reads(field, axes)
        return self.schedule != "constant" if own == "schedule" else self.value(field) is not None


@dataclasses.dataclass(frozen=True)
class RuleOptions(ReadsRule):
    """Settings of an update rule.

    Attributes:
        optimizer: update rule.
        momentum: for sgd, momentum, nesterov and sign: coefficient mu in [0, 1); 0.9, for sgd and
            sign 0, if omitted.
        b1: for adam and adamw: decay of the first moment; 0.9 if omitted.
        b2: for rmsprop, adam and adamw: decay of the second moment; 0.9 or 0.999 if omitted.
        eps: for rmsprop, adam and adamw: epsilon; 1e-8 if omitted.
        schedule: how the learning rate changes over the run.
        eta_warmup: steps over which the rate rises linearly to its peak; none if omitted.
        eta_steps: step at which linear and cosine end, after which exponential has multiplied the
            rate by eta_factor, and at which step jumps; the steps of the run if omitted.
        eta_end: for linear, cosine and warmup-stable-decay: final rate over the peak; 0 if omitted.
        eta_factor: for exponential and step: see eta_steps; 0.5 and 0.1 if omitted.
        eta_stable: for warmup-stable-decay: steps at the peak; all that the others leave if
            omitted.
        eta_cooldown: for warmup-stable-decay: steps of the linear fall; 10 if omitted.
        decay: weight decay; it bypasses the direction for adamw, and is part of the gradient for
            the others.
        clip: largest Euclidean norm of the gradient of all weights together.
        noise: standard deviation of normal noise on each entry of the gradient.
    """

    optimizer: Optimizer = "sgd"
    momentum: Decay | None = None
    b1: Decay | None = None
    b2: Decay | None = None
    eps: Positive | None = None
    schedule: Shape = "constant"
    eta_warmup: NotNegative | None = None
    eta_steps: Positive | None = None
    eta_end: NotNegative | None = None
    eta_factor: Positive | None = None
    eta_stable: NotNegative | None = None
    eta_cooldown: NotNegative | None = None
    decay: NotNegative | None = None
    clip: Positive | None = None
    noise: NotNegative | None = None


@dataclasses.dataclass(frozen=True)
class OneRate(RuleOptions):
    """Settings of an update rule with one learning rate for all weights.

    Attributes:
        eta: learning rate, the peak of a schedule.
    """

    eta: Rate = 0.1


OPTIONS = ("decay", "clip", "noise")
"""Numbers that a rule can leave out."""
NUMBERS = ("momentum", "b1", "b2", "eps", *OPTIONS)
SCHEDULED = tuple(f"eta_{name}" for name in shapes.NUMBERS)
LATER = ("schedule", *SCHEDULED, *OPTIONS)
"""Settings that stores of earlier versions do not name: they are stored where they are given."""


def schedule(run: Any, peak: Any) -> Any:
    """The schedule of a run, of this peak."""
    given = [run.value(name) for name in SCHEDULED]
    warmup, steps, end, factor, stable, cooldown = given
    if run.schedule == "linear":
        return schedules.linear(peak, steps, end, warmup)
    if run.schedule == "cosine":
        return schedules.cosine(peak, steps, end, warmup)
    if run.schedule == "exponential":
        return schedules.exponential(peak, steps, factor, warmup)
    if run.schedule == "inverse-sqrt":
        return schedules.inverse_sqrt(peak, warmup)
    if run.schedule == "step":
        return schedules.steps(peak, [steps], [factor], warmup)
    if run.schedule == "warmup-stable-decay":
        return schedules.warmup_stable_decay(peak, warmup, stable, cooldown, end)
    return schedules.constant(peak, warmup)


def from_steps(run: Any, name: str) -> float | None:
    """What a schedule reads of the steps of a run, unless it is told."""
    if name == "eta_steps":
        return float(run.steps)
    if name == "eta_stable":
        left = run.steps - run.value("eta_warmup") - run.value("eta_cooldown")
        return float(np.maximum(left, 0)) if np.ndim(left) == 0 else np.maximum(left, 0)
    return None


def rule(run: Any, eta: Any) -> Rule:
    """The rule of a run at the schedules `eta`.

    Raises:
        ValueError: for a setting of another rule or schedule, or a number that cannot be.
    """
    given = {name: run.value(run.RENAMED.get(name, name)) for name in NUMBERS}
    options = {name: given[name] for name in OPTIMIZERS[run.optimizer]}
    options |= {name: given[name] for name in OPTIONS}
    if run.optimizer == "adamw":
        if options["decay"] is None:
            raise ValueError("decay = None: adamw needs a weight decay; adam does without")
        return dynsim.adamw(eta, **options)
    makers = {"rmsprop": dynsim.rmsprop, "adam": dynsim.adam, "sign": dynsim.sign}
    if run.optimizer in makers:
        return makers[run.optimizer](eta, **options)
    momentum = options.get("momentum")
    nesterov = run.optimizer == "nesterov"
    # An array may be other than zero.
    if not nesterov and isinstance(momentum, int | float) and momentum == 0:
        del options["momentum"]
    return dynsim.sgd(eta, nesterov=nesterov, **options)
