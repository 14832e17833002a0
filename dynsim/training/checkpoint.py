"""The state of a training run between two steps. A run of 1000 steps, resumed for 1000 more, gives
exactly the numbers of a run of 2000 steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt8

from dynsim import checks


class Checkpoint(eqx.Module):
    """The state of a training run between two steps.

    Attributes:
        step: number of steps made.
        state: weights and state of the update rule, as the loop stores them; None before the first
            step.
        seen: the value that the last record passed on to the next one.
    """

    step: int = eqx.field(static=True, default=0)
    state: PyTree = None
    seen: PyTree = ()


def checked_start(checkpoint: Checkpoint | bool) -> Checkpoint | None:
    """Return the checkpoint to start from, or None for a run that keeps no checkpoint.

    Raises:
        ValueError: for anything but True, False or a `Checkpoint`.
    """
    if isinstance(checkpoint, bool):
        return Checkpoint() if checkpoint else None
    checks.kind("checkpoint", checkpoint, Checkpoint)
    return checkpoint


def restore(checkpoint: Checkpoint, state: PyTree, seen: PyTree) -> tuple[int, PyTree, PyTree]:
    """Return the step, the state and the last record's value from which a run begins; without a
    checkpointed state, `state` and `seen`.

    Raises:
        ValueError: for a checkpoint of a run whose state has other parts, shapes or dtypes.
    """
    if checkpoint.state is None:
        return checkpoint.step, state, seen

    def shapes(state: PyTree, seen: PyTree) -> dict[str, str]:
        leaves = jax.tree.leaves_with_path({"state": state, "seen": seen})
        return {
            jax.tree_util.keystr(path, simple=True, separator="."): (
                f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"
            )
            for path, leaf in leaves
        }

    here, there = shapes(state, seen), shapes(checkpoint.state, checkpoint.seen)
    if here != there:
        name = next(name for name in {**here, **there} if here.get(name) != there.get(name))
        raise ValueError(
            "checkpoint: must be of a run of the same task, rule, dtype and record; "
            f"{name} is {here.get(name, 'missing')} in this run and "
            f"{there.get(name, 'missing')} there"
        )
    return checkpoint.step, checkpoint.state, checkpoint.seen


def as_bytes(checkpoint: Checkpoint) -> UInt8[Array, " N"]:
    """Return the state and the last record's value of a checkpoint as bytes, without rounding."""
    leaves = map(_numbers, jax.tree.leaves((checkpoint.state, checkpoint.seen)))
    return jnp.concatenate([leaf.ravel().view(jnp.uint8) for leaf in leaves])


def from_bytes(data: UInt8[Array, " N"], like: Checkpoint, step: int) -> Checkpoint:
    """Restore the checkpoint after `step` steps from its bytes, which other bytes may follow.
    `like` has the shapes and dtypes of its state."""
    templates, structure = jax.tree.flatten((like.state, like.seen))
    leaves: list[Array] = []
    begin = 0
    for template in templates:
        empty = jnp.empty(template.shape, template.dtype)
        numbers = _numbers(empty)
        end = begin + numbers.nbytes
        leaf = data[begin:end].view(numbers.dtype).reshape(numbers.shape)
        if numbers is not empty:
            leaf = jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(empty))
        leaves.append(leaf)
        begin = end
    return Checkpoint(step, *jax.tree.unflatten(structure, leaves))


def _numbers(leaf: Array) -> Array:
    # Random keys have no bytes of their own, only the numbers in them.
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
