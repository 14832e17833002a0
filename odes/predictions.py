r"""Predictions of Scan and Snap's theorems for a recorded trajectory, and their errors.

Theorem 1 predicts when the speed coefficient peaks; `peak_time` measures it. Theorem 2 and
Corollary 2 predict the signs of the drift of z. Theorem 3 predicts how the distinct tokens of a
class grow relative to one another, and how much the dominant one gains. Their functions take
recorded logits `z` (S, K, M) (record "z") from any source, theory or simulation.

On the Eq. 10 flow, Theorem 3's law holds exactly for every token that is distinct among *all*
classes, even if classes share a query: f is zero there for all other classes, so that
:math:`z_l' = \eta_Z\, \pi(n)\, \xi_n f_{nl}^2` regardless of the other tokens. The law fails for
the flow in (Y, Z), where Y[l] depends on past values of :math:`f_{nl}`, and for tokens that are
distinct only within a query.

All functions use NumPy because they measure concrete results, so that float64 results keep their
precision when JAX runs in float32.

Example:
    >>> odes.predictions.sign_of_drift(dynsim.SynSmall().build())[0, :12].tolist()
    [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 1]
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int8, Real

from dynsim.classes.overlap import directions
from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray, Number
from dynsim.trajectory import Times
from odes.run import check_times

# Probabilities count as equal within the tolerance for the sum of a row of a task.
_EQUAL = 1e-5


class Agreement(NamedTuple):
    """Share of (class, token, interval) triples whose drift has the predicted sign; NaN where the
    theorems do not apply to any token."""

    distinct: float
    common: float
    all: float


class Sandwich(NamedTuple):
    """Theorem 3's bounds on the dominant token's gain, as margins in nat, (S, K).

    Attributes:
        above_lower: :math:`z_{l_0}(t) - z_{l_0}(0) - f_{nl_0}(0)^2 B_n`; the lower bound holds
            where it is >= 0.
        below_upper: :math:`B_n - (z_{l_0}(t) - z_{l_0}(0))`; the upper bound holds where it is
            >= 0.
    """

    above_lower: Float[np.ndarray, "S K"]
    below_upper: Float[np.ndarray, "S K"]

    def holds(self, tolerance: float) -> bool:
        """Return whether both bounds hold for all dominant tokens, up to `tolerance` nat."""
        return not any((margin < -tolerance).any() for margin in self)


def sign_of_drift(task: SequenceClasses) -> Int8[np.ndarray, "K M"]:
    r"""Return the predicted sign of :math:`z'` of token l for the query of class n, from zero
    weights.

    +1  Theorem 2a: l is distinct, and its class shares a token with another one (otherwise
        :math:`\xi_n = 0` and nothing moves);
    -1  Theorem 2b: l is in class n and the only common token, and some class of the query has
        both l and a distinct token;
    -1  Corollary 2: l is one of several common tokens of a symmetric task, see `is_symmetric`;
     0  otherwise: l is not in the class, or no theorem applies to it.
    """
    present, distinct, common = _masks(task)
    signs = np.zeros((task.K, task.M), np.int8)
    # Theorem 2a.
    overlapping = (present & common.any(0)).any(1, keepdims=True)
    signs[distinct & overlapping] = 1
    tokens = np.flatnonzero(common.any(0))
    if len(tokens) == 1:
        # Theorem 2b: a class with both tokens lowers z for all classes of its query.
        rows = np.asarray(task.query_index)
        pays = common[:, tokens[0]] & distinct.any(1)
        served = np.isin(rows, rows[pays]) & present[:, tokens[0]]
        signs[served, tokens[0]] = -1
    elif len(tokens) and is_symmetric(task):
        # Corollary 2.
        signs[common] = -1
    return signs


def drift_at_start(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    r"""Return :math:`z' / (\eta_Z \eta_Y t)` of token l for the query of class n as
    :math:`t \to 0` [ours], for the population flow from zero weights.

    To first order in t, :math:`Y = \eta_Y t \sum_n \pi(n) f_n (e_{\nu(n)} - 1/M)^\top`. The part of
    :math:`g_n = Y (e_{\nu(n)} - 1/M)` along :math:`f_n` drops out of the drift, which leaves

    .. math::

        z_{ml}' \propto \sum_{n \in \psi^{-1}(m)} \pi(n) f_{nl} (f_{nl}\, f_n \cdot h - h_l),
        \qquad h = \frac{1}{M} \sum_{n'} \pi(n') f_{n'}.

    It holds for any overlap, and without distinct tokens. So a token gains if it belongs more to
    the classes of its query than to those that overlap them. Eq. 10 has another h, from Lemma 3
    (`odes.eq10.drift`).

    Example:
        >>> task = dynsim.SynSmall().build()
        >>> drift = odes.predictions.drift_at_start(task)
        >>> signs = odes.predictions.sign_of_drift(task)
        >>> bool((np.sign(drift) == signs)[signs != 0].all())
        True
    """
    # z_ml' ~ sum_n pi(n) f_nl (f_nl f_n.h - h_l), summed over the classes of the query m.
    f, prior = directions(task), np.asarray(task.prior)
    h = prior @ f / task.M
    per_class = prior[:, None] * f * (f * (f @ h)[:, None] - h)
    rows = np.asarray(task.query_index)
    return (rows[:, None] == rows).astype(per_class.dtype) @ per_class


def is_symmetric(task: SequenceClasses) -> bool:
    """Return whether Corollary 2's assumptions hold: equal priors, equally many classes per query,
    every common token equally probable in all classes, and the same probabilities of distinct
    tokens in all classes, with at least one distinct token."""
    probs = np.asarray(task.probs)
    _, distinct, common = _masks(task)
    own = np.sort(np.where(distinct, probs, 0), axis=1)
    shared = np.where(common, probs, 0)
    served = np.bincount(np.asarray(task.query_index))
    return bool(
        distinct.any()
        and np.ptp(served) == 0
        and np.ptp(np.asarray(task.prior)) <= _EQUAL
        and max(np.ptp(own, axis=0).max(), np.ptp(shared, axis=0).max()) <= _EQUAL
    )


def agreement(task: SequenceClasses, times: Times, z: Float[AnyArray, "S K M"]) -> Agreement:
    """Return how often z moves as `sign_of_drift` predicts between consecutive recorded times.

    A token that does not move counts as disagreement. In float32 this happens late in a run, when
    steps of z fall below its rounding error.

    Raises:
        ValueError: unless there are at least two increasing times and `z` has one entry for each.
    """
    z = _recorded(task, z)
    check_times(times)
    if len(times) != len(z) or len(z) < 2:
        raise ValueError(f"times, z: must have the same length >= 2, got {len(times)} and {len(z)}")
    signs = sign_of_drift(task)
    agrees = np.sign(np.diff(z, axis=0)) == signs

    def share(mask: np.ndarray) -> float:
        return float(agrees[:, mask].mean()) if mask.any() else float("nan")

    return Agreement(share(signs > 0), share(signs < 0), share(signs != 0))


def relative_gain_error(
    task: SequenceClasses, z: Float[AnyArray, "S K M"]
) -> Float[np.ndarray, "S K"]:
    r"""Return the error of Theorem 3's :math:`r(t) = r(0)\, \chi(t)`, counted from the first time.

    For the dominant token :math:`l_0` of a class, it is the largest over its distinct tokens l of

    .. math::

        \left| \frac{1 + r_{l_0/l}(t)}{1 + r_{l_0/l}(0)\, \chi_{l_0}(t)} - 1 \right|,

    the relative error of :math:`f_{nl_0}^2 / f_{nl}^2`. The law for these pairs implies it for all
    pairs. The error is NaN for classes without distinct tokens.
    """
    z = _recorded(task, z)
    _, distinct, _ = _masks(task)
    dominant = _dominant(task, z[0])[:, None]
    gain = z - z[0]
    gain_dominant = np.take_along_axis(gain, dominant[None], axis=2)
    # f_l0^2 / f_l^2 at the start and later, from probabilities and logits; classes cancel.
    weight = np.where(distinct, np.asarray(task.probs) * np.exp(_centred(task, z[0])), 1.0)
    start = (np.take_along_axis(weight, dominant, axis=1) / weight) ** 2
    actual = start * np.exp(2 * (gain_dominant - gain))
    predicted = 1 + (start - 1) * np.exp(2 * gain_dominant)
    error = np.where(distinct, np.abs(actual / predicted - 1), 0).max(2)
    return np.where(distinct.any(1), error, np.nan)


def sandwich(
    task: SequenceClasses, z: Float[AnyArray, "S K M"], B: Float[AnyArray, "S K"]
) -> Sandwich:
    r"""Return the margins of Theorem 3's bounds on each class's dominant token :math:`l_0`.

    Counted from the first recorded time they are

    .. math::

        f_{nl_0}(0)^2 B_n \le z_{l_0}(t) - z_{l_0}(0) \le B_n.

    The lower one also requires that :math:`f_{nl_0}` does not fall: no other token of the class,
    distinct or common, may gain more than :math:`l_0`.

    Args:
        z: recorded logits.
        B: growth factor bound at the same times: record "B", or `bound_from_xi`.
    """
    z, B = _recorded(task, z), np.asarray(B, np.float64)
    if B.shape != z.shape[:2]:
        raise ValueError(f"B: must have shape {z.shape[:2]} like z, got {B.shape}")
    dominant = _dominant(task, z[0])[:, None]
    # f_l0(0)^2 B <= z_l0(t) - z_l0(0) <= B.
    c = np.asarray(task.probs) * np.exp(_centred(task, z[0]))
    f = c / np.linalg.norm(c, axis=1, keepdims=True)
    share = np.take_along_axis(f, dominant, axis=1)[:, 0] ** 2
    gain = np.take_along_axis(z - z[0], dominant[None], axis=2)[..., 0]
    since = B - B[0]
    margins = gain - share * since, since - gain
    has = _masks(task)[1].any(1)
    return Sandwich(*(np.where(has, margin, np.nan) for margin in margins))


def bound_from_xi(
    times: Times,
    xi: Float[AnyArray, "S K"],
    eta_z: float,
    weight: Real[Number, "*K"] | Sequence[float],
) -> Float[np.ndarray, "S K"]:
    r"""Return the growth of :math:`B_n` since the first of the `times`.

    It is the integral of :math:`w_n\, \eta_Z\, \xi_n`, by the trapezoidal rule.

    Args:
        times: recorded times in optimiser steps; the error is of second order in their spacing.
        xi: recorded "xi".
        eta_z: learning rate of Z; with momentum :math:`\mu`, :math:`\eta_Z / (1 - \mu)`.
        weight: :math:`w_n`, which is :math:`\pi(n)` for gradient descent (convention "sgd") and 1
            in the paper's time convention.
    """
    check_times(times)
    xi = np.asarray(xi, np.float64)
    pieces = np.diff(np.asarray(times, np.float64))[:, None] * (xi[1:] + xi[:-1]) / 2
    return eta_z * np.asarray(weight) * np.cumsum(np.r_[np.zeros_like(xi[:1]), pieces], axis=0)


def peak_time(times: Real[AnyArray, "..."], values: Real[AnyArray, "..."]) -> float:
    """Return the time of the maximum of a positive curve, between the times at which it was
    recorded.

    It fits a parabola in (ln t, ln value) through the largest value and its two neighbours. The
    speed coefficient rises like t and decays nearly like 1/t, so its maximum is nearly symmetric in
    these logarithms. Theorem 1 predicts `odes.decoder.stages(...).peak`.

    Args:
        times: (S,) increasing; times <= 0 are left out, and NaN, which pads shorter runs.
        values: (S,) recorded at these times.

    Returns:
        The time in the unit of `times`; NaN where the largest value is the first or the last one,
        so that the maximum may lie outside, or where a required value is not positive.

    Raises:
        ValueError: for other shapes or times that do not increase.

    Example:
        >>> times = np.array([0.0, 1, 2, 4, 8, 16, 32])
        >>> round(odes.predictions.peak_time(times, times / (64 + times**2)), 6)
        8.0
    """
    times, values = np.asarray(times, np.float64), np.asarray(values, np.float64)
    if times.ndim != 1 or values.shape != times.shape:
        raise ValueError(f"values: shape {values.shape}: must be that of times, {times.shape} (S,)")
    # Logarithms of the times are needed, and NaN > 0 is False.
    inside = times > 0
    times, values = times[inside], values[inside]
    if (np.diff(times) <= 0).any():
        raise ValueError("times: must increase")
    if not (times.size and np.isfinite(values).all()):
        return np.nan
    top = int(np.argmax(values))
    around = slice(top - 1, top + 2)
    if top in (0, times.size - 1) or (values[around] <= 0).any():
        return np.nan
    x, y = np.log(times[around] / times[top]), np.log(values[around] / values[top])
    # y = a x + b x^2 through the neighbours, with the largest value at the origin.
    # The one before is smaller, as the first of equal values counts as the largest: b is not 0.
    a, b = np.linalg.solve(np.stack([x, x**2], 1)[::2], y[::2])
    return float(times[top] * np.exp(-a / (2 * b)))


def _masks(task: SequenceClasses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return masks (K, M) of the tokens present in each class, the distinct and the common ones."""
    present = np.asarray(task.probs) > 0
    classes = present.sum(0)
    return present, present & (classes == 1), present & (classes > 1)


def _recorded(task: SequenceClasses, z: AnyArray) -> np.ndarray:
    z = np.asarray(z, np.float64)
    if z.ndim != 3 or z.shape[1:] != (task.K, task.M) or not len(z):
        raise ValueError(f"z: must have shape (S, {task.K}, {task.M}), got {z.shape}")
    return z


def _centred(task: SequenceClasses, z: np.ndarray) -> np.ndarray:
    # Minus the largest logit of a token of the class, so that exp cannot overflow.
    present = np.asarray(task.probs) > 0
    return np.where(present, z - np.where(present, z, -np.inf).max(1, keepdims=True), 0)


def _dominant(task: SequenceClasses, z: np.ndarray) -> np.ndarray:
    """Return the distinct token of each class with the most attention at logits `z` (K, M)."""
    attention = np.asarray(task.probs) * np.exp(_centred(task, z))
    return np.where(_masks(task)[1], attention, -1).argmax(1)
