"""Observables of the two components: pure functions of a snapshot of the weights.

The snapshot contains the outputs on a fixed set of fresh prompts. Symbols are those of
arXiv:2502.20681: K1 and K2 are the logistic losses (in nat) of component P through W alone and
of component Q through V alone; J is the loss of their sum.

`rank_curves` tests the spectral corollary: which singular directions of the trained weights
carry which component. The directions of diag(Wbar, Vbar) are ranked by their singular value. Either
only the k largest are kept, or they are dropped; then losses and accuracies of both components are
measured again.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Real

from dynsim import checks
from dynsim.precision import AnyArray, one_by_one, precision
from dynsim.training.recording import Record, Recording, Table
from dynsim.two_stage.model import PQ, Outputs, PromptBatch, Split, attend, logistic, outputs


class PromptSnapshot(eqx.Module):
    """Weights at one time, and their outputs on N prompts.

    Attributes:
        weights: the split weights.
        labels: (N,) labels of the queries.
        total, signal: outputs of the full weights and of their signal part alone.
        gated: (N,) N_V with the gates of the full weights and the scores of their signal part.
    """

    weights: Split
    labels: Float[Array, " N"]
    total: Outputs
    signal: Outputs
    gated: Float[Array, " N"]


Observable = Callable[[PromptSnapshot], Array]


def measure(weights: Split, batch: PromptBatch) -> PromptSnapshot:
    """Return the snapshot of `weights` on the prompts of `batch`."""
    total = weights.total
    # The gates of all weights, but the scores of the signal.
    gated = attend(weights.signal.V, batch.Q, batch.labels, gates=total.V)
    return PromptSnapshot(
        weights,
        batch.labels[:, -1],
        outputs(total, batch),
        outputs(weights.signal, batch),
        gated,
    )


def separation(
    scores: Float[Array, " N"], positive: Bool[Array, " N"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Measure how well thresholds on `scores` separate `positive` entries from the others.

    Returns:
        The area under the ROC curve, where ties count half; and the largest balanced accuracy over
        all thresholds, which at chance level is biased upwards by about 0.01 at N = 2048.
    """
    order = jnp.argsort(scores)
    ranked, is_positive = scores[order], positive[order]
    none = jnp.zeros(1, scores.dtype)
    negatives = jnp.concatenate([none, jnp.cumsum(~is_positive, dtype=scores.dtype)])
    positives = jnp.concatenate([none, jnp.cumsum(is_positive, dtype=scores.dtype)])
    # Of each entry, the negatives with a lower score, and those with at most its own.
    below = negatives[jnp.searchsorted(ranked, ranked, side="left")]
    up_to = negatives[jnp.searchsorted(ranked, ranked, side="right")]
    area = jnp.sum(jnp.where(is_positive, below + up_to, 0)) / 2
    area = area / (negatives[-1] * positives[-1])
    # A threshold cannot separate equal scores.
    edge = jnp.ones(1, bool)
    possible = jnp.concatenate([edge, ranked[1:] > ranked[:-1], edge])
    right = negatives / negatives[-1] + (positives[-1] - positives) / positives[-1]
    return area, jnp.max(jnp.where(possible, right / 2, 0))


def reduced_state(weights: PQ) -> Float[Array, "7"]:
    """Return the seven variables of the reduced ODE: W[0,0], V[0,0], and the mean squares of
    W[0,1:], W[1:,:], V[0,1:], V[1:,0] and V[1:,1:]."""
    W, V = weights.W, weights.V
    blocks = (W[0, 1:], W[1:], V[0, 1:], V[1:, 0], V[1:, 1:])
    return jnp.stack([W[0, 0], V[0, 0], *(jnp.mean(block**2) for block in blocks)])


def _loss(margin: Float[Array, " N"]) -> Float[Array, ""]:
    return jnp.mean(logistic(margin))


def _loss_where(s: PromptSnapshot, label: int) -> Float[Array, ""]:
    return jnp.mean(logistic(s.labels * s.total.Q), where=s.labels == label)


def _accuracy(s: PromptSnapshot, output: Float[Array, " N"]) -> Float[Array, ""]:
    return jnp.mean(s.labels * output > 0, dtype=output.dtype)


