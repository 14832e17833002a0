"""How far a task is from the weak overlap and the distinct tokens that the theory assumes."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dynsim import checks
from dynsim.classes.task import SequenceClasses


class Overlaps(NamedTuple):
    """Overlaps f_n . f_n' over pairs of different classes; NaN if there are no pairs."""

    mean: float
    max: float

    @classmethod
    def of(cls, values: np.ndarray) -> Overlaps:
        """Return the statistics of the overlaps of all pairs."""
        if not values.size:
            return cls(float("nan"), float("nan"))
        return cls(float(values.mean()), float(values.max()))


@dataclasses.dataclass(frozen=True, eq=False)
class OverlapReport:
    r"""Comparison of a task with the weak overlap and distinct tokens that the theory assumes.

    Attributes:
        overlaps: (K, K) :math:`f_n \cdot f_{n'}` at zero weights, G of the theory.
        within: overlaps of classes that share a query.
        across: overlaps of classes with different queries.
        all: overlaps of all pairs.
        spectral: largest absolute eigenvalue of E = G - I. From 1 on, the expansion of
            :math:`(I + E)^{-1}` in E does not converge, and first-order results in the overlap are
            meaningless.
        negative: share of the coefficients :math:`\beta_{nn'}` of Theorem 1 that are negative; the
            argument of Theorem 2 needs them >= 0.
        distinct, common: number of tokens with :math:`|\Omega(l)| = 1` and > 1.
        nearly_distinct: number of tokens that are owned (see `owned`) but not distinct.
        distinct_mass, owned_mass: (K,) probability of a class's distinct and owned tokens.
        threshold: threshold of ownership.
        local: whether `distinct` to `owned_mass` consider only the classes of one query; a token
            then counts once per query that has it.
    """

    overlaps: Float[np.ndarray, "K K"]
    within: Overlaps
    across: Overlaps
    all: Overlaps
    spectral: float
    negative: float
    distinct: int
    common: int
    nearly_distinct: int
    distinct_mass: Float[np.ndarray, " K"]
    owned_mass: Float[np.ndarray, " K"]
    threshold: float
    local: bool


def owned(task: SequenceClasses, threshold: float, local: bool = False) -> Bool[np.ndarray, "K M"]:
    r"""Return the mask of the tokens that mostly belong to one class: P(l|n) is at least
    `threshold` times the sum of :math:`P(l \mid n')` over all classes.

    They replace distinct tokens, the case threshold = 1, for text, where nearly every token occurs
    in nearly every class. Classes count equally, regardless of their prior, because the :math:`f_n`
    of the theory depend on P alone.

    Args:
        threshold: in (0.5, 1], so that a token has at most one owner.
        local: sum over the classes with the same query, instead of all.
    """
    checks.real("threshold", threshold, 0.5, 1, open_minimum=True)
    probs = np.asarray(task.probs)
    total = _same_query(task, local) @ probs
    # Sums over several classes may differ from a single entry by rounding.
    return (probs > 0) & (probs >= (threshold - 1e-12) * total)


def directions(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    """Return the vectors f_n at zero weights: P(l|n) normalised to unit length."""
    probs = np.asarray(task.probs)
    return probs / np.linalg.norm(probs, axis=1, keepdims=True)


def overlap_report(
    task: SequenceClasses, threshold: float = 0.8, local: bool = False
) -> OverlapReport:
    """Measure the assumptions of the theory on a task at zero weights.

    Args:
        threshold: fraction from which a token counts as owned, in (0.5, 1].
        local: whether tokens are distinct, common or owned among the classes of one query, as
            with the residual (paper, section 7), instead of among all.
    """
    probs, f = np.asarray(task.probs), directions(task)
    G = f @ f.T
    same, other = _same_query(task, True), ~np.eye(task.K, dtype=bool)
    # beta of Theorem 1 is -(I + E)^-1 off the diagonal; G = I + E may be singular.
    beta = -np.linalg.pinv(G)
    is_owned = owned(task, threshold, local)
    distinct, common = np.asarray(task.distinct(local)), np.asarray(task.common(local))
    by_query = [np.asarray(task.query_index) == q for q in range(task.num_queries)]
    groups = by_query if local else [np.ones(task.K, bool)]

    def count(mask: np.ndarray) -> int:
        # A token counts once in each group of classes that has it.
        return sum(int(mask[group].any(0).sum()) for group in groups)

    return OverlapReport(
        overlaps=G,
        within=Overlaps.of(G[same & other]),
        across=Overlaps.of(G[~same]),
        all=Overlaps.of(G[other]),
        spectral=float(np.abs(np.linalg.eigvalsh(G - np.eye(task.K))).max()),
        negative=float((beta[other] < 0).mean()) if task.K > 1 else 0.0,
        distinct=count(distinct),
        common=count(common),
        nearly_distinct=count(is_owned & ~distinct),
        distinct_mass=np.where(distinct, probs, 0).sum(1),
        owned_mass=np.where(is_owned, probs, 0).sum(1),
        threshold=threshold,
        local=local,
    )


def _same_query(task: SequenceClasses, local: bool) -> Bool[np.ndarray, "K K"]:
    # Without `local` all classes count as those of one query.
    row = np.asarray(task.query_index)
    return row[:, None] == row[None, :] if local else np.ones((task.K, task.K), bool)
