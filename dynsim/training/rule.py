"""Update rules: how a gradient changes the weights.

Step k updates the weights p with the gradient g of its batch in this order:

1. `clip`: if the Euclidean norm of g over all weights exceeds `clip`, g is rescaled to it.
2. `noise`: a normal number with this standard deviation is added to every entry of g.
3. coupled `decay`: g <- g + lambda p, the gradient of the loss with lambda |p|^2/2.
4. direction d, which the class of the rule computes: see `dynsim.training.rules`.
5. decoupled `decay`: d <- d + lambda p. The scheduled rate multiplies it, as in AdamW of optax and
   PyTorch.
6. p <- p - eta(k) d.

Rates, decay and noise may differ between groups of weights. Every number may be traced, so that one
compiled program serves a whole grid.
"""

import abc
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree, Real

from dynsim import checks, decoding, numeric
from dynsim.precision import AnyArray, AnyNotNegative, AnyPositive, Number, cast
from dynsim.schedules import Constant, Schedule, as_schedule
from dynsim.schedules.base import AnyRate

T = TypeVar("T")
Eta = Schedule | Callable[[Array], Array] | AnyRate
"""A learning rate: a number, a schedule, or a function of the step."""
PerGroup = AnyNotNegative | Mapping[str, AnyNotNegative]
"""A number for all weights, or one per group; groups that are not listed have none."""


def _schedule_of_z(eta: Eta) -> Schedule:
    # Not a `functools.partial`, because its annotations could not be read.
    return as_schedule("Z", eta)


class Ratio(eqx.Module):
    """Learning rates of the groups "Y" and "Z" of an attention layer, given by their ratio, which
    is the axis of Scan and Snap's Fig. 6.

    Attributes:
        Z: learning rate of Z: a number or a schedule.
        ratio: eta_y / eta_z.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> rule = dynsim.sgd(dynsim.Ratio(0.5, ratio=10), momentum=0.9)
    """

    Z: Schedule = eqx.field(default=0.1, converter=_schedule_of_z)
    ratio: AnyNotNegative = 10.0

    def __check_init__(self) -> None:
        decoding.check_annotations(self)

    @property
    def rates(self) -> dict[str, Schedule]:
        """The learning rates by group."""
        return {"Y": dataclasses.replace(self.Z, peak=self.ratio * self.Z.peak), "Z": self.Z}


Etas = Eta | Ratio | Mapping[str, Eta]
"""One learning rate for all weights, or one per group."""


def schedules_of(eta: Etas) -> Schedule | Ratio | dict[str, Schedule]:
    """Convert learning rates to schedules, as a rule stores them; `ValueError` for other types."""
    if isinstance(eta, Ratio):
        return eta
    if not isinstance(eta, Mapping):
        return as_schedule("eta", eta)
    if not eta:
        raise ValueError("eta = {}: needs a rate for each group of weights")
    # Sorted, as JAX sorts the keys of dicts: two spellings are one program.
    return {n: as_schedule(f"eta[{n!r}]", eta[n]) for n in sorted(eta)}


class UpdateRule(eqx.Module):
    """A `Rule`, or settings that determine one, such as `dynsim.Annealed`."""

    @abc.abstractmethod
    def build(self) -> "Rule":
        """Return the rule that is used for training."""


