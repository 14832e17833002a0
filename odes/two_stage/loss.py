r"""The loss of P and Q as a function of seven numbers, by quadrature (arXiv:2502.20681).

The reduced state replaces W and V by a = W[0,0] = w_star^T W w_star, b = V[0,0] = zeta^T V zeta /
r^2, and the mean squares of the remaining blocks, split along row and column 0, which the loss
treats as isotropic:

    W: v_h of W[0,1:], v_W of W[1:,:]    V: v_e of V[0,1:], v_u of V[1:,0], v_M of V[1:,1:]

For a query of class y, with :math:`p = \gamma_0 + s_1 |g|` and
:math:`g, h, e, f \sim \mathcal N(0, 1)`, the outputs are

.. math::

    \begin{align*}
    y\, N_W &= \tfrac{\kappa}{2}\, \bar p\, w + \sqrt{\operatorname{Var}_W}\, f, \qquad
        w = a\, p + \sqrt{v_h}\, s_1 \sqrt{d-1}\, h \\
    y\, N_V &= -y\, \tfrac{\kappa}{4}\, D(m, s) + \sqrt{\operatorname{Var}_V}\, f
    \end{align*}

with D below, :math:`t = s_2 \sqrt{(d-1)\, v_e}` and

.. math::

    \begin{align*}
    m &= r\, t\, e, & s^2 &= s_2^4 (d-1)^2 v_M && \text{for } y = +1 \\
    m &= r\, (b\, r + t\, e), & s^2 &= s_2^4 (d-1)^2 v_M + s_2^2 (d-1)\, r^2 v_u
        && \text{for } y = -1.
    \end{align*}

The means over the context are exact, with :math:`\kappa = (L-1)/L`,
:math:`\bar p = \mathbb E[y\, x \cdot w_\star]` and

.. math::

    G(m, s) = \mathbb E\, |\mathcal N(m, s^2)|, \qquad D(m, s) = G(m, s) - G(0, s) \ge 0.

The mean of :math:`N_W` is linear because P is symmetric under (x, y) -> -(x, y) and ReLU(s) -
ReLU(-s) = s. The mean of :math:`N_V` is
:math:`-\tfrac{\kappa}{4} D(r v_0, s_2 \lVert v_{1:} \rVert)` for :math:`v = V x_L`. Because it is
:math:`\le 0`, the loss of Q is at least :math:`\tfrac12 \ln 2` for every V and L
(`docs/systems/two_stage.md`). The variances result from averaging over L - 1 context tokens, with
:math:`p_2` the mean square of the margin,

.. math::

    \begin{align*}
    \operatorname{Var}_W &= \frac{\kappa}{L} \left[ \frac{p_2 w^2 + S_W}{2}
        - \frac{\bar p^2 w^2}{4} \right], \qquad
        S_W = s_1^2 (d-1)\, v_W \bigl( p^2 + s_1^2 (d-1) \bigr) \\
    \operatorname{Var}_V &= \frac{\kappa}{L} \left[ \frac{s^2}{2} + \frac{m^2}{4}
        - \frac{D^2}{16} \right]
    \end{align*}

and, with :math:`\ell(m) = \ln(1 + e^{-m})`,

.. math::

    K_1 = \mathbb E\, \ell(y N_W), \qquad K_2 = \mathbb E\, \ell(y N_V), \qquad
    J = \mathbb E\, \ell(y N_W + y N_V).

J also needs the covariance of the outputs, for which :math:`|g|` of the context is treated as
Gaussian.

Assumes: the core "fresh" of `dynsim.Prompts`, isotropic blocks, :math:`d \to \infty` for
:math:`\lVert x_L \rVert^2` and :math:`\lVert V x_L \rVert^2`, outputs Gaussian at finite L, and
that w_star and zeta are the first axes, as in `dynsim.two_stage.task`. These equations and the
floor are derived here, from a reconstruction of the paper's model (see `odes.two_stage`).
"""

import functools
import math
import statistics
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from dynsim.precision import AnyArray, Number
from dynsim.two_stage.model import PQ, logistic
from dynsim.two_stage.observables import reduced_state
from dynsim.two_stage.task import Prompts

Numbers = Real[Number, "..."]
"""Arguments of elementwise functions."""


