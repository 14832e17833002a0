"""The problems that the figure of the edge of stability is drawn of."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import dynsim
from dynsim.training.recording import PARAMS
from sweeps.studies.transitions.edge.measure import recorded_as
from sweeps.studies.transitions.edge.network import Network


class Case(NamedTuple):
    """A problem, and what is drawn of it unless asked otherwise.

    Attributes:
        problem: with a population loss.
        rates: learning rates, from stable ones to beyond the edge.
        steps: optimiser steps of each.
        scale: the field that scales the starting weights, with its smallest and largest value in
            the diagram; None without one.
        rtol: relative tolerance of the gradient flow, where the usual one is too small for a loss
            with kinks.
        before: steps at the smallest rate that all runs but those of the diagram begin after, for
            plateaus, which descent with large steps leaves at another time than any flow.
    """

    problem: dynsim.Problem
    rates: tuple[float, ...]
    steps: int
    scale: tuple[str, float, float] | None
    rtol: float | None = None
    before: int = 0

    def begun(self) -> dynsim.Problem:
        """The problem after the steps before."""
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
        """Those weights."""
        return self.weights

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        """That of the problem."""
        return self.problem.population_loss(params)


def _network() -> Case:
    return Case(Network(), (0.1, 0.3, 0.4, 0.5, 0.6), 3000, ("scale", 0.3, 3))


def _linear_icl() -> Case:
    problem = dynsim.regression(scale=0.3)
    return Case(problem, (1.0, 1.86, 1.9, 1.93, 2.03), 1000, ("scale", 0.1, 1), before=150)


def _yz() -> Case:
    layer = dynsim.layer(dynsim.syn_small(), math.inf)
    return Case(layer, (1.0, 4.0, 10.0, 16.0, 64.0), 100, None)


def _two_stage() -> Case:
    prompts = dynsim.prompts(8, 17, tau_0=0.25, pool=8, num_test=8)
    prompts = dynsim.full_batch(prompts, jax.random.key(1), 64)
    return Case(prompts, (1.0, 2.0, 4.0, 8.0, 16.0), 300, None, rtol=1e-3)


# Functions, because no device may be used before somebody computes.
CASES: dict[str, Callable[[], Case]] = {
    "network": _network,
    "linear_icl": _linear_icl,
    "yz": _yz,
    "two_stage": _two_stage,
}
