r"""Population flow under the modified decoder update of Lemma 3: what Eq. 10 really describes.

Scan and Snap replaces the update of Y by one under which the rows of W = F Y evolve independently
(Lemma 3). For infinite T and batch and :math:`\eta \to 0` it becomes [ours]

.. math::

    \begin{align*}
    W_n' &= \eta_Y\, \pi(n)\, r_n, \qquad r_n = e_{\nu(n)} - \operatorname{softmax}(w_n) \\
    Y &= F^\top (F F^\top)^{-1} W \\
    z_m' &= \eta_Z \sum_{n \in \psi^{-1}(m)} \pi(n)\, f_n \odot \bigl( g_n - f_n (f_n \cdot g_n)
        \bigr), \qquad g_n = Y r_n
    \end{align*}

where Y is the minimum-norm solution of F Y = W. Eq. 10 with the finite-M terms is this flow with
the decoder in closed form, and Eq. 10 is its limit :math:`1/M \to 0`. Comparing them with the flow
in (Y, Z) shows the errors of Lemma 3 and of 1/M separately. Assumes Y = 0 at the start and linearly
independent classes.

Example:
    >>> theory = odes.lemma3.solve(dynsim.SynSmall(), dynsim.sgd(1.0, 0.1), [0, 10, 100])
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from dynsim.classes.task import SequenceClasses, Task
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer
from dynsim.yz.observables import Snapshot
from odes import coefficients
from odes.solver.posed import Rescaled
from odes.theory import AnyTheory, Theory, Training
from odes.yz import population


def inapplicable(training: Training) -> str | None:
    """Return why the flow does not apply, or None."""
    return population.inapplicable(training, "Lemma 3's flow")


def _pose(task: SequenceClasses, Z: Float[Array, "Q M"], rescaled: Rescaled) -> tuple[PyTree, ...]:
    state = jnp.zeros_like(task.probs), Z
    return _field, state, (task, rescaled), lambda t, state, args: _snapshot(args[0], *state)[0]


def _snapshot(
    task: SequenceClasses, W: Float[Array, "K M"], Z: Float[Array, "Q M"]
) -> tuple[Snapshot, Float[Array, "K M"]]:
    """Return the snapshot of the layer, and the residuals e - alpha."""
    # g_n = Y r_n with Y = F^T (F F^T)^{-1} W, the minimum-norm solution of F Y = W.
    z = Z[task.query_index]
    c = yz.attend(z, task.probs)
    f = yz.normalise(c)
    _, residual = yz.cross_entropy(W, task.next_token)
    g = residual @ W.T @ coefficients.gram_inverse(f) @ f
    return Snapshot(z, c, f, W, g), residual


def _field(
    t: Float[Array, ""],
    state: tuple[Float[Array, "K M"], Float[Array, "Q M"]],
    args: tuple[SequenceClasses, Rescaled],
) -> tuple[Float[Array, "K M"], Float[Array, "Q M"]]:
    task, rescaled = args
    now, residual = _snapshot(task, *state)
    # W_n' = eta_Y pi(n) r_n, z_m' = eta_Z sum_n pi(n) f_n (g_n - f_n f_n.g_n).
    drift = now.f * (now.g - now.f * jnp.sum(now.f * now.g, axis=1, keepdims=True))
    drift = jax.ops.segment_sum(
        task.prior[:, None] * drift, task.query_index, num_segments=task.num_queries
    )
    eta_y, eta_z = rescaled.rate * rescaled.eta_y, rescaled.rate * rescaled.eta_z
    return residual * (eta_y * task.prior[:, None]), drift * eta_z


def solve(task: Layer | Task, optimizer: Rule, times: Times, **options: Any) -> Trajectory:
    r"""Integrate the flow under Lemma 3's update, with arguments, result and errors as in
    `odes.yz.eq10.solve`."""
    options |= {"pose": _pose, "name": "lemma3"}
    solver = population.integrated
    return population.without_decoder(solver, task, optimizer, times, inapplicable, **options)


THEORY: AnyTheory = Theory(
    "lemma3",
    "flow by Lemma 3's update",
    "T, batch -> infinity, eta -> 0, Y = 0 at the start, Lemma 3's decoder",
    solve,
    inapplicable,
    variant=True,
    needs=("key",),
    memory=population.by_class(24),
)
