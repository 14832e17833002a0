"""Problems to train: a `Problem` defines the starting weights, the batches and the loss. A
`FullBatch` trains on a fixed set of examples, using all of them in every step."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from dynsim import checks, decoding, numeric
from dynsim.precision import Number
from dynsim.problem.data import Arrays, Data
from dynsim.training.loop import normal_noise
from dynsim.training.rule import Rule, UpdateRule

Measured = Callable[..., Array]
"""An observable: a function of the problem and the weights, or of `Problem.snapshot`."""


class Problem(eqx.Module):
    """A model and its data. Subclass it to train your own model with everything in dynsim.

    Fields are the settings. Fields annotated `float`, and arrays, may be traced, so they can be
    axes of a sweep inside one compiled program. All others, such as `int` sizes, are static. Most
    methods are optional: without `population_loss` there are no flows, and without `draw` and
    `loss` training needs `batch=math.inf`.

    Annotations such as `Annotated[float, annotated_types.Ge(0)]` and `Literal["a", "b"]` are
    checked when a problem is created.

    Attributes:
        NAME: a short name, under which other packages register observables and theories.
        RECORD: names recorded by default, where they are known.
        COMPARED: names that a comparison of training with theories shows; all that both have if
            there are none.
        REFUSED: names that only some theories predict, with the reason why others do not.
        OBSERVABLES_FROM: names of other problems whose registered observables it shares.
        LEFT_OUT_AT_ZERO: numbers that become constants of the compiled program if they are 0, so
            that it skips the computations that need them.
        RUN_DEFAULTS: defaults of a run in sweeps and commands: its rule, and `steps` and `batch`.

    The methods run inside compiled programs. `init` and `draw` always run with 32-bit numbers, so
    that theory, training in float32 and training in float64 have the same start and see the same
    data.

    Raises:
        ValueError: for a setting out of its range, naming the field; and when it is trained,
            naming the class and the method, for an `init`, `draw` or `loss` that does not fit.

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

    NAME: ClassVar[str] = ""
    RECORD: ClassVar[tuple[str, ...]] = ("loss",)
    COMPARED: ClassVar[tuple[str, ...]] = ()
    REFUSED: ClassVar[Mapping[str, str]] = {}
    OBSERVABLES_FROM: ClassVar[tuple[str, ...]] = ()
    LEFT_OUT_AT_ZERO: ClassVar[tuple[str, ...]] = ()
    RUN_DEFAULTS: ClassVar[Mapping[str, Any]] = {"rule": {"kind": "sgd", "eta": 0.1}}

    def __check_init__(self) -> None:
        decoding.check_annotations(self)

    def build(self, rule: UpdateRule) -> "Problem":
        """Return the problem to train instead of this one, with `Data` loaded into memory. Override
        it if arrays follow from settings, or settings from the rule. `rule` itself may not be built
        yet."""
        del rule
        loaded = {
            name: field.build()
            for name, field in vars(self).items()
            if isinstance(field, Data) and not isinstance(field, Arrays)
        }
        return dataclasses.replace(self, **loaded) if loaded else self

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray) -> PyTree:
        """Return the starting weights: any pytree, including an Equinox module. Its floating-point
        arrays are trained; other arrays and functions stay fixed."""

    def draw(self, key: PRNGKeyArray, batch: int) -> PyTree:
        """Draw a batch of examples: any pytree of arrays with a leading axis `batch`."""
        raise NotImplementedError

    def loss(self, params: PyTree, data: PyTree) -> Float[Array, ""]:
        """Return the mean loss of the examples `data`, a scalar."""
        raise NotImplementedError

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        """Return the loss at infinite batch, a scalar."""
        raise NotImplementedError

    def observables(self) -> Mapping[str, Measured]:
        """Return the quantities that can be recorded, by name: functions of (problem, weights) that
        return an array."""
        return {}

    def summary(
        self, times: Float[np.ndarray, " S"], recorded: Mapping[str, np.ndarray]
    ) -> Mapping[str, float]:
        """Return numbers that summarise a run, such as the step at which a part of the task is
        learned, by name. A comparison measures them in each run of training and of each theory.

        Args:
            times: (S,) optimiser steps at which the run recorded.
            recorded: observables by name, (S, ...) each, at least those in `COMPARED`.

        Returns:
            Numbers by name; inf for a step that is not reached.

        Example:
            >>> class Net(DeepLinear):
            ...     def summary(self, times, recorded):
            ...         below = recorded["loss"] < 0.1
            ...         return {"learned": times[below.argmax()] if below.any() else np.inf}
        """
        del times, recorded
        return {}

    def groups(self, params: PyTree) -> PyTree:
        """Return the names of groups of weights with separate learning rates: a pytree of strings
        that is a prefix of the weights. None for no groups."""
        return None

    def is_frozen(self, params: PyTree) -> PyTree:
        """Return which weights are not trained: a pytree of bools that is a prefix of the weights.
        None trains all."""
        return None

    @classmethod
    def theories(cls) -> Iterable[Any]:
        """Return the theories specific to this problem, each an `odes.Theory`. One with the name of
        a general flow replaces that flow, for instance by an exact reduction to fewer variables."""
        return ()

    def check_population(self) -> None:
        """Raise `ValueError` for settings at which `population_loss` is not defined."""

    # The following methods can be replaced by faster ones with the same results.

    def prepare(self, key: PRNGKeyArray, shared: PyTree = None) -> tuple["Problem", PyTree]:
        """Return the problem as a run uses it, and arrays drawn from the key before the run begins.
        Override it for data that a run draws once, such as a pool of examples. `shared` replaces
        the arrays. They must not depend on traced numbers, because all runs with one key share
        them."""
        del key
        return self, shared

    def batches(
        self, key: PRNGKeyArray, steps: int | None, batch: int
    ) -> Callable[[Array], PyTree]:
        """Return the batch of each step of a run, as a function of the step. Work for all steps can
        be done once, before that. By default step k draws with `fold_in(key, k)`. `steps` is None
        if the number of steps is traced."""
        del steps

        def drawn(k: Array) -> PyTree:
            return examples(self, jax.random.fold_in(key, k), batch)

        return drawn

    def loss_and_gradient(self, params: PyTree, data: PyTree) -> tuple[Array, PyTree]:
        """Return `loss` on a batch and its gradient with respect to the floating-point arrays of
        `params`."""
        return eqx.filter_value_and_grad(self.loss)(params, data)

    def normal_noise(self, key: PRNGKeyArray, k: Array, like: PyTree) -> PyTree:
        """Draw standard normal numbers in the structure of the gradient `like`, for the noise of a
        rule in step k. Override it to draw them only for the weights with noise."""
        return normal_noise(key, k, like)

    def population_loss_and_gradient(self, params: PyTree) -> tuple[Array, PyTree]:
        """Return `population_loss` and its gradient, like `loss_and_gradient`. Override it where an
        explicit gradient is faster."""
        return eqx.filter_value_and_grad(self.population_loss)(params)

    def compact(self, params: PyTree, rule: Rule) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
        """Return the weights of `init` in fewer numbers, and a function that restores them.

        Override it where training by `rule` keeps weights equal. `loss_and_gradient` then has to
        accept both forms, and returns the gradient of one of the weights that a number represents.
        """
        del rule
        return params, lambda params: params

    def snapshot(self, params: PyTree) -> tuple[Any, ...]:
        """Return the arguments of observables, by default (problem, weights). Override it if
        several observables start from the same intermediate result."""
        return self, params

    def snapshot_after(self, params: PyTree, before: PyTree) -> tuple[tuple[Any, ...], PyTree]:
        """Return `snapshot`, and a pytree of arrays for the next record of a run. Override it for
        observables that need the previous record, such as a change since then. `before` is the
        pytree of the previous record, None at the start of a run."""
        return call_user(self, "snapshot", params), before

    def divergence_limit(self) -> Real[Number, ""] | None:
        """Batch loss above which a run counts as diverged. The default, None, means a thousand
        times the loss of the starting weights, averaged over the first 16 batches, or of another
        reference if that is nearly zero; see `limit` of `dynsim.train`."""
        return None

    def allows_nonfinite(self) -> bool:
        """Return whether arrays in fields and batches may contain NaN and infinities, such as
        labels that are missing and that `loss` leaves out. By default they are errors."""
        return False

    def has(self, method: str) -> bool:
        """Return whether the problem has an optional method."""
        return getattr(type(self), method) is not getattr(Problem, method)


