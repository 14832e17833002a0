r"""Attention dynamics with the decoder eliminated: Eq. 10 of Scan and Snap.

.. math::

    z_m' = \eta_Z\, \gamma(t) \sum_{n \in \psi^{-1}(m)} \operatorname{diag}(f_n)
    \sum_{n' \ne n} \beta_{nn'}\, (f_n f_n^\top - I)\, f_{n'}, \tag{10}

:math:`\beta` from Theorem 1 (`odes.coefficients`), :math:`\gamma` from the decoder's
closed form (`odes.decoder`). With Theorem 1, the drift of class n becomes
:math:`f_n \odot (g_n - \gamma f_n)`, and is computed in this form. The equation assumes
:math:`T \to \infty`, Y = 0 at the start, the decoder update of Lemma 3, and :math:`\gamma`
unaffected by the motion of Z. It drops terms of order 1/M, and is exact for weak overlap. The
theory has no inertia: momentum enters through :math:`\eta/(1 - \mu)`, schedules through their
integral (`odes.solver.posed`).

`convention="sgd"` weights class n by :math:`\pi(n)`, as in a simulation; `convention="paper"` sums
the classes of a query without weights, as printed. With unequal priors [ours] class n has its own
:math:`\gamma_n`, at its own :math:`\pi(n)\, t` visits. `finite_m` keeps the terms of order 1/M of
Theorem 1 (Eqs. 86, 88). `remark_1` runs the decoder at the rate :math:`(1 - \rho)\, \eta_Y` of
Remark 1, :math:`\rho` the mean overlap :math:`f_n \cdot f_{n'}` of two classes at the start.
`docs/theory/attention.md` explains when to use them.

The growth factor bound of Theorem 3, :math:`B_n' = \eta_Z\, \pi(n)\, \xi_n` or, with
`convention="paper"`, :math:`B_n' = \eta_Z\, \xi_n`, is integrated too and can be recorded as "B".

Example:
    >>> theory = odes.eq10.solve(dynsim.SynSmall(), dynsim.sgd(1.0, 0.1), [0, 10, 100])
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer
from dynsim.yz.observables import PREDICTED, Snapshot
from odes import coefficients, decoder, growth
from odes.solver.posed import Rescaled
from odes.theory import AnyTheory, Theory, Training
from odes.yz import population


class State(NamedTuple):
    """State of the flow: Z (Q, M) attention logits, B (K,) growth factor bounds."""

    Z: Float[Array, "Q M"]
    B: Float[Array, " K"]


def solve(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    *,
    convention: growth.Convention = "sgd",
    finite_m: bool = False,
    remark_1: bool = False,
    **options: Any,
) -> Trajectory:
    r"""Integrate Eq. 10.

    Args:
        task: the layer, or its sequence classes, whose normalised attention must be linearly
            independent.
        optimizer: SGD, or heavy-ball or Nesterov momentum (read as :math:`\eta/(1 - \mu)`), with
            proportional schedules for Y and Z; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0.
        convention: time convention, "sgd" or "paper", see above.
        finite_m, remark_1: the options above.
        **options: `init`, of which only Z is used, and `key`, `record`, `dtype` and `tolerances` of
            `odes.flow`. Weights start at zero unless these options or the layer set them. Recorded
            logits are the decoder's :math:`w_n`.

    Returns:
        A `Trajectory` with `params` None and the source "eq10", followed by the options that are
        not the default; the status of a failed solve is not OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.choice("convention", convention, ("sgd", "paper"))
    settings = {"convention": convention, "finite_m": finite_m, "remark_1": remark_1}
    options |= settings | {"pose": _pose, "name": _name(**settings), "table": PREDICTED}
    solver = population.integrated
    return population.without_decoder(solver, task, optimizer, times, inapplicable, **options)


def _name(convention: str = "sgd", finite_m: bool = False, remark_1: bool = False) -> str:
    parts = {"paper": convention == "paper", "finite-m": finite_m, "remark-1": remark_1}
    return "-".join(("eq10", *(part for part, chosen in parts.items() if chosen)))


def inapplicable(training: Training) -> str | None:
    """Return why Eq. 10 does not apply, or None. A traced task is not checked."""
    return population.inapplicable(training, "Eq. 10")


