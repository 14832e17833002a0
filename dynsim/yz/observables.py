r"""Observables of training and theory: pure functions of a task and a snapshot of the dynamics.

A `Snapshot` holds the quantities of sections 2 and 3 of Scan and Snap at one time, in the
limit :math:`T \to \infty` (population probabilities, not sampled counts). Simulation and the flows
in (Y, Z) create it with `measure`; a theory without Y fills it with its predictions. Observables
use only the snapshot, so each is defined once.
"""

import dataclasses
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray
from dynsim.training.recording import RELATIVE_LOSS, Table
from dynsim.yz import model as yz


class Snapshot(eqx.Module):
    r"""The state of the layer, class by class.

    Attributes:
        z: (K, M) attention logits of each class's query.
        c: (K, M) attention :math:`c_n` of Lemma 2; rows sum to 1.
        f: (K, M) normalised attention :math:`f_n = c_n / \lVert c_n \rVert`; unit rows.
        logits: (K, M) output logits of each class.
        g: (K, M) gradient of minus the loss with respect to f, :math:`g_n = Y (x_{T+1} - \alpha)`.
        B: (K,) growth factor bound :math:`B_n` of Theorem 3, an integral over the past, for
            theories that integrate it; None otherwise.
    """

    z: Float[Array, "K M"]
    c: Float[Array, "K M"]
    f: Float[Array, "K M"]
    logits: Float[Array, "K M"]
    g: Float[Array, "K M"]
    B: Float[Array, " K"] | None = None


Observable = Callable[[SequenceClasses, Snapshot], Array]


def measure(task: SequenceClasses, params: yz.YZ) -> Snapshot:
    """Return the snapshot of the weights of a Y/Z layer."""
    z = params.Z[task.query_index]
    c = yz.attend(z, jnp.asarray(task.probs))
    f = yz.normalise(c)
    # With the residual, g goes back through the second normalisation.
    h, to_f = jax.vjp(lambda f: yz.output(params, task, f, jnp.arange(task.K)), f)
    logits = h @ params.Y
    _, residual = yz.cross_entropy(logits, task.next_token)
    (g,) = to_f(residual @ params.Y.T)
    return Snapshot(z, c, f, logits, g)


def loss(task: SequenceClasses, s: Snapshot) -> Float[Array, ""]:
    r"""Population cross entropy in nat: :math:`-\sum_n \pi(n) \ln \alpha_n[\nu(n)]`."""
    return jnp.sum(jnp.asarray(task.prior) * yz.cross_entropy(s.logits, task.next_token)[0])


def accuracy(task: SequenceClasses, s: Snapshot) -> Float[Array, ""]:
    """Fraction of classes (by prior) whose next token has strictly the largest logit.

    A tie, as before the first step from zero weights, counts as wrong.
    """
    picked = jnp.take_along_axis(s.logits, task.next_token[:, None], axis=1)
    is_label = jax.nn.one_hot(task.next_token, task.M, dtype=bool)
    best_other = jnp.max(jnp.where(is_label, -jnp.inf, s.logits), axis=1, keepdims=True)
    return jnp.sum(jnp.asarray(task.prior) * (picked > best_other)[:, 0])


def attention(task: SequenceClasses, s: Snapshot) -> Float[Array, "K M"]:
    """Attention :math:`c_n` of each class (Lemma 2)."""
    return s.c


def normalised_attention(task: SequenceClasses, s: Snapshot) -> Float[Array, "K M"]:
    r""":math:`f_n = c_n / \lVert c_n \rVert` (Lemma 2)."""
    return s.f


def overlap(task: SequenceClasses, s: Snapshot) -> Float[Array, "K K"]:
    r"""Gram matrix :math:`G = F F^\top` of the normalised attention (I + E of Theorem 1)."""
    return s.f @ s.f.T


def entropy(task: SequenceClasses, s: Snapshot) -> Float[Array, ""]:
    """Entropy (nat) of :math:`c_n` restricted to the class's distinct tokens and renormalised,
    averaged over classes, as in Fig. 6. NaN if a class has no distinct token."""
    distinct = task.distinct()
    restricted = jnp.where(distinct, s.c, 0)
    p = restricted / jnp.sum(restricted, axis=1, keepdims=True)
    # The inner where keeps the gradient finite where p = 0.
    plogp = jnp.where(distinct & (p > 0), p * jnp.log(jnp.where(p > 0, p, 1)), 0)
    number = jnp.sum(distinct, axis=1)
    # A single token has entropy zero; its computed share may differ from 1 by rounding.
    entropies = jnp.where(number > 1, -jnp.sum(plogp, axis=1), 0)
    return jnp.mean(jnp.where(number > 0, entropies, jnp.nan))


def z_logits(task: SequenceClasses, s: Snapshot) -> Float[Array, "K M"]:
    """Attention logits z of each class's query towards every token."""
    return s.z


