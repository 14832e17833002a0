r"""Symmetric sequence classes reduced to a few numbers: gradient, profiles, observables [ours].

A task is symmetric if all classes have the same profile :math:`p_i` (i = 1..D) of distinct tokens
and share the common tokens with class-independent probabilities :math:`\rho_j` (j = 1..C), every
query belongs to the same number q of classes, and all classes are equally likely, as in the Syn
tasks of Scan and Snap (section 6). From zero weights, in the limit :math:`T \to \infty` (Lemma 2),
every entry of Y and Z then stays equal to one of 4 D + 3 C numbers for any K and M, because
gradients and elementwise optimisers preserve the symmetry. The reduction is exact. The numbers are
in `odes.symmetric.state`; `with_full_task` finds them in a task,
`TaskPair.weights` restores the weights.
"""

import dataclasses
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray, Number
from dynsim.training.recording import RELATIVE_LOSS, Recording, Table
from dynsim.yz import model as yz
from dynsim.yz.observables import MEASURED
from odes.symmetric.state import Attention, Decoder, Kinds, Reduced, State, SymmetricTask

# Probabilities typed with six decimals count as normalised. Only their ratios enter the dynamics,
# because attention is normalised.
_SUM_TOLERANCE = 1e-5
# Rows of a `SequenceClasses` are normalised in float64; equal probabilities stay equal up to this.
_ALIKE = 1e-9

Profile = Real[AnyArray, " _"] | Sequence[float | np.number]


def measure(task: SymmetricTask, state: State) -> Reduced:
    """Return the forward pass and backpropagated gradient of one class.

    Runs may be trailing axes of the state and, by `odes.symmetric.state.columns`, of the task. A
    CPU then makes one long loop of every operation, where `jax.vmap` would move the axis of runs to
    the front wherever a number of a run meets a vector.

    Small probabilities keep their relative precision as in `yz.cross_entropy`: everything is
    computed from logits relative to the own one, and the residual is the sum of the wrong
    probabilities rather than one minus the right one.
    """
    # c_i ~ p_i e^{z_i} and f = c / |c|, relative to the largest logit so that exp cannot overflow.
    Y, z = state.Y, state.Z
    highest = [jnp.max(part, axis=0, initial=-jnp.inf) for part in (z.distinct, z.common)]
    largest = jax.lax.stop_gradient(jnp.maximum(*highest))
    w = Attention(jnp.exp(z.distinct - largest) * task.p, jnp.exp(z.common - largest) * task.rho)
    total = task.sum_distinct(w.distinct) + task.sum_common(w.common)
    norm = jnp.sqrt(task.sum_distinct(w.distinct**2) + task.sum_common(w.common**2))
    c, f = (jax.tree.map(lambda x, size=size: x / size, w) for size in (total, norm))

    # Logits f Y of other outputs relative to the own one: K - 1 of one kind, M - K of the other.
    others, rests = task.K - 1, task.M - task.K
    to_other = task.sum_distinct(f.distinct * (Y.other - Y.own))
    to_rest = task.sum_distinct(f.distinct * (Y.rest - Y.own))
    to_rest += task.sum_common(f.common * (Y.common_rest - Y.common_next))
    top = jax.lax.stop_gradient(jnp.maximum(to_other, to_rest))
    wrong = jnp.exp(to_other - top) * others + jnp.exp(to_rest - top) * rests
    # -ln alpha_own = ln(1 + sum of e^{logit} of the wrong outputs).
    loss = jax.nn.softplus(top + jnp.log(wrong))
    other, rest = jnp.exp(to_other - loss), jnp.exp(to_rest - loss)
    residual = other * others + rest * rests
    # g = Y (x - alpha). A common token has the same entry for all next tokens, own and other.
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
    """Return minus the gradient of the population loss per *full* parameter.

    Each number is the derivative with respect to one of the entries of Y or Z that it represents,
    not all of them together, so that elementwise optimisers (Adam) can be applied to it. A distinct
    token occurs in one class, a common token in all K classes (Y) and in the K / num_queries
    classes of a query (Z). Each class has weight 1/K. Rows of Y keep their sums:
    `own + (K - 1) other + (M - K) rest = 0` and `K common_next + (M - K) common_rest = 0`.
    """
    # -dL/dY = sum_n pi(n) f_n (x_n - alpha_n)^T and -dL/dz_m = sum_n pi(n) f_n (g_n - f_n f_n.g_n).
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
    """Return the gradient of the population loss per full parameter, which is minus `direction`."""
    return jax.tree.map(jnp.negative, direction(task, state))


