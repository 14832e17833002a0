"""Descent with one learning rate for all weights, whatever their structure."""

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree, Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.training.constant.rates import ConstantRates, Kind


class Descent(ConstantRates):
    r"""An update rule with one learning rate.

    Attributes:
        eta: learning rate per step on the batch-mean loss.
        momentum: heavy-ball coefficient :math:`\mu` of :math:`v \leftarrow \mu v + g`,
            :math:`p \leftarrow p - \eta v`; read by "momentum".
        b1, b2, eps: Adam's decays and its epsilon; read by "adam".
        clip: largest Euclidean norm of the gradient of all weights together; a longer one is
            shortened to it before anything else. None leaves the gradient alone.
        kind: which rule.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """

    eta: Real[Number, "*#P"]
    momentum: Real[Number, "*#P"] = 0.9
    b1: Real[Number, "*#P"] = 0.9
    b2: Real[Number, "*#P"] = 0.999
    eps: Real[Number, "*#P"] = 1e-8
    clip: Real[Number, "*#P"] | None = None
    kind: Kind = eqx.field(static=True, default="sgd")

    def __check_init__(self) -> None:
        checks.real("eta", self.eta, 0)
        if self.clip is not None:
            checks.real("clip", self.clip, 0, open_minimum=True)

    def descend(self, direction: PyTree, t: object = None, params: PyTree = None) -> PyTree:
        """Minus `direction` times the learning rate."""
        return jax.tree.map(lambda leaf: -self.eta * leaf, direction)

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation of a gradient. Call it inside the traced function."""
        rule = super().transformation()
        if self.clip is None:
            return rule
        return optax.chain(optax.clip_by_global_norm(self.clip), rule)
