"""What is learned: a `Problem` says where training starts, what a batch is, and its loss."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

Measured = Callable[[Any, Any], Array]
"""An observable: a function of the problem and the weights."""


class Problem(eqx.Module):
    """A model and its data. Subclass it to train your own model with everything in dynsim.

    Fields are the settings. Those annotated `float`, and arrays, may be traced: they can be axes
    of a sweep inside one compiled program. All others, such as `int` sizes, are static. What you
    leave out costs only what needs it: without `population_loss` there are no flows, and without
    `draw` and `loss` training needs `batch=math.inf`.

    The functions run inside compiled programs. `init` and `draw` always run with 32-bit numbers,
    so that theory, training in float32 and training in float64 start alike and see the same data.

    Example:
        >>> class Net(dynsim.Problem):
        ...     width: int = 16
        ...
        ...     def init(self, key):
        ...         return eqx.nn.MLP(4, 1, self.width, 2, key=key)
        ...
        ...     def draw(self, key, batch):
        ...         x = jax.random.normal(key, (batch, 4))
        ...         return x, jnp.sin(x[:, :1] * x[:, 1:2]) + x[:, 2:3]
        ...
        ...     def loss(self, model, data):
        ...         return jnp.mean((jax.vmap(model)(data[0]) - data[1]) ** 2)
    """

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> PyTree:
        """The starting weights: any pytree, an Equinox module too. Floating-point arrays in it are
        trained; other arrays and functions stay as they are."""

    def draw(self, key: PRNGKeyArray, batch: int) -> PyTree:
        """A batch of that many examples, any pytree of arrays with a leading axis `batch`."""
        raise NotImplementedError

    def loss(self, params: PyTree, data: PyTree) -> Float[Array, ""]:
        """Mean loss of the examples `data`, one number."""
        raise NotImplementedError

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        """The loss at infinite batch, one number."""
        raise NotImplementedError

    def observables(self) -> Mapping[str, Measured]:
        """What can be recorded by name: functions of (problem, weights) that return an array."""
        return {}

    def groups(self, params: PyTree) -> PyTree:
        """Names of groups of weights with learning rates of their own: a pytree of strings, each
        in the place of the weights, or of the part of them, that it names. None for no groups."""
        return None

    def has(self, method: str) -> bool:
        """Whether a method that can be left out is there."""
        return getattr(type(self), method) is not getattr(Problem, method)


ProblemT = Any


def split(problem: ProblemT) -> tuple[ProblemT, ProblemT]:
    """The traced numbers and arrays of a problem, and all else, which is static.

    Raises:
        ValueError: naming the class and the field, for a static value that cannot be hashed.
    """
    for name, hint in get_type_hints(type(problem)).items():
        value = getattr(problem, name, None)
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            problem = eqx.tree_at(lambda p, name=name: getattr(p, name), problem, float(value))
    numbers, rest = eqx.partition(problem, _is_traced)
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
    """A pytree of arrays and numbers, those with a floating point in `dtype`."""

    def cast(leaf: Any) -> Array:
        inexact = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        return jnp.asarray(leaf, dtype) if inexact else jnp.asarray(leaf)

    return jax.tree.map(cast, tree)


def _is_traced(leaf: Any) -> bool:
    number = isinstance(leaf, float | np.floating)
    return number or isinstance(leaf, jax.Array | np.ndarray)
