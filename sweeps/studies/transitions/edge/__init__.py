"""The edge of stability: small problems, errors of flows against training averaged over its
oscillations, and a map of where training is stable, at the edge, catapults or diverges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from scipy.ndimage import uniform_filter1d

import dynsim
from dynsim import Problem, Status
from dynsim.problem.sharpness import EDGE
from dynsim.training.recording import PARAMS, PRECONDITIONED
from sweeps.runner.spec import Sweep
from sweeps.studies.phase.regions import Stability, stability_of
from sweeps.systems.experiment import Experiment

SMOOTH = 20
"""Steps over which training is averaged: its oscillations change sign at every step."""
LONG = 500
"""Steps over which losses are averaged: oscillations of small networks come in bursts."""


class Errors(NamedTuple):
    """Errors of a theory against training, both averaged over `SMOOTH` steps.

    Attributes:
        sharpness: sharpness of the theory, the mean over the second half of the run, in units in
            which the edge is 2.
        apart: distance between the weights, the mean over the second half.
        loss: largest difference of averages over `LONG` steps, over the starting loss.
    """

    sharpness: float
    apart: float
    loss: float


def weights(run: xr.Dataset) -> Float[np.ndarray, "S P"]:
    """Return all weights of a run as one vector per time."""
    arrays = [run[name].values for name in run.data_vars if str(name).startswith("params")]
    return np.concatenate([array.reshape(len(run.time), -1) for array in arrays], axis=1)


def recorded_as(path: Any) -> str:
    """Return the name under which a run records the weights at a path of the parameter tree."""
    return ".".join((PARAMS, *(jax.tree_util.keystr((key,), simple=True) for key in path)))


def averaged(values: Float[np.ndarray, "S ..."], window: int) -> Float[np.ndarray, "R ..."]:
    """Moving averages over `window` steps."""
    begin = window // 2
    means = uniform_filter1d(np.asarray(values, np.float64), window, axis=0)
    return means[begin : len(values) - (window - begin) + 1]


def errors(training: xr.Dataset, theory: xr.Dataset, loss: str) -> Errors:
    """Errors of a theory that records its averaged loss as `loss`; NaN if training diverged."""
    if int(training.status) != Status.OK:
        return Errors(np.nan, np.nan, np.nan)
    half = len(training.time) // 2
    apart = averaged(weights(theory), SMOOTH) - averaged(weights(training), SMOOTH)
    window = min(LONG, half)
    losses = averaged(theory[loss].values, window) - averaged(training.loss.values, window)
    return Errors(
        float(np.mean(theory.preconditioned_sharpness.values[half:])),
        float(np.mean(np.linalg.norm(apart, axis=1)[half - SMOOTH :])),
        float(np.abs(losses).max() / training.loss.values[0]),
    )


def sharpness_of_mean(problem: Problem, training: xr.Dataset, points: int = 10) -> float:
    """Mean preconditioned sharpness at weights averaged over `SMOOTH` steps, from `points` times in
    the second half of the run. At single steps it is larger, as these lie on either side of the
    valley."""
    if int(training.status) != Status.OK:
        return np.nan
    like = problem.init(jax.random.key(0))
    half = len(training.time) // 2
    chosen = np.linspace(half, len(training.time) - SMOOTH, points, dtype=int)

    def mean(path: Any, leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return np.broadcast_to(leaf, (points, *np.shape(leaf)))
        return averaged(training[recorded_as(path)].values, SMOOTH)[chosen].astype(np.float32)

    def at(init: Any, eta: Any) -> Any:
        options = {"steps": 1, "times": [0], "batch": math.inf}
        rule = dynsim.sgd(eta)
        return dynsim.train(problem, rule, init=init, record=PRECONDITIONED, **options)

    means = jax.tree.map_with_path(mean, like)
    eta = np.full(points, float(training.eta), np.float32)
    return float(np.mean(jax.jit(jax.vmap(at))(means, eta)[PRECONDITIONED]))


Activation = Literal["tanh", "linear"]
ACTIVATIONS = {"tanh": jnp.tanh, "linear": lambda x: x}


class Network(Problem):
    """A network with hidden layers of equal width, on a fixed set of examples with normal inputs.

    Attributes:
        inputs: number of inputs.
        width: units of each hidden layer.
        depth: number of hidden layers.
        activation: activation of the hidden layers; "linear" for a deep linear network.
        scale: scale of the starting weights, in units of 1 / sqrt(fan-in).
        examples: size of the set.
    """

    inputs: int = 3
    width: int = 10
    depth: int = 1
    activation: Activation = "tanh"
    scale: float = 1.0
    examples: int = 24

    def init(self, key: PRNGKeyArray) -> list[Float[Array, "m n"]]:
        """Weights of the layers, normal with standard deviation scale / sqrt(fan-in)."""
        sizes = (self.inputs, *(self.width for _ in range(self.depth)), 1)
        keys = jax.random.split(key, len(sizes) - 1)
        return [
            jax.random.normal(key, (m, n)) * self.scale / np.sqrt(m)
            for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]

    def population_loss(self, params: list[Array]) -> Float[Array, ""]:
        """Loss on all examples: normal inputs, with the target sin(2 x_1) + x_1 x_2 / 2."""
        x = np.random.default_rng(1).normal(size=(self.examples, self.inputs))
        data = x, np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] / 2
        x, y = (jnp.asarray(each, params[0].dtype) for each in data)
        for weights in params[:-1]:
            x = ACTIVATIONS[self.activation](x @ weights)
        return jnp.mean(((x @ params[-1])[:, 0] - y) ** 2) / 2


class Case(NamedTuple):
    """A problem and the default settings of its figure.

    Attributes:
        problem: problem with a population loss.
        rates: learning rates, from stable ones to beyond the edge.
        steps: optimiser steps of each.
        scale: the field that scales the starting weights, with its smallest and largest value in
            the diagram; None without one.
        rtol: relative tolerance of the gradient flow, if the default is too small for a loss with
            kinks.
        before: number of steps at the smallest rate after which all runs but the diagram's begin,
            to skip plateaus, which descent with large steps leaves at other times than flows do.
    """

    problem: dynsim.Problem
    rates: tuple[float, ...]
    steps: int
    scale: tuple[str, float, float] | None
    rtol: float | None = None
    before: int = 0

    def begun(self) -> dynsim.Problem:
        """Return the problem after its first `before` steps."""
        if not self.before:
            return self.problem
        like = jax.eval_shape(self.problem.init, jax.random.key(0))
        options: dict[str, Any] = {"steps": self.before, "times": [self.before], "record": PARAMS}
        rule = dynsim.sgd(min(self.rates))
        run = dynsim.train(self.problem, rule, jax.random.key(0), batch=math.inf, **options)
        weights = jax.tree.map_with_path(lambda path, _: run[recorded_as(path)][0], like)
        return Begun(self.problem, weights)


class Begun(dynsim.Problem):
    """A problem whose runs begin at given weights."""

    problem: dynsim.Problem
    weights: PyTree

    def init(self, key: PRNGKeyArray) -> PyTree:
        """Return the given weights."""
        return self.weights

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        """Return the population loss of the original problem."""
        return self.problem.population_loss(params)


def _network() -> Case:
    return Case(Network(), (0.1, 0.3, 0.4, 0.5, 0.6), 3000, ("scale", 0.3, 3))


def _linear_icl() -> Case:
    problem = dynsim.Regression(scale=0.3)
    return Case(problem, (1.0, 1.86, 1.9, 1.93, 2.03), 1000, ("scale", 0.1, 1), before=150)


def _yz() -> Case:
    layer = dynsim.Layer(dynsim.SynSmall(), math.inf)
    return Case(layer, (1.0, 4.0, 10.0, 16.0, 64.0), 100, None)


def _two_stage() -> Case:
    prompts = dynsim.Prompts(8, 17, tau_0=0.25, pool=8, num_test=8)
    prompts = dynsim.full_batch(prompts, jax.random.key(1), 64)
    return Case(prompts, (1.0, 2.0, 4.0, 8.0, 16.0), 300, None, rtol=1e-3)


# Functions, so that importing this module does not start a device.
CASES: dict[str, Callable[[], Case]] = {
    "network": _network,
    "linear_icl": _linear_icl,
    "yz": _yz,
    "two_stage": _two_stage,
}


CATAPULT = 4.0
"""Preconditioned sharpness at the start from which a two-layer linear network does not recover
(Lewkowycz et al. 2020, arXiv:2003.02218)."""
RECORDS = 60


def sweeps(case: Case, resolution: int) -> dict[str, Sweep]:
    """Training and gradient flow over the learning rate and the starting scale."""
    assert case.scale is not None
    name, first, last = case.scale
    rates = np.geomspace(case.rates[0], 4 * case.rates[-1], resolution)
    made: dict[str, Any] = {
        f"map-{drawn}": Sweep(
            Experiment(case.problem, dynsim.sgd(1.0), case.steps, math.inf),
            {name: np.geomspace(first, last, resolution), "eta": rates},
            theory=theory,
            record=("loss", "preconditioned_sharpness"),
            times=RECORDS,
            rtol=case.rtol if drawn == "flow" else None,
        )
        for drawn, theory in (("training", "simulation"), ("flow", "flow"))
    }
    return made


def by_theory(sharpness: Float[np.ndarray, "*P S"]) -> Int[np.ndarray, "*P"]:
    """Predict `Stability` from the preconditioned sharpness along the gradient flow."""
    start, most = sharpness[..., 0], np.max(sharpness, axis=-1)
    regions = Stability.DIVERGED, Stability.CATAPULT, Stability.EDGE
    return np.select([start >= CATAPULT, start >= EDGE, most >= EDGE], regions, Stability.STABLE)


def maps(found: dict[str, xr.Dataset]) -> xr.Dataset:
    """Map `Stability` as predicted and as trained."""
    trained = stability_of(found["map-training"])
    flow = found["map-flow"].preconditioned_sharpness.transpose(*trained.dims, ...)
    theory = trained.copy(data=by_theory(flow.values))
    return xr.Dataset({"training": trained, "theory": theory})


def shares(maps: xr.Dataset) -> dict[str, float]:
    """Shares of the map where the theory agrees with training, and how often runs are stable or
    diverge on either side of the predicted edge."""
    training, theory = maps.training.values, maps.theory.values
    below = theory == Stability.STABLE
    return {
        "same": float(np.mean(training == theory)),
        "stable": float(np.mean(training[below] == Stability.STABLE)),
        "diverged beyond": float(np.mean(training[~below] == Stability.DIVERGED)),
        "diverged below": float(np.mean(training[below] == Stability.DIVERGED)),
    }


def report(maps: xr.Dataset) -> list[str]:
    """Format the shares as lines of text."""
    found = shares(maps)
    return [
        f"theory has the region of training in {found['same']:.1%} of the map",
        f"where the flow stays below the edge, {found['stable']:.1%} of the trainings are stable "
        f"and {found['diverged below']:.1%} diverge",
        f"where it does not, {found['diverged beyond']:.1%} diverge",
    ]