def symmetric_profiles(
    p: Profile,
    rho: Profile,
    K: Int[Number, ""],
    M: Int[Number, ""],
    num_queries: Int[Number, ""] = 1,
) -> SymmetricTask:
    """Make a symmetric task from its profiles. K and M may be huge: no array has their size.

    Args:
        p: (D,) positive probabilities of the distinct tokens of a class; may be empty.
        rho: (C,) positive probabilities of the common tokens; may be empty. `p` and `rho` together
            sum to 1 (to 1e-5).
        K: number of classes.
        M: number of outputs, at least 2 and at least K.
        num_queries: number of queries; divides K.

    Raises:
        ValueError: naming the argument, its value and what is allowed. Traced values are not
            checked.
    """
    p, rho = _profile("p", p), _profile("rho", rho)
    if p.size + rho.size == 0:
        raise ValueError("p, rho = [], []: a class needs at least one token")
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
    """Return `value` as an array, in NumPy's float64 if it is concrete."""
    if checks.is_traced(value):
        profile = jnp.asarray(value)
    else:
        checks.real(name, value, 0, open_minimum=True)
        profile = np.array(value, np.float64)
    if profile.ndim != 1:
        raise ValueError(f"{name}: must be one-dimensional, got shape {profile.shape}")
    return profile


def merged(task: SymmetricTask) -> SymmetricTask:
    """Merge tokens of equal probability into one kind with several copies.

    For Syn-Small this halves the number of variables. Observables with an entry per token then have
    one per kind, in order of increasing probability.
    """
    return merge(task)[0]


def merge(task: SymmetricTask) -> tuple[SymmetricTask, Kinds]:
    """Return the `merged` task and the kind of each token."""

    # Probabilities that agree to twelve digits are those of one kind.
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


def entropy(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, ""]:
    """Return the entropy (nat) of the attention restricted to distinct tokens; NaN without any."""
    if now.c.distinct.size == 0:
        return jnp.full((), jnp.nan, now.loss.dtype)
    p = now.c.distinct / task.sum_distinct(now.c.distinct)
    # The inner where keeps the gradient finite where p = 0.
    nats = -task.sum_distinct(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0))
    # Of a single token it is 0, not a rounding error.
    return jnp.where(task.sum_distinct(jnp.ones_like(p)) > 1, nats, 0)


def xi(task: SymmetricTask, state: State, now: Reduced) -> Float[Array, "1"]:
    """Return xi_n as in `dynsim.yz.observables.xi`; NaN without distinct tokens."""
    f, g = now.f.distinct, now.g.distinct
    if f.size == 0:
        return jnp.full((1,), jnp.nan, now.loss.dtype)
    # Least squares of f (g - f gamma) = xi f^2 over the distinct tokens.
    weight = task.sum_distinct(f**2)
    gain = task.sum_distinct(f * (g - f * now.speed))
    return (gain / jnp.where(weight > 0, weight, 1))[None]


def _most_probable(z: Float[Array, " D"], probability: Float[AnyArray, " D"]) -> Float[Array, "1"]:
    if z.size == 0:
        return jnp.full((1,), jnp.nan, z.dtype)
    return z[jnp.argmax(probability)][None]


OBSERVABLES: dict[str, Callable[[SymmetricTask, State, Reduced], Array]] = {
    "loss": lambda task, state, now: now.loss,
    "accuracy": lambda task, state, now: (now.margin > 0).astype(now.loss.dtype),
    "entropy": entropy,
    "z_top_distinct": lambda task, state, now: _most_probable(state.Z.distinct, task.p),
    "z_top_common": lambda task, state, now: _most_probable(state.Z.common, task.rho),
    "speed": lambda task, state, now: now.speed[None],
    "xi": xi,
    "z_distinct": lambda task, state, now: state.Z.distinct,
    "z_common": lambda task, state, now: state.Z.common,
    "attention_distinct": lambda task, state, now: now.c.distinct,
    "attention_common": lambda task, state, now: now.c.common,
}
"""Observables by name, as in `dynsim.yz.observables`. Loss, accuracy and entropy are scalars.
Observables with an entry per class there have shape (1,), as all classes are alike; those per
distinct or common token have shape (D,) or (C,)."""
TABLE = Table(OBSERVABLES)
"""Observables of the flows."""
FULL_TABLE = dataclasses.replace(MEASURED, functions={**OBSERVABLES, **MEASURED.functions})
"""Observables of the flows if the full task is known: all observables of the weights, and those
that only the reduction has."""
DESCENDED = dataclasses.replace(TABLE, provided=("batch_loss", RELATIVE_LOSS))
"""Observables of descent."""


def observe(record: Recording, task: SymmetricTask, state: State) -> dict[str, Array]:
    """Return all recorded observables of one state."""
    return record(task, state, measure(task, state))


