"""Requirements of training on a problem and a rule, checked before anything is compiled."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, PRNGKeyArray, PyTree

from dynsim import checks, numeric
from dynsim.precision import DType
from dynsim.problem.base import Problem, call_user, examples
from dynsim.problem.build import narrowed
from dynsim.training.rule import Rule, by_group


class Parts(NamedTuple):
    """Weights, separated into trained arrays, other arrays, and the rest.

    Attributes:
        params: the floating-point arrays that are trained.
        arrays: other arrays.
        fixed: everything else, such as functions.
    """

    params: PyTree
    arrays: PyTree
    fixed: PyTree

    @classmethod
    def of(cls, weights: PyTree, dtype: DType, problem: Problem) -> "Parts":
        """Separate `weights`; raises `ValueError` if there is nothing to train."""
        name, frozen = type(problem).__name__, call_user(problem, "is_frozen", weights)
        weights = numeric.tree(f"{name}.init", weights, dtype, finite=False)
        weights = jax.tree.map(lambda x: jnp.asarray(x) if eqx.is_array_like(x) else x, weights)
        arrays, fixed = eqx.partition(weights, eqx.is_array)
        floats, others = eqx.partition(arrays, eqx.is_inexact_array)
        if any(map(jnp.iscomplexobj, jax.tree.leaves(floats))):
            raise ValueError(f"{name}.init: must return real weights, {returned(weights)}")
        # Integers and frozen weights belong to the model, but have no gradient.
        params, fixed_floats = narrowed(floats, dtype), None
        if frozen is not None:
            if not all(isinstance(leaf, bool) for leaf in jax.tree.leaves(frozen)):
                raise ValueError(
                    f"{name}.is_frozen: must return bools in place of the weights, "
                    f"{returned(frozen)}"
                )
            try:
                # `frozen` is a prefix of the weights: one bool may stand for many arrays.
                is_frozen = jax.tree.map(
                    lambda frozen, part: jax.tree.map(lambda _: frozen, part), frozen, params
                )
            except ValueError as error:
                raise ValueError(
                    f"{name}.is_frozen: does not have the structure of the weights ({error})"
                ) from None
            fixed_floats, params = eqx.partition(params, is_frozen)
        if not jax.tree.leaves(params):
            raise ValueError(
                f"{name}.init: must return weights, has no floating-point array; "
                f"{returned(weights)}"
            )
        return cls(params, eqx.combine(fixed_floats, others), fixed)

    def combine(self, params: PyTree) -> PyTree:
        """Combine trained arrays `params` with the other parts into the weights."""
        return eqx.combine(params, self.arrays, self.fixed)

    def split(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Return all arrays of the weights, and everything else."""
        return eqx.combine(params, self.arrays), self.fixed


def check_parts(problem: Problem, finite: bool, has_data: bool) -> None:
    """Raise `ValueError` for a problem without the methods that training needs: at `finite` batch,
    or on the population; with data of the user, or on batches that it draws."""
    name = type(problem).__name__
    needed = ["loss"] if has_data else ["draw", "loss"]
    missing = [method for method in needed if not problem.has(method)]
    if finite and missing:
        also = "; batch = inf needs neither" if problem.has("population_loss") else ""
        raise ValueError(f"{name}: has no method {missing[0]!r}, which a finite batch needs{also}")
    if not finite and not problem.has("population_loss"):
        raise ValueError(f"batch = inf: {name} has no method 'population_loss', which it needs")
    # The settings decide whether there is a population loss, not only the class.
    if not finite:
        problem.check_population()


def has_population(problem: Problem) -> bool:
    """Return whether there is a population loss for these settings."""
    try:
        problem.check_population()
    except ValueError:
        return False
    return problem.has("population_loss")


def check_single(field: str, tree: PyTree) -> None:
    """Raise `ValueError` for numbers that are not scalars."""
    for leaf in jax.tree.leaves(tree):
        if np.shape(leaf):
            raise ValueError(
                f"{field}: its numbers must be scalars, got shape {np.shape(leaf)}; map over "
                "several by jax.vmap"
            )


