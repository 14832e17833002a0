"""A package of somebody else: gradient descent on a scalar quadratic, and its exact flow.

The loss is a w^2 / 2 from a random start w_0 ~ N(0, 1). Descent with rate eta has
w_k = (1 - eta a)^k w_0, the flow w(t) = w_0 exp(-eta a t) with t in steps.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

import dynsim
import sweeps
from dynsim import Status, Trajectory
from dynsim.classes.task import Task
from dynsim.decoding import NotNegative
from dynsim.training.recording import Table
from odes import Theory, population
from odes.theory import describes_all
from sweeps import Labels, Prediction, Row, System

LEARNED = 0.01
OBSERVABLES = {"loss": lambda a, w: a * w**2 / 2, "weight": lambda a, w: w}


class Quadratic(dynsim.Problem):
    """A scalar quadratic.

    Attributes:
        curvature: second derivative a of the loss.
    """

    RUN_DEFAULTS: ClassVar = {"rule": {"kind": "sgd", "eta": 0.1}, "batch": math.inf, "steps": 50}

    curvature: NotNegative = 1.0

    def init(self, key: PRNGKeyArray) -> Array:
        # In one precision, so that theory starts where training does.
        return jax.random.normal(key, (), "float32")

    def population_loss(self, params: Array) -> Array:
        return self.curvature * params**2 / 2


def first_weight(key: PRNGKeyArray, dtype: str) -> Array:
    return Quadratic().init(key).astype(dtype)


def descend(
    problem: Quadratic, rule: Any, times: Any, *, key: PRNGKeyArray, steps: int, **options: Any
) -> Trajectory:
    eta, a = rule.eta.peak, problem.curvature
    loss = lambda w: a * w**2 / 2

    def step(w: Array, _: None) -> tuple[Array, Array]:
        return w - eta * jax.grad(loss)(w), w

    last, before = jax.lax.scan(step, first_weight(key, options["dtype"]), length=steps)
    return recorded(a, jnp.append(before, last)[jnp.array(times)], times, "simulation", **options)


def flow(
    problem: Quadratic, rule: Any, times: Any, *, key: PRNGKeyArray, **options: Any
) -> Trajectory:
    start = first_weight(key, options["dtype"])
    decay = jnp.exp(-rule.eta.peak * problem.curvature * jnp.array(times))
    return recorded(problem.curvature, start * decay, times, "flow", **options)


def recorded(
    a: Array, weights: Array, times: Any, source: str, *, record: Any, dtype: Any
) -> Trajectory:
    finite = jnp.isfinite(weights)
    status = jnp.where(finite.all(), Status.OK, Status.DIVERGED)
    first_bad = jnp.where(finite.all(), -1, jnp.array(times)[jnp.argmin(finite)])
    values = TABLE.resolve(record)(a, weights)
    return Trajectory(jnp.array(times, dtype), values, weights[-1], status, first_bad, source)


class Recorded(Theory):
    """Records two quantities."""

    def observables(self, problem: Any) -> Table:
        return TABLE


class Simulation(Recorded):
    """Training, in the precision of the run."""

    trains = True


def rows(run: sweeps.Experiment, prediction: Prediction) -> Iterator[Row]:
    """What `dynsim explain` prints of this system alone: when the flow's loss has fallen by e, and
    whether descent oscillates."""
    rate = float(prediction.training.rule.eta.peak * prediction.training.problem.curvature)
    overshoots = f"eta -> 0 (exact flow): eta curvature = {rate:.3g}: descent oscillates"
    yield Row("loss over e at step", 1 / (2 * rate), 0.0, overshoots if rate > 1 else "")


TABLE = Table(OBSERVABLES)
KEY, EXACT = ("key",), {"adaptive": False}
SYSTEM = System(
    name="toy",
    problems=(Quadratic,),
    theories={
        "simulation": Simulation(
            "simulation", "", "", descend, describes_all, needs=("key", "steps"), **EXACT
        ),
        "flow": Recorded("flow", "exact flow", "eta -> 0", flow, describes_all, needs=KEY, **EXACT),
    },
    labels=Labels(about={"loss": ("quadratic loss", "1")}),
    rows=rows,
)


class TwoClasses(Task):
    """A task of one's own: two classes of one query, with a common token."""

    def build(self) -> dynsim.SequenceClasses:
        probs = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
        return dynsim.sequence_classes(probs, query=[0, 0], next_token=[1, 2])

    @property
    def sizes(self) -> tuple[int, int]:
        return 2, 3


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


LEARNED_OR_NOT = sweeps.diagrams.Regions(
    ("loss",), judge, {0: ("not learned", "#f0f0f0"), 1: ("learned", "#4c8bbe")}, border
)
STILL = Theory(
    "still",
    "nothing moves",
    "rates -> 0",
    lambda task, optimizer, times, **options: population.solve(
        task, dynsim.sgd(0.0, 0.0), times, **options
    ),
    lambda training: None if training.rule.name == "sgd" else "it describes sgd",
)