class ReducedState(eqx.Module):
    r"""The seven numbers; all of shape ().

    Attributes:
        a, b: W[0,0] and V[0,0], the weights along :math:`w_\star` and along :math:`\zeta`.
        v_h, v_W: mean squares of W[0,1:] and of W[1:,:].
        v_e, v_u, v_M: mean squares of V[0,1:], of V[1:,0] and of V[1:,1:].
    """

    a: Real[Number, ""]
    b: Real[Number, ""]
    v_h: Real[Number, ""]
    v_W: Real[Number, ""]
    v_e: Real[Number, ""]
    v_u: Real[Number, ""]
    v_M: Real[Number, ""]

    @classmethod
    def from_weights(cls, W: Float[AnyArray, "d d"], V: Float[AnyArray, "d d"]) -> "ReducedState":
        """Project weights on the reduced state."""
        return cls(*reduced_state(PQ(jnp.asarray(W), jnp.asarray(V))))

    @classmethod
    def nominal(cls, task: Prompts) -> "ReducedState":
        """Return the state representing the random starting weights: no signal in P, and b at one
        standard deviation, because b = 0 would stay 0."""
        start = task.starting_noise
        return cls(0 * start, start, *(5 * (start**2,)))

    def sample(self, d: int, rng: np.random.Generator) -> PQ:
        """Draw W and V (d, d) with independent normal entries of these mean squares, and a and b in
        their places."""
        # Rows and columns first, then the entries in which they cross.
        W, V = rng.normal(size=(2, d, d))
        W[0] *= self.v_h**0.5
        W[1:] *= self.v_W**0.5
        V[0] *= self.v_e**0.5
        V[1:, 0] *= self.v_u**0.5
        V[1:, 1:] *= self.v_M**0.5
        W[0, 0], V[0, 0] = self.a, self.b
        return PQ(W, V)

    def clamped(self) -> "ReducedState":
        """Return the state with negative mean squares, which a solver may produce, set to 0."""
        squares = jax.tree.leaves(self)[2:]
        return ReducedState(self.a, self.b, *(jnp.maximum(v, 0) for v in squares))


def block_sizes(d: int) -> ReducedState:
    """Return the number of weights that each entry of the state represents."""
    return ReducedState(1, 1, d - 1, (d - 1) * d, d - 1, d - 1, (d - 1) ** 2)


JENSEN_FLOOR = 0.5 * math.log(2)
"""Smallest K2 of any V, in nat: positive queries are at chance, log 2, and negative ones at 0."""

EPS = 1e-12
"""Added under every square root, so that derivatives exist at zero weight or noise."""


def root(square: Numbers) -> Float[Array, "..."]:
    r"""Return :math:`\sqrt{\max(x, 0) + \epsilon}`, elementwise in x = `square`, with `EPS`."""
    return jnp.sqrt(jnp.maximum(square, 0) + EPS)


def G(m: Numbers, s: Numbers) -> Float[Array, "..."]:
    r"""Return the mean absolute value of :math:`\mathcal N(m, s^2)`, elementwise; s >= 0:
    :math:`G = s \sqrt{2/\pi}\, e^{-m^2/(2 s^2)} + m \operatorname{erf}(m / (s \sqrt2))`."""
    return D(m, s) + math.sqrt(2 / math.pi) * jnp.asarray(s)


@jax.custom_jvp
def D(m: Numbers, s: Numbers) -> Float[Array, "..."]:
    """Return G(m, s) - G(0, s) in :math:`[0, |m|]`, elementwise, accurate for small m; s >= 0."""
    by_m, by_s = _slopes(m, s)
    # Euler's theorem, as D is homogeneous of degree one.
    return by_s * s + by_m * m


@D.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    by_m, by_s = _slopes(*primals)
    return D(*primals), by_m * tangents[0] + by_s * tangents[1]


def _slopes(m: Numbers, s: Numbers) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    # dD/dm = erf(m / (s sqrt 2)) and dD/ds = sqrt(2/pi) (e^{-m^2 / (2 s^2)} - 1), also at s = 0.
    dtype = jnp.result_type(float, m, s)
    # The smallest s for which the square of the ratio is finite in float32.
    ratio = jnp.asarray(m, dtype) / jnp.maximum(jnp.asarray(s, dtype), 1e-15)
    by_m = jax.lax.erf(ratio / math.sqrt(2))
    return by_m, math.sqrt(2 / math.pi) * jnp.expm1(-0.5 * ratio**2)


