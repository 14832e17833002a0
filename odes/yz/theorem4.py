r"""Attention with a single common token: the flow of Theorem 4 (Scan and Snap).

The common token c is in all K classes, every query serves q of them, and the overlaps
:math:`f_n \cdot f_{n'} = f_{nc} f_{n'c}` are weak. With :math:`z_c` measured from its start,
:math:`\xi = \gamma\, e^{4 z_c} / C_0` with :math:`C_0 = \rho_0^4 / K`, and

.. math::

    z_c' = -q\, w\, \eta_Z\, \xi, \qquad B_n' = w\, \eta_Z\, \xi, \qquad
    z_l' = w\, \eta_Z\, \xi f_{nl}^2 = f_{nl}^2 B_n'

(closed form: `odes.growth.bound`, which explains w and q). All distinct tokens l of a
class follow from its dominant one (`odes.growth.other_logit`), for which
:math:`f_{nl_0}^2` uses the normaliser of the current z; with the initial one it would exceed 1.
Only one number per class is integrated; everything else is in closed form.

The normaliser at the start, :math:`\rho_0`, is defined by
:math:`\rho_0^{-2} = \operatorname{mean}_n f_{nc}(0)^2`, which makes the mean of :math:`\xi_n`
correct to leading order in the overlap, even if classes differ. `init` shifts the start:
:math:`f_{nc}(0)` and :math:`f_{nl}(0)` are then those of init.Z, whose rows need not be equal.

Also assumes :math:`T \to \infty`, Y = 0 at the start, equal priors, :math:`1/M \to 0`, Lemma 3's
decoder, :math:`1/K \to 0`, and :math:`B_n \ll 1`: later the growth of distinct tokens lowers
:math:`f_{nc}` and :math:`\xi` further, so that :math:`B_n` is overestimated.

Example:
    >>> task = dynsim.Syn(4, 1, num_common=1).build()
    >>> theory = odes.theorem4.solve(task, dynsim.sgd(1.0, 0.1), [0, 10, 100])
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer
from dynsim.yz.observables import PREDICTED, Snapshot
from odes import decoder, growth
from odes.solver.posed import Rescaled
from odes.theory import AnyTheory, Theory, Training, error_message
from odes.yz import population

# Priors and P(c|n) typed with a few decimals count as equal.
_EQUAL = 1e-5


def solve(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    *,
    convention: growth.Convention = "sgd",
    **options: Any,
) -> Trajectory:
    r"""Solve Theorem 4's flow, for sequence classes with one common token, see `inapplicable`, and
    a positive eta_y. "speed" is :math:`\gamma`, "xi" the theorem's. Other arguments, result and
    errors are as in `odes.yz.eq10.solve`."""
    checks.choice("convention", convention, ("sgd", "paper"))
    options |= {"convention": convention, "pose": _pose, "name": "theorem4", "table": PREDICTED}
    solver = population.integrated
    return population.without_decoder(solver, task, optimizer, times, inapplicable, **options)


def inapplicable(training: Training) -> str | None:
    """Return why Theorem 4 does not apply, or None. A traced task is not checked."""
    task, rule = training.problem.classes, training.rule
    if reason := population.undescribed_rule(rule, "Theorem 4"):
        return reason
    peak = rule.of_groups("Y", "Z").schedules["Y"].peak
    if reason := error_message(functools.partial(checks.real, open_minimum=True), "eta_y", peak, 0):
        return reason
    if checks.is_traced(task):
        return None
    classes = (np.asarray(task.probs) > 0).sum(0)
    common = np.flatnonzero(classes > 1)
    if common.size != 1:
        return f"Theorem 4 needs exactly one common token; the task has {common.size}"
    token = int(common[0])
    if classes[token] < task.K:
        return f"Theorem 4 needs its common token, {token}, in all {task.K} classes"
    chance = np.asarray(task.probs)[:, token]
    if np.ptp(chance) > _EQUAL * chance.max():
        return (
            "Theorem 4 needs its common token to be equally probable in all classes; "
            f"P({token}|n) ranges from {chance.min():.4g} to {chance.max():.4g}"
        )
    if np.ptp(np.asarray(task.prior)) > _EQUAL:
        return "Theorem 4 needs classes with equal priors"
    served = np.bincount(np.asarray(task.query_index))
    if np.ptp(served):
        return f"Theorem 4 needs equally many classes for each query, got {served.tolist()}"
    without = np.flatnonzero(~np.asarray(task.distinct()).any(1))
    if without.size:
        return f"Theorem 4 needs a distinct token in every class; class {without[0]} has none"
    return None


def normaliser(task: SequenceClasses, Z: Float[Array, "Q M"]) -> Float[Array, ""]:
    r"""Return :math:`\rho_0 = (\operatorname{mean}_n f_{nc}^2)^{-1/2}` of the task and the starting
    logits."""
    f = yz.normalise(yz.attend(Z[task.query_index], task.probs))
    return jnp.mean(jnp.sum(jnp.where(task.common(), f, 0), axis=1) ** 2) ** -0.5


def _pose(
    task: SequenceClasses,
    Z: Float[Array, "Q M"],
    rescaled: Rescaled,
    *,
    convention: growth.Convention,
) -> tuple[PyTree, ...]:
    f = yz.normalise(yz.attend(Z[task.query_index], task.probs))
    # All distinct tokens of a class follow from its dominant one by f_l(0) / f_l0(0).
    dominant = jnp.max(jnp.where(task.distinct(), f, 0), axis=1, keepdims=True)
    ratio = jnp.where(task.distinct(), f / dominant, 0)
    c0 = growth.c0(normaliser(task, Z), task.K)
    args = task, rescaled, population.class_weight(task.prior, convention), Z, ratio, c0
    return _field, jnp.zeros_like(task.prior), args, _predict


def _drive(
    t: Float[Array, ""], args: PyTree
) -> tuple[Float[Array, " K"], Float[Array, " K"], Float[Array, " K"]]:
    """Return h_n, xi_n and B_n of Theorem 4 at ODE time `t`."""
    task, rescaled, class_weight, _, _, c0 = args
    q = task.K // task.num_queries
    eta_y, visits = rescaled.rate * rescaled.eta_y, t * task.prior
    h = decoder.h(visits, eta_y, task.M)
    # B_n of `odes.growth`, and xi = gamma e^{4 z_c} / C_0 with z_c = -q B.
    big_gamma = decoder.gamma_integral(visits, eta_y, task.M, 1 / task.prior)
    driven = class_weight * rescaled.rate * rescaled.eta_z * big_gamma
    B = growth.bound_from_drive(driven, c0=c0, classes_per_query=q)
    return h, decoder.speed(h, task.M) * jnp.exp(-4 * q * B) / c0, B


def _logits(gain: Float[Array, " K"], B: Float[Array, " K"], args: PyTree) -> Float[Array, "K M"]:
    """Return the logits z of each class's query; z_c sums the -B_n of the query's classes."""
    task, _, _, Z, ratio, _ = args
    moved = jnp.where(task.common(), -B[:, None], growth.other_logit(gain[:, None], ratio))
    Z = Z + jax.ops.segment_sum(moved, task.query_index, num_segments=task.num_queries)
    return Z[task.query_index]


def _predict(t: Float[Array, ""], gain: Float[Array, " K"], args: PyTree) -> Snapshot:
    task = args[0]
    h, xi, B = _drive(t, args)
    z = _logits(gain, B, args)
    c = yz.attend(z, task.probs)
    f = yz.normalise(c)
    # g with f . g = gamma that moves distinct tokens by f (g - gamma f) = xi f^2. The common token
    # has the rest.
    gamma, xi = decoder.speed(h, task.M)[:, None], xi[:, None]
    on_common = gamma * f - xi * (1 - f**2) / jnp.where(task.common(), f, 1)
    g = jnp.where(task.common(), on_common, (gamma + xi) * f)
    return Snapshot(z, c, f, population.logits(task, h), g, B)


def _field(t: Float[Array, ""], gain: Float[Array, " K"], args: PyTree) -> Float[Array, " K"]:
    task, rescaled, class_weight, *_ = args
    _, xi, B = _drive(t, args)
    f = yz.normalise(yz.attend(_logits(gain, B, args), task.probs))
    # z_l0' = w eta_Z xi f_l0^2, with the normaliser of the current z.
    dominant = jnp.max(jnp.where(task.distinct(), f, 0), axis=1)
    return class_weight * rescaled.rate * rescaled.eta_z * xi * dominant**2


THEORY: AnyTheory = Theory(
    "theorem4",
    "Theorem 4",
    f"{population.WEAK}, a single common token, equal normalisers, overlap -> 0, 1/K -> 0",
    solve,
    inapplicable,
    variant=True,
    needs=("key",),
    predicts=population.bounds,
    memory=population.by_class(3),
)
