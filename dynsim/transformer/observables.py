"""What is measured on a transformer: pure functions of its attention and losses on held-out text.

The entropy of attention is that of each row (a query's weights on the keys up to it) in nat,
averaged over heads, windows and the queries from `FIRST_QUERY` on. The query at position t has
t + 1 keys, so that uniform attention has the mean of log(t + 1), `uniform_entropy`.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from dynsim import checks
from dynsim.precision import AnyArray
from dynsim.transformer.model import Transformer

FIRST_QUERY = 1
"""First position whose row counts. The row of position 0 has one key, and so no entropy to lose:
with it the mean would be smaller by the factor (T - 1) / T, whatever was learned."""


class TextSnapshot(eqx.Module):
    """A transformer at one moment, on N held-out windows and P prompts.

    Attributes:
        model: the transformer.
        losses: (N, T) cross entropy of each held-out token in nat.
        maps: (N, L, H, T, T) attention on the held-out windows.
        before: (N, L, H, T, T) the same at the record before, or at the start for the first one.
        prompt_maps: (P, L, H, T', T') attention on the prompts.
    """

    model: Transformer
    losses: Float[Array, "N T"]
    maps: Float[Array, "N L H T T"]
    before: Float[Array, "N L H T T"]
    prompt_maps: Float[Array, "P L H T2 T2"]


def uniform_entropy(length: int) -> float:
    """Entropy (nat) of attention that is uniform over the allowed keys: the upper bound."""
    keys = np.arange(FIRST_QUERY + 1, checks.integer("length", length, FIRST_QUERY + 1) + 1)
    return float(np.log(keys).mean())


def layer_entropy(maps: Float[AnyArray, "N L H T T"]) -> Float[Array, " L"]:
    """Mean entropy (nat) of the rows of each layer."""
    return _by_layer(-jnp.sum(xlogy(maps, maps), axis=-1))


def layer_top(maps: Float[AnyArray, "N L H T T"]) -> Float[Array, " L"]:
    """Mean of the largest weight of a row: 1 where all attention is on one key."""
    return _by_layer(jnp.max(maps, axis=-1))


def layer_change(
    before: Float[AnyArray, "N L H T T"], maps: Float[AnyArray, "N L H T T"]
) -> Float[Array, " L"]:
    """Mean total variation between the rows of two moments: the share of attention, in [0, 1],
    that moved to other keys."""
    return _by_layer(jnp.sum(jnp.abs(maps - before), axis=-1) / 2)


def _by_layer(rows: Float[Array, "N L H T"]) -> Float[Array, " L"]:
    return jnp.mean(rows[..., FIRST_QUERY:], axis=(0, 2, 3))


OBSERVABLES: dict[str, Callable[[TextSnapshot], Array]] = {
    "loss": lambda s: jnp.mean(s.losses),
    "entropy": lambda s: jnp.mean(layer_entropy(s.maps)),
    "layer_entropy": lambda s: layer_entropy(s.maps),
    "top": lambda s: jnp.mean(layer_top(s.maps)),
    "layer_top": lambda s: layer_top(s.maps),
    "change": lambda s: jnp.mean(layer_change(s.before, s.maps)),
    "layer_change": lambda s: layer_change(s.before, s.maps),
    "attention": lambda s: s.prompt_maps,
}
"""All observables by name: nat per held-out token; entropy, largest weight and change since the
record before of attention on held-out text; and the maps on the prompts."""
