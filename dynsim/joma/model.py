"""Hidden nodes on attended tokens (Tian, Wang, Zhang, Chen, Du, arXiv:2310.00535, Eqn. 1).

For a sequence of class n with query m and frequencies x of contextual tokens

    b = s(z_m/T) o x / A,   h_k = phi(v_k . b + r_km),   v_k = U_C^T w_k,  r_km = w_k . u_m

with T the temperature; attention is linear (s(z) = z, A = 1), exp (s = exp, A = 1) or softmax
(s = exp, A = sum_l exp(z_ml/T) x_l). There is a node for each class. The loss is the cross entropy
of h, or -sum_k g_kn h_k with the fixed signal g_kn = 1[k = n] - 1/K, which is minus its gradient at
h = 0. Both are averaged over sequences. We reconstructed the model without the paper's main text,
and derived Theorem 1 ourselves.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray, DType, Number
from dynsim.yz.model import Examples, weights

Attention = Literal["linear", "exp", "softmax"]
Activation = Literal["linear", "relu", "tanh", "quadratic"]
Head = Literal["cross-entropy", "signal"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda u: u,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "quadratic": lambda u: u**2 / 2,
}


class Shape(NamedTuple):
    """Kinds of attention, activation and head."""

    attention: Attention = "softmax"
    activation: Activation = "linear"
    head: Head = "cross-entropy"

    def check(self) -> "Shape":
        """Return self, or raise `ValueError` naming the field."""
        checks.choice("attention", self.attention, ("linear", "exp", "softmax"))
        checks.choice("activation", self.activation, tuple(ACTIVATIONS))
        checks.choice("head", self.head, ("cross-entropy", "signal"))
        return self


class Hidden(eqx.Module):
    """The MLP's weights as tokens see them: V (K, M), and r (K, Q) of the residual."""

    V: Float[AnyArray, "K M"]
    r: Float[AnyArray, "K Q"]


class Joint(eqx.Module):
    """All weights: `Y`, which learns at the rate eta_Y, and the attention logits `Z` (Q, M)."""

    Y: Hidden
    Z: Float[AnyArray, "Q M"]


def initial(
    task: SequenceClasses, shape: Shape, key: PRNGKeyArray, scale: Real[Number, ""], dtype: DType
) -> Joint:
    """Independent N(0, scale^2) weights; linear attention has 1 added to its logits."""
    keys = jax.random.split(key, 3)
    sizes = (task.K, task.M), (task.K, task.num_queries), (task.num_queries, task.M)
    V, r, Z = (jax.random.normal(k, s, dtype) * scale for k, s in zip(keys, sizes, strict=True))
    return Joint(Hidden(V, r), Z + (1 if shape.attention == "linear" else 0))


def attended(
    Z: Float[AnyArray, "Q M"],
    task: SequenceClasses,
    examples: Examples,
    kind: Attention,
    temperature: Real[Number, ""],
) -> Float[Array, "E M"]:
    """b of each example."""
    z = jnp.asarray(Z)[task.query_index][examples.classes] / temperature
    x = examples.counts / jnp.sum(examples.counts, axis=1, keepdims=True)
    if kind == "linear":
        return z * x
    if kind == "exp":
        return jnp.exp(z) * x
    # Tokens that are not there must not decide about the largest exponent.
    largest = jnp.max(jnp.where(x > 0, z, -jnp.inf), axis=1, keepdims=True)
    weight = jnp.where(x > 0, jnp.exp(z - jax.lax.stop_gradient(largest)), 0) * x
    return weight / jnp.sum(weight, axis=1, keepdims=True)


def losses(
    params: Joint,
    task: SequenceClasses,
    examples: Examples,
    shape: Shape,
    temperature: Real[Number, ""],
) -> Float[Array, " E"]:
    """Loss of each example."""
    b = attended(params.Z, task, examples, shape.attention, temperature)
    query = jnp.asarray(task.query_index)[examples.classes]
    u = b @ jnp.asarray(params.Y.V).T + jnp.asarray(params.Y.r).T[query]
    h = ACTIVATIONS[shape.activation](u)
    own = jnp.take_along_axis(h, examples.classes[:, None], axis=1)[:, 0]
    if shape.head == "signal":
        return jnp.mean(h, axis=1) - own
    return jax.nn.logsumexp(h, axis=1) - own


def loss(
    params: Joint,
    task: SequenceClasses,
    examples: Examples,
    shape: Shape,
    temperature: Real[Number, ""],
) -> Float[Array, ""]:
    """The weighted mean of `losses`."""
    found = losses(params, task, examples, shape, temperature)
    return jnp.sum(weights(examples, found.dtype) * found)


def invariant(
    params: Joint, task: SequenceClasses, shape: Shape, temperature: Real[Number, ""]
) -> Float[Array, " M"]:
    """(M,) half the sum of squares of V that Theorem 1 makes of the attention of all queries:

        linear   sum_m z_m^2/2           = (1/2) sum_k v_k^2 + c
        exp      T sum_m z_m             = (1/2) sum_k v_k^2 + c
        softmax  T z_m                   = (1/2) sum_k (v_k^2 - |v_k|^2 b_m) + c,  b_m at Z = 0

    elementwise, for equal rates of V and z. The softmax line is approximate, and here that of the
    mean b over all sequences. The other two are exact for any activation and loss [ours: also for
    the sum over several queries].
    """
    square = jnp.asarray(params.Y.V) ** 2
    if shape.attention != "softmax":
        return jnp.sum(square, axis=0) / 2
    uniform = jnp.asarray(task.prior) @ jnp.asarray(task.probs)
    return jnp.sum(square - jnp.sum(square, axis=1, keepdims=True) * uniform[None], axis=0) / 2


def conserved(
    Z: Float[AnyArray, "Q M"], shape: Shape, temperature: Real[Number, ""]
) -> Float[Array, " M"]:
    """(M,) the other side of `invariant`."""
    z = jnp.asarray(Z)
    each = z**2 / 2 if shape.attention == "linear" else temperature * z
    return jnp.sum(each, axis=0)
