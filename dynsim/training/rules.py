"""The update rules: `SGD`, `Adam`, `AdamW`, `RMSProp`, `Sign`, and any optimiser of optax.

The direction d as a function of the gradient g:

   SGD        d = g; with `momentum` v <- mu v + g, d = v (heavy ball, as in PyTorch and optax), or
              d = mu v + g with `nesterov`
   Sign       the same v, d = sign(v)
   RMSProp    v <- b2 v + (1 - b2) g^2, d = g / (sqrt(v) + eps)
   Adam       both averages with bias correction, eps outside the root

`dynsim.sgd`, `adam`, `adamw`, `rmsprop` and `sign` are shorthands. All rules also accept `decay`,
`decoupled`, `clip` and `noise` of `dynsim.Rule`. All numbers may be traced. Two positional rates,
or `eta_y` and `eta_z`, are those of the groups "Y" and "Z" of an attention layer.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from dynsim import checks
from dynsim.precision import AnyDecay, AnyPositive, AnyReal, Number
from dynsim.schedules import Schedule, as_schedule
from dynsim.training.rule import Eta, Etas, PerGroup, Ratio, Rule, schedules_of, square_root


class _Elementwise(Rule):
    @property
    def is_elementwise(self) -> bool:
        # A subclass may have another direction.
        return self.clip is None and self.noise is None and type(self) in BUILT_IN_RULES


class SGD(_Elementwise):
    """(Stochastic) gradient descent, with heavy-ball or Nesterov momentum.

    Attributes:
        momentum: mu of the velocity v <- mu v + g, in [0, 1), without dampening; or None for no
            velocity.
        nesterov: whether the step looks ahead along the velocity.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> dynsim.SGD(0.1, momentum=0.9, nesterov=True).name
        'nesterov'
    """

    momentum: AnyDecay | None = None
    nesterov: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        if self.nesterov and self.momentum is None:
            raise ValueError("nesterov = True: needs momentum")

    def direction(self) -> optax.GradientTransformation:
        if self.momentum is None:
            return optax.identity()
        return optax.trace(self.momentum, nesterov=self.nesterov)

    @property
    def mu(self) -> Number:
        """The momentum, 0 without one."""
        return 0.0 if self.momentum is None else self.momentum

    @property
    def name(self) -> str:
        if self.momentum is None:
            return "sgd"
        return "nesterov" if self.nesterov else "momentum"

    @property
    def has_inertia(self) -> bool:
        return self.momentum is not None

    @property
    def is_adaptive(self) -> bool:
        return False


class Sign(_Elementwise):
    """Sign descent: every weight moves by eta, against the sign of its velocity (signSGD, or
    Signum with momentum).

    Attributes:
        momentum: mu of the velocity v <- mu v + g, in [0, 1), without dampening.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> rule = dynsim.Sign(1e-3, momentum=0.9)
    """

    momentum: AnyDecay = 0.0

    def direction(self) -> optax.GradientTransformation:
        # The sign of the velocity, not the velocity of signs.
        signs = optax.stateless(lambda updates, _: jax.tree.map(jnp.sign, updates))
        return optax.chain(optax.trace(self.momentum), signs)

    @property
    def has_inertia(self) -> bool:
        return True


class RMSProp(_Elementwise):
    """RMSProp: the gradient over the root of the average of its square, which starts at zero
    without bias correction, as in PyTorch.

    Attributes:
        b2: decay of the average, in [0, 1).
        eps: added to the root, > 0.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> rule = dynsim.RMSProp(1e-3, b2=0.99)
    """

    b2: AnyDecay = 0.9
    eps: AnyPositive = 1e-8

    def direction(self) -> optax.GradientTransformation:
        def direction(gradient: PyTree, state: Any) -> PyTree:
            return jax.tree.map(
                lambda g, v: 1 / (square_root(v) + self.eps) * g, gradient, state.nu
            )

        return _from_averages(optax.scale_by_rms(self.b2), direction)


class Adam(_Elementwise):
    """Adam with bias correction, epsilon outside of the square root.

    Attributes:
        b1: decay of the average of the gradient, in [0, 1).
        b2: decay of the average of its square, in [0, 1).
        eps: added to the root of the average square, > 0.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> rule = dynsim.Adam(dynsim.schedules.cosine(1e-3, steps=1000), b2=0.99)
    """

    b1: AnyDecay = 0.9
    b2: AnyDecay = 0.999
    eps: AnyPositive = 1e-8

    def direction(self) -> optax.GradientTransformation:
        def direction(gradient: PyTree, state: Any) -> PyTree:
            mean = optax.tree.bias_correction(state.mu, self.b1, state.count)
            squares = optax.tree.bias_correction(state.nu, self.b2, state.count)
            return jax.tree.map(lambda m, v: m / (square_root(v) + self.eps), mean, squares)

        return _from_averages(optax.scale_by_adam(self.b1, self.b2), direction)

    @property
    def has_inertia(self) -> bool:
        return True


class AdamW(Adam):
    """Adam with decoupled weight decay: each step reduces every weight by the fraction
    eta(k) * decay, with the scheduled rate eta(k), as in optax and PyTorch.

    Attributes:
        decay: weight decay; groups that are not listed do not decay.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> dynsim.AdamW(1e-3, decay=1e-2).decoupled
        True
    """

    decay: PerGroup = eqx.field(kw_only=True)
    decoupled: bool = eqx.field(default=True, kw_only=True, static=True)

    def __check_init__(self) -> None:
        if not self.decoupled:
            raise ValueError("decoupled = False: must be True for adamw; adam has coupled decay")


def _from_averages(
    averages: optax.GradientTransformation, direction: Callable[[PyTree, Any], PyTree]
) -> optax.GradientTransformation:
    """Return a transformation with the averages of another one and a `direction` of our own, a
    function of the gradient and the new averages."""

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        # The direction of optax is not used, because its square roots have no derivative at 0.
        _, state = averages.update(updates, state, params)
        return direction(updates, state), state

    return optax.GradientTransformation(averages.init, update)


class OptaxRule(Rule):
    """An optax optimiser as a rule. Build one with `dynsim.from_optax`.

    Attributes:
        eta: a factor on the steps of the optimiser, which has its own learning rate.
        make: function that returns the transformation, called with `numbers` as keywords.
        numbers: traced numbers of the optimiser, by name.

    Raises:
        ValueError: as `dynsim.from_optax`; and, when training starts, for an optimiser that needs
            the value of a traced number.

    Example:
        >>> rule = dynsim.from_optax(optax.lion, learning_rate=1e-3)
        >>> sorted(rule.numbers)
        ['learning_rate']
    """

    eta: Schedule | Ratio | dict[str, Schedule] = eqx.field(
        default=1.0, converter=schedules_of, static=True
    )
    make: Callable[..., optax.GradientTransformation] = eqx.field(static=True, kw_only=True)
    numbers: dict[str, AnyReal] = eqx.field(kw_only=True)

    def direction(self) -> optax.GradientTransformation:
        with self._explain_errors():
            optimiser = self.make(**self.numbers)

        def init(params: PyTree) -> PyTree:
            with self._explain_errors():
                return optimiser.init(params)

        def update(
            updates: PyTree, state: PyTree, params: PyTree | None = None
        ) -> tuple[PyTree, PyTree]:
            with self._explain_errors():
                updates, state = optimiser.update(updates, state, params)
            # An optimiser of optax returns the step, which is minus the rate times the direction.
            return jax.tree.map(jnp.negative, updates), state

        return optax.GradientTransformation(init, update)

    def _owner(self) -> Any:
        return self.make

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        name = getattr(self.make, "__name__", self.make)
        try:
            yield
        except jax.errors.ConcretizationTypeError as error:
            if not self.numbers:
                raise
            raise ValueError(
                f"from_optax({name}): needs the value of a number in Python, but its numbers "
                f"({', '.join(self.numbers)}) are traced. Fix such a number beforehand, as in "
                "functools.partial(make, peak=0.1), or pass optax a schedule of dynsim.schedules, "
                "as in optax.adam(dynsim.schedules.cosine(peak, 1000))"
            ) from error
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"from_optax({name}): needs more than the gradient and the weights as the problem "
                f"has them, which is not supported ({error})"
            ) from error

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Empty, because the rates are not known."""
        return {}

    def of_groups(self, *groups: str) -> OptaxRule:
        """Return the rule itself, which has its own rates."""
        del groups
        return self


