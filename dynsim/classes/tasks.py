"""Tasks as classes: each describes sequence classes by its settings, and builds them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx

from dynsim.classes import files, synthetic
from dynsim.classes.synthetic import Layout
from dynsim.classes.task import SequenceClasses, Task, numeric, sequence_classes
from dynsim.decoding import Count, Decay, Size, SizeOrNone
from dynsim.precision import AnyArray

static = functools.partial(eqx.field, static=True)


def _array(name: str) -> Callable[[Any], Any]:
    return lambda given: None if given is None else numeric(name, given)


class SynSmall(Task):
    """Syn-Small: two classes with a query each, 10 common tokens, and 10 distinct tokens per class.

    Attributes:
        layout: authors, where queries and next tokens have ids of their own (M = 34), or paper
            (M = 30).
    """

    layout: Layout = static(default="authors")

    def build(self) -> SequenceClasses:
        return synthetic.syn_small(self.layout)

    @property
    def sizes(self) -> tuple[int, int]:
        return synthetic.syn_sizes(2, 1, layout=self.layout)


class SynMedium(Task):
    """Syn-Medium: two classes per query, 10 common tokens, and 10 distinct tokens per class.

    Attributes:
        num_queries: number of queries; 1, 3, 5 or 10 in the paper.
        layout: authors, where queries and next tokens have ids of their own, or paper.
    """

    num_queries: Count = static(default=3)
    layout: Layout = static(default="authors")

    def build(self) -> SequenceClasses:
        return synthetic.syn_medium(self.num_queries, self.layout)

    @property
    def sizes(self) -> tuple[int, int]:
        return synthetic.syn_sizes(self.num_queries, 2, layout=self.layout)


class Syn(Task):
    """Syn: any numbers of queries, classes, and common and distinct tokens.

    Attributes:
        num_queries: number of queries.
        classes_per_query: number of next tokens of each query.
        num_common: number of tokens common to all classes.
        num_distinct: number of distinct tokens of each class.
        M: vocabulary size; the smallest possible if omitted.
        layout: authors, where queries and next tokens have ids of their own, or paper.

    Raises:
        ValueError: for classes without any token, or an M that is too small.
    """

    num_queries: Count = static(default=3)
    classes_per_query: Size = static(default=2)
    num_common: SizeOrNone = static(default=10)
    num_distinct: SizeOrNone = static(default=10)
    M: Size | None = static(default=None)
    layout: Layout = static(default="authors")

    def __check_init__(self) -> None:
        super().__check_init__()
        synthetic.syn_sizes(**vars(self))

    def build(self) -> SequenceClasses:
        return synthetic.syn(**vars(self))

    @property
    def sizes(self) -> tuple[int, int]:
        return synthetic.syn_sizes(**vars(self))


class Overlapping(Task):
    """Classes of one query each that overlap: 5 common and 5 distinct tokens per class.

    Attributes:
        K: number of classes.
        overlap: f_n . f_n' at zero weights.
    """

    K: Count = static(default=2)
    overlap: Decay = static(default=0.1)

    def build(self) -> SequenceClasses:
        return synthetic.overlapping(self.K, self.overlap)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.K, 5 + 5 * self.K


class TaskFile(Task):
    """A task in a file, as `dynsim.load_task` reads it.

    Attributes:
        path: an .npz file with arrays probs (K, M), query (K,) and optionally next_token (K,) and
            prior (K,); or a .csv file with one row per class and columns of these names, every
            other column being a token.
    """

    ENDINGS: ClassVar = ("path", files.SUFFIXES)

    path: str | Path = static()

    def build(self) -> SequenceClasses:
        return files.load_task(self.path)

    def contents(self) -> dict[str, str]:
        return self.build().contents()


class TaskTable(Task):
    """A task given by its table, as `dynsim.sequence_classes` takes it.

    Attributes:
        probs: (K, M) probability P(l|n) of each token in each class.
        query: (K,) query token of each class.
        next_token: (K,) next token of each class; 0 .. K-1 if omitted.
        prior: (K,) probability of each class; 1/K if omitted.
    """

    probs: AnyArray = eqx.field(converter=_array("probs"))
    query: AnyArray = eqx.field(converter=_array("query"))
    next_token: AnyArray | None = eqx.field(default=None, converter=_array("next_token"))
    prior: AnyArray | None = eqx.field(default=None, converter=_array("prior"))

    def build(self) -> SequenceClasses:
        return sequence_classes(self.probs, self.query, self.next_token, self.prior)
