"""A small catalog with the shapes of the real one: rules, schedules, tasks, problems, a run."""

import abc
import functools
import json
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import annotated_types as at
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynsim import checks
from dynsim.decoding import CountOrInf, Decay, NotNegative, Positive, Rate, Size, Steps
from sweeps.language.describe import TRACED, describe
from sweeps.language.grammar import Language
from sweeps.language.tree import build, encode

static = functools.partial(eqx.field, static=True)


class Schedule(eqx.Module):
    peak: Rate = 0.1
    warmup: NotNegative | None = None

    @abc.abstractmethod
    def rate(self, step):
        pass


class Constant(Schedule):
    def rate(self, step):
        return self.peak


class Linear(Schedule):
    """A linear fall.

    Attributes:
        steps: when the fall ends.
        end: final rate over the peak.
    """

    steps: Positive = eqx.field(kw_only=True)
    end: NotNegative = 0.0

    def __check_init__(self):
        if self.warmup is not None and not checks.is_traced((self.warmup, self.steps)):
            checks.real("warmup", self.warmup, 0, float(np.min(self.steps)))

    def rate(self, step):
        return self.peak * (1 - (1 - self.end) * step / self.steps)


class Cosine(Linear):
    pass


class Rule(eqx.Module):
    """An update rule.

    Attributes:
        eta: learning rate.
        decay: weight decay.
    """

    eta: Rate | Schedule | Mapping[str, Rate | Schedule] = 0.1
    decay: NotNegative | None = None


class SGD(Rule):
    momentum: Decay = 0.0
    nesterov: bool = static(default=False)


class Adam(Rule):
    b1: Decay = 0.9
    b2: Decay = 0.999


class AdamW(Adam):
    decay: NotNegative = eqx.field(kw_only=True)


class RMSProp(Rule):
    b2: Decay = 0.9


class Sign(Rule):
    momentum: Decay = 0.0


class Task(eqx.Module):
    pass


class SynSmall(Task):
    layout: Literal["authors", "paper"] = static(default="authors")


class Overlapping(Task):
    K: Size = static(default=2)
    overlap: Decay = static(default=0.1)


class File(Task):
    ENDINGS: ClassVar = ("path", (".npz", ".csv"))
    path: str = static()


class Table(Task):
    probs: Float[Array, "K M"] | Float[np.ndarray, "K M"] = eqx.field(converter=jnp.asarray)


class Part(eqx.Module):
    """A part of a problem that is no choice between kinds."""

    sizes: tuple[Annotated[int, at.Ge(1)], ...] = static(default=(4, 4))
    activation: Callable[[Array], Array] = static(default=jax.nn.relu)


class Problem(eqx.Module):
    pass


class YZ(Problem):
    """The attention layer in Y and Z."""

    GROUPS: ClassVar = ("Y", "Z")
    RUN_DEFAULTS: ClassVar = {"rule": {"kind": "sgd", "eta": {"Y": 1.0, "Z": 0.1}}}
    task: Task = SynSmall()
    length: Annotated[CountOrInf, at.Ge(2)] = static(default=128)


class Bowl(Problem):
    """A quadratic loss."""

    stiff: Positive = 4.0
    width: Size = static(default=2)
    part: Part = Part()


class Experiment(eqx.Module):
    problem: Problem = YZ()
    rule: Rule = SGD()
    steps: Steps = static(default=1000)
    batch: CountOrInf = static(default=32)
    seed: Annotated[int, at.Ge(0), TRACED] = 0
    record: tuple[str, ...] = static(default=("loss",))

    def __check_init__(self):
        end = self.rule.eta.steps if isinstance(self.rule.eta, Linear) else 0
        if not checks.is_traced(end) and np.max(end) > self.steps:
            raise ValueError(f"steps = {self.steps}: must be at least those of eta")


def loss(run):
    """What a run of gradient descent with momentum on the bowl ends at, from 1."""
    place, velocity, eta = 1.0 + 0.1 * run.seed, 0.0, run.rule.eta
    for step in range(run.steps):
        velocity = run.rule.momentum * velocity + run.problem.stiff * place
        place -= (eta.rate(step) if isinstance(eta, Schedule) else eta) * velocity
    return run.problem.stiff * place**2 / 2


WORDS = {
    "experiment": Experiment, "yz": YZ, "bowl": Bowl, "part": Part, "sgd": SGD, "adam": Adam,
    "adamw": AdamW, "rmsprop": RMSProp, "sign": Sign, "schedule": Schedule, "constant": Constant,
    "linear": Linear, "cosine": Cosine, "syn-small": SynSmall, "overlapping": Overlapping,
    "file": File, "table": Table,
}  # fmt: skip
LANGUAGE = Language(describe(cls, word) for word, cls in WORDS.items())


def language_with(**fields):
    """The language with other fields in the kind of the bowl."""
    bowl = describe(Bowl, "bowl")
    kinds = [kind for kind in LANGUAGE.kinds if kind.word != "bowl"]
    return Language([*kinds, bowl._replace(fields=bowl.fields | fields)])


def run(*tables, language=LANGUAGE):
    """The run of tables of settings, each added to those before it."""
    given = {}
    for table in tables:
        given = language.assign(given, table.items())
    return build(language, given)


def canonical(tree, objects=None):
    """The text form of a run as one line."""
    return json.dumps(encode(LANGUAGE, tree, objects), sort_keys=True, allow_nan=False)


def decode(table, objects=None):
    """The run of a table in text form."""
    pairs = [pair for pair in table.items() if pair[0] != "kind"]
    return build(LANGUAGE, LANGUAGE.assign({}, pairs), objects)
