"""Update rules: how a gradient moves the weights.

Step k changes the weights p by the gradient g of its batch in this order:

1. `clip`: a gradient whose Euclidean norm over all weights exceeds it is shortened to it.
2. `noise`: every entry of g gets a normal number of that standard deviation.
3. coupled `decay`: g <- g + lambda p, the gradient of the loss with lambda |p|^2/2.
4. direction d, which the class of the rule computes: see `dynsim.training.rules`.
5. decoupled `decay`: d <- d + lambda p, so that the scheduled rate multiplies it, as in optax's and
   PyTorch's AdamW.
6. p <- p - eta(k) d.

Rates, decay and noise may be numbers by group of weights. Every number may be
traced: one compiled program serves a whole grid.
"""

import abc
import dataclasses
import sys
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree, Real

from dynsim import checks, decoding
from dynsim.precision import AnyArray, AnyNotNegative, AnyPositive, Number, cast
from dynsim.schedules import AnyRate, Constant, Schedule, as_schedule

Eta = Schedule | Callable[[Array], Array] | AnyRate
"""A learning rate: a number, a schedule, or a function of the step."""
PerGroup = AnyNotNegative | Mapping[str, AnyNotNegative]
"""A number for all weights, or one for each of some groups of them; the others have none."""


def _rate_of_z(eta: Eta) -> Schedule:
    return as_schedule("Z", eta)


class Ratio(eqx.Module):
    """Learning rates of the groups "Y" and "Z" of an attention layer by their ratio, the axis of
    Scan and Snap's Fig. 6.

    Attributes:
        Z: learning rate of Z: a number or a schedule.
        ratio: eta_y / eta_z.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> rule = dynsim.sgd(dynsim.Ratio(0.5, ratio=10), momentum=0.9)
    """

    Z: Schedule = eqx.field(default=0.1, converter=_rate_of_z)
    ratio: AnyNotNegative = 10.0

    def __check_init__(self) -> None:
        decoding.check_stated(self)

    @property
    def rates(self) -> dict[str, Schedule]:
        """The learning rates by group."""
        return {"Y": dataclasses.replace(self.Z, peak=self.ratio * self.Z.peak), "Z": self.Z}


Etas = Eta | Ratio | Mapping[str, Eta]
"""One learning rate for all weights, or one for each group of them."""


def schedules_of(eta: Etas) -> Schedule | Ratio | dict[str, Schedule]:
    """Learning rates as a rule has them; `ValueError` for anything else."""
    if isinstance(eta, Ratio):
        return eta
    if not isinstance(eta, Mapping):
        return as_schedule("eta", eta)
    if not eta:
        raise ValueError("eta = {}: needs a rate for each group of weights")
    return {n: as_schedule(f"eta[{n!r}]", eta[n]) for n in sorted(eta)}


class UpdateRule(eqx.Module):
    """A `Rule`, or settings from which one follows, such as `dynsim.Annealed`."""

    @abc.abstractmethod
    def build(self) -> "Rule":
        """The rule that trains."""


