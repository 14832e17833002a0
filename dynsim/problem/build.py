"""From settings to a problem that can be traced: `build` is called and checked, arrays and numbers
are converted, and the traced leaves are split from the static ones."""

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dynsim import checks, decoding, numeric
from dynsim.precision import DType, check_process
from dynsim.problem.base import Problem
from dynsim.problem.data import Arrays, Data
from dynsim.training.rule import Rule, UpdateRule

ProblemT = TypeVar("ProblemT")
_BUILT: ContextVar[bool] = ContextVar("dynsim_built", default=False)


@contextlib.contextmanager
def as_built() -> Iterator[None]:
    """Within it, `built` takes problems and rules as they are: a program whose arguments are the
    arrays and numbers of a built problem must not build it again, which would replace them."""
    # A context variable, because tracing calls `built` far below.
    token = _BUILT.set(True)
    try:
        yield
    finally:
        _BUILT.reset(token)


def built(problem: Problem, rule: UpdateRule, dtype: DType = "float64") -> tuple[Any, Rule]:
    """Return the problem and the rule that are used for training in `dtype`. Arrays are those that
    `numeric.tree` returns; `draw` sees them in float32.

    Raises:
        ValueError: for anything but a problem and a rule, from their `build`, for a `build` of a
            user that differs each time, or for an array that is not exactly one of JAX.
        RuntimeError: from `check_process`.
    """
    checks.kind("problem", problem, Problem)
    checks.choice("dtype", dtype, ("float32", "float64"))
    check_process()
    built_rule: Any = rule
    if not _BUILT.get():
        built_rule = rule.build() if isinstance(rule, UpdateRule) else rule
        settings, problem = problem, problem.build(rule)
        # JAX would not notice other arrays, which are arguments of a program. A build may take
        # long, so each class is built twice only the first time.
        if new := {cls for cls in _builders(settings) if cls not in _REPEATABLE}:
            _check_same(f"{type(settings).__name__}.build", problem, settings.build(rule))
            _REPEATABLE.update(new)
    checks.kind("rule", built_rule, Rule)
    problem = numeric.tree(
        type(problem).__name__,
        problem,
        single=dtype,
        finite=not problem.allows_nonfinite(),
        settings={*decoding.reals(problem)},
    )
    return problem, built_rule


def _builders(part: Problem | Data) -> set[type]:
    """Return the classes of users that build the problem, or a problem or data in its fields."""
    own = type(part).build not in (Problem.build, Arrays.build)
    ours = checks.is_ours(type(part))
    inner = (each for each in vars(part).values() if isinstance(each, Problem | Data))
    return ({type(part)} if own and not ours else set[type]()).union(*map(_builders, inner))


_REPEATABLE = weakref.WeakSet[type]()
"""Classes of users whose `build` has returned the same twice."""


def _check_same(where: str, one: Problem, other: Problem) -> None:
    """Raise `ValueError`, naming it, for an array or a number that two builds of a problem do not
    have in common."""

    def known(problem: Problem) -> dict[str, np.ndarray]:
        leaves = jax.tree.leaves_with_path(problem)
        return {
            jax.tree_util.keystr(path, simple=True, separator="."): _numbers(leaf)
            for path, leaf in leaves
            if eqx.is_array_like(leaf) and not checks.is_traced(leaf)
        }

    again = known(other)
    for name, value in known(one).items():
        same = again.get(name)
        if same is None or not np.array_equal(value, same, equal_nan=value.dtype.kind in "fc"):
            raise ValueError(
                f"{where}: {name} has another value each time it is built, so no run could be "
                "repeated or resumed. Draw it with a fixed seed, or in `init` and `draw` with "
                "their keys"
            )


def _numbers(leaf: Any) -> np.ndarray:
    is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def split(problem: ProblemT) -> tuple[ProblemT, ProblemT]:
    """Split a problem into its traced numbers and arrays, and everything else, which is static.

    Raises:
        ValueError: naming the class and the field, for a static value that cannot be hashed.
    """
    # `width: float = 1` is a number of the program too, not a static integer.
    for name, hint in get_type_hints(type(problem)).items():
        value = getattr(problem, name, None)
        if hint in (float, float | None) and isinstance(value, int) and not isinstance(value, bool):
            problem = eqx.tree_at(lambda p, name=name: getattr(p, name), problem, float(value))
    kinds = float | np.floating | jax.Array | np.ndarray
    numbers, rest = eqx.partition(problem, lambda leaf: isinstance(leaf, kinds))
    # The static part is the key of compiled programs.
    for path, leaf in jax.tree.leaves_with_path(rest):
        try:
            hash(leaf)
        except TypeError:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"{type(problem).__name__}.{name}: must be hashable or an array, is {leaf!r}"
            ) from None
    return numbers, rest


def narrowed(tree: PyTree, dtype: str) -> PyTree:
    """Convert a pytree of arrays and numbers to arrays, real and complex ones in `dtype`."""

    def cast(leaf: Any) -> Array:
        kind = jnp.result_type(leaf)
        # float64 goes with complex128.
        if jnp.issubdtype(kind, jnp.complexfloating):
            return jnp.asarray(leaf, np.promote_types(dtype, np.complex64))
        return jnp.asarray(leaf, dtype if jnp.issubdtype(kind, jnp.inexact) else None)

    return jax.tree.map(cast, tree)
