"""Named settings of the two-stage system.

We chose all numbers ourselves; we do not know those of the paper (arXiv:2502.20681).
"""

from typing import Literal, NamedTuple, TypedDict

from dynsim import checks
from dynsim.two_stage.noisy_sgd import Control, NoisySGD, controlled, noisy_sgd
from dynsim.two_stage.task import Prompts, prompts

Preset = Literal["default", "fast", "joint"]


class Numbers(TypedDict):
    """The numbers of a preset, as `prompts`, `noisy_sgd` and `simulate_prompts` call them."""

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
    task = prompts(
        numbers["d"],
        numbers["length"],
        gamma0=numbers["gamma0"],
        s1=numbers["s1"],
        s2=numbers["s2"],
        r=numbers["r"],
        coupling=numbers["coupling"],
    )
    optimizer = noisy_sgd(
        numbers["eta_1"],
        numbers["eta_2"],
        numbers["decay"],
        numbers["tau"],
        stage_2=numbers["stage_2"],
    )
    return TwoStage(task, controlled(optimizer, control), numbers["batch"], numbers["pool"])
