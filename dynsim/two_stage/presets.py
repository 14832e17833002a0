"""Named settings of the two-stage system.

We chose all numbers ourselves; we do not know those of the paper (arXiv:2502.20681).
"""

from typing import Any, Literal, NamedTuple, TypedDict

from jaxtyping import Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.training.rule import Rule
from dynsim.two_stage.annealing import Annealing, Control, noisy_sgd
from dynsim.two_stage.task import Prompts

Preset = Literal["default", "fast", "joint"]


class Numbers(TypedDict):
    """The numbers of a preset, as `Prompts`, `noisy_sgd` and `dynsim.train` call them."""

    d: int
    length: int
    gamma0: float
    s1: float
    s2: float
    r: float
    coupling: float
    decay: float
    tau: float
    eta_1: float
    eta_2: float
    stage_2: float
    batch: int
    pool: int


_DEFAULT: Numbers = {
    "d": 32,
    "length": 129,
    "gamma0": 1.0,
    "s1": 1.0,
    "s2": 1.0,
    "r": 1.4,
    "coupling": 0.0,
    "decay": 0.025,
    "tau": 0.25,
    "eta_1": 0.2,
    "eta_2": 0.01,
    "stage_2": 3.0,
    "batch": 128,
    "pool": 4096,
}
PRESETS: dict[str, Numbers] = {
    "default": _DEFAULT,
    "fast": {
        **_DEFAULT,
        "d": 16,
        "length": 65,
        "r": 1.6,
        "decay": 0.0125,
        "tau": 0.3,
        "eta_2": 0.04,
        "stage_2": 2.0,
        "batch": 64,
        "pool": 2048,
    },
    "joint": {**_DEFAULT, "r": 2.4, "tau": 0.2, "coupling": 1.0},
}
"""Numbers by preset. "default" trains both components apart; "joint" trains the loss of their sum;
"fast" is small."""


class TwoStage(NamedTuple):
    """What `dynsim.train` needs besides a key and times."""

    task: Prompts
    optimizer: Rule
    batch: int


def two_stage(preset: Preset = "default", control: Control = "none", **settings: Any) -> TwoStage:
    """The two-stage experiment of a preset, or one of its controls (see `noisy_sgd`).

    Args:
        **settings: of `Prompts`.

    Raises:
        ValueError: for an unknown preset or control, and for settings that cannot be.
    """
    checks.choice("preset", preset, tuple(PRESETS))
    numbers: dict[str, Any] = dict(PRESETS[preset])
    rates = [numbers.pop(name) for name in ("eta_1", "eta_2", "decay", "tau")]
    rule = noisy_sgd(*rates, stage_2=numbers.pop("stage_2"), control=control)
    batch, start = numbers.pop("batch"), starting_noise(rule, rates[-1], control)
    return TwoStage(Prompts(**{**numbers, "tau_0": start, **settings}), rule, batch)


def starting_noise(rule: Rule, tau: Real[Number, "*#P"], control: Control) -> Real[Number, "*#P"]:
    """Standard deviation of the starting weights: the stationary one of the large learning rate,
    `tau`, or of the small one for the control "smallinit"."""
    stages = Annealing.of(rule)
    return stages.stationary(stages.eta_1) if control == "smallinit" else tau
