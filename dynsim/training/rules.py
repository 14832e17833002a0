r"""The update rules by name: `dynsim.sgd`, `adam`, `adamw`, `rmsprop` and `sign`.

Each takes `eta`: a number, a schedule of `dynsim.schedules`, a function of the step, or one of
these for each group of weights by name, as in `{"Y": 1.0, "Z": 0.1}`. All of them read

    decay      weight decay :math:`\lambda`, per unit of eta-time, or None; or {group: decay}
    decoupled  whether decay acts on the weights instead of the gradient
    clip       largest Euclidean norm of the gradient of all weights together, or None
    noise      standard deviation of normal noise on each entry of the gradient, or None; or
               {group: deviation}

in the order that `dynsim.training.rule` describes. All numbers may be traced. Two positional rates,
or `eta_y` and `eta_z`, are those of the groups "Y" and "Z" of an attention layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Real

from dynsim import checks
from dynsim.precision import Number
from dynsim.schedules.schedule import as_schedule
from dynsim.training.rule import NUMBERS, Eta, Etas, Kind, Rule

Some = Real[Number, "*#P"]
OPTIONS = ("decay", "decoupled", "clip", "noise")
"""What every rule takes."""


def sgd(
    eta: Etas | None = None,
    eta_z: Eta | None = None,
    *,
    eta_y: Eta | None = None,
    momentum: Some | None = None,
    nesterov: bool = False,
    **options: Any,
) -> Rule:
    r"""(Stochastic) gradient descent, with heavy-ball or Nesterov momentum if `momentum` is given.

    Args:
        eta: learning rate per step on the batch-mean loss: a number, a schedule, a function of the
            step, or these by group of weights.
        eta_y, eta_z: in its place, the rates of Y and of Z of an attention layer.
        momentum: :math:`\mu` of the velocity v <- mu v + g, in [0, 1), without dampening.
        nesterov: whether the step looks ahead along the velocity.
        **options: `decay`, `decoupled`, `clip`, `noise`, see `dynsim.training.rules`.

    Raises:
        ValueError: for a number out of its range, naming the field.

    Example:
        >>> dynsim.sgd(0.1, momentum=0.9, nesterov=True, decay=1e-4)
    """
    if nesterov and momentum is None:
        raise ValueError("nesterov = True: needs momentum")
    if momentum is None:
        return _rule("sgd", _etas(eta, eta_y, eta_z), **options)
    kind: Kind = "nesterov" if nesterov else "momentum"
    return _rule(kind, _etas(eta, eta_y, eta_z), momentum=momentum, **options)


def momentum(eta_y: Eta, eta_z: Eta, momentum: Some = 0.9, **options: Any) -> Rule:
    r"""Heavy-ball momentum, :math:`v \leftarrow \mu v + g`, :math:`p \leftarrow p - \eta v`, of an
    attention layer: `sgd` with `momentum`, of which the rest are the options.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """
    return sgd(eta_y, eta_z, momentum=momentum, **options)


def adam(
    eta: Etas | None = None,
    eta_z: Eta | None = None,
    b1: Some = 0.9,
    b2: Some = 0.999,
    eps: Some = 1e-8,
    *,
    eta_y: Eta | None = None,
    **options: Any,
) -> Rule:
    r"""Adam with bias correction, epsilon outside of the square root.

    Args:
        eta, eta_y, eta_z: as in `sgd`.
        b1, b2: decays of the averages of the gradient and of its square, in [0, 1).
        eps: :math:`\epsilon`, > 0.
        **options: `decay`, `decoupled`, `clip`, `noise`, see `dynsim.training.rules`.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """
    return _rule("adam", _etas(eta, eta_y, eta_z), b1=b1, b2=b2, eps=eps, **options)


def adamw(
    eta: Etas, *, decay: Some, b1: Some = 0.9, b2: Some = 0.999, eps: Some = 1e-8, **options: Any
) -> Rule:
    """Adam with decoupled weight decay, which the scheduled rate multiplies: a step takes
    eta(k) * decay of each weight away, as in optax and PyTorch.

    Args:
        eta, b1, b2, eps: as in `adam`.
        decay: weight decay, >= 0.
        **options: `clip`, `noise`, see `dynsim.training.rules`.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """
    return _rule("adam", eta, b1=b1, b2=b2, eps=eps, decay=decay, decoupled=True, **options)


def rmsprop(eta: Etas, *, b2: Some = 0.9, eps: Some = 1e-8, **options: Any) -> Rule:
    """RMSProp: the gradient over the root of the average of its square, which starts at zero and
    is not corrected for that, as in PyTorch.

    Args:
        eta: as in `sgd`.
        b2: decay of the average, in [0, 1).
        eps: added to the root, > 0.
        **options: `decay`, `decoupled`, `clip`, `noise`, see `dynsim.training.rules`.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """
    return _rule("rmsprop", eta, b2=b2, eps=eps, **options)


def sign(eta: Etas, *, momentum: Some = 0.0, **options: Any) -> Rule:
    """Sign descent: every weight moves by eta, against the sign of its velocity (signSGD, or
    Signum with momentum).

    Args:
        eta, momentum: as in `sgd`.
        **options: `decay`, `decoupled`, `clip`, `noise`, see `dynsim.training.rules`.

    Raises:
        ValueError: for a number out of its range, naming the field.
    """
    return _rule("sign", eta, momentum=momentum, **options)


def _etas(eta: Etas | None, eta_y: Eta | None, eta_z: Eta | None) -> Etas | None:
    if eta_y is None and eta_z is None:
        return eta
    rates = {"eta_y": eta if eta_y is None else eta_y, "eta_z": eta_z}
    for name, value in rates.items():
        if value is None:
            raise ValueError(f"{name} = None: must be given with the other rate")
    return {"Y": as_schedule("eta_y", rates["eta_y"]), "Z": as_schedule("eta_z", rates["eta_z"])}


def _rule(kind: Kind, eta: Etas | None, **options: Any) -> Rule:
    for name in options:
        # Of descent, whose momentum makes it another kind.
        own = NUMBERS[kind] or ("momentum", "nesterov")
        checks.choice(f"{kind}: argument", name, (*own, *OPTIONS))
    if isinstance(eta, Mapping):
        if not eta:
            raise ValueError("eta = {}: needs a rate for each group of weights")
        each = {n: as_schedule(f"eta[{n!r}]", eta[n]) for n in sorted(eta)}
        return Rule(each, kind=kind, **options)
    return Rule(as_schedule("eta", eta), kind=kind, **options)
