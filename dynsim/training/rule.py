"""Update rules: how a gradient moves the weights.

Step k changes the weights p by the gradient g of its batch in this order:

1. `clip`: a gradient whose Euclidean norm over all weights exceeds it is shortened to it.
2. `noise`: every entry of g gets a normal number of that standard deviation.
3. coupled `decay`: g <- g + lambda p, the gradient of the loss with lambda |p|^2/2.
4. direction d, by `kind`:

   sgd        d = g
   momentum   v <- mu v + g, d = v (heavy ball, as PyTorch and optax have it)
   nesterov   the same v, d = mu v + g
   sign       the same v, d = sign(v)
   rmsprop    v <- b2 v + (1 - b2) g^2, d = g / (sqrt(v) + eps)
   adam       both averages, corrected for their start, eps outside of the root

5. decoupled `decay`: d <- d + lambda p, so that the scheduled rate multiplies it, as in optax's and
   PyTorch's AdamW.
6. p <- p - eta(k) d.

Rates, decay and noise may be numbers by group of weights. Every number may be
traced: one compiled program serves a whole grid.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number, cast
from dynsim.schedules.schedule import Constant, Schedule

Kind = Literal["sgd", "momentum", "nesterov", "sign", "rmsprop", "adam"]
NUMBERS: dict[Kind, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "sign": ("momentum",),
    "rmsprop": ("b2", "eps"),
    "adam": ("b1", "b2", "eps"),
}
"""The numbers that each kind reads."""
Eta = Schedule | Callable[[Array], Array] | Number
"""A learning rate: a number, a schedule, or a function of the step."""
Etas = Eta | Mapping[str, Eta]
"""One for all weights, or one for each group of them."""
Some = Real[Number, "*#P"] | Mapping[str, Real[Number, "*#P"]]
"""A number for all weights, or one for each of some groups of them; the others have none."""


class Rule(eqx.Module):
    r"""An update rule. Build one with `dynsim.sgd`, `adam`, `adamw`, `rmsprop` or `sign`.

    Attributes:
        eta: learning rate per step on the mean loss of a batch: a schedule for all weights, or
            schedules by the names of `Problem.groups`.
        momentum: :math:`\mu` of the velocity.
        b1, b2, eps: decays of Adam's averages, the second also of RMSProp's, and :math:`\epsilon`.
        decay: weight decay :math:`\lambda`, or None; by group, those without one do not decay.
        clip: largest norm of the gradient of all weights together, or None.
        noise: standard deviation of normal noise on every entry of the gradient, or None; by group,
            those without one have none.
        kind: the direction, as above.
        decoupled: whether `decay` bypasses the direction, as in AdamW.
    """

    eta: Schedule | dict[str, Schedule]
    momentum: Real[Number, "*#P"] = 0.0
    b1: Real[Number, "*#P"] = 0.9
    b2: Real[Number, "*#P"] = 0.999
    eps: Real[Number, "*#P"] = 1e-8
    decay: Some | None = None
    clip: Real[Number, "*#P"] | None = None
    noise: Some | None = None
    kind: Kind = eqx.field(static=True, default="sgd")
    decoupled: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        for field in ("momentum", "b1", "b2"):
            checks.real(field, getattr(self, field), 0, 1, open_maximum=True)
        checks.real("eps", self.eps, 0, open_minimum=True)
        for field in ("decay", "noise"):
            for group, value in by_group(getattr(self, field)).items():
                checks.real(f"{field}[{group!r}]" if group else field, value, 0)
        if self.clip is not None:
            checks.real("clip", self.clip, 0, open_minimum=True)

    @property
    def has_inertia(self) -> bool:
        """Whether a velocity carries gradients over from step to step."""
        return self.kind in ("momentum", "nesterov", "sign", "adam")

    @property
    def is_adaptive(self) -> bool:
        """Whether the direction is not linear in the gradient."""
        return self.kind in ("sign", "rmsprop", "adam")

    @property
    def is_elementwise(self) -> bool:
        """Whether it treats each weight by itself, so that equal ones with equal gradients stay
        equal."""
        return self.clip is None and self.noise is None

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The learning rates by group; the name of a rate for all weights is empty."""
        return self.eta if isinstance(self.eta, dict) else {"": self.eta}

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
        if isinstance(self.eta, dict):
            return {name: value(each) for name, each in self.eta.items()}
        return value(self.eta)

    def of_groups(self, *groups: str) -> "Rule":
        """The same rule with a rate for each of the groups, where it has one for all weights.

        Raises:
            ValueError: for a rule with rates for other groups than these.
        """
        if not isinstance(self.eta, dict):
            return dataclasses.replace(self, eta=dict.fromkeys(groups, self.eta))
        if set(self.eta) != set(groups):
            given, needed = (", ".join(map(repr, sorted(each))) for each in (self.eta, groups))
            raise ValueError(
                f"eta: has rates for {given}, must be for {needed}, or for all weights"
            )
        return self

    def astype(self, dtype: str) -> "Rule":
        """The same rule with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    def direction(self) -> optax.GradientTransformation:
        """What makes :math:`d` of :math:`g`. Call it inside the traced function."""
        if self.kind == "adam":
            return optax.scale_by_adam(self.b1, self.b2, self.eps)
        if self.kind == "rmsprop":
            return optax.scale_by_rms(self.b2, self.eps, eps_in_sqrt=False)
        if self.kind == "sgd":
            return optax.identity()
        velocity = optax.trace(self.momentum, nesterov=self.kind == "nesterov")
        if self.kind != "sign":
            return velocity
        signs = optax.stateless(lambda updates, _: jax.tree.map(jnp.sign, updates))
        return optax.chain(velocity, signs)

    def init(self, params: PyTree) -> PyTree:
        """The memory before the first step."""
        return self.direction().init(params)

    def update(
        self,
        gradient: PyTree,
        memory: PyTree,
        params: PyTree,
        step: Int[Array, ""],
        noise: PyTree = None,
        groups: PyTree = None,
    ) -> tuple[PyTree, PyTree]:
        """What step number `step` adds to the weights, and the memory after it.

        Args:
            noise: standard normal numbers in the structure of the gradient, if there is noise.
            groups: a name for each part of the weights, where numbers have groups.
        """
        if self.clip is not None:
            shorten = optax.clip_by_global_norm(self.clip)
            gradient, _ = shorten.update(gradient, shorten.init(params))
        if self.noise is not None and noise is not None:
            gradient = _changed(lambda s, g, xi: g + s * xi, self.noise, groups, gradient, noise)
        if not self.decoupled:
            gradient = self.decayed(gradient, params, groups)
        direction, memory = self.direction().update(gradient, memory, params)
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
        shown = {
            **{name: _number(each) for name, each in rates.items()},
            **{name: getattr(self, name) for name in NUMBERS[self.kind]},
            **{name: getattr(self, name) for name in ("decay", "clip", "noise")},
        }
        if self.decoupled:
            shown["decoupled"] = True
        given = (f"{name}={value}" for name, value in shown.items() if value is not None)
        return f"{self.kind}({', '.join(given)})"


def by_group(value: Some | None) -> dict[str, Number]:
    """A number of a rule by group; that for all weights has an empty name."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {"": value}


def _changed(change: Callable[..., Array], value: Some, groups: PyTree, *trees: PyTree) -> PyTree:
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
