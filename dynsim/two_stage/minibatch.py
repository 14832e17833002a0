"""Gradients on prompts that are chosen from a pool.

A step does two operations for each number that it reads, so that memory is its limit. Accelerators
take a batch at once. A CPU takes one prompt after the other, which then fits the cache next to the
core, and finds it laid out for that: see `Laid`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynsim.two_stage import model as relu_prompt
from dynsim.two_stage.model import PQ, Outputs
from dynsim.two_stage.task import PromptBatch, Prompts

STREAMS = 8
"""Places of a prompt that a CPU reads in turns. It fetches ahead of what is read, but only to the
end of a page of memory: at 16 to 33 kB for a prompt the next pages have to be begun meanwhile."""


class Laid(NamedTuple):
    """N prompts as a CPU reads them.

    Attributes:
        context: (N, S, R, L - 1) the 2 d numbers of the context tokens, those of P before those of
            Q: number k of all tokens is at [k % S, k // S]. Going through them in their order
            reads S places in turns, and the inner loop of a copy is long enough for vectors.
        queries: (N, 2, d) tokens of P and of Q.
        labels: (N, L) labels.
    """

    context: Float[Array, "N S R C"]
    queries: Float[Array, "N 2 d"]
    labels: Float[Array, "N L"]


def laid(prompts: PromptBatch) -> Laid:
    """The same prompts for a CPU."""
    num, length, d = prompts.P.shape
    streams = math.gcd(2 * d, STREAMS)
    tokens = jnp.concatenate([prompts.P, prompts.Q], -1)
    rows = tokens[:, :-1].reshape(num, length - 1, -1, streams)
    return Laid(rows.transpose(0, 3, 2, 1), tokens[:, -1].reshape(num, 2, d), prompts.labels)


def gradient(params: PQ, task: Prompts, pool: PromptBatch | Laid, chosen: Int[Array, " B"]) -> PQ:
    """Gradient of `data_loss` on the prompts `chosen` from the `pool`, by their indices."""
    if isinstance(pool, Laid):
        return _one_by_one(params, task, pool, chosen)
    # Rows of all tokens are gathered faster than tokens.
    rows = (leaf.reshape(len(leaf), -1)[chosen] for leaf in pool)
    leaves = (row.reshape(-1, *leaf.shape[1:]) for row, leaf in zip(rows, pool, strict=True))
    return jax.grad(relu_prompt.data_loss)(params, task, PromptBatch(*leaves))


def _one_by_one(params: PQ, task: Prompts, pool: Laid, chosen: Int[Array, " B"]) -> PQ:
    """With h = (1/L) sum_i y_i 1[x_i^T U q > 0] x_i of a prompt with query q, its output is
    h^T U q and the gradient of that h q^T: the prompts themselves are read for h alone."""
    queries, labels = pool.queries[chosen], pool.labels[chosen]
    towards = jnp.einsum("cde,nce->ncd", jnp.stack([params.W, params.V]), queries)

    def passed(prompt: tuple[Array, Array, Array]) -> Float[Array, "2 d"]:
        index, towards, labels = prompt
        x = jax.lax.dynamic_index_in_dim(pool.context, index, keepdims=False)
        x = x.swapaxes(0, 1).reshape(*towards.shape, -1)
        scores = jnp.einsum("cdl,cd->cl", x, towards)
        return jnp.einsum("cdl,cl->cd", x, jnp.where(scores > 0, labels, 0))

    h = jax.lax.map(passed, (chosen, towards, labels[:, :-1])) / labels.shape[1]
    P, Q = jnp.sum(h * towards, -1).T
    found = Outputs(P, Q if params.beta is None else Q + params.beta)
    slopes = jnp.stack(jax.grad(relu_prompt.outputs_loss)(found, task, labels[:, -1]))
    # An output that overflows ends a run, although its slope may be a number.
    slopes = jnp.where(jnp.isfinite(jnp.stack(found)), slopes, jnp.nan)
    W, V = jnp.einsum("cn,ncd,nce->cde", slopes, h, queries)
    return PQ(W, V, None if params.beta is None else jnp.sum(slopes[1]))