def drift(
    task: SequenceClasses,
    f: Float[Array, "K M"],
    speed: Float[Array, "K *K"],
    weight: Float[Array, " K"],
) -> State:
    r"""Return the right-hand sides of Eq. 10 and of :math:`B_n` per unit of :math:`\eta_Z`.

    Args:
        f: normalised attention.
        speed: :math:`\gamma` (K,), or the coupled speed (K, K) of finite M
            (`odes.coefficients`).
        weight: factor on the drift of each class.
    """
    # f_n (g_n - gamma_n f_n) with g = C F, and xi_n = C_nn - gamma_n.
    C = coefficients.mixing(f, speed)
    own = coefficients.own_speed(speed)
    per_class = weight[:, None] * f * (C @ f - own[:, None] * f)
    dZ = jax.ops.segment_sum(per_class, task.query_index, num_segments=task.num_queries)
    return State(dZ, weight * (jnp.diagonal(C) - own))


def mean_overlap(f: Float[Array, "K M"]) -> Float[Array, ""]:
    r"""Return the mean of :math:`f_n \cdot f_{n'}` over pairs of different classes, :math:`\rho` of
    Remark 1; 0 for one class."""
    K = f.shape[0]
    return (jnp.sum(f @ f.T) - K) / (K * (K - 1)) if K > 1 else jnp.zeros((), f.dtype)


def _pose(
    task: SequenceClasses,
    Z: Float[Array, "Q M"],
    rescaled: Rescaled,
    *,
    convention: growth.Convention,
    finite_m: bool,
    remark_1: bool,
) -> tuple[PyTree, ...]:
    # Remark 1: the decoder learns more slowly by the mean overlap at the start.
    weight, eta_y = population.class_weight(task.prior, convention), rescaled.rate * rescaled.eta_y
    if remark_1:
        f = yz.normalise(yz.attend(Z[task.query_index], task.probs))
        eta_y = (1 - mean_overlap(f)) * eta_y

    def layer_at(t: Float[Array, ""], state: State, args: PyTree) -> Snapshot:
        # Class n has been visited pi(n) t times.
        task, _, eta_y, _ = args
        h = decoder.h(t * task.prior, eta_y, task.M)
        return population.predict(task, state.Z, h, finite_m=finite_m, B=state.B)

    field = functools.partial(_field, finite_m=finite_m)
    return field, State(Z, jnp.zeros_like(task.prior)), (task, rescaled, eta_y, weight), layer_at


def _field(
    t: Float[Array, ""],
    state: State,
    args: tuple[SequenceClasses, Rescaled, Float[Array, ""], Float[Array, " K"]],
    *,
    finite_m: bool,
) -> State:
    task, rescaled, eta_y, class_weight = args
    f = yz.normalise(yz.attend(state.Z[task.query_index], task.probs))
    speed = population.speed(task, decoder.h(t * task.prior, eta_y, task.M), finite_m)
    rate = rescaled.rate * rescaled.eta_z
    return jax.tree.map(lambda x: rate * x, drift(task, f, speed, class_weight))


def _theory(title: str, assumes: str, variant: bool = False, **settings: Any) -> AnyTheory:
    return Theory(
        _name(**settings),
        title,
        assumes,
        functools.partial(solve, **settings) if settings else solve,
        inapplicable,
        variant=variant,
        needs=("key",),
        predicts=population.bounds,
        memory=population.by_class(12),
    )


_SUMMED = f"{population.WEAK}, classes summed instead of averaged"
_SLOWED = f"{population.WEAK}, slowed down by 1 - rho as for identical overlaps rho and K = M"
THEORIES = (
    _theory(
        "Eq. 10 at finite M",
        f"{population.START}, {population.DECODER}",
        finite_m=True,
        variant=True,
    ),
    _theory("Eq. 10, time of SGD", population.WEAK),
    _theory("Eq. 10, time of the paper", _SUMMED, convention="paper"),
    _theory("Eq. 10, Remark 1's rate", _SLOWED, remark_1=True, variant=True),
)
"""Eq. 10 by the options of `solve`, most exact first."""
