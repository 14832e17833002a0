r"""Theory of in-context regression by linear attention: flows, plateaus, single heads.

With :math:`\tau = 1/(2 \eta)` steps, the flow down the population loss (arXiv:2501.16265) is for
any rank

    merged, and the network
              tau W_1' = w_2 (E[y z^T] - w_2^T W_1 E[z z^T]),  w_2 likewise                 eq. 8
    separate  tau v_i' = k_i^T (Lambda^2 - E[S^2] M Lambda) q_i,  k_i and q_i likewise       eq. 14

`odes.solver.flows` adds momentum, Adam and the next order in eta. There are closed forms for single
heads (eqs. 20, 21), the sequence of plateaus (eq. 19), and the sigmoid of merged attention on white
inputs (eq. 10).

Time is t/tau = 2 eta t for t optimiser steps; momentum replaces eta by eta / (1 - mu). Assumes
batch -> infinity, eta -> 0 and small starting weights. The dependence on the starting weights is
[ours]: for separate attention it is Carlson's integral below; for merged attention w_init of eq. 10
is the norm |w_2 + W_1 u|/2 of the growing part, with u the direction of E[y z].

A single moving head with :math:`k = q = v\, e_d` follows, in
:math:`u = v/v^*` with :math:`v^* = (\lambda g)^{-1/3}` [ours],

.. math::

    \begin{align*}
    \tau v' &= \lambda^2 v^2 - \lambda^3 g\, v^5, \qquad
        t = \frac{\tau}{\lambda^2 v^*} \bigl( F(u) - F(u_0) \bigr) \tag{21} \\
    F(u) &= -\frac1u + \frac13 \left( -\ln|1 - u| + \frac12 \ln(1 + u + u^2) \right)
        - \frac{1}{\sqrt3} \arctan\frac{2u + 1}{\sqrt3}
    \end{align*}

From an arbitrary small start with :math:`v k q > 0` [ours], the head diverges under the linear term
after :math:`(\tau/\lambda^2)\, R_F(v^2, k^2, q^2)`, which replaces :math:`1/v_0`. If
:math:`v k q < 0`, the smallest square first falls to zero. See `docs/systems/linear_icl.md`.

The plateaus are the losses of principal component regression with m components, with
:math:`g_d = 1 + (1 + \operatorname{tr}(\Lambda)/\lambda_d)/N`:

.. math::

    \begin{align*}
    L_m &= \operatorname{tr}(\Lambda) - \sum_{d \le m} \frac{\lambda_d}{g_d} \tag{19} \\
    M &= \sum_{d \le m} \lambda_d^{-1} g_d^{-1}\, e_d e_d^\top \tag{18} \\
    v_d &= (\lambda_d g_d)^{-1/3} \tag{20}
    \end{align*}

Example:
    >>> odes.linear_icl.plateaus(dynsim.Regression(D=2)).shape
    (3,)
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynsim.linear_icl.model import Merged, MergedHeads, Model, Separate, SeparateHeads
from dynsim.linear_icl.regression import Regression, stage
from dynsim.precision import AnyArray, precision, to_host
from dynsim.problem.train import problem_in
from odes.general import closed_form, flows
from odes.solver.tolerances import Tolerances
from odes.theory import Inapplicable, Theory, Training

__all__ = [
    "THEORIES",
    "amplitudes",
    "count_plateaus",
    "escape_times",
    "plateaus",
    "sigmoid",
    "time_to_reach",
]


LearnedShares = Callable[[Regression, Model, Float[Array, ""]], Float[Array, " D"]]
"""(task, starting weights, time in units of tau) -> learned share of each component."""
DOUBLINGS = 30
"""Number of Carlson's duplications; each quarters the differences between the arguments."""
BISECTIONS = 60
ON_PLATEAU = 0.02
"""Largest distance from a plateau, as a share of tr Lambda (the loss at the start), that counts as
being on it."""
LASTING = 1.25
"""A plateau counts if the loss stays on it while time grows by this factor."""


