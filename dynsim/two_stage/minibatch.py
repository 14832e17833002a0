"""Gradients on prompts that are chosen from a pool.

A step does two operations for each number that it reads, so that memory is its limit. On a CPU it
takes a part of the batch after the other: what was gathered from memory is then still in the cache
of the core when the forward and the backward pass read it again. Accelerators take it at once.
"""

import functools

import jax
from jaxtyping import Array, Int

from dynsim.two_stage import model as relu_prompt
from dynsim.two_stage.model import PQ
from dynsim.two_stage.task import PromptBatch, Prompts

CACHED = 2**20
"""Bytes of prompts to take at once, of which the second-level cache of a core holds some."""


def gradient(
    params: PQ, task: Prompts, pool: PromptBatch, chosen: Int[Array, " B"], *, in_parts: bool
) -> PQ:
    """Gradient of `data_loss` on the prompts `chosen` from the `pool`, by their indices: `in_parts`
    for a CPU, else all at once."""
    # A CPU gathers long rows faster than blocks, and the gather is most of a step.
    rows = [leaf.reshape(len(leaf), -1) for leaf in pool]

    def at_once(params: PQ, chosen: Int[Array, " N"]) -> PQ:
        gathered = zip(rows, pool, strict=True)
        batch = (row[chosen].reshape(len(chosen), *leaf.shape[1:]) for row, leaf in gathered)
        return jax.grad(relu_prompt.data_loss)(params, task, PromptBatch(*batch))

    if not in_parts:
        return at_once(params, chosen)
    parts = chosen.reshape(-1, part(len(chosen), sum(row[0].nbytes for row in rows)))
    found = jax.lax.map(functools.partial(at_once, params), parts)
    return jax.tree.map(lambda each: each.mean(0), found)


def part(batch: int, size: int) -> int:
    """How many of `batch` prompts, `size` bytes each, to take at once: the largest divisor of
    `batch` with which they take between half of `CACHED` and all of it; `batch` without one."""
    most = max(CACHED // size, 1)
    fitting = [n for n in range((most + 1) // 2, most + 1) if batch % n == 0]
    return fitting[-1] if batch > most and fitting else batch
