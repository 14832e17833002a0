r"""Variance that the draw of the prompts gives to the gradients of a and b [ours].

The gradient of one prompt with the margin M = y N is
:math:`G = -\sigma(-M)\, \partial M/\partial a`, with :math:`\sigma` the logistic function. For its
query, M and :math:`\partial M/\partial a` are jointly normal over contexts, and

.. math::

    \operatorname{Cov} \left( M, \frac{\partial M}{\partial a} \right)
    = \frac12\, \frac{\partial \operatorname{Var} M}{\partial a}.

With :math:`M = \mu + \varsigma f` of mean :math:`\mu` and standard deviation :math:`\varsigma`, the
mean of :math:`\partial M/\partial a` given f is the derivative of that, whence

.. math::

    C = \operatorname{Var} G = \mathbb E \left[ \sigma(-M)^2 \left(
    \left( \frac{\partial M}{\partial a} \right)^2
    + \operatorname{Var} \frac{\partial M}{\partial a}
    - \left( \frac{\partial \varsigma}{\partial a} \right)^2 \right) \right]
    - \left( \frac{\partial \text{Loss}}{\partial a} \right)^2

and for b alike, where Var over contexts is exact because tokens come in pairs (x, y), -(x, y) for P
and in pairs of either sign of :math:`\zeta` for Q, one of which the ReLU lets through:

.. math::

    \begin{align*}
    \operatorname{Var} \frac{\partial M}{\partial a} &= p^2\, \frac{\kappa}{L}
        \left( \frac{p_2}{2} - \frac{\bar p^2}{4} \right) \\
    \operatorname{Var} \frac{\partial M}{\partial b} &= r^4\, \frac{\kappa}{L}
        \left( \frac14 - \frac{1}{16} \operatorname{erf}\Bigl( \frac{m}{s \sqrt2} \Bigr)^2 \right)
        \quad \text{for } y = -1, \text{ else } 0
    \end{align*}

A batch of B prompts makes noise of variance C/B beside :math:`\tau_\xi^2`; a pool of N makes a
force of variance C/N that stays all along a run.

Assumes what `odes.two_stage.loss` does, and that each component has a loss of its own (c = 0).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.precision import AnyArray
from dynsim.two_stage.task import Prompts
from odes.two_stage.loss import Rule, half_normal_nodes, normal_nodes, outputs, weight_P
from odes.two_stage.maps import root
from odes.two_stage.state import ReducedState


class GradientVariance(NamedTuple):
    """Variance over prompts of the derivatives of the loss by a and by b, both ()."""

    a: Float[Array, ""]
    b: Float[Array, ""]


@functools.partial(jax.jit, static_argnames=("task", "rule"))
def gradient_variance(
    state: ReducedState, task: Prompts, *, rule: Rule | None = None
) -> GradientVariance:
    """C of the entries a = W[0,0] and b = V[0,0] in the reduced state, for c = 0. What is left
    out is smaller by O(1/L): of b 13 % at L = 33, 2.5 % at L = 129."""
    rule = rule or Rule()
    unit = ReducedState(1.0, 1.0, *(5 * (0.0,)))
    unit = jax.tree.map(lambda one, value: jnp.full_like(value, one), unit, state)

    def moments(state: ReducedState) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        P, (_, Q) = outputs(state, task, True, rule)
        return (P.mean, root(P.variance)), (Q.mean, root(Q.variance))

    (of_P, of_Q), (by_a, by_b) = jax.jvp(moments, (state,), (unit,))
    P, (_, Q) = outputs(state, task, True, rule)
    p = task.gamma0 + task.s1 * half_normal_nodes(rule.g)[0][:, None]
    each = task.kappa / task.length
    square = (task.mean_square_margin / 2 - task.mean_margin**2 / 4) * p**2
    passed = jax.lax.erf(Q.m / Q.s / math.sqrt(2)) / 4
    a = _moments(of_P, by_a, each * square, weight_P(P, rule), rule)
    b = _moments(of_Q, by_b, each * task.r**4 * (1 / 4 - passed**2), normal_nodes(rule.e)[1], rule)
    # Queries of the other class, half of all, have nothing along zeta.
    return GradientVariance(a[1] - a[0] ** 2, b[1] / 2 - (b[0] / 2) ** 2)


def _moments(
    margin: tuple[Array, Array],
    slope: tuple[Array, Array],
    variance: Float[AnyArray, "*#n"],
    weight: Float[AnyArray, "*n"],
    rule: Rule,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and mean square of the gradient; `margin` and `slope` have mean and standard deviation
    over contexts, and their derivatives."""
    f, of_f = (values.astype(margin[0].dtype) for values in normal_nodes(rule.f))
    f = f.reshape(margin[0].ndim * (1,) + (-1,))
    gate = jax.nn.sigmoid(-(margin[0][..., None] + margin[1][..., None] * f))
    along = slope[0][..., None] + slope[1][..., None] * f
    left = (variance - slope[1] ** 2)[..., None]
    mean = jnp.sum(weight * ((gate * along) @ of_f))
    return -mean, jnp.sum(weight * ((gate**2 * (along**2 + left)) @ of_f))