def checked_init(problem: Problem, init: PyTree, dtype: DType) -> PyTree:
    """Return starting weights as `numeric.tree` does, None without any.

    Raises:
        ValueError: for complex numbers, other shapes than those of the problem's own weights, and
            arrays that `numeric.array` rejects. NaN and infinities are allowed: a run from them
            diverged.
    """
    if init is None:
        return None
    init = numeric.tree("init", init, dtype, finite=False)

    def shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
        return {
            jax.tree_util.keystr(path): np.shape(leaf)
            for path, leaf in jax.tree.leaves_with_path(tree)
            if jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)
        }

    if any(map(jnp.iscomplexobj, filter(eqx.is_array_like, jax.tree.leaves(init)))):
        shown = eqx.tree_pformat(init, width=sys.maxsize)
        raise ValueError(f"init = {shown}: must be real weights")

    expected = shapes(eqx.filter_eval_shape(problem.init, jax.random.key(0)))
    if shapes(init) != expected:
        raise ValueError(
            f"init: must have the structure and shapes of {type(problem).__name__}.init, "
            f"{expected}, got {shapes(init)}"
        )
    return init


def check_groups(problem: Problem, rule: Rule, parts: Parts) -> PyTree:
    """Return the names of the groups of weights, if the rule has rates, decay or noise by group.

    Raises:
        ValueError: for a group without a rate, a number for an unknown group, or names without the
            structure of the weights.
    """
    numbers = {"eta": rule.schedules, "decay": by_group(rule.decay), "noise": by_group(rule.noise)}
    # A number for all weights has an empty name.
    named = {field: set(by_name) - {""} for field, by_name in numbers.items()}
    rates = named["eta"]
    if not any(named.values()):
        return None
    where = f"{type(problem).__name__}.groups"
    groups = call_user(problem, "groups", parts.combine(parts.params))
    leaves = jax.tree.leaves(groups)
    if not all(isinstance(name, str) for name in leaves):
        raise ValueError(
            f"{where}: must return strings in place of the weights, {returned(groups)}"
        )
    names = set(leaves)
    if not names:
        field = next(field for field in named if named[field])
        shown = _list(named[field])
        raise ValueError(f"{field}: has rates for {shown}, but {where} names no groups")
    for field, names_in_rule in named.items():
        if unknown := names_in_rule - names:
            raise ValueError(
                f"{field}: has a rate for {_list(unknown)}, {where} has {_list(names)}"
            )
    # Groups without decay or noise have none, but each needs a learning rate.
    if rates and names - rates:
        raise ValueError(f"eta: has no rate for the group {_list(names - rates)} of {where}")
    try:
        # `groups` has to be a prefix of the weights.
        jax.tree.map(lambda name, part: None, groups, parts.params)
    except ValueError as error:
        raise ValueError(f"{where}: does not have the structure of the weights ({error})") from None
    return groups


NOT_REPEATED = (
    "compiles to a different program each time it is traced. Values of np.random, random, the "
    "clock or a counter become constants of a compiled program, equal for all runs; draw with "
    "jax.random and the key that the method receives"
)
"""End of the message about code whose traces differ."""
NO_KEY = "returns the same examples whatever its key, so every step and every seed sees one batch"