class Rule(UpdateRule):
    """An update rule. Subclass it to define your own.

    A subclass defines `direction`, and a field for each number that the direction uses. Training,
    sweeps and rates by group need nothing else. Define `flow` too if theories are to describe it.

    Attributes:
        eta: learning rate: a number, a schedule, a function of the step, one of these for each of
            `Problem.groups`, or a `Ratio` of two; per step, for the mean loss of a batch.
        decay: weight decay, or None; groups that are not listed do not decay.
        clip: largest norm of the gradient of all weights together, or None.
        noise: standard deviation of normal noise on every entry of the gradient, or None; groups
            that are not listed have none.
        decoupled: whether `decay` bypasses the direction, as in AdamW.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> class Normalised(dynsim.Rule):
        ...     def direction(self):
        ...         def unit(gradient, params):
        ...             size = optax.tree.norm(gradient)
        ...             return jax.tree.map(lambda g: g / size, gradient)
        ...
        ...         return optax.stateless(unit)
        ...
        >>> rule = Normalised(dynsim.schedules.cosine(0.1, 1000), clip=1.0)
    """

    eta: Schedule | Ratio | dict[str, Schedule] = eqx.field(converter=schedules_of)
    decay: PerGroup | None = eqx.field(default=None, kw_only=True)
    clip: AnyPositive | None = eqx.field(default=None, kw_only=True)
    noise: PerGroup | None = eqx.field(default=None, kw_only=True)
    decoupled: bool = eqx.field(default=False, kw_only=True, static=True)

    def __check_init__(self) -> None:
        # Includes the fields of subclasses.
        decoding.check_annotations(self)

    def build(self) -> "Rule":
        """Return the rule that is used for training, with rates computed from settings such as a
        `Ratio`."""
        return dataclasses.replace(self, eta=self.rates) if isinstance(self.eta, Ratio) else self

    @property
    def rates(self) -> Schedule | dict[str, Schedule]:
        """The learning rate, or one per group."""
        return self.eta.rates if isinstance(self.eta, Ratio) else self.eta

    @abc.abstractmethod
    def direction(self) -> optax.GradientTransformation:
        """Return the optax transformation that turns :math:`g` into :math:`d`. It keeps its own
        state, and is called inside the traced function. Random keys in the state are combined with
        the key of the run."""

    def flow(
        self, gradient: PyTree, averages: PyTree, t: Float[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        r"""Return the rule in continuous time, for `odes.flow`. Rules without it have no theory.

        Args:
            gradient: gradient G of the population loss, including coupled decay.
            averages: averages of past gradients that the direction keeps; see `averages`.
            t: time in steps.

        Returns:
            The direction d, where :math:`p' = -\eta(t)\, d`, and the time derivative of the
            averages, or None without averages.
        """
        raise NotImplementedError

    @property
    def has_flow(self) -> bool:
        """Whether the class defines `flow`."""
        return type(self).flow is not Rule.flow

    def averages(self, params: PyTree) -> PyTree:
        """Return the initial averages for `flow`; None if it has none."""
        del params
        # None, because diffrax cannot integrate an empty tuple.

    @property
    def name(self) -> str:
        """Name of the rule in messages."""
        return type(self).__name__.lower()

    @property
    def has_inertia(self) -> bool:
        """Whether gradients are carried over to later steps, as with momentum."""
        return False

    @property
    def is_adaptive(self) -> bool:
        """Whether the direction is nonlinear in the gradient; True unless known otherwise."""
        return True

    @property
    def is_elementwise(self) -> bool:
        """Whether each weight is treated separately, so that equal weights with equal gradients
        stay equal; False unless known otherwise."""
        return False

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Learning rates by group; a single rate for all weights has an empty name."""
        return self.rates if isinstance(self.rates, dict) else {"": self.rates}

    def rate(self, step: Real[Number, "*S"]) -> PyTree[Real[AnyArray, "*S"]]:
        """Return the learning rate of the update after `step` steps, or the rates by group."""
        return self._by_group(lambda schedule: schedule.rate(step))

    def tabulated(self, times: Real[Number, "*S"] | Sequence[Number]) -> "Rule":
        """Return the rule as theories use it: with the rates of all steps up to the last of `times`
        as numbers, see `dynsim.schedules.Schedule.table`."""
        # An optimiser of optax has rates of its own, which are not known.
        if not self.schedules:
            return self
        return dataclasses.replace(self, eta=self._by_group(lambda eta: eta.table(times)))

    def flow_rate(self, t: Real[Number, "*S"]) -> PyTree[Real[AnyArray, "*S"]]:
        """Return the learning rate at time `t` in steps, or the rates by group."""
        return self._by_group(lambda schedule: schedule.flow_rate(t))

    def eta_time(self, steps: Real[Number, "*S"]) -> PyTree[Real[AnyArray, "*S"]]:
        """Return the sum of the first `steps` steps' learning rates, by group if there are groups.

        Raises:
            ValueError: for traced `steps`, unless the rates are piecewise constant.
        """
        return self._by_group(lambda schedule: schedule.eta_time(steps))

    def _by_group(self, value: Callable[[Schedule], T]) -> T | dict[str, T]:
        if isinstance(self.rates, dict):
            return {name: value(schedule) for name, schedule in self.rates.items()}
        return value(self.rates)

    def of_groups(self, *groups: str) -> "Rule":
        """Return the same rule with one rate per group, if it has a single rate.

        Raises:
            ValueError: if the rule has rates for other groups.
        """
        if not isinstance(self.rates, dict):
            return dataclasses.replace(self, eta=dict.fromkeys(groups, self.rates))
        if set(self.rates) != set(groups):
            has, needs = (", ".join(map(repr, sorted(names))) for names in (self.rates, groups))
            raise ValueError(f"eta: has rates for {has}, must be for {needs}, or for all weights")
        return self

    def astype(self, dtype: str) -> "Rule":
        """Return the same rule with its numbers as JAX arrays of `dtype`; `ValueError` for a number
        that is infinite in it."""
        # Rates may be infinite in a table of stops, but not by rounding.
        checked = numeric.tree("rule", self, dtype, finite=False)
        return jax.tree.map(lambda number: cast(number, dtype), checked)

    def init(self, params: PyTree) -> PyTree:
        """Return the initial state of the rule, before the first step."""
        where = f"{type(self).__name__}.direction"
        with checks.code_of_user(where, params):
            direction = self.direction()
            if not isinstance(direction, optax.GradientTransformation):
                raise ValueError(
                    f"{where}: must return an optax transformation, returned {direction!r}"
                )
            return checks.call_of_user(self._owner(), _initial, self, params)

    def _owner(self) -> Any:
        """Return whose code the transformation is, for `checks.call_of_user`."""
        return type(self)

    def update(
        self,
        gradient: PyTree,
        memory: PyTree,
        params: PyTree,
        step: Int[Array, "*B"],
        noise: PyTree = None,
        groups: PyTree = None,
    ) -> tuple[PyTree, PyTree]:
        """Return the change of the weights in step number `step`, and the state after it.

        Args:
            step: number of the step; of shape (B,) if the numbers of the rule are, for B runs along
                the last axis of gradient and weights.
            noise: standard normal numbers in the structure of the gradient, if the rule has noise.
            groups: name of the group of each part of the weights, if numbers differ between groups.
        """
        if self.clip is not None:
            size = norm(gradient)
            short = size < self.clip
            # The quotient has a derivative even if the gradient is zero.
            size = jnp.where(short, 1, size)
            gradient = jax.tree.map(
                lambda g: jnp.where(short, g, g / size.astype(g.dtype) * self.clip), gradient
            )
        if self.noise is not None and noise is not None:
            gradient = _map_groups(lambda s, g, xi: g + s * xi, self.noise, groups, gradient, noise)
        if not self.decoupled:
            gradient = self.decayed(gradient, params, groups)
        where = f"{type(self).__name__}.direction"
        with checks.code_of_user(where, gradient, memory, params):
            direction, after = checks.call_of_user(
                self._owner(), _updated, self, gradient, memory, params
            )
        # A loop carries both, so a change of structure would fail deep inside JAX.
        _check_alike(f"{where}: must return an update like the gradient", direction, gradient)
        _check_alike(f"{where}: must return a state like the one before", after, memory)
        memory = after
        if self.decoupled:
            direction = self.decayed(direction, params, groups)
        return self.descend(direction, self.rate(step), groups), memory

    def decayed(self, direction: PyTree, params: PyTree, groups: PyTree = None) -> PyTree:
        """Add the weight decay to a gradient or direction."""
        if self.decay is None:
            return direction
        return _map_groups(lambda decay, d, p: d + decay * p, self.decay, groups, direction, params)

    def descend(self, direction: PyTree, rate: PyTree[Array], groups: PyTree = None) -> PyTree:
        """Return minus `direction`, each part multiplied by the `rate` of its group."""
        return _map_groups(lambda eta, d: -eta * d, rate, groups, direction)

    def __repr__(self) -> str:
        values: dict[str, object] = {}
        for group, eta in self.schedules.items():
            constant = isinstance(eta, Constant) and eta.warmup is None
            values[f"eta_{group.lower()}" if group else "eta"] = eta.peak if constant else eta
        for field in dataclasses.fields(self):
            if field.name != "eta":
                values[field.name] = getattr(self, field.name)
        shown = (f"{n}={v}" for n, v in values.items() if v is not None and v is not False)
        return f"{type(self).__name__.lower()}({', '.join(shown)})"


def by_group(value: PerGroup | None) -> dict[str, Number]:
    """Return a number of a rule by group; a single number for all weights has an empty name."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {"": value}


def square_root(square: Array) -> Array:
    """Return the square root, whose derivative at 0 is 0 in place of infinity: a weight with a
    gradient of zero has an average square of zero at every learning rate."""
    # `where` twice: the root of 0 has an infinite derivative even where it is not selected.
    zero = square == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, square)))


