"""What a training leaves behind so that it can go on: 1000 steps, and 1000 more from their
checkpoint, are the run of 2000 steps, number by number."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt8

from dynsim import checks


class Checkpoint(eqx.Module):
    """A training between two steps.

    Attributes:
        step: how many steps it has made.
        state: weights and memory of the update rule, in the form in which the loop has them; None
            before the first step.
        seen: what its last record handed on.
    """

    step: int = eqx.field(static=True, default=0)
    state: PyTree = None
    seen: PyTree = ()


def checked_start(checkpoint: Checkpoint | bool) -> Checkpoint | None:
    """Where a run begins, None for one that leaves no checkpoint.

    Raises:
        ValueError: for what is neither True, nor False, nor a `Checkpoint`.
    """
    if isinstance(checkpoint, bool):
        return Checkpoint() if checkpoint else None
    checks.kind("checkpoint", checkpoint, Checkpoint)
    return checkpoint


def begun(checkpoint: Checkpoint, state: PyTree, seen: PyTree) -> tuple[int, PyTree, PyTree]:
    """Step, state and what the last record handed on, with which a run begins that would begin
    with `state` and `seen` otherwise.

    Raises:
        ValueError: for a checkpoint of a run whose state has other parts, shapes or dtypes.
    """
    if checkpoint.state is None:
        return checkpoint.step, state, seen
    want, found = _parts(state, seen), _parts(checkpoint.state, checkpoint.seen)
    if want != found:
        name = next(name for name in {**want, **found} if want.get(name) != found.get(name))
        raise ValueError(
            "checkpoint: must be of a run of the same task, rule, dtype and record; in this run "
            f"{name} is {want.get(name, 'missing')}, there {found.get(name, 'missing')}"
        )
    return checkpoint.step, checkpoint.state, checkpoint.seen


def _parts(state: PyTree, seen: PyTree) -> dict[str, str]:
    leaves = jax.tree.leaves_with_path({"state": state, "seen": seen})
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    shapes = (f"{jnp.result_type(leaf)}{list(np.shape(leaf))}" for _, leaf in leaves)
    return dict(zip(names, shapes, strict=True))


def packed(checkpoint: Checkpoint) -> UInt8[Array, " N"]:
    """The state as bytes, in which nothing is rounded, whatever the system."""
    leaves = jax.tree.leaves((checkpoint.state, checkpoint.seen))
    return jnp.concatenate([jax.lax.bitcast_convert_type(x, jnp.uint8).ravel() for x in leaves])


def unpacked(state: UInt8[Array, " N"], like: Checkpoint, step: int) -> Checkpoint:
    """The checkpoint after `step` steps from its bytes, which may be followed by others; `like`
    has the shapes and dtypes of its state."""
    leaves, structure = jax.tree.flatten((like.state, like.seen))
    found: list[Array] = []
    begin = 0
    for leaf in leaves:
        width = np.dtype(leaf.dtype).itemsize
        end = begin + math.prod(leaf.shape) * width
        raw = state[begin:end].reshape(*leaf.shape, width)
        found.append(jax.lax.bitcast_convert_type(raw, leaf.dtype))
        begin = end
    return Checkpoint(step, *jax.tree.unflatten(structure, found))
