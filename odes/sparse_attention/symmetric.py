r"""The exact reduction of retrieval to four numbers, and its flow for any optimiser.

From W = 0, a = 0 every score of a copy of x_T moves alike, and so does every other score, every
weight of the fixed token's column of W and every other weight:
:math:`W_{ij} = u_j \operatorname{sign}(W^*_{ij})`. With :math:`A = B \alpha` the attention on the
copies, :math:`\alpha = 1 / ((T-B)\, e^{-\Delta a} + B)`, and :math:`w = \sqrt d\, u`,
:math:`\tilde w = \sqrt d\, \tilde u`, :math:`\lVert W \rVert^2 = \tilde w^2 + (d-1)\, w^2`,

.. math::

    L = \tfrac12 \left[ \frac{(1-A)^2 \lVert W \rVert^2}{d (T-B)}
    + \tilde\sigma (A \tilde w - 1)^2 + \sigma (d-1) (A w - 1)^2 \right] \tag{17}

which is eq. 12 for p = 0. A number that stands for n weights moves by 1/n of the derivative of L by
it, whatever the rule. So under SGD [ours]

.. math::

    \Delta a' = -\frac{T}{B (T-B)}\, \frac{\partial L}{\partial \Delta a},

because B scores share the pull: eq. 14 as printed, :math:`-\partial L / \partial \Delta a`, is
close to that for B = 1 alone.

Assumes an infinite batch and :math:`\eta \to 0`; what momentum, Adam and the next order in
:math:`\eta` make of it is in `odes.solver.flows`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim.precision import DType
from dynsim.sparse_attention.retrieval import Retrieval, Snapshot
from odes.problem import Reduction


class Alike(eqx.Module):
    """One number for each kind of weight: magnitude of an entry of W in the column of the fixed
    token and elsewhere, score of a copy of :math:`x_T` and of another token."""

    fixed: Float[Array, ""]
    rest: Float[Array, ""]
    copy: Float[Array, ""]
    other: Float[Array, ""]


def attention(state: Alike, task: Retrieval) -> Float[Array, ""]:
    """A, the attention on all copies."""
    return task.B / ((task.T - task.B) * jnp.exp(state.other - state.copy) + task.B)


def loss(state: Alike, task: Retrieval) -> Float[Array, ""]:
    """Eq. 17, for any B."""
    A, root = attention(state, task), task.d**0.5
    fixed, rest = root * state.fixed, root * state.rest
    square = fixed**2 + (task.d - 1) * rest**2
    sigma_fixed, sigma_rest = task.moments
    missed = sigma_fixed * (A * fixed - 1) ** 2 + sigma_rest * (task.d - 1) * (A * rest - 1) ** 2
    return ((1 - A) ** 2 * square / (task.d * (task.T - task.B)) + missed) / 2


def gradient(task: Retrieval, state: Alike) -> Alike:
    """Gradient by a single weight of each kind."""
    of_all = jax.grad(loss)(state, task)
    return Alike(
        of_all.fixed / task.d,
        of_all.rest / (task.d * (task.d - 1)),
        of_all.copy / task.B,
        of_all.other / (task.T - task.B),
    )


def measure(state: Alike, task: Retrieval) -> Snapshot:
    """Snapshot of the weights that a state stands for."""
    readout = state.fixed + (task.d - 1) * state.rest
    return Snapshot(loss(state, task), attention(state, task), readout, state.copy - state.other)


def zero(task: Retrieval, weights: None, dtype: DType) -> Alike:
    """The start."""
    del task, weights
    return Alike(*4 * (jnp.zeros((), dtype),))


ALIKE = Reduction(zero, gradient, lambda task, state: (measure(state, task),))