BUILT_IN_RULES = (SGD, Sign, RMSProp, Adam, AdamW)
"""The rules that theories describe."""


def why_not_known(rule: object) -> str | None:
    """Explain why theories do not cover a rule, or return None. Subclasses may step otherwise."""
    if type(rule) not in BUILT_IN_RULES:
        names = ", ".join(f"dynsim.{cls.__name__}" for cls in BUILT_IN_RULES)
        return f"rule = {type(rule).__name__}: theories describe {names}, and no subclasses of them"
    return None


def check_known(rule: object) -> None:
    """Raise `ValueError` for a rule that theories do not cover."""
    if reason := why_not_known(rule):
        raise ValueError(reason)


def sgd(
    eta: Etas | None = None,
    eta_z: Eta | None = None,
    *,
    eta_y: Eta | None = None,
    momentum: AnyReal | None = None,
    nesterov: bool = False,
    **options: Any,
) -> SGD:
    """Gradient descent, as `dynsim.SGD`.

    Args:
        eta: learning rate per step on the batch-mean loss: a number, a schedule, a function of the
            step, or these by group of weights.
        eta_y, eta_z: instead of `eta`, the rates of Y and of Z of an attention layer.
        momentum, nesterov: as in `SGD`.
        **options: `decay`, `decoupled`, `clip`, `noise` of `dynsim.Rule`.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> dynsim.sgd(0.1, momentum=0.9, nesterov=True, decay=1e-4)
    """
    return SGD(_etas(eta, eta_y, eta_z), momentum, nesterov, **options)


