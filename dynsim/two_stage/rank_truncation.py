"""Which singular directions of the trained weights carry which component.

The spectral corollary of arXiv:2502.20681, measured: the directions of diag(Wbar, Vbar) are
ranked by their singular value, the k largest are kept alone or dropped, and losses and
accuracies of both components are taken again.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynsim import checks
from dynsim.precision import precision
from dynsim.training.recording import Record, Recording
from dynsim.two_stage import observables as prompt_observables
from dynsim.two_stage.model import PQ, PromptBatch, Split

DEFAULT_RECORD = ("K1", "K2", "accuracy_P", "auc_Q", "best_accuracy_Q")


class RankCurves(NamedTuple):
    """Observables against rank, for the 2d singular directions of diag(W, V).

    Attributes:
        singular: (2d,) singular values, largest first.
        block: (2d,) 0 where the direction belongs to W, 1 where it belongs to V.
        kept: (K + 1,) observables by name with the k largest directions alone, k = 0..K.
        dropped: (K + 1,) observables by name without the k largest directions.
    """

    singular: Float[Array, " R"]
    block: Int[Array, " R"]
    kept: dict[str, Float[Array, " K+1"]]
    dropped: dict[str, Float[Array, " K+1"]]


def rank_curves(
    weights: PQ,
    batch: PromptBatch,
    record: Record = DEFAULT_RECORD,
    *,
    largest: int | None = None,
) -> RankCurves:
    """Rank-preservation curves of `weights` on the prompts of `batch`, in its precision.

    Args:
        weights: usually the signal part of trained weights.
        batch: fresh prompts.
        record: a name from `dynsim.two_stage.observables.TABLE`, functions by name, or a list of
            both; all read the truncated weights.
        largest: K, the largest number of directions to keep or drop; 2d if None.

    Raises:
        ValueError: for an unknown name, or `largest` < 0.
    """
    largest = 2 * len(weights.W) if largest is None else checks.integer("largest", largest, 0)
    with precision(str(batch.labels.dtype), weights, batch):
        return _curves(weights, batch, prompt_observables.TABLE.resolve(record), largest)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _curves(weights: PQ, batch: PromptBatch, record: Recording, largest: int) -> RankCurves:
    left, sigma, right = jnp.linalg.svd(jnp.stack([weights.W, weights.V]), full_matrices=False)
    order = jnp.argsort(-sigma.ravel())
    rank = jnp.argsort(order).reshape(sigma.shape)

    def without_some(keep: Bool[Array, "2 d"]) -> dict[str, Array]:
        W, V = jnp.einsum("bij,bj,bjk->bik", left, jnp.where(keep, sigma, 0), right)
        signal = PQ(W, V, weights.beta)
        truncated = Split(signal, jax.tree.map(jnp.zeros_like, PQ(W, V)))
        return record(prompt_observables.measure(truncated, batch))

    sizes = jnp.arange(largest + 1)
    kept = jax.lax.map(lambda k: without_some(rank < k), sizes)
    dropped = jax.lax.map(lambda k: without_some(rank >= k), sizes)
    block = jnp.broadcast_to(jnp.arange(2)[:, None], sigma.shape).ravel()[order]
    return RankCurves(sigma.ravel()[order], block, kept, dropped)
