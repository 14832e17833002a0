r"""Paths of the stochastic modified equation of any problem (Li, Tai, E, JMLR 20:40, 2019).

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
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import Problem, Trajectory, checks
from dynsim.precision import DType
from dynsim.problem.base import built
from dynsim.problem.checks import check_groups, has_population
from dynsim.problem.train import highest_loss, started
from dynsim.training.recording import BATCH_LOSS, Record
from dynsim.training.rule import Rule, UpdateRule
from dynsim.training.rules import SGD
from dynsim.training.steps import whole_steps
from dynsim.trajectory import Static, Times
from odes.batch_noise import noise_record_of, table_of, without_noise
from odes.batch_noise.noise import Noise, NoiseRecord
from odes.run import dtype_of, run
from odes.solver.flows import checked_flow, decayed, pose_flow
from odes.solver.integrate import integrate_ito, judge
from odes.solver.posed import GroupedRule
from odes.theory import AnyTheory, Theory, Training, error_message

BEFORE = -1.0
"""Time of the examples for the starting velocity, which are not those of the first step."""
EXAMPLES = 64
"""Default number of examples per step from which the noise is estimated."""


def sde(
    problem: Problem,
    rule: UpdateRule,
    times: Times,
    *,
    batch: int | float,
    key: PRNGKeyArray | None = None,
    init: PyTree = None,
    paths: int | None = None,
    order: int = 1,
    substeps: int = 1,
    examples: int | None = None,
    record: Record | None = None,
    dtype: DType = "float64",
) -> Trajectory:
    """Sample paths of the stochastic modified equation of SGD, from `draw` and `loss`.

    Use it where noise is too large for `odes.linear_noise`, such as for the loss near its minimum,
    and for large models: a path costs about as much as six runs, for any number of weights. It also
    escapes over barriers, at a rate that is right for small learning rates only if the noise is
    normal and the same at all weights: `odes.escape_error` estimates its error.

    The Ito equation is solved by Strang splitting with equal steps: see
    `odes.solver.integrate.integrate_ito`. Its error is of second order in the rate, and of first
    order in the square of the noise of a step.

    Args:
        problem: a problem with `draw` and with a `loss` that is the mean over the examples. Without
            a `population_loss`, the mean gradient is estimated from the examples of a step, whose
            noise then is part of the batch noise.
        rule: SGD, with heavy-ball or Nesterov momentum, any schedules, rates by group and decay.
        times: (S,) whole optimiser steps at which to record, increasing, >= 0, not traced.
        batch: number B of examples per step, >= 1, drawn independently.
        key: random key of the starting weights, the examples and the noise. The starting weights
            are those of `dynsim.train` with this key.
        init: starting weights, instead of random ones.
        paths: number of paths, which become a leading axis; path i has the key fold_in(key, i).
            None gives a single path with the key itself.
        order: order in the learning rate of means and standard deviations, 1 or 2. Order 2 includes
            the derivative of the gradient along itself, is about three times as slow, and needs SGD
            without Nesterov momentum. Where noise depends on the weights, its escape rates are
            farther from those of training than at order 1.
        substeps: solver steps per optimiser step, >= 1. More are needed for momentum below 1/2, or
            beyond the edge of stability of descent.
        examples: number E of examples per step from which the noise is formed, >= 2. Without a
            `population_loss` it must exceed `batch`; the default is then 2 `batch`, if that is more
            than the usual 64. Fewer are faster and keep the covariance correct, but make the noise
            less normal.
        record: as in `odes.flow`, plus "batch_loss", the loss of the next batch. By default the
            `RECORD` of the problem and "batch_loss".
        dtype: "float64" or "float32".

    Returns:
        A `Trajectory` for each path. A path whose observables are not finite, or whose loss exceeds
        a thousand times the first one, has `Status.DIVERGED`; nothing raises. `across_runs` returns
        mean and standard deviation with their errors.

    Raises:
        ValueError: with the reason, for a rule or a problem that it does not describe; and naming
            the argument, its value and what is allowed, before compilation.

    Example:
        >>> rule, key = dynsim.sgd(0.05, momentum=0.9), jax.random.key(0)
        >>> runs = odes.sde(DeepLinear(), rule, [5, 10], batch=32, key=key, paths=16)
        >>> loss = runs.across_runs()["loss"]
        >>> loss.mean, loss.std, loss.std_error
    """
    problem, rule = built(problem, rule, dtype)
    if checks.integer("order", order, 1) > 2:
        raise ValueError(f"order = {order}: must be 1 or 2")
    if reason := why_no_sde(problem, rule, batch, order):
        raise ValueError(reason)
    steps = whole_steps(times)
    checks.integer("batch", batch, 1)
    if key is None:
        raise ValueError("key = None: noise is random; pass a key, such as jax.random.key(0)")
    checks.key("key", key)
    if paths is not None:
        checks.integer("paths", paths, 1)
    checks.integer("substeps", substeps, 1)
    if examples is None:
        examples = EXAMPLES if has_population(problem) else max(EXAMPLES, 2 * int(batch))
    checks.integer("examples", examples, 2)
    if not has_population(problem) and examples <= batch:
        raise ValueError(
            f"examples = {examples}: must be > batch = {batch} without a population_loss"
        )
    noise_record = noise_record_of(problem, record)
    if noise_record.statistics:
        name = noise_record.statistics[0][0]
        raise ValueError(f"record = {name!r}: one path has none; use `across_runs`")
    return run(
        _solve,
        *(problem, rule, times, key, init, dtype, batch),
        steps=steps,
        paths=paths,
        order=order,
        substeps=substeps,
        examples=examples,
        noise_record=noise_record,
    )


def why_no_sde(problem: Problem, rule: Rule, batch: int | float, order: int) -> str | None:
    """Return why the theory does not describe a training, or None."""
    if reason := without_noise(problem, batch):
        return reason
    if type(rule) is not SGD:
        return f"rule = {rule.name}: must be SGD, whose step is linear in the gradient"
    if order == 2 and rule.nesterov:
        return "nesterov = True: the second-order equation describes heavy-ball momentum only"
    if order == 2 and rule.has_inertia and rule.decoupled and rule.decay is not None:
        return "decoupled = True: the second-order equation with momentum has coupled decay"
    return error_message(checked_flow, rule, _flow(rule, order))


def _flow(rule: SGD, order: int) -> str:
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
            _flow(rule, order),
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


def _solve(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray,
    init: PyTree,
    times: Float[Array, " S"],
    batch: Float[Array, ""],
    *,
    steps: tuple[int, ...],
    paths: int | None,
    order: int,
    substeps: int,
    examples: int,
    noise_record: NoiseRecord,
) -> Trajectory:
    dtype = dtype_of(times)

    def one(key: PRNGKeyArray) -> Trajectory:
        parts = started(problem, key, init, dtype)
        of_data, brownian, begin, recorded = jax.random.split(jax.random.fold_in(key, EXAMPLES), 4)
        path = Path(Noise(problem, parts, rule, of_data, batch, noise_record, examples), order)
        shift = path.posed.shift

        # The first steps lead from time 0, where the state after 0 steps is read, to `shift`.
        ahead = math.ceil(shift * substeps)
        even = shift + jnp.arange(steps[-1] * substeps + 1, dtype=dtype) / substeps
        marks = [ahead + step * substeps if step else 0 for step in steps]
        (values, loss), last = integrate_ito(
            path.drift,
            path.diffusion,
            path.start(begin),
            jnp.concatenate([shift * jnp.arange(ahead, dtype=dtype) / max(ahead, 1), even]),
            marks,
            brownian,
            noises=path.noises,
            save=functools.partial(path.save, recorded),
        )
        # A run has diverged where its loss is far above the first one.
        first = jnp.abs(path.noise.seen(parts.params, jnp.int32(0))[2])
        finite = [jnp.isfinite(x).reshape(len(steps), -1).all(axis=1) for x in values.values()]
        valid = jnp.stack([*finite, loss <= highest_loss(first)]).all(axis=0)
        status, first_bad = judge(times, valid)
        params, fixed = parts.split(last[0])
        name = THEORIES[order - 1].name
        return Trajectory(times, values, params, status, first_bad, name, fixed=Static.of(fixed))

    if paths is None:
        return one(key)
    return jax.vmap(one)(jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(paths)))


def _theory(name: str, title: str, assumes: str, order: int) -> AnyTheory:
    def inapplicable(training: Training) -> str | None:
        return why_no_sde(training.problem, training.rule, training.batch, order)

    return Theory(
        name,
        title,
        assumes,
        sde if order == 1 else functools.partial(sde, order=order),
        inapplicable,
        needs=("key", "batch"),
        predicts=lambda problem: tuple(table_of(problem).functions),
        adaptive=False,
        variant=True,
        drawn=True,
        at_once=16,
    )


THEORIES = (
    _theory("sde", "stochastic modified equation", "eta -> 0, normal noise", 1),
    _theory(
        "corrected-sde",
        "stochastic modified equation, second order",
        "eta^2 -> 0, normal noise",
        2,
    ),
)
"""The theories of every problem with `draw` and `loss`; each run is one path."""
