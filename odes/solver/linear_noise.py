r"""Covariance across seeds of the results of stochastic descent, by the adjoint of descent.

In the linear noise approximation, runs scatter around a mean that follows descent without noise. A
step is :math:`(p, u)_{k+1} = U(p_k, u_k, G(p_k))`, with u a velocity or Adam's averages. The noise
in the gradient of step k has covariance :math:`C(p_k)` and is independent between steps. To first
order in the noise, observables O of the weights after S steps have

.. math::

    \operatorname{Cov}(O, O') = \sum_{k < S} \lambda_k^\top\, C(p_k)\, \lambda_k'

where :math:`\lambda_k` is the derivative of O with respect to a vector added to the gradient of
step k. Backwards from :math:`a_S`, the derivative of O with respect to the last state,

.. math::

    \lambda_k = \left( \frac{\partial U}{\partial G} \right)^{\!\top} a_{k+1}, \qquad
    a_k = \left( \frac{\partial U}{\partial (p, u)} \right)^{\!\top} a_{k+1} + H\, \lambda_k
    + \left( \frac{\partial \sigma^2}{\partial p} \right)^{\!\top} \mu_k , \qquad
    \mu_k = \left( \frac{\partial U}{\partial \sigma^2} \right)^{\!\top} a_{k+1}

H is the Hessian of the loss with gradient G. No matrix of the size of C or H is formed. Only some
of the states along the path are stored; the others are recomputed from them. The linear
approximation requires that runs scatter so little that they all have the same Hessian.

The terms in :math:`\sigma^2`, the variance of the gradient of a step, occur for Adam and RMSProp
[ours], which divide by the root of an average of squares with mean :math:`G^2 + \sigma^2`. If
`Descent.variance` is given, it is added to the squares that these rules average. If
`Descent.squares`, the covariance of the squared noise, is given too, the sum also has the term
:math:`\mu_k^\top \operatorname{Cov}(\xi^2, \xi^2) \mu_k'`, for normal noise :math:`\xi`, which is
uncorrelated with its squares. `odes.solver.second_order` adds the next order.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from dynsim.precision import AnyArray
from dynsim.training.keys import check_without_keys
from dynsim.training.rule import Rule
from dynsim.training.rules import Adam, RMSProp, Sign, check_known
from odes.solver.integrate import seen_at

AVERAGE_SQUARES = (RMSProp, Adam)
"""Rules with an average of squares, in which noise does not average out."""
UNEVEN = 0.1
"""Relative variance of an average of squares v, on average over the steps of a run, above which
linear noise is strained: E 1 / v, which enters the variance that a step adds, is then 10 % above
1 / E v, and standard deviations are off by 5 %."""


def check_described(rule: Rule) -> None:
    """Raise `ValueError` for a rule that linear noise does not describe."""
    if not (isinstance(rule, Rule) and rule.has_flow):
        check_known(rule)
    if isinstance(rule, Sign):
        raise ValueError(
            "optimizer = sign: linear noise differentiates a step with respect to the gradient"
        )
    for name in ("clip", "noise"):
        if (value := getattr(rule, name)) is not None:
            raise ValueError(f"{name} = {value!r}: linear noise describes batches only")


def last_uneven(variance: float, b2: float, steps: int) -> int:
    """Return the last of `steps` at which the average of squares has scattered by more than
    `UNEVEN`, or 0, for squares of relative `variance`. The weights keep the noise of all steps, so
    the mean over the steps so far decides, which falls later than the scatter itself."""
    k = np.arange(1, steps + 1)
    # Effective number of terms of an average of k squares with the weights w_i = b2^i,
    # (sum_i w_i)^2 / sum_i w_i^2.
    terms = (1 - b2**k) * (1 + b2) / ((1 + b2**k) * (1 - b2))
    scatter = np.cumsum(variance / terms) / k
    return int(np.max(k, where=scatter > UNEVEN, initial=0))


class State(NamedTuple):
    """Weights and the floating-point memory of the rule, or derivatives with respect to them."""

    params: PyTree
    memory: PyTree


class Sampling(NamedTuple):
    """Squared standard errors of the `mean` and the `variance` of some numbers that are estimated
    from samples."""

    mean: PyTree
    variance: PyTree


class BackwardPass(NamedTuple):
    """A backward pass for the P numbers observed at one time: their derivatives `adjoint` (P, ...)
    with respect to the state, their `covariance` (P, P) from the noise of the steps so far, the
    `errors` (P,) of estimates in these steps, their `values` (P,), and in `aux` observations whose
    covariance is not needed."""

    adjoint: State
    covariance: Float[Array, "P P"]
    errors: Sampling
    values: Float[Array, " P"]
    aux: PyTree


class Descent(NamedTuple):
    r"""Descent and its noise.

    Attributes:
        rule: an update rule that `check_described` accepts.
        derive: (weights, step) -> the gradient, and features from which `noise` follows.
        noise: derivatives (P, ...) of these features along each :math:`\lambda` -> (P, P)
            :math:`\lambda^\top C \lambda'` for all pairs.
        observe: (weights, steps so far) -> P numbers, and other values without covariance.
        count: number of weights that each entry of the parameters represents; one each if None. The
            gradient is with respect to a single one of these weights.
        groups: the groups of weights, if the rule has rates by group.
        variance: (weights, step) -> the variance of each entry of the gradient, which rules of
            `AVERAGE_SQUARES` average along with its square; zero if None.
        squares: (weights, step, P vectors :math:`\mu`) -> the (P, P) covariance along them of the
            squared noise, for these rules with a `variance`.
        sampling: (weights, step, the derivatives that `noise` takes, the vectors :math:`\mu` or
            None) -> the (P,) errors that the sample of this step causes; zero if None.
    """

    rule: Rule
    derive: Callable[[PyTree, Int[Array, ""]], tuple[PyTree, PyTree]]
    noise: Callable[[PyTree], Float[Array, "P P"]]
    observe: Callable[[PyTree, Int[Array, ""]], tuple[Float[Array, " P"], PyTree]]
    count: PyTree = None
    groups: PyTree = None
    variance: Callable[[PyTree, Int[Array, ""]], PyTree] | None = None
    squares: Callable[[PyTree, Int[Array, ""], PyTree], Float[Array, "P P"]] | None = None
    sampling: Callable[[PyTree, Int[Array, ""], PyTree, PyTree], Sampling] | None = None

    def start(self, params: PyTree) -> State:
        """Return the state before the first step."""
        check_without_keys(self.rule, params)
        return State(params, eqx.filter(self.rule.init(params), eqx.is_inexact_array))

    def scattered(self, params: PyTree, k: Int[Array, ""]) -> PyTree:
        """Return the variance of the gradient of step k, or None if the rule does not use it."""
        if self.variance is None or not isinstance(self.rule, AVERAGE_SQUARES):
            return None
        return self.variance(params, k)

    def update(
        self, state: State, gradient: PyTree, k: Int[Array, ""], variance: PyTree = None
    ) -> State:
        """Return the state after the update that follows k others."""
        # Integers in the memory count the steps; they have no derivatives.
        counts = jax.tree.map(
            lambda leaf: None if eqx.is_inexact_array(leaf) else k, self.rule.init(state.params)
        )
        memory = eqx.combine(state.memory, counts)
        if variance is not None:
            assert isinstance(self.rule, AVERAGE_SQUARES)
            # v' = b2 v + (1 - b2) (G^2 + sigma^2). The update only knows G; it multiplies v by b2,
            # which turns this addition into (1 - b2) sigma^2.
            weight = (1 - self.rule.b2) / self.rule.b2
            squares = optax.tree.get(memory, "nu")
            squares = jax.tree.map(lambda nu, s: nu + weight * s, squares, variance)
            memory = optax.tree.set(memory, nu=squares)
        updates, memory = self.rule.update(gradient, memory, state.params, k, groups=self.groups)
        params = optax.apply_updates(state.params, updates)
        return State(params, eqx.filter(memory, eqx.is_inexact_array))

    def step(self, state: State, k: Int[Array, ""]) -> State:
        """Return the state after step k."""
        variance = self.scattered(state.params, k)
        return self.update(state, self.derive(state.params, k)[0], k, variance)

    def arrive(self, passed: BackwardPass, state: State, k: Int[Array, ""]) -> BackwardPass:
        """Start a pass at the time of its observations."""

        def observe(params: PyTree) -> tuple[Float[Array, " P"], tuple[Float[Array, " P"], PyTree]]:
            values, aux = self.observe(params, k)
            return values, (values, aux)

        # a_S = dO/dp: the observations depend on the weights, not on the memory of the rule. The
        # values come out of the same evaluation.
        slopes, (values, aux) = jax.jacrev(observe, has_aux=True)(state.params)
        slopes = jax.vmap(self._single)(slopes)
        memory = jax.tree.map(jnp.zeros_like, passed.adjoint.memory)
        covariance, errors = jax.tree.map(jnp.zeros_like, (passed.covariance, passed.errors))
        return BackwardPass(State(slopes, memory), covariance, errors, values, aux)

    def back(self, passed: BackwardPass, state: State, k: Int[Array, ""]) -> BackwardPass:
        """Go from :math:`a_{k+1}` to :math:`a_k`, and add the covariance due to step k's noise."""
        # d(G, features)/dp in forward mode: the Hessian is symmetric, so that its transpose is not
        # needed, and the features give the derivatives along lambda, s' = lambda . grad loss.
        (gradient, _), along_vector = jax.linearize(lambda p: self.derive(p, k), state.params)
        # (d sigma^2 / dp)^T, which is not symmetric.
        variance, pull_variance = jax.vjp(lambda p: self.scattered(p, k), state.params)
        # The transposes of dU/d(p, u), dU/dG and dU/dsigma^2 at once.
        _, pull = jax.vjp(
            lambda state, gradient, variance: self.update(state, gradient, k, variance),
            state,
            gradient,
            variance,
        )

        def one(adjoint: State) -> tuple[State, PyTree, PyTree]:
            # lambda_k = (dU/dG)^T a_{k+1} and mu_k = (dU/dsigma^2)^T a_{k+1}.
            before, lambda_k, mu_k = pull(adjoint)
            # a_k = (dU/d(p, u))^T a_{k+1} + H lambda_k + (dsigma^2/dp)^T mu_k.
            change, along = along_vector(lambda_k)
            params = jax.tree.map(jnp.add, before.params, change)
            if variance is not None:
                # mu is with respect to one weight, the variance of an entry stands for all of its.
                of_entries = (
                    mu_k if self.count is None else jax.tree.map(jnp.multiply, mu_k, self.count)
                )
                (of_variance,) = pull_variance(of_entries)
                params = jax.tree.map(jnp.add, params, self._single(of_variance))
            return State(params, before.memory), along, mu_k

        adjoint, along, mu_k = jax.vmap(one)(passed.adjoint)
        # Cov(O, O') += lambda_k^T C lambda_k' + mu_k^T Cov(xi^2, xi^2) mu_k'.
        covariance, errors = passed.covariance + self.noise(along), passed.errors
        if variance is not None and self.squares is not None:
            covariance += self.squares(state.params, k, mu_k)
        if self.sampling is not None:
            # Steps have independent samples, so that their squared errors add up.
            added = self.sampling(state.params, k, along, None if variance is None else mu_k)
            errors = jax.tree.map(jnp.add, errors, added)
        return passed._replace(adjoint=adjoint, covariance=covariance, errors=errors)

    def _single(self, slopes: PyTree) -> PyTree:
        """Convert derivatives with respect to an entry to those with respect to one of the weights
        that it represents, for which the Hessian is symmetric."""
        if self.count is None:
            return slopes
        per_weight = lambda x, n: jnp.where(n > 0, x / jnp.where(n > 0, n, 1), 0)  # noqa: E731
        return jax.tree.map(per_weight, slopes, self.count)


