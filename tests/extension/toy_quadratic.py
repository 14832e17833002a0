"""A package of somebody else: gradient descent on a scalar quadratic, and its exact flow.

The loss is a w^2 / 2 from a random start w_0 ~ N(0, 1). Descent with rate eta has
w_k = (1 - eta a)^k w_0, the flow w(t) = w_0 exp(-eta a t) with t in steps.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

import dynsim
from dynsim import Status, Trajectory
from dynsim.decoding import NotNegative
from dynsim.training.recording import Table
from odes.yz import ladder, population
from sweeps import Engine, Labels, Settings, System
from sweeps.studies.phase.regions import Rule

LEARNED = 0.01


class Quadratic(dynsim.Problem):
    """Gradient descent on a scalar quadratic.

    Attributes:
        curvature: second derivative a of the loss.
    """

    RUN_DEFAULTS: ClassVar = {
        "rule": {"kind": "sgd", "eta": 0.1},
        "steps": 50,
        "batch": "inf",
    }

    curvature: NotNegative = 1.0

    def init(self, key: PRNGKeyArray) -> Array:
        # In one precision, so that theory starts where training does.
        return jax.random.normal(key, (), "float32")

    def population_loss(self, params: Array) -> Array:
        return self.curvature * params**2 / 2


OBSERVABLES = {"loss": Quadratic.population_loss, "weight": lambda problem, w: w}


def assemble(
    settings: Settings, arrays: tuple[()], numbers: Mapping[str, Array]
) -> tuple[Quadratic, Array]:
    return settings.fixed.problem.filled(numbers, arrays), numbers["eta"]


def check(fixed: Any, problem: Quadratic, rule: dynsim.Rule) -> None:
    if rule.name != "sgd":
        raise ValueError(f"rule = {rule.name}: must be sgd")


def descend(settings: Settings, problem: Quadratic, eta: Array, key: PRNGKeyArray) -> Trajectory:
    start = problem.init(key).astype(settings.dtype)

    def step(w: Array, _: None) -> tuple[Array, Array]:
        return w - eta * jax.grad(problem.population_loss)(w), w

    last, before = jax.lax.scan(step, start, length=settings.fixed.steps)
    weights = jnp.append(before, last)[jnp.array(settings.times)]
    return recorded(settings, problem, weights, "simulation")


def flow(settings: Settings, problem: Quadratic, eta: Array, key: PRNGKeyArray) -> Trajectory:
    start = problem.init(key).astype(settings.dtype)
    decay = jnp.exp(-eta * problem.curvature * jnp.array(settings.times))
    return recorded(settings, problem, start * decay, "flow")


def recorded(settings: Settings, problem: Quadratic, weights: Array, source: str) -> Trajectory:
    finite = jnp.isfinite(weights)
    status = jnp.where(finite.all(), Status.OK, Status.DIVERGED)
    first_bad = jnp.where(finite.all(), -1, jnp.array(settings.times)[jnp.argmin(finite)])
    values = TABLE.resolve(settings.record)(problem, weights)
    times = jnp.array(settings.times, settings.dtype)
    return Trajectory(times, values, weights[-1], status, first_bad, source)


TABLE = Table(OBSERVABLES)
# Everything is in the numbers: there are no arrays to take along.
KNOWN = {"assemble": assemble, "observables": TABLE, "check": check, "prepare": lambda *_: ()}
SYSTEM = System(
    name="toy",
    problems=(Quadratic,),
    engines={
        "simulation": Engine(descend, trains=True, **KNOWN),
        "flow": Engine(flow, title="exact flow", assumes="eta -> 0", **KNOWN),
    },
    labels=Labels(about={"loss": ("quadratic loss", "1")}),
)


class TwoClasses(dynsim.Task):
    """A task of one's own: two classes of one query, with a common token."""

    def build(self) -> dynsim.SequenceClasses:
        probs = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
        return dynsim.sequence_classes(probs, query=[0, 0], next_token=[1, 2])


def largest_weight(task: dynsim.SequenceClasses, snapshot: Any) -> Array:
    """An observable of one's own: the largest attention of each class."""
    return snapshot.c.max(axis=1)


def judge(dataset: xr.Dataset) -> xr.DataArray:
    ratio = dataset["loss"].isel(time=-1) / dataset["loss"].isel(time=0)
    return (ratio < LEARNED).astype(int)


def border(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    steps = json.loads(dataset.attrs["config"])["run"]["steps"]
    # The flow leaves exp(-2 steps eta curvature) of the loss.
    rate = dataset["eta"] * dataset["curvature"]
    return {"the flow's border": 2 * steps * rate + math.log(LEARNED)}


LEARNED_OR_NOT = Rule(
    ("loss",), judge, {0: ("not learned", "#f0f0f0"), 1: ("learned", "#4c8bbe")}, border
)
STILL = ladder.Theory(
    "still",
    "nothing moves",
    "rates -> 0",
    lambda task, optimizer, times, **options: population.solve(
        task, dynsim.sgd(0.0, 0.0), times, **options
    ),
    lambda task, optimizer: None if optimizer.name == "sgd" else "it describes sgd",
)
