"""Update rules with separate learning rates for Y and Z."""

import equinox as eqx
import jax
from jaxtyping import PyTree, Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.training.constant.rates import ConstantRates, Kind


class Optimizer(ConstantRates):
    r"""An update rule with separate learning rates for Y and Z. Build it with `sgd`,
    `momentum` or `adam`, given `eta_y` and `eta_z`.

    Attributes:
        eta_y, eta_z: learning rates of Y and of Z, per step on the batch-*mean* loss.
        momentum: heavy-ball coefficient :math:`\mu` of :math:`v \leftarrow \mu v + g`,
            :math:`p \leftarrow p - \eta v` (PyTorch's and optax's convention); 0 unless `kind` is
            "momentum".
        b1, b2, eps: Adam's decays and its epsilon.
        kind: which rule.
    """

    eta_y: Real[Number, "*#P"]
    eta_z: Real[Number, "*#P"]
    momentum: Real[Number, "*#P"] = 0.0
    b1: Real[Number, "*#P"] = 0.9
    b2: Real[Number, "*#P"] = 0.999
    eps: Real[Number, "*#P"] = 1e-8
    kind: Kind = eqx.field(static=True, default="sgd")

    def __check_init__(self) -> None:
        for field in ("eta_y", "eta_z"):
            checks.real(field, getattr(self, field), 0)

    def descend(self, direction: PyTree, t: object = None, params: PyTree = None) -> PyTree:
        """Minus `direction`, a pytree with fields `Y` and `Z`, each times its learning rate."""

        def scale(rate: Real[Number, "*#P"], part: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: -rate * leaf, part)

        scaled = scale(self.eta_y, direction.Y), scale(self.eta_z, direction.Z)
        return eqx.tree_at(lambda tree: (tree.Y, tree.Z), direction, scaled)

    def __repr__(self) -> str:
        extra = {"momentum": ("momentum",), "adam": ("b1", "b2", "eps")}.get(self.kind, ())
        shown = (f"{name}={getattr(self, name)}" for name in ("eta_y", "eta_z", *extra))
        return f"{self.kind}({', '.join(shown)})"


def momentum(
    eta_y: Real[Number, "*#P"], eta_z: Real[Number, "*#P"], momentum: Real[Number, "*#P"] = 0.9
) -> Optimizer:
    r"""Heavy-ball momentum, :math:`v \leftarrow \mu v + g`, :math:`p \leftarrow p - \eta v`.

    Raises:
        ValueError: for a negative or non-finite learning rate, or :math:`\mu` outside [0, 1).
    """
    return Optimizer(eta_y, eta_z, momentum, kind="momentum")
