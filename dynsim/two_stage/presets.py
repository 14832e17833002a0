"""Named settings of the two-stage system.

We chose all numbers ourselves; we do not know those of the paper (arXiv:2502.20681).
"""

from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx

from dynsim import checks
from dynsim.decoding import Count, Positive, Share, Tokens
from dynsim.training.rule import Rule
from dynsim.two_stage.annealing import Annealed, Control
from dynsim.two_stage.task import Block, Prompts

Preset = Literal["default", "fast", "joint"]


class FastPrompts(Prompts):
    """Prompts that are smaller and quicker to train on."""

    RUN_DEFAULTS: ClassVar = {
        "rule": {"kind": "annealed", "eta_2": 0.04, "decay": 0.0125, "tau": 0.3, "stage_2": 2.0},
        "batch": 64,
        "steps": None,
    }

    d: Block = eqx.field(static=True, default=16)
    length: Tokens = eqx.field(static=True, default=65)
    r: Positive = 1.6
    pool: Count = eqx.field(static=True, default=2048)


class JointPrompts(Prompts):
    """Prompts for the loss of the sum of the components, with a larger shift of Q."""

    RUN_DEFAULTS: ClassVar = {
        "rule": {"kind": "annealed", "tau": 0.2},
        "batch": 128,
        "steps": None,
    }

    r: Positive = 2.4
    coupling: Share = 1.0


_CLASSES: dict[str, type[Prompts]] = {
    "default": Prompts,
    "fast": FastPrompts,
    "joint": JointPrompts,
}


class TwoStage(NamedTuple):
    """What `dynsim.train` needs besides a key and times."""

    task: Prompts
    optimizer: Rule
    batch: int


def two_stage(preset: Preset = "default", control: Control = "none", **settings: Any) -> TwoStage:
    """The two-stage experiment of a preset, or one of its controls (see `Annealed`).

    Args:
        preset: "default" trains both components apart, as `Prompts` does; "joint" trains the loss
            of their sum, as `JointPrompts`; "fast" is small, as `FastPrompts`.
        **settings: of `Prompts`.

    Raises:
        ValueError: for an unknown preset or control, and for settings that cannot be.
    """
    checks.choice("preset", preset, tuple(_CLASSES))
    cls = _CLASSES[preset]
    rule = _rule(cls, control)
    return TwoStage(cls(**settings).build(rule), rule.build(), cls.RUN_DEFAULTS["batch"])


def _rule(cls: type[Prompts], control: Control = "none") -> Annealed:
    """The rule that a class of prompts is trained by unless asked otherwise."""
    rates = {name: each for name, each in cls.RUN_DEFAULTS["rule"].items() if name != "kind"}
    return Annealed(**rates, control=control)