def check_draw(problem: Problem, key: PRNGKeyArray, batch: int) -> None:
    """Raise `ValueError` for a `draw` whose shapes do not depend on the batch size, which draws
    random numbers without the key, or whose traces differ."""

    def shapes(size: int) -> PyTree:
        return jax.tree.map(np.shape, jax.eval_shape(lambda key: arrays(key, size), key))

    # Without a run: `eval_shape` traces `draw` for its shapes.
    def arrays(key: PRNGKeyArray, size: int) -> PyTree:
        drawn = examples(problem, key, size)
        if drawn is None or not all(map(eqx.is_array_like, jax.tree.leaves(drawn))):
            name = type(problem).__name__
            raise ValueError(f"{name}.draw: must return arrays, {returned(drawn)}")
        return drawn

    where = f"{type(problem).__name__}.draw"
    if shapes(batch) == shapes(batch + 1):
        raise ValueError(
            f"{where}: returns arrays of the same shapes for batch = {batch} "
            f"and {batch + 1}, must return `batch` examples; for a fixed set of them, use "
            "dynsim.full_batch"
        )
    jaxpr = check_repeats(problem, "draw", key, batch)
    if jaxpr is None:
        return
    used = [v for eqn in jaxpr.eqns for v in eqn.invars] + jaxpr.jaxpr.outvars
    if "random_bits" in str(jaxpr) and not any(v is jaxpr.jaxpr.invars[0] for v in used):
        raise ValueError(f"{where}: {NO_KEY}. Use the key")


def check_repeats(
    problem: Problem, method: str, key: PRNGKeyArray, *static: Any
) -> ClosedJaxpr | None:
    """Return the trace of a method of the user, None for one of ours.

    Raises:
        ValueError: for a method whose second trace has other operations or constants than the
            first. Addresses of functions may differ.
    """
    if checks.is_ours(type(problem)):
        return None

    def trace() -> ClosedJaxpr:
        # A new function, because JAX may return the trace of one that it has seen.
        def call(key: PRNGKeyArray) -> PyTree:
            return eqx.filter(call_user(problem, method, key, *static), eqx.is_array_like)

        return jax.make_jaxpr(call)(key)

    first, second = trace(), trace()
    texts = [re.sub("0x[0-9a-f]+", "", str(jaxpr)) for jaxpr in (first, second)]
    if texts[0] != texts[1] or [*_constants(first)] != [*_constants(second)]:
        raise ValueError(f"{type(problem).__name__}.{method}: {NOT_REPEATED}")
    return first


def _constants(jaxpr: ClosedJaxpr) -> Iterator[bytes]:
    literals = [v.val for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, Literal)]
    for value in (*jaxpr.consts, *literals):
        # The problem's own arrays are traced; keys are no numbers.
        if jnp.issubdtype(jnp.result_type(value), np.generic) and not checks.is_traced(value):
            yield np.asarray(value).tobytes()
    for eqn in jaxpr.eqns:
        for part in jax.tree.leaves(eqn.params, is_leaf=lambda p: isinstance(p, ClosedJaxpr)):
            if isinstance(part, ClosedJaxpr):
                yield from _constants(part)


def check_loss(problem: Problem, method: str, loss: Any, dtype: DType | None) -> Array:
    """Return the loss in `dtype`, or its own; raises `ValueError` unless it is one real number."""
    # A float of Python has no shape, but is a loss too.
    shape = getattr(loss, "shape", () if isinstance(loss, float) else None)
    if shape != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            f"{type(problem).__name__}.{method}: must return one real number, {returned(loss)}"
        )
    return jnp.asarray(loss, dtype)


def population_of(problem: Problem, parts: Parts) -> Callable[[PyTree], tuple[Array, PyTree]]:
    """Return the population loss and its gradient as a function of the trained arrays."""
    dtype: DType = jax.tree.leaves(parts.params)[0].dtype.name

    # In the precision of the weights: a loss of the user may be wider.
    def loss(params: PyTree) -> Array:
        return population_loss_of(problem, parts.combine(params), dtype)

    if problem.has("population_loss_and_gradient"):
        return lambda params: problem.population_loss_and_gradient(parts.combine(params))
    return jax.value_and_grad(loss)


def population_loss_of(problem: Problem, params: PyTree, dtype: DType | None = None) -> Array:
    loss = call_user(problem, "population_loss", params)
    return check_loss(problem, "population_loss", loss, dtype)


def returned(value: Any) -> str:
    # Arrays are shown as their dtypes and shapes.
    return f"returned {eqx.tree_pformat(value, width=sys.maxsize)}"


def _list(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
