"""Tasks as classes. Each describes sequence classes by its settings and builds them.

The synthetic tasks are those of Scan and Snap (arXiv:2305.16380, section 6 and Appendix G).
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import numpy as np

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task, numeric, sequence_classes
from dynsim.decoding import Count, Decay, Size, SizeOrNone
from dynsim.precision import AnyArray

Layout = Literal["authors", "paper"]
"""Whether queries and next tokens have separate ids, as in the authors' code, or not."""


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
    """Build a task of the paper's Syn family.

    Token ids are in the authors' order: common tokens of all classes, common tokens of each query,
    distinct tokens of each class, then (layout "authors" only) the queries and the next
    tokens. Before normalisation every common token has probability 1, and the distinct tokens
    of a class have `linspace(0.1, 1, num_distinct)`.

    Args:
        num_queries: number Q of query tokens, >= 1.
        classes_per_query: number of classes that share a query, >= 1; K = Q * this.
        num_common: number of tokens common to all classes, >= 0.
        num_distinct: number of distinct tokens of each class, >= 0.
        num_common_per_query: number of tokens common to the classes of one query only.
        M: vocabulary size; by default, and at least, as large as the layout needs. Additional
            tokens never occur, but are outputs like any other.
        layout: "authors" gives queries and next tokens separate ids, as the code behind the
            published numbers does; "paper" counts only contextual tokens in M and reuses ids 0, 1,
            ... for queries and next tokens. A query id only labels a row of Z and a next-token id a
            column of Y, so the layouts differ only in the number of outputs.

    Raises:
        ValueError: for a count that is not an integer or too small, an unknown layout, classes
            without tokens, or more classes than tokens.

    Example:
        >>> dynsim.Syn(2, 1, num_common=1).build().K
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
    # The paper counts contextual tokens alone in M, so that queries reuse their ids.
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
    """Return K and M of `syn` without building its table; raises `ValueError` as `syn` does."""
    Q = checks.integer("num_queries", num_queries, 1)
    K = Q * checks.integer("classes_per_query", classes_per_query, 1)
    common = checks.integer("num_common", num_common, 0)
    distinct = checks.integer("num_distinct", num_distinct, 0)
    common_per_query = checks.integer("num_common_per_query", num_common_per_query, 0)
    checks.choice("layout", layout, ("authors", "paper"))
    if not common + common_per_query + distinct:
        raise ValueError(
            "num_common, num_common_per_query, num_distinct = 0, 0, 0: "
            "a class needs at least one token"
        )
    contextual = common + Q * common_per_query + K * distinct
    least = contextual + (Q + K if layout == "authors" else 0)
    return K, least if M is None else checks.integer("M", M, least)


static = functools.partial(eqx.field, static=True)


def _array(name: str) -> Callable[[Any], Any]:
    return lambda value: None if value is None else numeric(name, value)


class SynSmall(Task):
    """Syn-Small: two classes with a query each, 10 common tokens, and 10 distinct tokens per class.

    Attributes:
        layout: authors, where queries and next tokens have separate ids (M = 34), or paper
            (M = 30).

    Raises:
        ValueError: for an unknown layout.

    Example:
        >>> dynsim.SynSmall().sizes
        (2, 34)
    """

    layout: Layout = static(default="authors")

    def build(self) -> SequenceClasses:
        return syn(2, 1, layout=self.layout)

    @property
    def sizes(self) -> tuple[int, int]:
        return syn_sizes(2, 1, layout=self.layout)


class SynMedium(Task):
    """Syn-Medium: two classes per query, 10 common tokens, and 10 distinct tokens per class.

    Attributes:
        num_queries: number of queries; 1, 3, 5 or 10 in the paper.
        layout: authors, where queries and next tokens have separate ids, or paper.

    Raises:
        ValueError: for fewer than one query.

    Example:
        >>> dynsim.SynMedium(num_queries=5).sizes[0]
        10
    """

    num_queries: Count = static(default=3)
    layout: Layout = static(default="authors")

    def build(self) -> SequenceClasses:
        return syn(self.num_queries, 2, layout=self.layout)

    @property
    def sizes(self) -> tuple[int, int]:
        return syn_sizes(self.num_queries, 2, layout=self.layout)


class Syn(Task):
    """Syn: any numbers of queries, classes, and common and distinct tokens.

    Attributes:
        num_queries: number of queries.
        classes_per_query: number of next tokens of each query.
        num_common: number of tokens common to all classes.
        num_distinct: number of distinct tokens of each class.
        M: vocabulary size; the smallest possible if omitted.
        layout: authors, where queries and next tokens have separate ids, or paper.

    Raises:
        ValueError: for classes without tokens, or an M that is too small.

    Example:
        >>> dynsim.Syn(num_queries=2, classes_per_query=3, layout="paper").sizes[0]
        6
    """

    num_queries: Count = static(default=3)
    classes_per_query: Size = static(default=2)
    num_common: SizeOrNone = static(default=10)
    num_distinct: SizeOrNone = static(default=10)
    M: Size | None = static(default=None)
    layout: Layout = static(default="authors")

    def __check_init__(self) -> None:
        super().__check_init__()
        syn_sizes(**vars(self))

    def build(self) -> SequenceClasses:
        return syn(**vars(self))

    @property
    def sizes(self) -> tuple[int, int]:
        return syn_sizes(**vars(self))


class Overlapping(Task):
    """Classes of one query each that overlap: 5 common and 5 distinct tokens per class.

    Tokens of each kind have equal probabilities. The family shows where theories of weak overlap
    (Theorem 1's Assumption 1) are valid.

    Attributes:
        K: number of classes.
        overlap: f_n . f_n' at zero weights.

    Raises:
        ValueError: for fewer than one class, or an overlap outside [0, 1).

    Example:
        >>> dynsim.Overlapping(K=4, overlap=0.2).sizes
        (4, 25)
    """

    K: Count = static(default=2)
    overlap: Decay = static(default=0.1)

    def build(self) -> SequenceClasses:
        K, M = self.sizes
        probs = np.zeros((K, M))
        # With the weight w of common tokens, f_n . f_n' = w^2 / (w^2 + 1).
        probs[:, :5] = np.sqrt(self.overlap / (1 - self.overlap))
        for n in range(K):
            probs[n, 5 + 5 * n : 10 + 5 * n] = 1
        return sequence_classes(probs / probs.sum(1, keepdims=True), query=np.arange(K))

    @property
    def sizes(self) -> tuple[int, int]:
        return self.K, 5 + 5 * self.K


class TaskTable(Task):
    """A task given by its table, with the arguments of `dynsim.sequence_classes`.

    Attributes:
        probs: (K, M) probability P(l|n) of each token in each class.
        query: (K,) query token of each class.
        next_token: (K,) next token of each class; 0 .. K-1 if omitted.
        prior: (K,) probability of each class; 1/K if omitted.

    Raises:
        ValueError: as `dynsim.sequence_classes`.

    Example:
        >>> from dynsim.classes.tasks import TaskTable
        >>> task = TaskTable(probs=[[0.6, 0.4, 0.0], [0.6, 0.0, 0.4]], query=[0, 1])
        >>> task.sizes
        (2, 3)
    """

    probs: AnyArray = eqx.field(converter=_array("probs"))
    query: AnyArray = eqx.field(converter=_array("query"))
    next_token: AnyArray | None = eqx.field(default=None, converter=_array("next_token"))
    prior: AnyArray | None = eqx.field(default=None, converter=_array("prior"))

    def build(self) -> SequenceClasses:
        return sequence_classes(self.probs, self.query, self.next_token, self.prior)
