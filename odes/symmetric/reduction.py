r"""Symmetric sequence classes reduced to a few numbers: gradient and profiles [ours].

Let every class have the same distinct tokens' profile :math:`p_i` (i = 1..D), all classes share the
common tokens with class-independent probabilities :math:`\rho_j` (j = 1..C), every query serve the
same number q of classes and all classes be equally likely, as in the Syn tasks of Scan and Snap
(section 6). From zero weights, in the limit :math:`T \to \infty` (Lemma 2), every entry of Y and Z
then stays equal to one of 4 D + 3 C numbers, whatever K and M are: gradients keep the symmetry, and
so does any elementwise optimiser. Nothing is approximated. The numbers are those of
`odes.symmetric.state`; `odes.symmetric.placement` finds them in a task, and puts them back.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number
from odes.symmetric.state import Attention, Decoder, Kinds, Reduced, State, SymmetricTask

# Probabilities typed with six decimals still count as normalised. Only their ratios enter the
# dynamics, because attention normalises itself.
_SUM_TOLERANCE = 1e-5

Profile = Real[AnyArray, " _"] | Sequence[float | np.number]


def measure(task: SymmetricTask, state: State) -> Reduced:
    """Forward pass and backpropagated gradient of one class.

    Small probabilities keep their relative precision as in `yz.cross_entropy`: everything is
    formed from logits relative to the own one, the residual as the sum of the wrong
    probabilities and never as one minus the right one.
    """
    Y, z = state.Y, state.Z
    # Neither a concatenation nor a dot product, both of which would move a batch to the front.
    largest = jax.lax.stop_gradient(
        jnp.maximum(jnp.max(z.distinct, initial=-jnp.inf), jnp.max(z.common, initial=-jnp.inf))
    )
    w = Attention(jnp.exp(z.distinct - largest) * task.p, jnp.exp(z.common - largest) * task.rho)
    total = task.sum_distinct(w.distinct) + task.sum_common(w.common)
    norm = jnp.sqrt(task.sum_distinct(w.distinct**2) + task.sum_common(w.common**2))
    c, f = (jax.tree.map(lambda x, by=by: x / by, w) for by in (total, norm))

    others, rests = task.K - 1, task.M - task.K
    to_other = task.sum_distinct(f.distinct * (Y.other - Y.own))
    to_rest = task.sum_distinct(f.distinct * (Y.rest - Y.own))
    to_rest += task.sum_common(f.common * (Y.common_rest - Y.common_next))
    top = jax.lax.stop_gradient(jnp.maximum(to_other, to_rest))
    wrong = jnp.exp(to_other - top) * others + jnp.exp(to_rest - top) * rests
    loss = jax.nn.softplus(top + jnp.log(wrong))
    other, rest = jnp.exp(to_other - loss), jnp.exp(to_rest - loss)
    residual = other * others + rest * rests
    g = Attention(
        Y.own * residual - other * others * Y.other - rest * rests * Y.rest,
        rest * rests * (Y.common_next - Y.common_rest),
    )
    margin = -jnp.maximum(
        jnp.where(others > 0, to_other, -jnp.inf), jnp.where(rests > 0, to_rest, -jnp.inf)
    )
    speed = task.sum_distinct(f.distinct * g.distinct) + task.sum_common(f.common * g.common)
    return Reduced(c, f, g, loss, residual, other, rest, to_other, to_rest, margin, speed)


def direction(task: SymmetricTask, state: State) -> State:
    """Minus the gradient of the population loss per *full* parameter.

    Each number is the derivative by one of the entries of Y or Z that it stands for, not by
    all of them together, so that elementwise optimisers (Adam) may be applied to it. A distinct
    token occurs in one class, a common one in all K (Y) and in the K / num_queries classes of
    its query (Z); each class weighs 1/K. Rows of Y keep their sums:
    `own + (K - 1) other + (M - K) rest = 0` and `K common_next + (M - K) common_rest = 0`.
    """
    now = measure(task, state)
    f, g = now.f, now.g
    decoder = Decoder(
        f.distinct * now.residual / task.K,
        -f.distinct * now.other / task.K,
        -f.distinct * now.rest / task.K,
        # residual - (K-1) other without the cancellation.
        f.common * (task.M - task.K) * now.rest / task.K,
        -f.common * now.rest,
    )
    attention = Attention(
        f.distinct * (g.distinct - f.distinct * now.speed) / task.K,
        f.common * (g.common - f.common * now.speed) / task.num_queries,
    )
    return State(decoder, attention)


def gradient(task: SymmetricTask, state: State) -> State:
    """Gradient of the population loss per full parameter, minus `direction`."""
    return jax.tree.map(jnp.negative, direction(task, state))


def symmetric_profiles(
    p: Profile,
    rho: Profile,
    K: Int[Number, ""],
    M: Int[Number, ""],
    num_queries: Int[Number, ""] = 1,
) -> SymmetricTask:
    """A symmetric task from its profiles; K and M may be huge, nothing of their size is made.

    Args:
        p: (D,) positive probabilities of the distinct tokens of a class; may be empty.
        rho: (C,) positive probabilities of the common tokens; may be empty. All of `p` and
            `rho` together sum to 1 (to 1e-5).
        K: number of classes.
        M: number of outputs, at least 2 and at least K.
        num_queries: number of queries; divides K.

    Raises:
        ValueError: naming the argument, its value and what is allowed. Traced values are let
            through.
    """
    p, rho = _profile("p", p), _profile("rho", rho)
    if p.size + rho.size == 0:
        raise ValueError("p, rho = [], []: a class needs a token")
    if not checks.is_traced((p, rho)):
        total = float(np.sum(p) + np.sum(rho))
        if abs(total - 1) > _SUM_TOLERANCE:
            raise ValueError(f"p, rho: sum to {total:.8g}, must sum to 1")
    if not checks.is_traced((K, M, num_queries)):
        classes, outputs = checks.integer("K", K, 1), checks.integer("M", M, 2)
        if classes % checks.integer("num_queries", num_queries, 1):
            raise ValueError(f"num_queries = {num_queries}: must divide K = {K}")
        if classes > outputs:
            raise ValueError(f"K = {K} classes but M = {M} tokens: needs K <= M")
    return SymmetricTask(p, rho, K, M, num_queries)


def _profile(name: str, value: Profile) -> Float[AnyArray, " D"]:
    """`value` as an array, in NumPy's float64 if it is concrete."""
    if checks.is_traced(value):
        profile = jnp.asarray(value)
    else:
        checks.real(name, value, 0, open_minimum=True)
        profile = np.array(value, np.float64)
    if profile.ndim != 1:
        raise ValueError(f"{name}: must have one axis, got shape {profile.shape}")
    return profile


def merged(task: SymmetricTask) -> SymmetricTask:
    """The same task with one token for all of equal probability, which it then has copies of.

    Half of the numbers of Syn-Small go that way. Observables with an entry per token have one
    per kind instead, by increasing probability.
    """
    return merge(task)[0]


def merge(task: SymmetricTask) -> tuple[SymmetricTask, Kinds]:
    """`merged`, and the kind that each of the tokens becomes."""

    def kinds(
        values: AnyArray, copies: AnyArray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rounded = np.round(np.asarray(values, np.float64), 12)
        _, first, kind = np.unique(rounded, return_index=True, return_inverse=True)
        weights = np.ones(len(rounded)) if copies is None else np.asarray(copies)
        return np.asarray(values)[first], np.bincount(kind, weights, len(first)), kind

    p, p_copies, distinct = kinds(task.p, task.p_copies)
    rho, rho_copies, common = kinds(task.rho, task.rho_copies)
    one_each = SymmetricTask(p, rho, task.K, task.M, task.num_queries, p_copies, rho_copies)
    return one_each, Kinds(distinct, common)