class Rule(UpdateRule):
    """An update rule. Subclass it to define your own.

    A subclass has a `direction`, and fields for the numbers that the direction reads. Training,
    sweeps and rates by group need nothing else; with a `flow` there is a theory too.

    Attributes:
        eta: learning rate: a number, a schedule, a function of the step, one of these for each of
            `Problem.groups`, or a `Ratio` of two; per step, on the mean loss of a batch.
        decay: weight decay, or None; by group, those without one do not decay.
        clip: largest norm of the gradient of all weights together, or None.
        noise: standard deviation of normal noise on every entry of the gradient, or None; by group,
            those without one have none.
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
        # Those of subclasses too, by their annotations.
        decoding.check_stated(self)

    def build(self) -> "Rule":
        """The rule that trains in place of this one, where its numbers follow from settings such as
        a `Ratio`."""
        return dataclasses.replace(self, eta=self.rates) if isinstance(self.eta, Ratio) else self

    @property
    def rates(self) -> Schedule | dict[str, Schedule]:
        """The learning rate, or one for each group."""
        return self.eta.rates if isinstance(self.eta, Ratio) else self.eta

    @abc.abstractmethod
    def direction(self) -> optax.GradientTransformation:
        """The optax transformation that turns :math:`g` into :math:`d`, with its own state. It is
        called inside the traced function."""

    def flow(
        self, gradient: PyTree, averages: PyTree, t: Float[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        r"""The rule in continuous time, for `odes.flow`; rules without one have no theory.

        Args:
            gradient: G of the population loss, with coupled decay.
            averages: averages of past gradients that the direction keeps, from `averages`.
            t: time in steps.

        Returns:
            The direction d, where :math:`p' = -\eta(t)\, d`, and the time derivative of the
            averages, None where there are none.
        """
        raise NotImplementedError

    @property
    def has_flow(self) -> bool:
        """Whether its class defines a `flow`."""
        return type(self).flow is not Rule.flow

    def averages(self, params: PyTree) -> PyTree:
        """The averages of `flow` at the start; None where it has none."""
        del params
        # diffrax does not integrate an empty tuple.

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__.lower()

    @property
    def has_inertia(self) -> bool:
        """Whether a velocity carries gradients over from step to step."""
        return False

    @property
    def is_adaptive(self) -> bool:
        """Whether the direction is known not to be linear in the gradient."""
        return True

    @property
    def is_elementwise(self) -> bool:
        """Whether it treats each weight separately, so that equal weights with equal gradients stay
        equal."""
        return self.clip is None and self.noise is None

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The learning rates by group; a rate for all weights has the empty name."""
        return self.rates if isinstance(self.rates, dict) else {"": self.rates}

    def rate(self, step: Real[Number, "*S"]) -> PyTree[Real[AnyArray, "*S"]]:
        """Learning rate of the update after `step` steps, by group where there are groups."""
        return self._by_group(lambda each: each.rate(step))

    def flow_rate(self, t: Real[Number, "*S"]) -> PyTree[Real[AnyArray, "*S"]]:
        """Learning rate of a flow at time `t`, in steps, by group where there are groups."""
        return self._by_group(lambda each: each.flow_rate(t))

    def eta_time(self, steps: Real[Number, "*S"]) -> PyTree[Real[AnyArray, "*S"]]:
        """Sum of the learning rates of the first `steps` steps, by group where there are groups.

        Raises:
            ValueError: for a rate that is a function of the step.
        """
        return self._by_group(lambda each: each.eta_time(steps))

    def _by_group(self, value: Callable[[Schedule], AnyArray]) -> PyTree[AnyArray]:
        if isinstance(self.rates, dict):
            return {name: value(each) for name, each in self.rates.items()}
        return value(self.rates)

    def of_groups(self, *groups: str) -> "Rule":
        """The same rule with a rate for each of the groups, if it has one rate for all weights.

        Raises:
            ValueError: for a rule with rates for other groups than these.
        """
        if not isinstance(self.rates, dict):
            return dataclasses.replace(self, eta=dict.fromkeys(groups, self.rates))
        if set(self.rates) != set(groups):
            given, needed = (", ".join(map(repr, sorted(each))) for each in (self.rates, groups))
            raise ValueError(
                f"eta: has rates for {given}, must be for {needed}, or for all weights"
            )
        return self

    def astype(self, dtype: str) -> "Rule":
        """The same rule with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    def init(self, params: PyTree) -> PyTree:
        """The memory before the first step."""
        where = f"{type(self).__name__}.direction"
        with checks.code_of_user(where, params):
            made = self.direction()
            if not isinstance(made, optax.GradientTransformation):
                raise ValueError(f"{where}: must return an optax transformation, returned {made!r}")
            return made.init(params)

    def update(
        self,
        gradient: PyTree,
        memory: PyTree,
        params: PyTree,
        step: Int[Array, ""],
        noise: PyTree = None,
        groups: PyTree = None,
    ) -> tuple[PyTree, PyTree]:
        """The change of the weights in step number `step`, and the memory after it.

        Args:
            noise: standard normal numbers in the structure of the gradient, if there is noise.
            groups: the name of the group of each part of the weights, where numbers differ by
                group.
        """
        if self.clip is not None:
            shorten = optax.clip_by_global_norm(self.clip)
            gradient, _ = shorten.update(gradient, shorten.init(params))
        if self.noise is not None and noise is not None:
            gradient = _changed(lambda s, g, xi: g + s * xi, self.noise, groups, gradient, noise)
        if not self.decoupled:
            gradient = self.decayed(gradient, params, groups)
        where = f"{type(self).__name__}.direction"
        with checks.code_of_user(where, gradient, memory, params):
            direction, after = self.direction().update(gradient, memory, params)
        _check_alike(f"{where}: must return an update like the gradient", direction, gradient)
        _check_alike(f"{where}: must return a state like the one before", after, memory)
        memory = after
        if self.decoupled:
            direction = self.decayed(direction, params, groups)
        return self.descend(direction, self.rate(step), groups), memory

    def decayed(self, direction: PyTree, params: PyTree, groups: PyTree = None) -> PyTree:
        """A gradient or direction with the weight decay added."""
        if self.decay is None:
            return direction
        return _changed(lambda decay, d, p: d + decay * p, self.decay, groups, direction, params)

    def descend(self, direction: PyTree, rate: PyTree[Array], groups: PyTree = None) -> PyTree:
        """Minus `direction`, each part times the `rate` of its group."""
        return _changed(lambda eta, d: -eta * d, rate, groups, direction)

    def __repr__(self) -> str:
        rates = {f"eta_{n.lower()}" if n else "eta": each for n, each in self.schedules.items()}
        shown = {name: _number(each) for name, each in rates.items()}
        for field in dataclasses.fields(self):
            if field.name != "eta":
                shown[field.name] = getattr(self, field.name)
        given = (f"{n}={v}" for n, v in shown.items() if v is not None and v is not False)
        return f"{type(self).__name__.lower()}({', '.join(given)})"


def by_group(value: PerGroup | None) -> dict[str, Number]:
    """A number of a rule by group; that for all weights has an empty name."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {"": value}


