"""How far a task is from the weak overlap and the distinct tokens that the theory assumes."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dynsim import checks
from dynsim.classes.task import SequenceClasses


class Pairs(NamedTuple):
    """Overlaps f_n . f_n' over pairs of different classes; NaN where there is no pair."""

    mean: float
    max: float


@dataclasses.dataclass(frozen=True, eq=False)
class OverlapReport:
    r"""How far a task is from the weak overlap and the distinct tokens that the theory assumes.

    Attributes:
        overlaps: (K, K) :math:`f_n \cdot f_{n'}` at zero weights, G of the theory.
        within: overlaps of classes that share a query.
        across: overlaps of classes with different queries.
        all: overlaps of all pairs.
        spectral: largest absolute eigenvalue of E = G - I. From 1 on, the expansion of
            :math:`(I + E)^{-1}` in E does not converge, and "to first order in the overlap" means
            nothing.
        negative: share of the coefficients :math:`\beta_{nn'}` of Theorem 1 that are negative; the
            argument of Theorem 2 needs them >= 0.
        distinct, common: number of tokens with :math:`|\Omega(l)| = 1` and > 1.
        nearly_distinct: number of tokens that are not distinct, but owned (see `owned`).
        distinct_mass, owned_mass: (K,) probability of a class's distinct and owned tokens.
        threshold: threshold of ownership.
        local: whether `distinct` to `owned_mass` consider only the classes of one query; a token
            then counts once for each query that has it.
    """

    overlaps: Float[np.ndarray, "K K"]
    within: Pairs
    across: Pairs
    all: Pairs
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
    r"""Mask of the tokens that mostly belong to one class: P(l|n) is at least `threshold` times the
    sum of :math:`P(l \mid n')` over all classes.

    For text, where nearly every token occurs in nearly every class, this stands in for distinct
    tokens, which are those with threshold = 1. Classes count equally, regardless of their prior,
    because the :math:`f_n` of the theory depend on P alone.

    Args:
        threshold: in (0.5, 1], so that a token has one owner at most.
        local: sum over the classes that share the class's query, instead of all.
    """
    checks.real("threshold", threshold, 0.5, 1, open_minimum=True)
    probs = np.asarray(task.probs)
    total = _same(task, local) @ probs
    # Sums of several classes may differ from a single entry by rounding.
    return (probs > 0) & (probs >= (threshold - 1e-12) * total)


def directions(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    """The vectors f_n, P(l|n) of unit length, at zero weights."""
    probs = np.asarray(task.probs)
    return probs / np.linalg.norm(probs, axis=1, keepdims=True)


def overlap_report(
    task: SequenceClasses, threshold: float = 0.8, local: bool = False
) -> OverlapReport:
    """Measure the assumptions of the theory on a task at zero weights.

    Args:
        threshold: share from which a token counts as owned, in (0.5, 1].
        local: whether tokens are distinct, common or owned among the classes of one query, as
            with the residual (paper, section 7), instead of among all.
    """
    probs, f = np.asarray(task.probs), directions(task)
    G = f @ f.T
    same, other = _same(task, True), ~np.eye(task.K, dtype=bool)
    beta = -np.linalg.pinv(G)
    has = owned(task, threshold, local)
    distinct, common = np.asarray(task.distinct(local)), np.asarray(task.common(local))
    served = [np.asarray(task.query_index) == q for q in range(task.num_queries)]
    groups = served if local else [np.ones(task.K, bool)]

    def count(mask: np.ndarray) -> int:
        return sum(int(mask[group].any(0).sum()) for group in groups)

    return OverlapReport(
        overlaps=G,
        within=_pairs(G[same & other]),
        across=_pairs(G[~same]),
        all=_pairs(G[other]),
        spectral=float(np.abs(np.linalg.eigvalsh(G - np.eye(task.K))).max()),
        negative=float((beta[other] < 0).mean()) if task.K > 1 else 0.0,
        distinct=count(distinct),
        common=count(common),
        nearly_distinct=count(has & ~distinct),
        distinct_mass=np.where(distinct, probs, 0).sum(1),
        owned_mass=np.where(has, probs, 0).sum(1),
        threshold=threshold,
        local=local,
    )


def _same(task: SequenceClasses, local: bool) -> Bool[np.ndarray, "K K"]:
    row = np.asarray(task.query_index)
    return row[:, None] == row[None, :] if local else np.ones((task.K, task.K), bool)


def _pairs(values: np.ndarray) -> Pairs:
    if not values.size:
        return Pairs(float("nan"), float("nan"))
    return Pairs(float(values.mean()), float(values.max()))