def norm(tree: PyTree) -> Float[Array, ""]:
    """Return the Euclidean norm of all numbers of a pytree, with the derivative 0 at 0."""
    return square_root(optax.tree.norm(tree, squared=True))


def _check_alike(where: str, tree: PyTree, like: PyTree) -> None:
    """Raise `ValueError`, whose message begins with `where`, unless a tree has the structure and
    shapes of another one and inexact numbers in the same places."""

    def kinds(tree: PyTree) -> PyTree:
        return jax.tree.map(
            lambda x: (np.shape(x), jnp.issubdtype(jnp.result_type(x), jnp.inexact)), tree
        )

    try:
        same = eqx.tree_equal(kinds(tree), kinds(like))
    except TypeError:
        # Some leaves are not arrays.
        same = False
    if not same:
        returned, expected = (eqx.tree_pformat(each, width=sys.maxsize) for each in (tree, like))
        raise ValueError(f"{where}, {expected}; returned {returned}")


def _initial(rule: Rule, params: PyTree) -> PyTree:
    return rule.direction().init(params)


def _updated(rule: Rule, gradient: PyTree, memory: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
    return rule.direction().update(gradient, memory, params)


def _map_groups(
    change: Callable[..., Array], value: PerGroup, groups: PyTree, *trees: PyTree
) -> PyTree:
    """Apply `change` to (number, leaves) of several pytrees. If `value` has a number for some
    groups, parts of the first tree in other groups are returned unchanged."""
    if not isinstance(value, Mapping):
        return jax.tree.map(lambda *leaves: change(value, *leaves), *trees)

    def part(name: str, first: PyTree, *others: PyTree) -> PyTree:
        if name not in value:
            return first
        return jax.tree.map(lambda *leaves: change(value[name], *leaves), first, *others)

    return jax.tree.map(part, groups, *trees)


def of_layer(params: PyTree) -> PyTree:
    """Name the groups "Y" and "Z" of weights that have these two fields."""
    return eqx.tree_at(lambda tree: (tree.Y, tree.Z), params, ("Y", "Z"))