def _norm(matrix: Float[AnyArray, "d d"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(matrix**2))


def _singular(matrix: Float[AnyArray, "d d"]) -> Float[Array, " d"]:
    left, _, right = one_by_one(jnp.linalg.svd)(jax.lax.stop_gradient(matrix))
    # Derivatives of singular values do not need those of the vectors.
    return jnp.einsum("ji,jk,ik->i", left, matrix, right)


OBSERVABLES: dict[str, Observable] = {
    "K1": lambda s: _loss(s.labels * s.total.P),
    "K2": lambda s: _loss(s.labels * s.total.Q),
    "J": lambda s: _loss(s.labels * (s.total.P + s.total.Q)),
    "K2_pos": lambda s: _loss_where(s, 1),
    "K2_neg": lambda s: _loss_where(s, -1),
    "K1_signal": lambda s: _loss(s.labels * s.signal.P),
    "K2_signal": lambda s: _loss(s.labels * s.signal.Q),
    "K2_gated": lambda s: _loss(s.labels * s.gated),
    "accuracy_P": lambda s: _accuracy(s, s.total.P),
    "accuracy_Q": lambda s: _accuracy(s, s.total.Q),
    "best_accuracy_Q": lambda s: separation(s.total.Q, s.labels > 0)[1],
    "auc_Q": lambda s: separation(s.total.Q, s.labels > 0)[0],
    "auc_Q_signal": lambda s: separation(s.signal.Q, s.labels > 0)[0],
    "W_norm": lambda s: _norm(s.weights.total.W),
    "V_norm": lambda s: _norm(s.weights.total.V),
    "W_signal_norm": lambda s: _norm(s.weights.signal.W),
    "V_signal_norm": lambda s: _norm(s.weights.signal.V),
    "W_noise_norm": lambda s: _norm(s.weights.noise.W),
    "V_noise_norm": lambda s: _norm(s.weights.noise.V),
    "W_trace": lambda s: jnp.trace(s.weights.signal.W),
    "V_trace": lambda s: jnp.trace(s.weights.signal.V),
    "V_trace_abs": lambda s: jnp.abs(jnp.trace(s.weights.signal.V)),
    "W_singular": lambda s: _singular(s.weights.signal.W),
    "V_singular": lambda s: _singular(s.weights.signal.V),
    "state": lambda s: reduced_state(s.weights.total),
    "W_signal": lambda s: jnp.asarray(s.weights.signal.W),
    "V_signal": lambda s: jnp.asarray(s.weights.signal.V),
}
"""All observables by name. Losses and accuracies are those of the total weights unless the name
contains "signal"; `K2_pos` and `K2_neg` are K2 over the queries of one label. Norms are Frobenius
norms. Traces and singular values are those of the signal, because the noise alone gives a trace
with a standard deviation of tau sqrt(d). The sign of V_trace is random. `state` is
`reduced_state`."""
TABLE = Table(OBSERVABLES, ("two_stage",))
"""Observables of weights at one time."""
DEFAULT_RECORD = ("K1", "K2", "auc_Q", "W_norm", "V_norm", "W_trace", "V_trace")
"""Names recorded by default."""
LEARNED = {"P": ("K1", 0.2), "Q": ("K2", 0.6)}
"""A component counts as learned when its loss falls below this (section 4 of the theory)."""


def first_below(
    times: Real[AnyArray, " S"], values: Real[AnyArray, "*B S"], level: float
) -> Float[np.ndarray, "*B"]:
    """Return the first time at which `values` are below `level`, linear between the recorded times;
    inf if they never are. t_P is `first_below(t, K1, 0.2)` and t_Q is `first_below(t, K2, 0.6)`."""
    times, values = np.asarray(times, np.float64), np.asarray(values, np.float64)
    below = values < level
    at = np.argmax(below, axis=-1)
    before = np.maximum(at - 1, 0)
    high, low = (np.take_along_axis(values, k[..., None], -1)[..., 0] for k in (before, at))
    share = np.where(at > 0, (high - level) / np.where(high > low, high - low, 1), 0)
    crossing = times[before] + share * (times[at] - times[before])
    return np.where(below.any(-1), crossing, np.inf)


RANK_RECORD = ("K1", "K2", "accuracy_P", "auc_Q", "best_accuracy_Q")


class RankCurves(NamedTuple):
    """Observables against rank, for the 2d singular directions of diag(W, V).

    Attributes:
        singular: (2d,) singular values, largest first.
        block: (2d,) 0 where the direction belongs to W, 1 where it belongs to V.
        kept: (K + 1,) observables by name with only the k largest directions, k = 0..K.
        dropped: (K + 1,) observables by name without the k largest directions.
    """

    singular: Float[Array, " R"]
    block: Int[Array, " R"]
    kept: dict[str, Float[Array, " K+1"]]
    dropped: dict[str, Float[Array, " K+1"]]


def rank_curves(
    weights: PQ,
    batch: PromptBatch,
    record: Record = RANK_RECORD,
    *,
    largest: int | None = None,
) -> RankCurves:
    """Compute rank-preservation curves of `weights` on the prompts of `batch`, in its precision.

    Args:
        weights: usually the signal part of trained weights.
        batch: fresh prompts.
        record: a name from `dynsim.two_stage.observables.TABLE`, functions by name, or a list of
            both; all are evaluated on the truncated weights.
        largest: K, the largest number of directions to keep or drop; 2d if None.

    Raises:
        ValueError: for an unknown name, or `largest` < 0.
    """
    largest = 2 * len(weights.W) if largest is None else checks.integer("largest", largest, 0)
    with precision(str(batch.labels.dtype), weights, batch):
        return _curves(weights, batch, TABLE.resolve(record), largest)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _curves(weights: PQ, batch: PromptBatch, record: Recording, largest: int) -> RankCurves:
    # The directions of both blocks are ranked together, as those of diag(W, V).
    left, sigma, right = jnp.linalg.svd(jnp.stack([weights.W, weights.V]), full_matrices=False)
    # rank is the inverse permutation of order.
    order = jnp.argsort(-sigma.ravel())
    rank = jnp.argsort(order).reshape(sigma.shape)

    def observables_of(directions: Bool[Array, "2 d"]) -> dict[str, Array]:
        W, V = jnp.einsum("bij,bj,bjk->bik", left, jnp.where(directions, sigma, 0), right)
        signal = PQ(W, V, weights.beta)
        truncated = Split(signal, jax.tree.map(jnp.zeros_like, PQ(W, V)))
        return record(measure(truncated, batch))

    # One number of directions at a time, because each needs all prompts.
    sizes = jnp.arange(largest + 1)
    with_largest = jax.lax.map(lambda k: observables_of(rank < k), sizes)
    without_largest = jax.lax.map(lambda k: observables_of(rank >= k), sizes)
    block = jnp.broadcast_to(jnp.arange(2)[:, None], sigma.shape).ravel()[order]
    return RankCurves(sigma.ravel()[order], block, with_largest, without_largest)