class Rule(NamedTuple):
    """Numbers of quadrature nodes for :math:`|g|` (half-normal) and for the normal h, e and f."""

    g: int = 12
    h: int = 6
    e: int = 8
    f: int = 6


class Losses(NamedTuple):
    """Population losses in nat, without weight decay; K2 is the mean of K2_pos (the queries
    with y = +1) and K2_neg."""

    K1: Float[Array, ""]
    K2: Float[Array, ""]
    K2_pos: Float[Array, ""]
    K2_neg: Float[Array, ""]
    J: Float[Array, ""]

    def trained(self, task: Prompts) -> Float[Array, ""]:
        """Return :math:`(1 - c)(K_1 + K_2) + c J`, where c is `task.coupling`."""
        return (self.K1 + self.K2) * (1 - task.coupling) + self.J * task.coupling


class _Output(NamedTuple):
    """Mean and variance of y N_U at the query nodes: (g, h) for P, or (e,) for Q in one class. `m`
    and `s` are mean and standard deviation of x_i^T U x_L at a context token: for P a token of the
    query's class, for Q a negative one."""

    mean: Float[Array, "*n"]
    variance: Float[Array, "*n"]
    m: Float[Array, "*n"]
    s: Float[Array, "*#n"]


@functools.cache
def half_normal_nodes(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (num,) and weights (num,) for E f(|g|): Gauss-Legendre in its quantile."""
    u, weight = np.polynomial.legendre.leggauss(num)
    # u in (-1, 1) is 2 q - 1 for the quantile q, and P(|g| < x) = 2 Phi(x) - 1.
    quantile = statistics.NormalDist().inv_cdf
    return np.array([quantile((3 + x) / 4) for x in u]), weight / 2


@functools.cache
def normal_nodes(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (num,) and weights (num,) for E f(N(0, 1)): Gauss-Hermite."""
    nodes, weight = np.polynomial.hermite_e.hermegauss(num)
    return nodes, weight / weight.sum()


def losses(
    state: ReducedState,
    task: Prompts,
    *,
    finite_length: bool = True,
    rule: Rule | None = None,
    power: int = 1,
) -> Losses:
    r"""Return all losses of the state, or with `power=2` their mean squares over prompts.
    `finite_length=False` takes :math:`L \to \infty` only in the variances and keeps :math:`\kappa`.
    In a compiled program, an unused loss costs nothing."""
    rule = rule or Rule()
    P, Q = outputs(state, task, finite_length, rule)
    of_P, of_Q = node_weights(rule, P.mean.dtype)

    # E_f l(mean + sd f)^power at each query node.
    def over_f(mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        f, weight = (values.astype(mean.dtype) for values in normal_nodes(rule.f))
        margin = mean[..., None] + root(variance)[..., None] * f[(None,) * mean.ndim]
        return logistic(margin) ** power @ weight

    # E l(y N_W + y N_V): the queries of P and Q are independent, their contexts are the same.
    def joint(q: _Output) -> Float[Array, ""]:
        mean = P.mean[:, :, None] + q.mean[None, None]
        variance = P.variance[:, :, None] + q.variance[None, None]
        if finite_length:
            # Of N_W and N_V given a query, whatever its class: the mean of ReLU(x_i^T W x_L) at
            # context tokens times that of V, at positive and at negative ones, half of all each.
            low, high = (G(m, q.s)[None, None] / 2 for m in (jnp.zeros_like(q.m), q.m))
            share = task.kappa / task.length
            covariance = share * G(P.m, P.s)[:, :, None] * (low + high) / 4
            variance = variance + 2 * covariance
        return jnp.einsum("gh,e,ghe->", of_P, of_Q, over_f(mean, variance))

    pos, neg = (jnp.vdot(of_Q, over_f(q.mean, q.variance)) for q in Q)
    K1, J = jnp.vdot(of_P, over_f(P.mean, P.variance)), (joint(Q[0]) + joint(Q[1])) / 2
    return Losses(K1, (pos + neg) / 2, pos, neg, J)


def total(
    state: ReducedState,
    task: Prompts,
    *,
    coupled: bool = True,
    finite_length: bool = True,
    rule: Rule | None = None,
) -> Float[Array, ""]:
    """Return the trained data loss, `Losses.trained`. `coupled=False` is for c = 0 and omits the
    quadrature of J, by far the most expensive one."""
    of_state = losses(state, task, finite_length=finite_length, rule=rule)
    return of_state.trained(task) if coupled else of_state.K1 + of_state.K2


def auc_Q(
    state: ReducedState, task: Prompts, *, finite_length: bool = True, rule: Rule | None = None
) -> Float[Array, ""]:
    r"""Return the probability that :math:`N_V` is larger for a positive query than for a negative.

    Averaged over contexts, :math:`N_V \le 0`, and it is closer to 0 for positive queries. At finite
    L scores vary around this. `finite_length=False` leaves only the variation of queries, in steps
    of the rule.
    """
    rule = rule or Rule()
    _, (pos, neg) = outputs(state, task, finite_length, rule)
    _, weight = node_weights(rule, pos.mean.dtype)
    # `mean` is the mean of y N_V.
    gap = pos.mean[:, None] + neg.mean[None]
    spread = root(pos.variance[:, None] + neg.variance[None])
    return jnp.einsum("i,j,ij->", weight, weight, jax.scipy.special.ndtr(gap / spread))


def node_weights(
    rule: Rule, dtype: jnp.dtype
) -> tuple[Float[np.ndarray, "g h"], Float[np.ndarray, " e"]]:
    """Return the weights of the nodes of both outputs."""
    of_P = np.outer(half_normal_nodes(rule.g)[1], normal_nodes(rule.h)[1])
    return of_P.astype(dtype), normal_nodes(rule.e)[1].astype(dtype)


def outputs(
    state: ReducedState, task: Prompts, finite_length: bool, rule: Rule
) -> tuple[_Output, tuple[_Output, _Output]]:
    """Return output P, and output Q for positive and for negative queries."""
    # Variance of the mean over the context, relative to one token's.
    share = task.kappa / task.length if finite_length else 0.0
    pos, neg = (_output_Q(state, task, y, share, rule) for y in (1, -1))
    return _output_P(state, task, share, rule), (pos, neg)


def _output_P(state: ReducedState, task: Prompts, share: float, rule: Rule) -> _Output:
    dtype = jnp.result_type(state.a, task.r, float)
    g = half_normal_nodes(rule.g)[0].astype(dtype)[:, None]
    h = normal_nodes(rule.h)[0].astype(dtype)[None]
    others = task.d - 1
    # y N_W: mean kappa/2 pbar w, variance kappa/L ((p_2 w^2 + S_W) / 2 - pbar^2 w^2 / 4).
    p = task.gamma0 + task.s1 * g
    w = state.a * p + root(state.v_h) * task.s1 * others**0.5 * h
    # |x_L|^2 of the query is p^2 + s1^2 (d-1), up to O(sqrt d).
    across = task.s1**2 * others * state.v_W * (p**2 + task.s1**2 * others)
    pbar, p2 = task.mean_margin, task.mean_square_margin
    variance = (p2 * w**2 + across) / 2 - (pbar * w) ** 2 / 4
    s = root(across + (p2 - pbar**2) * w**2)
    return _Output(0.5 * task.kappa * pbar * w, share * variance, pbar * w, s)


def _output_Q(state: ReducedState, task: Prompts, y: int, share: float, rule: Rule) -> _Output:
    e = normal_nodes(rule.e)[0].astype(jnp.result_type(state.b, task.r, float))
    others = task.d - 1
    # y N_V: mean -y kappa/4 D(m, s), variance kappa/L (s^2 / 2 + m^2 / 4 - D^2 / 16).
    m = root(others * state.v_e) * (task.r * task.s2) * e
    square = task.s2**4 * others**2 * state.v_M
    if y < 0:
        # The sign +zeta suffices: -zeta is the same with e -> -e.
        m = m + task.r**2 * state.b
        square = square + task.s2**2 * others * task.r**2 * state.v_u
    s = root(square)
    raised = D(m, s)
    variance = s**2 / 2 + m**2 / 4 - raised**2 / 16
    return _Output(-y * 0.25 * task.kappa * raised, share * variance, m, s)
