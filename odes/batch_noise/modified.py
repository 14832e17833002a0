r"""The stochastic modified equation of any problem (Li, Tai, E, JMLR 20:40, 2019).

Training at batch B adds noise of covariance C(p)/B to the gradient of each step, with C the
covariance for one example. In continuous time t, measured in steps, this is the Ito equation

.. math::

    dp = -\eta(t)\, G(p)\, dt + \frac{\eta(t)}{\sqrt B}\, \sigma(p)\, dW, \qquad
    \sigma \sigma^\top = C,

which is correct to first order in :math:`\eta`. It replaces G in the flow by
:math:`G + \sigma\, dW/dt / \sqrt B`, for momentum in the velocity of the matched flow
(`odes.solver.inertia`). C is not factorised: with fresh examples i = 1 ... E and a Brownian path W
of E entries,

.. math::

    \sigma\, dW = \frac{1}{\sqrt{E - 1}} \sum_i (dW_i - \overline{dW})\, \nabla \ell_i

is the gradient of a weighted sum of losses, and its mean covariance is C for any E.

At second order the flow is the corrected one, and the noise changes as well [ours]. With
:math:`N = \sigma\, dW`, and H and N' the derivatives of G and N,

.. math::

    \begin{align*}
    N &\to N + \frac\eta2 (H N + N' G) & &\text{without momentum} \\
    N &\to N + \frac{\eta}{4 (1 + \mu)} (H N - N' G) & &\text{heavy ball}
    \end{align*}

Without momentum the drift has one more term than the corrected flow. A step of SGD evaluates the
gradient before its noise is added. The equation adds the noise gradually and evaluates the gradient
in between, where the noise has already changed its mean. The term cancels this:

.. math::

    \frac{\eta^3}{4 B} \sum_{jk} C_{jk}\, \partial_j \partial_k G .

A path estimates it by :math:`\frac\eta4 D^2 G[k, k]`, where k is independent of the noise of the
step and has the same covariance. Heavy ball needs no such term, because its velocity lags behind
the gradient by as much as in descent. At the start, its velocity has noise of covariance
:math:`C / B\, (3 + \mu) / (1 + \mu)^3` around its mean, which compensates for the difference
between a sum over steps and its integral. With these changes, means are correct to second order, as
in the paper, but escape rates are not: see `odes.batch_noise.escape`. The relative errors of
covariances and of the noise's effect on means are of second
order too; without the changes they would be of order :math:`\eta H`, larger than in the first-order
equation. Without momentum all of this follows from expanding the generator of a step. For heavy
ball, these changes give a quadratic with linear noise the covariance of descent.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim.problem.checks import check_groups
from dynsim.training.recording import BATCH_LOSS
from dynsim.training.rules import SGD
from odes.batch_noise.noise import Noise
from odes.solver.flows import decayed, pose_flow
from odes.solver.posed import GroupedRule

BEFORE = -1.0
"""Time of the examples for the starting velocity, which are not those of the first step."""


def flow_name(rule: SGD, order: int) -> str:
    """Return the name of the flow that is the equation without noise."""
    if order == 2:
        return "corrected"
    return "matched" if rule.has_inertia else "plain"


class GradientInputs(NamedTuple):
    """Inputs of the gradient of a step: its time, `BEFORE` for the start; examples, None if the
    drift needs none; and weights (E,) of their losses in the noise, None for the drift."""

    t: Float[Array, ""] | float
    data: PyTree
    weights: Float[Array, " E"] | None


class Path:
    """The modified equation of a problem, as a flow with a noisy gradient."""

    def __init__(self, noise: Noise, order: int) -> None:
        self.noise, rule = noise, noise.rule
        assert isinstance(rule, SGD)
        self.rule, self.order = rule, order
        self.noises = noise.examples * (2 if order == 2 and not rule.has_inertia else 1)
        groups = check_groups(noise.problem, rule, noise.parts)
        self.driven = GroupedRule(rule, groups)
        self.posed = pose_flow(
            self.gradient,
            self.drift_of(BEFORE),
            self.driven,
            noise.parts.params,
            flow_name(rule, order),
        )

    def mean(self, inputs: GradientInputs, params: PyTree) -> PyTree:
        """Return the mean gradient."""
        if self.noise.population is not None:
            return self.noise.population(params)[1]
        # Without a population loss, the mean of the examples of the step.
        even = jnp.full(self.noise.examples, 1 / self.noise.examples, self.noise.dtype)
        return self.weighted(inputs._replace(weights=even), params)

    def weighted(self, inputs: GradientInputs, params: PyTree) -> PyTree:
        """Return the gradient of the weighted sum of the examples' losses."""
        losses = functools.partial(self.noise.losses, data=inputs.data)
        return jax.vjp(losses, params)[1](inputs.weights)[0]

    def gradient(self, inputs: GradientInputs, params: PyTree) -> PyTree:
        """Return the gradient with its noise, which is linear in the weights of the examples."""
        mean = self.mean(inputs, params)
        if inputs.weights is None:
            return mean
        kick = self.weighted(inputs, params)
        if self.order == 2 and self.rule.has_inertia:
            step = lambda g: self.driven.descend(g, inputs.t)  # noqa: E731
            force = functools.partial(decayed(self.mean, self.driven), inputs)
            noise = functools.partial(self.weighted, inputs)
            # N + eta / (4 (1 + mu)) (H N - N' G). A step is minus eta times its direction, which
            # turns the signs around: `along` is -eta H N, `across` is -eta N' G.
            pull, along = jax.jvp(force, (params,), (step(kick),))
            across = jax.jvp(noise, (params,), (step(pull),))[1]
            change = 4 * (1 + self.rule.mu)
            kick = jax.tree.map(lambda n, a, b: n + (b - a) / change, kick, along, across)
        return jax.tree.map(jnp.add, mean, kick)

    @property
    def of_mean(self) -> float:
        """Return the variance of the mean over the examples, relative to that of one example."""
        return 1 / self.noise.examples if self.noise.population is None else 0.0

    def weights(
        self, increment: Float[Array, "*k E"], variance: Float[Array, ""]
    ) -> Float[Array, "*k E"]:
        """Return weights of the losses for noise of this variance, from a Brownian increment."""
        scale = jnp.sqrt(variance / self.noise.free)
        return (increment - jnp.mean(increment, axis=-1, keepdims=True)) * scale

    def examples(self, t: Float[Array, ""] | float) -> PyTree:
        """Return the examples of the step at time `t`."""
        return self.noise.of_step(jnp.floor(t).astype(jnp.int32))

    def drift_of(self, t: Float[Array, ""] | float) -> GradientInputs:
        return GradientInputs(t, self.examples(t) if self.noise.population is None else None, None)

    def drift(self, t: Float[Array, ""], state: PyTree) -> PyTree:
        return self.posed.field(t, state, (self.drift_of(t), self.driven))

    def diffusion(self, t: Float[Array, ""], state: PyTree, dW: Float[Array, " N"]) -> PyTree:
        """Return the change of the state for an increment of the Brownian path."""
        data = self.examples(t)

        def moved(weights: Float[Array, " E"]) -> PyTree:
            return self.posed.field(t, state, (GradientInputs(t, data, weights), self.driven))

        # The mean gradient of the examples has a part of the noise already, of variance C / E.
        increments = dW.reshape(-1, self.noise.examples)
        weights = self.weights(increments, 1 / self.noise.batch - self.of_mean)
        # The field is linear in the weights of the examples: its derivative is the noise, and the
        # drift drops out.
        kick = jax.jvp(moved, (jnp.zeros_like(weights[0]),), (weights[0],))[1]
        if len(weights) == 1:
            return kick
        # With the same kick, the third moment of k + D^2 G[k, k] would not vanish.
        (params,), (kick,) = state, kick
        other = self.driven.descend(self.weighted(GradientInputs(t, data, weights[1]), params), t)

        # p += eta / 4 D^2 G[k, k], with k independent of the noise of the step.
        def slope(params: PyTree) -> PyTree:
            return jax.jvp(functools.partial(self.mean, self.drift_of(t)), (params,), (other,))[1]

        curved = self.driven.descend(jax.jvp(slope, (params,), (other,))[1], t)
        return (jax.tree.map(lambda k, c: k - c / 4, kick, curved),)

    def start(self, key: PRNGKeyArray) -> PyTree:
        """Return the state before the first step."""
        state = self.posed.state
        if self.order == 1 or not self.rule.has_inertia:
            return state
        mu, (params, velocity) = self.rule.mu, state
        # Noise of covariance C / B (3 + mu) / (1 + mu)^3 around the mean velocity. That is the mean
        # gradient divided by 1 + mu, and has the noise of its own examples.
        variance = (3 + mu) / (1 + mu) ** 3 / self.noise.batch - self.of_mean / (1 + mu) ** 2
        normal = jax.random.normal(key, (self.noise.examples,), self.noise.dtype)
        data = self.examples(BEFORE)
        kick = self.weighted(
            GradientInputs(BEFORE, data, self.weights(normal, jnp.asarray(variance))), params
        )
        return params, jax.tree.map(jnp.add, velocity, kick)

    def save(self, key: PRNGKeyArray, t: Array, state: PyTree) -> PyTree:
        """Return the recorded observables, and the loss that decides whether a run diverged."""
        k = jnp.floor(t).astype(jnp.int32)
        values, (own, _), loss = self.noise.seen(state[0], k)
        if BATCH_LOSS in own:
            # `loss` may be a mean over examples, which has its part of the scatter already.
            left = 1 - self.noise.batch * self.of_mean
            normal = jax.random.normal(jax.random.fold_in(key, k), (), loss.dtype)
            values[BATCH_LOSS] = loss + jnp.sqrt(own[BATCH_LOSS] * left) * normal
        return values, loss