def z_top_distinct(task: SequenceClasses, s: Snapshot) -> Float[Array, " K"]:
    """Attention logit of each class's most probable distinct token; NaN if there is none."""
    return _pick_most_probable(task, s, task.distinct())


def z_top_common(task: SequenceClasses, s: Snapshot) -> Float[Array, " K"]:
    """Attention logit of each class's most probable common token; NaN if there is none."""
    return _pick_most_probable(task, s, task.common())


def speed(task: SequenceClasses, s: Snapshot) -> Float[Array, " K"]:
    r"""Speed coefficient :math:`f_n \cdot g_n` of each class, which Theorem 1 predicts to be
    :math:`\gamma(t)`."""
    return jnp.sum(s.f * s.g, axis=1)


def xi(task: SequenceClasses, s: Snapshot) -> Float[Array, " K"]:
    r""":math:`\xi_n`, measured as the common relative gain of the distinct tokens of class n.

    By Eqs. 91-93 a distinct token moves as :math:`z_l' = \eta_Z\, \pi(n)\, \xi_n f_{nl}^2`. So
    :math:`\xi_n` is measured over the distinct tokens as

    .. math::

        \frac{\sum_l f_l\, \bigl( g_l - f_l\, (f \cdot g) \bigr)}{\sum_l f_l^2},

    without using Theorem 1's coefficients. NaN if a class has no distinct token.
    """
    distinct = task.distinct()
    # z' of each token, over eta_Z pi(n).
    drive = s.f * (s.g - s.f * speed(task, s)[:, None])
    gain = jnp.sum(jnp.where(distinct, drive, 0), axis=1)
    weight = jnp.sum(jnp.where(distinct, s.f**2, 0), axis=1)
    return jnp.where(jnp.any(distinct, axis=1), gain / jnp.where(weight > 0, weight, 1), jnp.nan)


_NO_BOUND = (
    "only the Eq. 10 and Theorem 4 theories integrate the growth factor bound; elsewhere record "
    "'xi' and use odes.predictions.bound_from_xi"
)


def growth_bound(task: SequenceClasses, s: Snapshot) -> Float[Array, " K"]:
    r"""Growth factor bound :math:`B_n(t) = \int_0^t \eta_Z\, \pi(n)\, \xi_n` of Theorem 3.

    Raises:
        ValueError: in simulation and in the (Y, Z) flows, which do not integrate it. There, record
            "xi" and integrate that (`odes.predictions.bound_from_xi`).
    """
    if s.B is None:
        raise ValueError(f"record = 'B': {_NO_BOUND}")
    return s.B


RECALL_THRESHOLDS = np.geomspace(0.01, 10, 61)
"""Thresholds of `recall`, in units of 1/M."""


def recall_at(thresholds: Real[AnyArray, " R"] | Sequence[float]) -> Observable:
    """Return an observable (R,): the fraction of distinct tokens, over all classes, whose attention
    :math:`c_{nl}` exceeds `thresholds` / M (Figs. 11 and 12). NaN if no class has a distinct
    token."""
    multiples = np.asarray(thresholds)

    def recall(task: SequenceClasses, s: Snapshot) -> Float[Array, " R"]:
        distinct = task.distinct()
        above = s.c[None] > jnp.asarray(multiples / task.M, s.c.dtype)[:, None, None]
        return jnp.sum(above & distinct[None], axis=(1, 2)) / jnp.sum(distinct).astype(s.c.dtype)

    return recall


OBSERVABLES: dict[str, Observable] = {
    "loss": loss,
    "accuracy": accuracy,
    "entropy": entropy,
    "z_top_distinct": z_top_distinct,
    "z_top_common": z_top_common,
    "speed": speed,
    "xi": xi,
    "overlap": overlap,
    "attention": attention,
    "normalised_attention": normalised_attention,
    "z": z_logits,
    "recall": recall_at(RECALL_THRESHOLDS),
    "B": growth_bound,
}
"""Observables by name."""
PREDICTED = Table(OBSERVABLES, ("yz",))
"""Observables of theories that integrate the growth factor bound."""
MEASURED = Table(
    {name: function for name, function in OBSERVABLES.items() if name != "B"},
    ("yz",),
    refused={"B": _NO_BOUND},
)
"""Observables of weights at one time, which all other theories record."""
TRAINED = dataclasses.replace(MEASURED, provided=("batch_loss", RELATIVE_LOSS))
"""Observables of training: the same, and the losses on its batches."""

DEFAULT_RECORD = ("loss", "accuracy", "entropy", "z_top_distinct", "z_top_common", "speed", "xi")


def _pick_most_probable(task: SequenceClasses, s: Snapshot, mask: Array) -> Float[Array, " K"]:
    # Of tokens with the same probability the first one.
    token = jnp.argmax(jnp.where(mask, jnp.asarray(task.probs), -1), axis=1)[:, None]
    picked = jnp.take_along_axis(s.z, token, axis=1)[:, 0]
    return jnp.where(jnp.any(mask, axis=1), picked, jnp.nan)
