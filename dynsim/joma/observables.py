"""What is measured on hidden nodes and their attention: pure functions of a snapshot."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from dynsim.classes.task import SequenceClasses
from dynsim.joma import model
from dynsim.joma.model import Joint, Shape
from dynsim.precision import Number
from dynsim.training.recording import RELATIVE_LOSS, Table
from dynsim.yz.model import population


class Snapshot(NamedTuple):
    """Weights at one moment, what they are weights of, and (K, M) the attended b of each class."""

    task: SequenceClasses
    params: Joint
    shape: Shape
    temperature: Real[Number, ""]
    b: Float[Array, "K M"]


def measure(
    task: SequenceClasses, params: Joint, shape: Shape, temperature: Real[Number, ""]
) -> Snapshot:
    """Snapshot of weights, with sequences of infinite length."""
    b = model.attended(params.Z, task, population(task), shape.attention, temperature)
    return Snapshot(task, params, shape, temperature, b)


def entropy(s: Snapshot) -> Float[Array, ""]:
    """Entropy of |b| over its sum in nat, averaged over classes by their prior."""
    size = jnp.abs(s.b)
    share = size / jnp.sum(size, axis=1, keepdims=True)
    return jnp.sum(jnp.asarray(s.task.prior) * jnp.sum(jax.scipy.special.entr(share), axis=1))


def correlation(s: Snapshot) -> Float[Array, ""]:
    """Correlation over tokens of the two sides of Theorem 1, where what they start from counts as
    disagreement; 0 where a side does not vary."""
    left = model.conserved(s.params.Z, s.shape, s.temperature)
    right = model.invariant(s.params, s.task, s.shape, s.temperature)
    left, right = left - jnp.mean(left), right - jnp.mean(right)
    norm = jnp.sqrt(jnp.sum(left**2) * jnp.sum(right**2))
    return jnp.where(norm > 0, jnp.sum(left * right) / jnp.where(norm > 0, norm, 1), 0)


OBSERVABLES: dict[str, Callable[[Snapshot], Array]] = {
    "loss": lambda s: model.loss(s.params, s.task, population(s.task), s.shape, s.temperature),
    "entropy": entropy,
    "correlation": correlation,
    "conserved": lambda s: (
        model.conserved(s.params.Z, s.shape, s.temperature)
        - model.invariant(s.params, s.task, s.shape, s.temperature)
    ),
    "weight": lambda s: jnp.sqrt(jnp.sum(jnp.asarray(s.params.Y.V) ** 2, axis=0)),
    "logits": lambda s: jnp.asarray(s.params.Z),
    "attended": lambda s: s.b,
}
"""All observables by name: population `loss` and `entropy` in nat, `correlation`, all of shape ();
`conserved` (M,) the left side of Theorem 1 less the right one, `weight` (M,) the norm of the
weights of each token, `logits` (Q, M) and `attended` (K, M)."""
TABLE = Table(OBSERVABLES, ("joma",))
"""What can be measured on weights at one moment."""
TRAINED = dataclasses.replace(TABLE, provided=("batch_loss", RELATIVE_LOSS))
"""What training records: the same, and the loss of the next batch."""
DEFAULT_RECORD = ("loss", "entropy", "correlation", "weight")
"""What is recorded unless asked otherwise."""
