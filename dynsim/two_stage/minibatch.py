"""Gradients on prompts that are chosen from a pool.

A step does two operations for each number that it reads, so that memory is its limit. Accelerators
take a batch at once. A CPU takes one prompt, or a few small ones, after the other: what was read
from memory is then still in the cache of the core when it is read again. The pool is laid out
for that before the first step.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.two_stage import model as relu_prompt
from dynsim.two_stage.model import PQ, Outputs
from dynsim.two_stage.task import PromptBatch, Prompts

CACHED = 2**16
"""Bytes of prompts that a CPU takes at once, which the caches of a core hold with room to spare."""
MOST = 8
"""Prompts that a CPU takes at once at most: each is copied by instructions of its own."""
PLACES = 8
"""Places of a prompt that a CPU reads in turns. It fetches ahead of what is read, but only within
a page of memory, so that the next pages have to be begun before the last one is read."""
STRETCH = 96
"""Numbers that are copied in one go at least: of shorter loops the compiler makes no vectors."""


class Laid(NamedTuple):
    """N prompts as a CPU reads them.

    Attributes:
        context: (N, S, R, C) context tokens, first all numbers of P's first coordinate, then those
            of its second, those of Q at last, cut into stretches of C: one for each coordinate, or
            a single one where that is too short. Stretch k is at [k % S, k // S], so that reading
            them in their order reads S places in turns.
        queries: (N, 2, d) tokens of P and of Q.
        labels: (N, L) labels.
    """

    context: Float[Array, "N S R C"]
    queries: Float[Array, "N 2 d"]
    labels: Float[Array, "N L"]


def laid(prompts: PromptBatch) -> Laid:
    """The same prompts for a CPU."""
    num, length, d = prompts.P.shape
    tokens = jnp.concatenate([prompts.P, prompts.Q], -1)
    stretch = length - 1 if length > STRETCH else 2 * d * (length - 1)
    stretches = tokens[:, :-1].swapaxes(1, 2).reshape(num, -1, stretch)
    places = math.gcd(stretches.shape[1], PLACES)
    context = stretches.reshape(num, -1, places, stretch).swapaxes(1, 2)
    return Laid(context, tokens[:, -1].reshape(num, 2, d), prompts.labels)


def gradient(params: PQ, task: Prompts, pool: PromptBatch | Laid, chosen: Int[Array, " B"]) -> PQ:
    """Gradient of `data_loss` on the prompts `chosen` from the `pool`, by their indices."""
    if isinstance(pool, Laid):
        return _in_parts(params, task, pool, chosen)
    # Rows of all tokens are gathered faster than tokens.
    rows = (leaf.reshape(len(leaf), -1)[chosen] for leaf in pool)
    leaves = (row.reshape(-1, *leaf.shape[1:]) for row, leaf in zip(rows, pool, strict=True))
    return jax.grad(relu_prompt.data_loss)(params, task, PromptBatch(*leaves))


def _in_parts(params: PQ, task: Prompts, pool: Laid, chosen: Int[Array, " B"]) -> PQ:
    """With h = (1/L) sum_i y_i 1[x_i^T U q > 0] x_i of a prompt with query q, its output is
    h^T U q and the gradient of that h q^T: the prompts themselves are read for h alone."""
    queries, labels = pool.queries[chosen], pool.labels[chosen]
    towards = jnp.einsum("cde,nce->ncd", jnp.stack([params.W, params.V]), queries)

    def passed(some: tuple[Array, Array, Array]) -> Float[Array, "n 2 d"]:
        indices, towards, labels = some
        # A gather would be shared with the other cores, which have runs of their own.
        slices = (jax.lax.dynamic_index_in_dim(pool.context, index) for index in indices)
        x = jnp.concatenate([each.swapaxes(1, 2) for each in slices])
        x = x.reshape(*towards.shape, -1)
        scores = jnp.einsum("ncdl,ncd->ncl", x, towards)
        return jnp.einsum("ncdl,ncl->ncd", x, jnp.where(scores > 0, labels[:, None], 0))

    size = part(len(chosen), pool.context[0].nbytes)
    parts = jax.tree.map(
        lambda each: each.reshape(-1, size, *each.shape[1:]), (chosen, towards, labels[:, :-1])
    )
    h = jax.lax.map(passed, parts).reshape(towards.shape) / labels.shape[1]
    P, Q = jnp.sum(h * towards, -1).T
    found = Outputs(P, Q if params.beta is None else Q + params.beta)
    slopes = jnp.stack(jax.grad(relu_prompt.outputs_loss)(found, task, labels[:, -1]))
    # An output that overflows ends a run, although its slope may be a number.
    slopes = jnp.where(jnp.isfinite(jnp.stack(found)), slopes, jnp.nan)
    W, V = jnp.einsum("cn,ncd,nce->cde", slopes, h, queries)
    return PQ(W, V, None if params.beta is None else jnp.sum(slopes[1]))


def part(batch: int, size: int) -> int:
    """How many of `batch` prompts, `size` bytes each, to take at once: a divisor of `batch`."""
    most = max(min(CACHED // size, MOST), 1)
    return max(n for n in range(1, most + 1) if batch % n == 0)
