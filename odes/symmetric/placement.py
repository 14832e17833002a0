"""Where the few numbers of the symmetric reduction stand in a full task and in its weights.

What symmetric means is told in `odes.symmetric.reduction`; here it is looked for in a
`SequenceClasses`, and the reduced parameters become a whole Y and Z again.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray
from dynsim.yz import model as yz
from odes.symmetric.reduction import merge
from odes.symmetric.state import Kinds, State, SymmetricTask

# Rows of a `SequenceClasses` are normalised in float64, which leaves equal ones equal to this.
_EQUAL = 1e-9


class Placed(eqx.Module):
    """A symmetric task in reduced form together with the full one; build it with `placed`.

    Attributes:
        reduced: the reduced form.
        full: the task itself.
        distinct: (K, D) ids of the distinct tokens of each class.
        common: (C,) ids of the common tokens.
        kinds: the entry of `reduced` that stands for each of them.
    """

    reduced: SymmetricTask
    full: SequenceClasses
    distinct: Int[AnyArray, "K D"]
    common: Int[AnyArray, " C"]
    kinds: Kinds

    def astype(self, dtype: str) -> "Placed":
        """The same with its probabilities as JAX arrays of `dtype`."""
        cast = self.reduced.astype(dtype), self.full.astype(dtype)
        return eqx.tree_at(lambda placed: (placed.reduced, placed.full), self, cast)

    def weights(self, state: State) -> yz.YZ:
        """The full weights that `state` stands for: Y (M, M) and Z (Q, M)."""
        task, row, shared = self.full, jnp.asarray(self.distinct), jnp.asarray(self.common)
        own, other, rest, z_distinct = (
            values[self.kinds.distinct]
            for values in (state.Y.own, state.Y.other, state.Y.rest, state.Z.distinct)
        )
        common_next, common_rest, z_common = (
            values[self.kinds.common]
            for values in (state.Y.common_next, state.Y.common_rest, state.Z.common)
        )
        Y = jnp.zeros((task.M, task.M), own.dtype)
        Y = Y.at[row].set(rest[:, None]).at[shared].set(common_rest[:, None])
        Y = Y.at[row[:, :, None], task.next_token].set(other[:, None])
        Y = Y.at[shared[:, None], task.next_token].set(common_next[:, None])
        Y = Y.at[row, task.next_token[:, None]].set(own)
        Z = jnp.zeros((task.num_queries, task.M), z_common.dtype).at[:, shared].set(z_common)
        return yz.YZ(Y, Z.at[task.query_index[:, None], row].set(z_distinct))


def placed(task: SequenceClasses, *, merged: bool = False) -> Placed:
    """`task` with its reduced form, one token for all of equal probability if `merged`.

    Raises:
        ValueError: as `symmetric_task`.
    """
    distinct, common = tokens(task)
    p, rho = task.probs[0, distinct[0]], task.probs[0, common]
    reduced = SymmetricTask(p, rho, task.K, task.M, task.num_queries)
    kinds = Kinds(np.arange(p.size), np.arange(rho.size))
    if merged:
        reduced, kinds = merge(reduced)
    return Placed(reduced, task, distinct, common, kinds)


def symmetric_task(task: SequenceClasses) -> SymmetricTask:
    """The reduced form of `task`.

    Raises:
        ValueError: if `task` is not symmetric, naming the assumption that fails.
    """
    return placed(task).reduced


def expand(task: SequenceClasses, state: State) -> yz.YZ:
    """The full weights that `state`, a token each, stands for: Y (M, M) and Z (Q, M)."""
    return placed(task).weights(state)


def tokens(task: SequenceClasses) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (K, D) of the distinct tokens of each class by increasing probability, and
    (C,) of the common ones by id; raises `ValueError` where symmetry fails."""
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
    own_probs = np.where(own, probs, np.inf)
    distinct = np.argsort(own_probs, axis=1, kind="stable")[:, : own[0].sum()]
    _require_equal("equal distinct profiles", np.take_along_axis(probs, distinct, axis=1), "class")
    return distinct, common


def _require_equal(what: str, rows: np.ndarray, entry: str) -> None:
    differs = (np.abs(rows - rows[0]) > _EQUAL * np.abs(rows[0])).any(1)
    if differs.any():
        n = int(np.argmax(differs))
        raise ValueError(f"symmetric reduction needs {what}; {entry} {n} differs")