def adam(
    eta: Etas | None = None,
    eta_z: Eta | None = None,
    b1: AnyReal = 0.9,
    b2: AnyReal = 0.999,
    eps: AnyReal = 1e-8,
    *,
    eta_y: Eta | None = None,
    **options: Any,
) -> Adam:
    """Adam, as `dynsim.Adam`.

    Args:
        eta, eta_y, eta_z: as in `sgd`.
        b1, b2, eps: as in `Adam`.
        **options: `decay`, `decoupled`, `clip`, `noise` of `dynsim.Rule`.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> rule = dynsim.adam(1e-3)
        >>> layer = dynsim.adam(eta_y=0.1, eta_z=0.01, b2=0.99)
    """
    return Adam(_etas(eta, eta_y, eta_z), b1, b2, eps, **options)


adamw, rmsprop, sign = AdamW, RMSProp, Sign


def _etas(eta: Etas | None, eta_y: Eta | None, eta_z: Eta | None) -> Any:
    # None is an error of the rule, which names the field.
    if eta_y is None and eta_z is None:
        return eta
    rates = {"eta_y": eta if eta_y is None else eta_y, "eta_z": eta_z}
    for name, value in rates.items():
        if value is None:
            raise ValueError(f"{name} = None: must be given with the other rate")
    return {"Y": as_schedule("eta_y", rates["eta_y"]), "Z": as_schedule("eta_z", rates["eta_z"])}


def from_optax(make: Callable[..., optax.GradientTransformation], **numbers: AnyReal) -> OptaxRule:
    """Use any optax optimiser as a rule for training. No theory describes it.

    Args:
        make: a function such as `optax.lion`, or your own, which chains transformations. It is
            called inside the compiled program, where `numbers` are traced. Random keys in its state
            are combined with the key of the run, so that each seed draws its own numbers.
        **numbers: numeric keyword arguments of `make`, each of which can be an axis of a sweep.

    Raises:
        ValueError: if `make` cannot be called with these arguments, or a number is not finite.

    Example:
        >>> rule = dynsim.from_optax(optax.lion, learning_rate=1e-3, weight_decay=0.1)
    """
    if not callable(make):
        raise ValueError(f"make = {make!r}: must be a function that returns an optax optimiser")
    try:
        # Before training, where a wrong keyword would fail inside of the program.
        inspect.signature(make).bind(**numbers)
    except TypeError as error:
        raise ValueError(f"make = {getattr(make, '__name__', make)}: {error}") from None
    for name, value in numbers.items():
        checks.real(name, value)
    return OptaxRule(make=make, numbers=numbers)
