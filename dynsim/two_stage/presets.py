"""Named settings of the two-stage system.

All numbers are choices of this project: those of the paper (arXiv:2502.20681) were not at hand.
"""

from typing import Literal, NamedTuple

from dynsim import checks
from dynsim.two_stage.noisy_sgd import Control, NoisySGD, controlled, noisy_sgd
from dynsim.two_stage.task import Prompts, prompts

Preset = Literal["default", "fast", "joint"]

_DEFAULT = {
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
_FAST = {
    "d": 16,
    "length": 65,
    "r": 1.6,
    "decay": 0.0125,
    "tau": 0.3,
    "eta_2": 0.04,
    "stage_2": 2.0,
    "batch": 64,
    "pool": 2048,
}
PRESETS: dict[str, dict[str, int | float]] = {
    "default": _DEFAULT,
    "fast": _DEFAULT | _FAST,
    "joint": _DEFAULT | {"r": 2.4, "tau": 0.2, "coupling": 1.0},
}
"""Numbers by preset and name, as `prompts`, `noisy_sgd` and `simulate_prompts` call them.
"default" trains both components apart; "joint" trains the loss of their sum; "fast" is small."""


class TwoStage(NamedTuple):
    """What `simulate_prompts` needs besides a key."""

    task: Prompts
    optimizer: NoisySGD
    batch: int
    pool: int


def two_stage(preset: Preset = "default", control: Control = "none") -> TwoStage:
    """The two-stage experiment of a preset, or one of its controls (see `noisy_sgd.controlled`).

    Raises:
        ValueError: for an unknown preset or control.
    """
    numbers = PRESETS[checks.choice("preset", preset, tuple(PRESETS))]
    names = ("d", "length", "gamma0", "s1", "s2", "r", "coupling")
    task = prompts(**{name: numbers[name] for name in names})
    names = ("eta_1", "eta_2", "decay", "tau", "stage_2")
    optimizer = noisy_sgd(**{name: numbers[name] for name in names})
    return TwoStage(task, controlled(optimizer, control), numbers["batch"], numbers["pool"])
