r"""Error of the modified equation in the rate at which runs escape over a barrier [ours].

Take one weight w, the gradient G and noise of variance :math:`\sigma^2` and third cumulant
:math:`\kappa` in the gradient of a batch. A step is described by its cumulants,

.. math::

    H(w, p) = \ln \mathbb E\, e^{p\, (w_{k+1} - w_k)}
    = -\eta\, p\, G + \frac{\eta^2 p^2}{2} \sigma^2 - \frac{\eta^3 p^3}{6} \kappa + \dots

For rare events, a step moves (w, p) by the symplectic Euler method with this Hamiltonian. By
backward error analysis, its flow in continuous time has

.. math::

    \tilde H = H - \frac12 \frac{\partial H}{\partial p} \frac{\partial H}{\partial w} + \dots

A drift and a diffusion are the terms in p and :math:`p^2`. The second-order equation has them all;
it lacks :math:`\delta = -\eta^4 p^3 \sigma^2 (\sigma^2)'/4 - \eta^3 p^3 \kappa / 6`. A run climbs
from the minimum to the barrier with :math:`p = 2 G / (\eta \sigma^2)` at the speed :math:`\eta G`,
and :math:`-\ln` of the escape rate is the integral of p over its path. At :math:`\tilde H = 0` a
change of the Hamiltonian by :math:`\delta` adds

.. math::

    -\int \frac{\delta}{\eta\, G}\, dw
    = \int \frac{4 G^2 \sigma'}{\sigma^3}\, dw + \int \frac{4 G^2 \kappa}{3 \eta\, \sigma^6}\, dw .

The first term does not depend on the rate. The first-order equation lacks the whole of
:math:`\tilde H - H`, whose other terms add up to the total derivative of
:math:`-G^2 / (2 \sigma^2)`, which vanishes at both ends, and to minus three quarters of the first
term. So it lacks only a quarter of it. `docs/theory/escape.md` compares this with exact rates.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dynsim import Problem, checks
from dynsim.precision import precision
from dynsim.problem.build import built
from dynsim.problem.train import started
from dynsim.schedules import Constant
from dynsim.training.rule import UpdateRule
from dynsim.training.rules import SGD
from odes.batch_noise.noise import Noise, noise_record_of
from odes.batch_noise.paths import why_no_sde

LEGENDRE_NODES = 32
"""Gauss-Legendre nodes between the minimum and the barrier."""
BLOCKS = 16
"""Independent sets of examples, whose scatter is the error."""
FALLING = 0.05
"""Share of the largest slope by which the loss may fall, as the ends are known to some digits."""


class EscapeError(NamedTuple):
    """Log of the rate at which training escapes, less that of paths of `odes.sde`: the sum of both.

    Attributes:
        multiplicative: the part of noise that depends on the weight, the same at any learning rate.
        skewed: the part of noise that is not symmetric, proportional to 1/eta.
        multiplicative_error, skewed_error: their standard errors, from the examples.

    Example:
        >>> escape = odes.EscapeError(-0.15, 0.0, 0.01, 0.0)
        >>> math.exp(escape.multiplicative)  # training escapes less often by this factor
        0.8607079764250578
    """

    multiplicative: float
    skewed: float
    multiplicative_error: float
    skewed_error: float


def escape_error(
    problem: Problem,
    rule: UpdateRule,
    start: float,
    barrier: float,
    *,
    batch: int | float,
    key: PRNGKeyArray,
    order: int = 1,
    examples: int = 4096,
) -> EscapeError:
    """Estimate how far the escape rates of `odes.sde` are off, for a problem with one weight.

    Valid for rare escapes, at a small rate, and where the result is well below 1.

    Args:
        problem: a problem with one weight, `draw`, and a `loss` that is the mean over the examples.
        rule: SGD without momentum, at a constant rate.
        start: weight at the minimum that runs leave.
        barrier: weight at the maximum of the loss that they cross, on either side.
        batch: number B of examples per step, >= 1, drawn independently.
        key: random key of the examples.
        order: order of `odes.sde`, 1 or 2. Order 1 lacks a quarter of the multiplicative part.
        examples: number of examples in each of 16 sets, >= 2.

    Returns:
        The two parts of the log of the ratio of the rates, with their errors.

    Raises:
        ValueError: for a rule or a problem that `odes.sde` or this estimate does not describe, and
            for a loss that falls between `start` and `barrier`.

    Example:
        >>> class Well(dynsim.Problem):
        ...     def init(self, key):
        ...         return -jnp.ones(1)
        ...
        ...     def draw(self, key, batch):
        ...         return jax.random.normal(key, (batch,))
        ...
        ...     def loss(self, w, x):
        ...         return jnp.mean((w[0] ** 2 - 1) ** 2 / 4 + x * (w[0] + w[0] ** 2 / 4))
        >>> options = {"batch": 1, "key": jax.random.key(0), "order": 2}
        >>> escape = odes.escape_error(Well(), dynsim.sgd(0.1), -1.0, 0.0, **options)
        >>> escape.multiplicative, escape.multiplicative_error
    """
    problem, rule = built(problem, rule)
    if checks.integer("order", order, 1) > 2:
        raise ValueError(f"order = {order}: must be 1 or 2")
    if reason := why_no_sde(problem, rule, batch, order):
        raise ValueError(reason)
    if isinstance(rule, SGD) and rule.has_inertia:
        raise ValueError(f"momentum = {rule.mu}: must be None; the estimate has no velocity")
    eta = rule.eta
    if not isinstance(eta, Constant) or eta.warmup is not None:
        raise ValueError(f"eta = {eta!r}: must be one constant rate")
    checks.integer("batch", batch, 1)
    checks.integer("examples", examples, 2)
    checks.key("key", key)
    for name, value in (("start", start), ("barrier", barrier)):
        checks.real(name, value)
    nodes, shares = np.polynomial.legendre.leggauss(LEGENDRE_NODES)
    half = (barrier - start) / 2
    at = (start + barrier) / 2 + half * nodes
    with precision("float64"):
        start_parts = started(problem, key, None, "float64")
        noise = Noise(
            *(problem, start_parts, rule, key, jnp.asarray(float(batch))),
            *(noise_record_of(problem, None), examples),
        )
        flat, unravel = ravel_pytree(start_parts.params)
        if flat.size != 1:
            raise ValueError(f"the problem has {flat.size} weights: must have one")

        def moments(w: Float[Array, ""], k: Int[Array, ""]) -> tuple[Array, Array, Array]:
            """Return the gradient, and the variance and third cumulant of an example's gradient."""
            params = unravel(w[None])
            gradients = jax.vmap(lambda g: ravel_pytree(g)[0][0])(noise.gradients(params, k))
            centred = gradients - jnp.mean(gradients)
            # Decay has no noise: it is a part of the mean alone.
            mean = rule.decayed(noise.derive(params, k)[0], params)
            return (
                ravel_pytree(mean)[0][0],
                jnp.sum(centred**2) / noise.free,
                jnp.mean(centred**3),
            )

        def integrands(w: Float[Array, ""], k: Int[Array, ""]) -> tuple[Array, Array, Array]:
            (slope, square, cube), (_, change, _) = jax.jvp(
                lambda w: moments(w, k), (w,), (jnp.ones_like(w),)
            )
            # 4 G^2 sigma' / sigma^3 = 2 G^2 (sigma^2)' / sigma^4 and 4 G^2 kappa / (3 eta sigma^6),
            # with the cumulants of a batch, sigma^2 = square / B and kappa = cube / B^2.
            multiplicative = 2 * batch * slope**2 * change / square**2
            skewed = 4 * batch * slope**2 * cube / (3 * eta.peak * square**3)
            return slope, multiplicative, skewed

        grid = jax.vmap(jax.vmap(integrands, (0, None)), (None, 0))
        slopes, *parts = map(np.asarray, jax.jit(grid)(jnp.asarray(at), jnp.arange(BLOCKS)))
    climb = slopes.mean(axis=0) * np.sign(half)
    error = slopes.std(axis=0, ddof=1) / BLOCKS**0.5
    # Beyond four standard errors, the loss falls.
    if (climb + 4 * error).min() < -FALLING * climb.max():
        raise ValueError(
            f"start = {start}, barrier = {barrier}: the loss must rise from one to the other; it "
            f"falls at {at[climb.argmin()]:.3g}"
        )
    # Each set of examples has its own integral.
    multiplicative, skewed = (-half * part @ shares for part in parts)
    if order == 1:
        multiplicative /= 4
    means = (float(part.mean()) for part in (multiplicative, skewed))
    errors = (float(part.std(ddof=1) / BLOCKS**0.5) for part in (multiplicative, skewed))
    return EscapeError(*means, *errors)
