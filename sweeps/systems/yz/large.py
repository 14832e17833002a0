"""Tasks with too many classes for a table: their reduced form, from the numbers alone."""

from typing import Any

import numpy as np

from dynsim import checks
from odes import symmetric
from odes.symmetric.state import SymmetricTask

LARGEST_TABLE = 2**30
"""Bytes of the table P(l|n) up to which one is made; what is computed with it takes more."""


def overlapping(K: int, overlap: float) -> SymmetricTask:
    """`dynsim.overlapping` in reduced form."""
    common = np.full(5, np.sqrt(overlap / (1 - overlap)) if overlap else 0.0)
    return _reduced(np.ones(5), common[common > 0], K, 5 + 5 * K, K)


def syn(
    num_queries: int, classes_per_query: int, num_common: int, num_distinct: int, layout: str
) -> SymmetricTask:
    """`dynsim.syn` in reduced form, with the smallest vocabulary."""
    for name, count in (("num_common", num_common), ("num_distinct", num_distinct)):
        checks.integer(name, count, 0)
    if not num_common + num_distinct:
        raise ValueError("num_common, num_distinct = 0, 0: a class needs a token")
    K = num_queries * classes_per_query
    M = num_common + K * num_distinct + (num_queries + K if layout == "authors" else 0)
    p = np.linspace(0.1, 1, num_distinct)
    return _reduced(p, np.ones(num_common), K, M, num_queries)


def _reduced(p: np.ndarray, rho: np.ndarray, K: int, M: int, num_queries: int) -> SymmetricTask:
    total = p.sum() + rho.sum()
    return symmetric.merged(symmetric.symmetric_profiles(p / total, rho / total, K, M, num_queries))


def is_large(K: Any, M: Any) -> bool:
    """Whether the table of so many classes and tokens is too large to be made."""
    return 8 * int(K) * int(M) > LARGEST_TABLE


def refuse(K: int, M: int) -> None:
    """Raise `ValueError` where `is_large` says so."""
    if is_large(K, M):
        gib = 8 * K * M / 2**30
        raise ValueError(
            f"K = {K}: its table of K x M = {K} x {M} probabilities would take {gib:.1f} GiB, more "
            f"than {LARGEST_TABLE / 2**30:.0f} GiB, and training more; without a table, at any K: "
            "dynsim explain, and sweeps with engine = 'symmetric' or 'symmetric-descent'"
        )
