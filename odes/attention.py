"""Attention dynamics with the decoder eliminated: Eq. 10 of Scan and Snap.

    z_m' = eta_Z gamma(t) sum_{n in psi^-1(m)} diag(f_n) sum_{n' != n} beta_nn' (f_n f_n^T - I) f_n'

beta from Theorem 1 (`odes.coefficients`), gamma from the decoder's closed form
(`odes.decoder`). Inserting Theorem 1, the drift of class n is f_n o (g_n - gamma f_n), which is
how it is computed. Assumes T -> infinity, Y = 0 at the start, the decoder update of Lemma 3,
gamma unaffected by the motion of Z, and drops terms of order 1/M: exact for weak overlap.

Clocks. The paper adds up the classes of a query unweighted, while its decoder runs at t/K. One
step of SGD, however, moves z by the *average* over drawn classes. `clock="sgd"` weighs class n
by pi(n) and is what a simulation follows; `clock="paper"` reproduces the printed equation.
Momentum enters through eta / (1 - mu): the theory has no inertia. Extension to unequal priors
[ours]: class n has its own gamma_n, at its own pi(n) t visits.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from dynsim import checks, observables
from dynsim.models import yz
from dynsim.observables import DEFAULT_RECORD, Observable, Record, Snapshot
from dynsim.optim import Clock, Convention, Optimizer, without_inertia
from dynsim.precision import DType, precision, settle
from dynsim.tasks import SequenceClasses
from dynsim.trajectory import Trajectory
from odes import coefficients, decoder
from odes.solve import DEFAULT_TOLERANCES, Tolerances, check_times, integrate, weights

# Condition number of the Gram matrix above which its inverse carries no digit of float64.
_SINGULAR = 1e14


def solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    *,
    clock: Convention = "sgd",
    init: yz.YZ | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    tolerances: Tolerances | None = None,
) -> Trajectory:
    """Integrate Eq. 10.

    Args:
        task: the sequence classes; their normalised attention must be linearly independent.
        optimizer: `sgd` or `momentum` (read as eta / (1 - mu)); its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= 0.
        clock: "sgd" or "paper", see above.
        init: starting weights, of which only Z is used; zero if None.
        record: as in `dynsim.simulate`. Logits are those of the decoder, w_n.
        dtype: "float64" or "float32".
        tolerances: of the solver; by default `DEFAULT_TOLERANCES[dtype]`.

    Returns:
        A `Trajectory` with `params` None; a solve that fails has another status than OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    checks.choice("clock", clock, ("sgd", "paper"))
    problem = inapplicable(task, optimizer)
    if problem:
        raise ValueError(problem)
    check_times(times)
    tolerances = (tolerances or DEFAULT_TOLERANCES[dtype]).check(dtype)
    with precision(dtype, task, optimizer, times, init):
        trajectory = _solve(
            task.astype(dtype),
            optimizer.astype(dtype),
            jnp.asarray(times, dtype),
            weights(init, task, dtype).Z,
            without_inertia(optimizer.astype(dtype), task.astype(dtype).prior, clock),
            record=observables.resolve(record),
            tolerances=tolerances,
        )
    return settle(dataclasses.replace(trajectory, source=f"eq10-{clock}"))


def inapplicable(task: SequenceClasses, optimizer: Optimizer) -> str | None:
    """Why Eq. 10 does not apply, or None. The task is looked at only where it is concrete."""
    if optimizer.kind == "adam":
        return "optimizer = adam: Eq. 10 describes sgd and momentum only"
    if not checks.is_traced(task):
        f = np.asarray(task.probs) / np.linalg.norm(task.probs, axis=1, keepdims=True)
        if np.linalg.cond(f @ f.T) > _SINGULAR:
            return "Eq. 10 needs linearly independent classes (Theorem 1); their P(l|n) are not"
    return None


def drift(
    task: SequenceClasses, f: Float[Array, "K M"], gamma: Float[Array, " K"], weight: Array
) -> Float[Array, "Q M"]:
    """The right-hand side of Eq. 10 per unit of eta_Z, class n weighted by `weight[n]`."""
    g = coefficients.backpropagated_gradient(f, gamma)
    per_class = weight[:, None] * f * (g - gamma[:, None] * f)
    return jax.ops.segment_sum(per_class, task.query_index, num_segments=task.num_queries)


def snapshot(
    task: SequenceClasses, Z: Float[Array, "Q M"], visits: Float[Array, " K"], eta_y: Array
) -> Snapshot:
    """What the theory predicts for the layer: w_n = (M-1) h zeta_n as logits, Theorem 1's g_n."""
    z = Z[task.query_index]
    c = yz.attend(z, task.probs)
    f = yz.normalise(c)
    h = decoder.h(visits, eta_y, task.M)
    label = jax.nn.one_hot(task.next_token, task.M, dtype=f.dtype)
    logits = h[:, None] * (task.M * label - 1)
    gamma = decoder.gamma(visits, eta_y, task.M)
    return Snapshot(z, c, f, logits, coefficients.backpropagated_gradient(f, gamma))


@functools.partial(jax.jit, static_argnames=("record", "tolerances"))
def _solve(
    task: SequenceClasses,
    optimizer: Optimizer,
    times: Float[Array, " S"],
    Z: Float[Array, "Q M"],
    clock: Clock,
    *,
    record: tuple[tuple[str, Observable], ...],
    tolerances: Tolerances,
) -> Trajectory:

    def save(t: Float[Array, ""], Z: Float[Array, "Q M"], args: PyTree) -> dict[str, Array]:
        task, optimizer, clock = args
        visits = t * task.prior
        state = snapshot(task, Z, visits, clock.rate * optimizer.eta_y)
        return observables.evaluate(record, task, state)

    solved = integrate(
        _field,
        Z,
        times,
        (task, optimizer, clock),
        save=save,
        clock=clock,
        tolerances=tolerances,
    )
    return Trajectory(times, solved.saved, None, solved.status, solved.first_bad_step, "eq10")


def _field(
    t: Float[Array, ""],
    Z: Float[Array, "Q M"],
    args: tuple[SequenceClasses, Optimizer, Clock],
) -> Float[Array, "Q M"]:
    task, optimizer, clock = args
    f = yz.normalise(yz.attend(Z[task.query_index], task.probs))
    visits = t * task.prior
    gamma = decoder.gamma(visits, clock.rate * optimizer.eta_y, task.M)
    return clock.rate * optimizer.eta_z * drift(task, f, gamma, clock.class_weight)
