r"""Normalised-ReLU attention with block-diagonal weights U = diag(W, V) (arXiv:2502.20681).

For a prompt with labels :math:`y_i` and the query :math:`x_L`,

.. math::

    N_U = \frac1L \sum_{i<L} y_i \operatorname{ReLU}(x_i^\top U x_L).

The row index of U contracts with the context token, the column index with the query. W acts on
component P of the tokens and V on component Q; the label of the query is never read.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim.precision import AnyArray, Number


class PromptBatch(NamedTuple):
    """N prompts: (N, L, d) tokens of either component and (N, L) labels in {-1, +1}."""

    P: Float[Array, "N L d"]
    Q: Float[Array, "N L d"]
    labels: Float[Array, "N L"]


class PQ(eqx.Module):
    """Weights of the layer.

    Attributes:
        W, V: (d, d) blocks of component P and of component Q.
        beta: () bias added to :math:`N_V`; None for the model without one.
    """

    W: Float[AnyArray, "*B d d"]
    V: Float[AnyArray, "*B d d"]
    beta: Float[AnyArray, "*B"] | None = None


class Split(eqx.Module):
    """Weights as the sum of what the gradients made and of what the noise made.

    Attributes:
        signal: Ubar, which starts at zero and is moved by the gradients (at the full weights).
        noise: Util, which starts as the random weights and is moved by the gradient noise.
    """

    signal: PQ
    noise: PQ

    @property
    def total(self) -> PQ:
        """U = Ubar + Util."""
        bias = self.signal.beta
        return PQ(self.signal.W + self.noise.W, self.signal.V + self.noise.V, bias)


class Outputs(NamedTuple):
    """(N,) outputs of the two components on N prompts."""

    P: Float[Array, " N"]
    Q: Float[Array, " N"]


def attend(
    U: Float[AnyArray, "d d"],
    x: Float[Array, "N L d"],
    labels: Float[Array, "N L"],
    gates: Float[AnyArray, "d d"] | None = None,
) -> Float[Array, " N"]:
    r""":math:`N_U` on N prompts; with `gates`, a matrix A, a token counts where
    :math:`x_i^\top A x_L > 0` instead."""
    query = x[:, -1]
    scores = jnp.einsum("nld,nd->nl", x, query @ U.T)
    if gates is None:
        passed = jax.nn.relu(scores)
    else:
        opened = jnp.einsum("nld,nd->nl", x, query @ gates.T) > 0
        passed = jnp.where(opened, scores, 0)
    # Without its label the query drops out of the sum.
    context = labels.at[:, -1].set(0)
    return jnp.einsum("nl,nl->n", context, passed) / x.shape[1]


def outputs(params: PQ, batch: PromptBatch) -> Outputs:
    """Outputs of both components."""
    q = attend(params.V, batch.Q, batch.labels)
    if params.beta is not None:
        q = q + params.beta
    return Outputs(attend(params.W, batch.P, batch.labels), q)


def logistic(margin: Float[Array, "*N"]) -> Float[Array, "*N"]:
    r""":math:`\ln(1 + e^{-m})` of a margin m, in nat."""
    return jax.nn.softplus(-margin)


def data_loss(params: PQ, coupling: Real[Number, ""], batch: PromptBatch) -> Float[Array, ""]:
    """Mean of :math:`(1 - c)(K_1 + K_2) + c J` over the batch, without weight decay; c is the
    `coupling`."""
    return outputs_loss(outputs(params, batch), coupling, batch.labels[:, -1])


def outputs_loss(
    found: Outputs, coupling: Real[Number, ""], y: Float[Array, " N"]
) -> Float[Array, ""]:
    """`data_loss` of outputs for queries with the labels `y`."""
    apart = logistic(y * found.P) + logistic(y * found.Q)
    together = logistic(y * (found.P + found.Q))
    return jnp.mean((1 - coupling) * apart + coupling * together)