def plateaus(task: Regression) -> Float[AnyArray, " D1"]:
    """Return the (D + 1,) losses :math:`L_0` to :math:`L_D` of eq. 19, in float64."""
    with precision("float64", task):
        of_stages = losses(problem_in(task, "float64"))
    return to_host(of_stages)


def losses(task: Regression) -> Float[Array, " D1"]:
    """Return `plateaus` in the precision of the task, for compiled code."""
    # L_m = tr(Lambda) - sum_{d <= m} lambda_d / g_d.
    falls = task.eigenvalues / task.gain
    zero = jnp.zeros(1, falls.dtype)
    return jnp.asarray(task.trace) - jnp.concatenate([zero, jnp.cumsum(falls)])


def count_plateaus(
    times: Float[AnyArray, " S"],
    loss: Float[AnyArray, "*B S"],
    levels: Float[AnyArray, "*#B D1"],
) -> Int[np.ndarray, "*B"]:
    """Return on how many of its plateaus each loss rests: it stays within 2 % of the starting loss
    of one while time grows by a quarter.

    Args:
        times: (S,) recorded times, increasing from above 0, in any unit.
        loss: (*B, S) losses of runs.
        levels: (*B, D + 1) their `plateaus`.

    Example:
        >>> levels, times = odes.linear_icl.plateaus(dynsim.Regression(D=1)), np.arange(1, 9)
        >>> int(odes.linear_icl.count_plateaus(times, np.full(8, levels[1]), levels))
        1
    """
    loss, levels = np.asarray(loss), np.asarray(levels)
    number = np.zeros(loss.shape[:-1], int)
    for m in range(levels.shape[-1]):
        near = np.abs(loss - levels[..., m, None]) < ON_PLATEAU * levels[..., :1]
        # Time since which a run has been on this plateau without a break; inf while it is not.
        since = np.full(number.shape, np.inf)
        rested = np.zeros(number.shape, bool)
        for s, t in enumerate(times):
            since = np.where(near[..., s], np.minimum(since, t), np.inf)
            rested |= t >= LASTING * since
        number += rested
    return number


def amplitudes(task: Regression) -> Float[Array, " D"]:
    r"""Return the (D,) :math:`v_d = \lVert k_d \rVert = \lVert q_d \rVert` of a head that has
    learned component d, eq. 20a."""
    return (task.eigenvalues * task.gain) ** (-1 / 3)


def loss_of(learned: Float[Array, "*S D"], task: Regression) -> Float[Array, "*S"]:
    """Return the loss of a diagonal M with the entries of eq. 18 times the shares `learned`."""
    # Quadratic in the entries of M, with its minimum at the share 1.
    falls = task.eigenvalues / task.gain
    return jnp.asarray(task.trace) - jnp.sum(falls * (2 * learned - learned**2), axis=-1)


