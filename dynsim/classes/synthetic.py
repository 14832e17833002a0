"""The synthetic tasks of Scan and Snap (arXiv:2305.16380, section 6 and Appendix G)."""

from typing import Literal

import numpy as np

from dynsim import checks
from dynsim.classes.task import SequenceClasses, sequence_classes

Layout = Literal["authors", "paper"]
"""Whether queries and next tokens have ids of their own, as in the authors' code, or not."""


def syn(
    num_queries: int,
    classes_per_query: int,
    *,
    num_common: int = 10,
    num_distinct: int = 10,
    num_common_per_query: int = 0,
    M: int | None = None,
    layout: Layout = "authors",
) -> SequenceClasses:
    """A task of the paper's Syn family.

    Token ids run in the authors' order: global common tokens, common tokens of each query,
    distinct tokens of each class, then (layout "authors" only) the queries and the next
    tokens. Every common token has the same unnormalised probability 1, the distinct tokens
    of a class have `linspace(0.1, 1, num_distinct)`.

    Args:
        num_queries: number Q of query tokens, >= 1.
        classes_per_query: number of classes that share a query, >= 1; K = Q * this.
        num_common: number of tokens common to all classes, >= 0.
        num_distinct: number of distinct tokens of each class, >= 0.
        num_common_per_query: number of tokens common to the classes of one query only.
        M: vocabulary size, at least what the layout needs, which is the default; the
            tokens beyond it never occur, but are outputs like any other.
        layout: "authors" gives queries and next tokens separate ids, as the code behind the
            published numbers does; "paper" counts only contextual tokens in M and reuses ids 0, 1,
            ... for queries and next tokens. A query id only labels a row of Z and a next-token id a
            column of Y, so the layouts differ only in the number of outputs.

    Raises:
        ValueError: for a count that is not an integer or too small, an unknown layout, classes
            without tokens, or more classes than tokens.

    Example:
        >>> dynsim.syn(2, 1, num_common=1).K
        2
    """
    K, M = syn_sizes(
        num_queries, classes_per_query, num_common, num_distinct, num_common_per_query, M, layout
    )
    Q, common, distinct = int(num_queries), int(num_common), int(num_distinct)
    common_per_query = int(num_common_per_query)
    classes = np.arange(K)
    query_index = classes // classes_per_query

    weights = np.zeros((K, M))
    weights[:, :common] = 1
    for n in classes:
        start = common + query_index[n] * common_per_query
        weights[n, start : start + common_per_query] = 1
        start = common + Q * common_per_query + n * distinct
        weights[n, start : start + distinct] = np.linspace(0.1, 1, distinct)
    contextual = common + Q * common_per_query + K * distinct
    offset = contextual if layout == "authors" else 0
    return sequence_classes(
        probs=weights / weights.sum(1, keepdims=True),
        query=offset + query_index,
        next_token=classes + (offset + Q if layout == "authors" else 0),
    )


def syn_sizes(
    num_queries: int,
    classes_per_query: int,
    num_common: int = 10,
    num_distinct: int = 10,
    num_common_per_query: int = 0,
    M: int | None = None,
    layout: Layout = "authors",
) -> tuple[int, int]:
    """K and M of `syn`, without its table; `ValueError` as of `syn`."""
    Q = checks.integer("num_queries", num_queries, 1)
    K = Q * checks.integer("classes_per_query", classes_per_query, 1)
    common = checks.integer("num_common", num_common, 0)
    distinct = checks.integer("num_distinct", num_distinct, 0)
    common_per_query = checks.integer("num_common_per_query", num_common_per_query, 0)
    checks.choice("layout", layout, ("authors", "paper"))
    if not common + common_per_query + distinct:
        raise ValueError(
            "num_common, num_common_per_query, num_distinct = 0, 0, 0: a class needs a token"
        )
    contextual = common + Q * common_per_query + K * distinct
    least = contextual + (Q + K if layout == "authors" else 0)
    return K, least if M is None else checks.integer("M", M, least)
