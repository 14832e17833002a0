"""Attention by scores alone, and a linear read-out (arXiv:2505.17863, section 3 and appendix A):
y = W sum_t softmax(a)_t x_t, trained on L = (1/2) E|y - W* x_T|^2 from W = 0, a = 0."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim.precision import AnyArray, DType, Number
from dynsim.sparse_attention.task import Draw, Retrieval
from dynsim.training.recording import RELATIVE_LOSS, Table


class Scored(eqx.Module):
    """Weights.

    Attributes:
        W: (d, d) read-out.
        a: (T,) attention scores.
    """

    W: Float[AnyArray, "d d"]
    a: Float[AnyArray, " T"]


def zero(task: Retrieval, dtype: DType) -> Scored:
    """The starting weights."""
    return Scored(jnp.zeros((task.d, task.d), dtype), jnp.zeros(task.T, dtype))


def batch_loss(
    params: Scored, target: Float[Array, "d d"], x: Float[Array, "N T d"]
) -> Float[Array, ""]:
    """Mean of |y - W* x_T|^2 / 2 over sequences."""
    attended = jnp.einsum("t,ntd->nd", jax.nn.softmax(params.a), x)
    missed = attended @ jnp.asarray(params.W).T - x[:, -1] @ target.T
    return jnp.mean(jnp.sum(missed**2, axis=1)) / 2


def sampled(
    params: Scored, target: Float[Array, "d d"], drawn: Draw, task: Retrieval
) -> tuple[Float[Array, ""], Scored]:
    """`batch_loss` and its gradient, of the law that they have on as many sequences."""
    num, root = drawn.last.shape[0], task.d**0.5
    weight, W = jax.nn.softmax(jnp.asarray(params.a)), jnp.asarray(params.W)
    c = weight[: -task.B]
    norm = jnp.sqrt(jnp.sum(c**2))
    S = norm / root * drawn.others
    attended = S + jnp.sum(weight[-task.B :]) * drawn.last
    missed = attended @ W.T - drawn.last @ target.T
    pulled = missed @ W
    along = c / norm
    noise = drawn.slopes - along * jnp.sum(along * drawn.slopes)
    each = along / norm * jnp.sum(pulled * S) + jnp.sqrt(jnp.sum(pulled**2)) / root * noise
    of_copies = jnp.full(task.B, jnp.sum(pulled * drawn.last), each.dtype)
    by_weight = jnp.concatenate([each, of_copies]) / num
    slope = weight * (by_weight - jnp.sum(weight * by_weight))
    found = jnp.mean(jnp.sum(missed**2, axis=1)) / 2
    return found, Scored(missed.T @ attended / num, slope)


def loss(params: Scored, target: Float[Array, "d d"], task: Retrieval) -> Float[Array, ""]:
    """The same over all sequences."""
    weight = jax.nn.softmax(jnp.asarray(params.a))
    others, copies = weight[: -task.B], jnp.sum(weight[-task.B :])
    fixed, rest = task.moments
    missed = jnp.sum((copies * params.W - target) ** 2, axis=0)
    noise = jnp.sum(others**2) * jnp.sum(params.W**2) / task.d
    return (noise + fixed * missed[0] + rest * jnp.sum(missed[1:])) / 2


class Snapshot(NamedTuple):
    """What is measured at one moment, in training and by theory.

    Attributes:
        loss: population loss.
        attention: attention on all copies of x_T together.
        readout: w = <W*, W>/|W*|_F.
        gap: Da, mean score of the copies minus that of the others.
    """

    loss: Real[Number, ""]
    attention: Real[Number, ""]
    readout: Real[Number, ""]
    gap: Real[Number, ""]


def measure(params: Scored, target: Float[Array, "d d"], task: Retrieval) -> Snapshot:
    """Snapshot of weights."""
    a = jnp.asarray(params.a)
    return Snapshot(
        loss(params, target, task),
        jnp.sum(jax.nn.softmax(a)[-task.B :]),
        jnp.sum(target * params.W) / task.d**0.5,
        jnp.mean(a[-task.B :]) - jnp.mean(a[: -task.B]),
    )


TABLE = Table(
    {name: lambda s, name=name: getattr(s, name) for name in Snapshot._fields},
    ("sparse_attention",),
)
"""What can be measured, each of shape ()."""
TRAINED = Table(TABLE.functions, TABLE.systems, ("batch_loss", RELATIVE_LOSS))
"""What training records: the same, and the loss of the next batch."""
DEFAULT_RECORD = tuple(Snapshot._fields)
"""What is recorded unless asked otherwise."""