def antiderivative(u: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
    """Return F(u), whose derivative is :math:`1/(u^2 (1 - u^3))`; u > 0, u != 1."""
    u = jnp.asarray(u)
    logarithms = -jnp.log(jnp.abs(1 - u)) + jnp.log1p(u + u**2) / 2
    turn = jnp.arctan((2 * u + 1) / math.sqrt(3)) / math.sqrt(3)
    return -1 / u + logarithms / 3 - turn


def time_to_reach(
    v: Float[AnyArray, " D"], v_0: Float[AnyArray, " D"], task: Regression
) -> Float[Array, " D"]:
    r"""Return the (D,) time from `v_0` to `v` by eq. 21 for each component, in units of
    :math:`\tau`."""
    # t = tau / (lambda^2 v*) (F(u) - F(u_0)) with u = v / v*.
    end = amplitudes(task)
    rate = task.eigenvalues**2 * end
    return (antiderivative(v / end) - antiderivative(v_0 / end)) / rate


def share(
    t: Float[AnyArray, "S 1"], v_0: Float[AnyArray, " D"], task: Regression
) -> Float[Array, "S D"]:
    r"""Return :math:`u = v/v^*` (S, D) at times `t` in units of :math:`\tau`, the inverse of
    `time_to_reach`."""
    end = amplitudes(task)
    first = jnp.asarray(v_0) / end
    target = antiderivative(first)[None] + t * (task.eigenvalues**2 * end)[None]

    def at(s: Float[Array, "S D"]) -> Float[Array, "S D"]:
        # F rises from the start at s = 0 to the end at s = 1, from below or from above.
        return first[None] + s * (1 - first)[None]

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        below = antiderivative(at(middle)) < target
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    # F diverges at both ends, where Newton's method from afar fails: bisection to the last digit.
    bounds = jnp.zeros_like(target), jnp.ones_like(target)
    low, _ = jax.lax.stop_gradient(jax.lax.fori_loop(0, BISECTIONS, halve, bounds))
    u = at(low)
    # Bisection has no derivatives; a Newton step at the root supplies them.
    # F' = 1 / (u^2 (1 - u^3)). At u = 1 the share no longer moves.
    inside = jnp.abs(1 - u) > jnp.finfo(u.dtype).eps
    safe = jnp.where(inside, u, jnp.asarray(0.5, u.dtype))
    step = (antiderivative(safe) - target) * safe**2 * (1 - safe**3)
    return jnp.where(inside, safe - step, u)


def carlson(
    x: Float[AnyArray, "*B"], y: Float[AnyArray, "*B"], z: Float[AnyArray, "*B"]
) -> Float[Array, "*B"]:
    r"""Return Carlson's integral, by duplication; all arguments >= 0, at most one of them 0:

    .. math::

        R_F(x, y, z) = \frac12 \int_0^\infty \frac{ds}{\sqrt{(s + x) (s + y) (s + z)}}.
    """

    def double(_: Int[Array, ""], point: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        # R_F(x, y, z) = R_F((x + s)/4, (y + s)/4, (z + s)/4), s = sqrt(xy) + sqrt(xz) + sqrt(yz).
        x, y, z = (jnp.sqrt(coordinate) for coordinate in point)
        shift = x * y + x * z + y * z
        return (point[0] + shift) / 4, (point[1] + shift) / 4, (point[2] + shift) / 4

    # R_F(x, x, x) = x^{-1/2}.
    x, y, z = jax.lax.fori_loop(0, DOUBLINGS, double, (x, y, z))
    return 1 / jnp.sqrt((x + y + z) / 3)


def waits(init: Separate) -> Float[Array, "H D"]:
    r"""Return the (H, D) times after which each head and component diverges under the linear term
    of eq. 21, in units of :math:`\tau/\lambda_d^2`, for a start of any size and sign. Rank 1."""
    v, k, q = (
        jnp.broadcast_to(x, init.k[:, 0].shape)
        for x in (init.v[:, None], init.k[:, 0], init.q[:, 0])
    )
    # tau v' = lambda^2 k q, and alike for k and q: differences between the squares are conserved,
    # and with growing squares they diverge after the time int ds / (2 |v k q|) = R_F.
    squares = jnp.stack([v**2, k**2, q**2])
    onwards = carlson(*squares)
    # The smallest square takes as long to fall to zero as to rise again.
    turned = squares - squares.min(0)[None]
    back = 2 * carlson(*turned) - onwards
    return jnp.where(v * k * q > 0, onwards, back)


def starts(init: Model, D: int) -> Float[Array, " D"]:
    """Return the (D,) :math:`v_0` of eq. 21 for each component: the inverse of the shortest wait
    among the heads that have not yet learned a component, or 0 if no head is left."""
    assert isinstance(init, Separate)
    of_heads = waits(init)
    free = jnp.ones(of_heads.shape[0], bool)
    v_0 = []
    # Components in order of falling eigenvalue, which is the order in which they are learned.
    for d in range(D):
        left = jnp.where(free, of_heads[:, d], jnp.inf)
        best = jnp.argmin(left)
        v_0.append(1 / left[best])
        free = free.at[best].set(False)
    return jnp.stack(v_0)


def escape_times(task: Regression, v_0: Float[AnyArray, " D"]) -> Float[Array, " D"]:
    r"""Return the (D,) times :math:`1/(\lambda_d^2 v_0)`, in units of :math:`\tau`, at which the
    loss leaves its plateaus; inf where `v_0` is 0."""
    return 1 / (task.eigenvalues**2 * v_0)


def heads(task: Regression, init: Model, t: Float[Array, ""]) -> Float[Array, " D"]:
    """Return the shares from eq. 21 for each component on its own, with M_dd = v_d^3."""
    # Without a free head a component is never learned; any start keeps its derivatives finite.
    v_0 = starts(init, task.D)
    started = v_0 > 0
    first = jnp.where(started, v_0, amplitudes(task) / 2)
    u = share(t[None, None], first, task)[0]
    return jnp.where(started, u**3, 0)


def stairs(task: Regression, init: Model, t: Float[Array, ""]) -> Float[Array, " D"]:
    """Return the shares in the limit of small starting weights: 1 from the escape time on."""
    v_0 = starts(init, task.D)
    return (t >= escape_times(task, v_0)).astype(t.dtype)


def sigmoid(task: Regression, init: Model, t: Float[Array, ""]) -> Float[Array, " D"]:
    r"""Return eq. 10 for any white :math:`\Lambda = \lambda I`: all components share one curve."""
    assert isinstance(init, Merged)
    size = task.eigenvalues[0]
    root = jnp.sqrt(jnp.asarray(task.D, t.dtype))
    # w_init = |w_2 + W_1 u| / 2 along u, the direction of E[y z] = sqrt(D) lambda u.
    along = jnp.trace(jnp.asarray(init.U), axis1=1, axis2=2) / root
    first = jnp.sum((init.v + along) ** 2) / 4
    end = root / (size * task.gain[0])
    # Eq. 10 divided by its growing exponential, which would overflow.
    still = jnp.exp(-2 * size**2 * root * t)
    share = 1 / (1 + (end / first - 1) * still)
    return jnp.broadcast_to(share, (task.D,))


def _theory(
    name: str,
    title: str,
    assumes: str,
    learned_shares: LearnedShares,
    inapplicable: Inapplicable,
) -> Theory:
    def formula(task: Regression, init: Model, time: Float[Array, ""]) -> dict[str, Array]:
        shares = learned_shares(task, init, 2 * time)
        loss = loss_of(shares, task)
        return {"loss": loss, "learned": shares, "stage": stage(shares)}

    assumes = f"batch -> infinity, eta -> 0, small start, {assumes}"
    return closed_form(
        name,
        title,
        assumes,
        formula,
        inapplicable=inapplicable,
        needs=("key",),
        names=Regression.RECORD,
    )


def _no_rank_one(training: Training) -> str | None:
    task: Regression = training.problem
    if not isinstance(task.attention, SeparateHeads) or task.attention.rank != 1:
        return f"attention = {task.attention}: eq. 21 describes separate heads of rank 1"
    return None


def _no_white(training: Training) -> str | None:
    task: Regression = training.problem
    if not isinstance(task.attention, MergedHeads):
        return f"attention = {task.attention}: eq. 10 describes merged attention"
    return (
        None if task.spectrum.is_white else f"spectrum = {task.spectrum}: eq. 10 needs white inputs"
    )


# Tolerances for weights that start small.
THEORIES = (
    *flows(tolerances=Tolerances(1e-8, 1e-12)),
    _theory(
        "scalar",
        "one head at a time",
        "separate rank-one heads, aligned one by one",
        heads,
        _no_rank_one,
    ),
    _theory(
        "plateaus",
        "plateaus and escape times",
        "separate rank-one heads, scale -> 0",
        stairs,
        _no_rank_one,
    ),
    _theory("sigmoid", "sigmoid in closed form", "merged heads, white inputs", sigmoid, _no_white),
)
"""The theories, most exact first: flows of all weights, then `scalar`, `plateaus` and `sigmoid`."""