class TaskPair(eqx.Module):
    """A symmetric task in reduced form together with the full one; build it with `with_full_task`.

    Attributes:
        reduced: the reduced form.
        full: the task itself.
        distinct: (K, D) ids of the distinct tokens of each class.
        common: (C,) ids of the common tokens.
        kinds: index of the entry of `reduced` for each of these tokens.
    """

    reduced: SymmetricTask
    full: SequenceClasses
    distinct: Int[AnyArray, "K D"]
    common: Int[AnyArray, " C"]
    kinds: Kinds

    def astype(self, dtype: str) -> "TaskPair":
        """Return the task with its probabilities as JAX arrays of `dtype`."""
        tasks = self.reduced.astype(dtype), self.full.astype(dtype)
        return eqx.tree_at(lambda pair: (pair.reduced, pair.full), self, tasks)

    def weights(self, state: State) -> yz.YZ:
        """Return the full weights of `state`: Y (M, M) and Z (Q, M)."""
        task, row, shared = self.full, jnp.asarray(self.distinct), jnp.asarray(self.common)
        own, other, rest, z_distinct = (
            values[self.kinds.distinct]
            for values in (state.Y.own, state.Y.other, state.Y.rest, state.Z.distinct)
        )
        common_next, common_rest, z_common = (
            values[self.kinds.common]
            for values in (state.Y.common_next, state.Y.common_rest, state.Z.common)
        )
        # From the most general entries to the most special ones, each of which overwrites some.
        Y = jnp.zeros((task.M, task.M), own.dtype)
        Y = Y.at[row].set(rest[:, None]).at[shared].set(common_rest[:, None])
        Y = Y.at[row[:, :, None], task.next_token].set(other[:, None])
        Y = Y.at[shared[:, None], task.next_token].set(common_next[:, None])
        Y = Y.at[row, task.next_token[:, None]].set(own)
        Z = jnp.zeros((task.num_queries, task.M), z_common.dtype).at[:, shared].set(z_common)
        return yz.YZ(Y, Z.at[task.query_index[:, None], row].set(z_distinct))


def with_full_task(task: SequenceClasses, *, merged: bool = False) -> TaskPair:
    """Return `task` with its reduced form; `merged` merges tokens of equal probability in it.

    Raises:
        ValueError: as in `symmetric_task`.
    """
    distinct, common = tokens(task)
    p, rho = task.probs[0, distinct[0]], task.probs[0, common]
    reduced = SymmetricTask(p, rho, task.K, task.M, task.num_queries)
    kinds = Kinds(np.arange(p.size), np.arange(rho.size))
    if merged:
        reduced, kinds = merge(reduced)
    return TaskPair(reduced, task, distinct, common, kinds)


def symmetric_task(task: SequenceClasses) -> SymmetricTask:
    """Return the reduced form of `task`.

    Raises:
        ValueError: if `task` is not symmetric, naming the assumption that fails.
    """
    return with_full_task(task).reduced


def expand(task: SequenceClasses, state: State) -> yz.YZ:
    """Return the full weights Y (M, M) and Z (Q, M) of a `state` with one number per token."""
    return with_full_task(task).weights(state)


def tokens(task: SequenceClasses) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids (K, D) of each class's distinct tokens by increasing probability, and the ids
    (C,) of the common tokens in order. Raise `ValueError` if `task` is not symmetric."""
    if checks.is_traced(task):
        raise ValueError(
            "symmetric reduction needs a concrete task; to differentiate with respect to its "
            "probabilities, use symmetric_profiles"
        )
    probs, prior = np.asarray(task.probs), np.asarray(task.prior)
    _require_equal("equally likely classes", prior[:, None], "prior of class")
    _require_equal(
        "the same number of classes per query",
        np.bincount(task.query_index)[:, None],
        "query number",
    )
    classes_with = (probs > 0).sum(0)
    for token in np.flatnonzero((classes_with > 1) & (classes_with < task.K)):
        raise ValueError(
            "symmetric reduction needs common tokens shared by all classes; token "
            f"{token} occurs in {classes_with[token]} of {task.K}"
        )
    common = np.flatnonzero((classes_with == task.K) & (task.K > 1))
    _require_equal("class-independent common tokens", probs[:, common], "class")
    own = (probs > 0) & (classes_with == 1)
    _require_equal("equal distinct profiles", own.sum(1)[:, None], "class")
    # By increasing probability, so that the i-th token of each class is of the i-th kind.
    own_probs = np.where(own, probs, np.inf)
    distinct = np.argsort(own_probs, axis=1, kind="stable")[:, : own[0].sum()]
    _require_equal("equal distinct profiles", np.take_along_axis(probs, distinct, axis=1), "class")
    return distinct, common


def _require_equal(what: str, rows: np.ndarray, entry: str) -> None:
    differs = (np.abs(rows - rows[0]) > _ALIKE * np.abs(rows[0])).any(1)
    if differs.any():
        n = int(np.argmax(differs))
        raise ValueError(f"symmetric reduction needs {what}; {entry} {n} differs")
