"""Random keys in the state of an optimiser, such as the one of `optax.add_noise`.

An optimiser makes the keys of its state itself, the same ones in every run. At the start of a run,
each of them is combined with the key of that run, so that runs differ as they do by batches, and
runs with the same key draw the same numbers at any learning rate.

A leaf of the state is a key if it is made by `jax.random.key`. The older keys of
`jax.random.PRNGKey` are plain arrays of uint32. These are keys if the name of their field contains
"key" or "rng", as in all states of optax. A rule that draws random numbers without a key in its
state is an error.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from jaxtyping import Array, PRNGKeyArray, PyTree

from dynsim.compiling import inside
from dynsim.training.rule import Rule
from dynsim.training.rules import BUILT_IN_RULES

OLD_KEY = re.compile("key|rng", re.IGNORECASE)
"""Names of fields that hold keys of `jax.random.PRNGKey`."""
OLD_SIZES = (2, 4)
"""Numbers of uint32 in such a key; which one depends on the generator."""
RANDOM_OPERATIONS = {"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform"}
"""Operations of JAX that draw random numbers."""


def initial_state(rule: Rule, params: PyTree, groups: PyTree, key: PRNGKeyArray | None) -> PyTree:
    """Return the state of a rule before the first step, with the random keys of the run.

    Args:
        groups: the groups of weights, if the rule has rates by group.
        key: random key of the starting weights, None if the run has none.

    Raises:
        ValueError: for a rule that draws random numbers, if the run or the state has no key, or if
            it makes a key in each step.
    """
    state = rule.init(params)
    if type(rule) in BUILT_IN_RULES:
        return state
    leaves, structure = jax.tree.flatten_with_path(state)
    # By their places, from which each key of a state gets another one of the run.
    keys = {i for i, (path, leaf) in enumerate(leaves) if _is_key(path, leaf)}

    def step(params: PyTree, state: PyTree) -> PyTree:
        return rule.update(params, state, params, jnp.int32(0), groups=groups)

    operations = set(_operations(jax.make_jaxpr(step)(params, state).jaxpr))
    # A key that each step makes from a seed would draw the same numbers in all steps.
    if RANDOM_OPERATIONS & operations and (not keys or "random_seed" in operations):
        raise ValueError(
            f"rule = {rule.name}: draws random numbers with a key that is the same in all runs; "
            "must keep its key in its state: from jax.random.key, or from jax.random.PRNGKey in a "
            "field whose name contains 'key' or 'rng'"
        )
    if keys and key is None:
        raise ValueError(f"key = None: rule {rule.name} is random and needs one")
    if key is not None:
        # This key differs from those of the starting weights, the data and the noise of a rule.
        run_key = jax.random.fold_in(key, 2**32 - 2)
        for i in keys:
            leaves[i] = (), _combine(leaves[i][1], jax.random.fold_in(run_key, i))
    return structure.unflatten([leaf for _, leaf in leaves])


def has_keys(rule: Rule, params: PyTree) -> bool:
    """Return whether the state of a rule for these weights, or their shapes, has random keys."""
    if type(rule) in BUILT_IN_RULES:
        return False
    state = jax.tree.leaves_with_path(jax.eval_shape(rule.init, params))
    return any(_is_key(path, leaf) for path, leaf in state)


def check_without_keys(rule: Rule, params: PyTree) -> None:
    """Raise `ValueError` for a rule with random keys in its state, which no theory describes."""
    if has_keys(rule, params):
        raise ValueError(
            f"rule = {rule.name}: has random keys in its state; no theory describes it, as a flow "
            "is the limit without noise"
        )


def _is_key(path: jax.tree_util.KeyPath, leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    # A leaf without a dtype is no array; a key of `jax.random.key` has a dtype of its own.
    if dtype is None or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return dtype is not None
    # Items of a list in a field are called by that field.
    names = [entry for entry in path if not isinstance(entry, jax.tree_util.SequenceKey)]
    return (
        dtype == jnp.uint32
        and bool(leaf.shape)
        and leaf.shape[-1] in OLD_SIZES
        and any(OLD_KEY.search(str(name)) for name in names[-1:])
    )


def _combine(key: Array, run_key: PRNGKeyArray) -> Array:
    # The result is of the same kind as `key`, or an array of such keys.
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        data = _combine(jax.random.key_data(key), run_key)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
    # XOR with uniform bits gives uniform bits, whatever the optimiser's own key is.
    return key ^ jax.random.bits(run_key, key.shape, jnp.uint32)


def _operations(program: Jaxpr) -> Iterator[str]:
    """Yield the names of all operations of a program, including those of its parts."""
    for equation in program.eqns:
        yield equation.primitive.name
        for part in inside(equation):
            yield from _operations(part)