class Leg(NamedTuple):
    """Part of the way back: the steps of a `segment`, backwards from `time` or from the end of the
    segment, whichever is earlier."""

    segment: Int[AnyArray, "*E"]
    time: Int[AnyArray, "*E"]


def followed(
    descent: Descent, params: PyTree, times: Sequence[int]
) -> tuple[Float[Array, "S P"], PyTree]:
    """Return the observed numbers of descent at all `times`, increasing whole steps."""
    return seen_at(
        times,
        descent.start(params),
        lambda k, state: descent.step(state, k),
        lambda state, k: descent.observe(state.params, k),
    )[0]


def by_name(
    seen: Callable[[PyTree], dict[str, Array]], params: PyTree, values: Float[Array, "S P"]
) -> dict[str, Array]:
    """Return rows of numbers as observables by name, with the shapes of `seen(params)`."""
    # The inverse of the `ravel_pytree` with which `observe` flattens them.
    shapes = jax.eval_shape(seen, params)
    _, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))
    return jax.vmap(unravel)(values)


def spread(descent: Descent, params: PyTree, times: Sequence[int]) -> BackwardPass:
    """Return the observed numbers and their covariance at all `times`, increasing whole steps.

    Returns:
        A `BackwardPass` with a leading axis for the S times. Its adjoint is None.
    """
    # Checkpointing: of S steps, the states at the starts of sqrt(S) segments are stored, and those
    # within a segment are computed again when a pass goes back through it: memory for 2 sqrt(S)
    # states in place of S, and a second evaluation of each step.
    stride = math.isqrt(times[-1]) + 1

    def segment(begin: Int[AnyArray, ""], state: State) -> tuple[State, State]:
        # (p, u)_{k+1} = U(p_k, u_k, G(p_k)); the states before the steps are returned too.
        ahead = jnp.arange(stride) + begin
        return jax.lax.scan(lambda state, k: (descent.step(state, k), state), state, ahead)

    begins = jnp.arange(0, times[-1] + 1, stride)
    start = descent.start(params)
    _, starts = jax.lax.scan(lambda state, begin: (segment(begin, state)[0], state), start, begins)

    # A pass for each time S, from a_S = dO/dp down to a_0, adds
    #     Cov(O, O') = sum_{k < S} lambda_k^T C(p_k) lambda_k'
    # on its way. Passes through one segment after another, of all times, are one scan over legs:
    # latest segment first, so that the last leg of each time ends at step 0.
    legs, ends = [], []
    for time in times:
        legs += [(number, time) for number in reversed(range(time // stride + 1))]
        ends.append(len(legs) - 1)
    legs = Leg(*np.array(legs, np.int32).T)

    def go_back(passed: BackwardPass, leg: Leg) -> tuple[BackwardPass, BackwardPass]:
        begin = leg.segment * stride
        _, states = segment(begin, jax.tree.map(lambda leaf: leaf[leg.segment], starts))

        def turn(passed: BackwardPass, at: tuple[State, Array]) -> tuple[BackwardPass, None]:
            state, k = at
            # Steps after the time of the leg are skipped (0). At that time the pass starts, with
            # a_S and a covariance of zero (1); before it, a_{k+1} becomes a_k (2). Legs do not
            # depend on the problem's numbers, so under vmap this stays a branch.
            case = (k <= leg.time).astype(int) + (k < leg.time)
            cases = (lambda passed, *_: passed), descent.arrive, descent.back
            return jax.lax.switch(case, cases, passed, state, k), None

        # A loop of unknown length would have no derivative in reverse mode.
        ahead = states, jnp.arange(stride) + begin
        passed, _ = jax.lax.scan(turn, passed, ahead, reverse=True)
        return passed, passed._replace(adjoint=None)

    # What a pass starts from is overwritten by `arrive`: only its shapes count.
    values, aux = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(descent.observe, params, jnp.int32(0))
    )
    adjoint = jax.tree.map(lambda x: jnp.zeros((*values.shape, *x.shape), x.dtype), start)
    covariance = jnp.zeros(2 * values.shape, values.dtype)
    errors = Sampling(jnp.zeros_like(values), jnp.zeros_like(values))
    _, passes = jax.lax.scan(go_back, BackwardPass(adjoint, covariance, errors, values, aux), legs)
    return jax.tree.map(lambda leaf: leaf[np.array(ends)], passes)


def sampling(values: Float[Array, "N *P"], free: int) -> tuple[Float[Array, "*P"], Sampling]:
    """Return the variance of N independent numbers, with `free` degrees of freedom, and the errors
    of their mean and of this variance, from the fourth moment."""
    centred = values - jnp.mean(values, axis=0, keepdims=True)
    variance = jnp.sum(centred**2, axis=0) / free
    # Var(x^2) = E x^4 - (E x^2)^2, which sampling may leave below zero.
    of_squares = jnp.mean(centred**4, axis=0) - variance**2
    return variance, Sampling(variance / len(values), jnp.maximum(of_squares, 0) / len(values))
