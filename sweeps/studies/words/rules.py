"""Theorem 2 of Scan and Snap, and its criterion, as predictions of signs for any task.

The theorem speaks of distinct tokens, which gain, and of a single common token, which loses. In
text nearly every token is common, and there are many. Its criterion, however, holds for any token:
by Eq. 10 the drift of the logit of token l for query m is

    z_ml' ~ sum_{n in psi^-1(m)} pi(n) f_nl (f_nl f_n . h_n - h_nl),  h_n = sum_{n' != n} b_nn' f_n'

with b_nn' = gamma_n beta_nn', so that l gains where it is more of its own classes than of those
with which they overlap. Distinct tokens have h_nl = 0 and f_n . h_n = xi_n > 0. Two versions:

- Theorem 1's beta, of the decoder update of Lemma 3; at the start gamma_n ~ pi(n).
- the plain update that training follows [ours]. From Y = Z = 0, to first order in t,
  Y = eta_Y t sum_n pi(n) f_n (e_nu(n) - 1/M)^T and
  g_n = eta_Y t (pi(n) f_n - (1/M) sum_n' pi(n') f_n').
  What of g_n is along f_n drops out, and b_nn' = eta_Y t pi(n') / M is left: exact for any overlap
  for as long as alpha is uniform.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int8

from dynsim.classes.task import SequenceClasses, directions, owned
from dynsim.precision import precision
from dynsim.training.rule import Rule
from odes import predictions
from odes.theory import Training
from odes.yz import eq10 as attention

RULES = {
    "theorem-2": "Theorem 2 and Corollary 2, to the letter",
    "owned": "tokens mainly of one class gain, others lose",
    "owned-local": "the same, among classes of one query",
    "eq10-start": "Eq. 10's criterion at the start",
    "flow-start": "criterion of the plain update at the start",
}
"""Rules that need no solving, by name."""


def rules(
    task: SequenceClasses, optimizer: Rule, threshold: float
) -> dict[str, Int8[np.ndarray, "K M"]]:
    """The sign that each of `RULES` predicts for z, for the query of each class; 0 outside of the
    query's tokens and where a rule is silent. "eq10-start" is left out where Eq. 10 does not
    apply."""
    present = _for_query(task, np.asarray(task.probs) > 0)

    def sign(values: np.ndarray) -> np.ndarray:
        return np.where(present, np.sign(values), 0).astype(np.int8)

    found = {"theorem-2": predictions.sign_of_drift(task)}
    for name, local in (("owned", False), ("owned-local", True)):
        found[name] = sign(np.where(_for_query(task, owned(task, threshold, local)), 1, -1))
    if attention.inapplicable(Training(task, optimizer)) is None:
        found["eq10-start"] = sign(eq10_drift(task))
    found["flow-start"] = sign(plain_drift(task))
    return found


def eq10_drift(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    """z' by Eq. 10 at zero attention logits for the query of each class, over eta_Z eta_Y t."""
    with precision("float64"):
        cast = task.astype("float64")
        f = jnp.asarray(directions(task))
        drift = attention.drift(cast, f, jnp.asarray(cast.prior), jnp.asarray(cast.prior))
        return np.asarray(drift.Z)[np.asarray(task.query_index)]


def plain_drift(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    """z' of the population flow from zero weights for the query of each class, over
    eta_Z eta_Y t, as t -> 0."""
    f, prior = directions(task), np.asarray(task.prior)
    # The share of class n itself, which is along f_n, drops out below.
    h = prior @ f / task.M
    along = (f @ h)[:, None]
    return _sum_by_query(task, prior[:, None] * f * (f * along - h))


def _sum_by_query(task: SequenceClasses, values: np.ndarray) -> np.ndarray:
    """Sums over the classes of a query, for each class the sum of its query."""
    rows = np.asarray(task.query_index)
    return (rows[:, None] == rows[None, :]).astype(values.dtype) @ values


def _for_query(task: SequenceClasses, mask: np.ndarray) -> np.ndarray:
    """Whether any class of the query has the token in its `mask`."""
    return _sum_by_query(task, mask.astype(np.int64)) > 0