def call_user(problem: Any, method: str, *arguments: Any) -> Any:
    """Call a method of the problem; a `ValueError` names the method and its arguments and shows the
    line of user code in which it fails."""
    with checks.code_of_user(f"{type(problem).__name__}.{method}", *arguments):
        return checks.call_of_user(type(problem), getattr(problem, method), *arguments)


def examples(problem: Problem, key: PRNGKeyArray, batch: int) -> PyTree:
    """Return a batch of `draw`; `ValueError` for arrays that `numeric.array` rejects."""
    drawn = call_user(problem, "draw", key, batch)
    finite = not problem.allows_nonfinite()
    return numeric.tree(f"{type(problem).__name__}.draw", drawn, finite=finite)


class FullBatch(Problem):
    """A problem whose population is a fixed set of examples: drawn ones by `dynsim.full_batch`, or
    your own.

    It has a `population_loss`, so that flows and the central flow apply, and training with
    `batch=math.inf` descends the mean over the set. A finite batch draws from it with replacement.

    Attributes:
        problem: the model and its loss.
        data: examples as `problem.draw` returns them, with a leading axis; those of `dynsim.Layer`
            may have weights.

    Example:
        The loss of sequences of two contextual tokens, exactly:

        >>> task = dynsim.sequence_classes([[0.5, 0.5, 0], [0.5, 0, 0.5]], [0, 1])
        >>> counts = np.array([[2, 0, 0], [1, 1, 0], [0, 2, 0], [2, 0, 0], [1, 0, 1], [0, 0, 2]])
        >>> weight = np.array([1, 2, 1, 1, 2, 1]) / 8
        >>> examples = dynsim.Examples(np.repeat([0, 1], 3), counts.astype(float), weight)
        >>> exact = dynsim.FullBatch(dynsim.Layer(task, length=3), examples)
        >>> options = {"steps": 10, "batch": math.inf, "record": ["loss"]}
        >>> run = dynsim.train(exact, dynsim.sgd(1.0, 1.0), jax.random.key(0), **options)
    """

    problem: Problem
    data: PyTree

    def build(self, rule: UpdateRule) -> "FullBatch":
        """Return the same examples, for the built problem."""
        return FullBatch(self.problem.build(rule), self.data)

    def init(self, key: PRNGKeyArray) -> PyTree:
        """The starting weights of the problem."""
        return self.problem.init(key)

    def draw(self, key: PRNGKeyArray, batch: int) -> PyTree:
        """Draw examples from the set, with replacement."""
        number = len(jax.tree.leaves(self.data)[0])
        # With replacement, which is faster than a permutation of the whole set.
        chosen = jax.random.randint(key, (batch,), 0, number)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], self.data)

    def loss(self, params: PyTree, data: PyTree) -> Float[Array, ""]:
        """The loss of the problem."""
        return self.problem.loss(params, data)

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        """The mean loss over all examples."""
        return self.problem.loss(params, self.data)

    def observables(self) -> Mapping[str, Measured]:
        """The observables of the problem."""
        return self.problem.observables()

    def snapshot(self, params: PyTree) -> tuple[Any, ...]:
        """The snapshot of the problem."""
        return self.problem.snapshot(params)

    def groups(self, params: PyTree) -> PyTree:
        """The groups of the problem."""
        return self.problem.groups(params)

    def is_frozen(self, params: PyTree) -> PyTree:
        """The frozen weights of the problem."""
        return self.problem.is_frozen(params)

    def allows_nonfinite(self) -> bool:
        """Whether the examples of the problem may contain NaN and infinities."""
        return self.problem.allows_nonfinite()


def full_batch(problem: Problem, key: PRNGKeyArray, size: int) -> FullBatch:
    """Return a problem on `size` examples that are drawn once.

    Use it for a problem without a `population_loss`, to compare its training with flows, or for
    questions about descent on a training set, such as where the edge of stability lies.

    Args:
        problem: a problem with `draw` and `loss`.
        key: random key of the examples.
        size: number of examples, >= 1.

    Raises:
        ValueError: naming the argument, for a problem without these methods, or a size below 1.

    Example:
        >>> fixed = dynsim.full_batch(DeepLinear(), jax.random.key(1), 64)
        >>> options = {"steps": 10, "batch": math.inf, "record": ["loss", "sharpness"]}
        >>> run = dynsim.train(fixed, dynsim.sgd(0.1), jax.random.key(0), **options)
    """
    checks.kind("problem", problem, Problem)
    checks.key("key", key)
    size = checks.integer("size", size, 1)
    for method in ("draw", "loss"):
        if not problem.has(method):
            raise ValueError(f"{type(problem).__name__}: has no method {method!r}, which it needs")
    # As in training, so that both draw the same examples.
    with jax.enable_x64(False):
        return FullBatch(problem, examples(problem, key, size))
