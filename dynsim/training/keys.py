"""How the key of a run is spent: starting weights and data have keys of their own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree


def split(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Keys of the starting weights and of the data; step k draws with fold_in(second, k)."""
    key_init, key_data = jax.random.split(key)
    return key_init, key_data


def of_steps(key: PRNGKeyArray, steps: int) -> Callable[[Int[Array, ""]], PRNGKeyArray]:
    """The keys fold_in(key, k) for k in [0, steps], made all at once, by k."""
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(jnp.arange(steps + 1, dtype=jnp.int32))
    return lambda k: keys[k]


def normal_noise(key: PRNGKeyArray, k: Int[Array, ""], like: PyTree) -> PyTree:
    """Independent standard normal numbers for all weights in step k."""
    return optax.tree.random_like(jax.random.fold_in(key, k), like, jax.random.normal)