def _check_alike(where: str, found: PyTree, like: PyTree) -> None:
    """Raise `ValueError` that begins with `where` unless a tree has the structure and the shapes of
    another one, and real numbers in the same places."""

    def kinds(tree: PyTree) -> PyTree:
        return jax.tree.map(
            lambda x: (np.shape(x), jnp.issubdtype(jnp.result_type(x), jnp.inexact)), tree
        )

    try:
        same = eqx.tree_equal(kinds(found), kinds(like))
    except TypeError:
        # Not all of it are arrays.
        same = False
    if not same:
        a, b = (eqx.tree_pformat(each, width=sys.maxsize) for each in (found, like))
        raise ValueError(f"{where}, {b}; returned {a}")


def _changed(
    change: Callable[..., Array], value: PerGroup, groups: PyTree, *trees: PyTree
) -> PyTree:
    """The first of some pytrees after `change` of (number, their leaves). Where numbers are by
    group, parts of groups without one stay as they are."""
    if not isinstance(value, Mapping):
        return jax.tree.map(lambda *leaves: change(value, *leaves), *trees)

    def part(name: str, first: PyTree, *others: PyTree) -> PyTree:
        if name not in value:
            return first
        return jax.tree.map(lambda *leaves: change(value[name], *leaves), first, *others)

    return jax.tree.map(part, groups, *trees)


def _number(eta: Schedule) -> object:
    """The rate, where it is constant."""
    return eta.peak if isinstance(eta, Constant) and eta.warmup is None else eta


def of_layer(params: PyTree) -> PyTree:
    """The groups of weights "Y" and "Z", which are fields of `params`."""
    return eqx.tree_at(lambda tree: (tree.Y, tree.Z), params, ("Y", "Z"))
