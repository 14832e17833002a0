"""Sequence classes: the data distribution of Scan and Snap (arXiv:2305.16380, section 3).

A sequence of class n ends in the query token psi(n) and is followed by the next token nu(n).
Its contextual tokens are drawn independently from P(l|n). `overlap_report` measures how far a
task is from the weak overlap and the distinct tokens that the theory assumes.
"""

from __future__ import annotations

import abc
import hashlib

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from dynsim import checks, decoding
from dynsim.numeric import as_numpy
from dynsim.precision import AnyArray, cast

# Rows of P written with six decimals, or computed in float32, count as normalised; they are then
# normalised exactly.
_SUM_TOLERANCE = 1e-5

SHARED, UNSEEN = -1, -2
FIELDS = ("probs", "query", "next_token", "prior")
"""The arrays that determine a task."""


class Task(eqx.Module):
    """A description of sequence classes. Subclass it to define your own task.

    The fields are the settings of the task, and ranges in their annotations are checked. Declare
    floating-point numbers static, because the table is built before anything is compiled.

    Raises:
        ValueError: for a setting out of its range, naming the field.

    Example:
        >>> class Pair(dynsim.Task):
        ...     share: float = eqx.field(static=True, default=0.5)
        ...
        ...     def build(self):
        ...         own = 1 - self.share
        ...         probs = [[self.share, own, 0], [self.share, 0, own]]
        ...         return dynsim.sequence_classes(probs, query=[0, 1])
        ...
        >>> problem = dynsim.Layer(Pair(0.3))
    """

    def __check_init__(self) -> None:
        decoding.check_annotations(self)

    @abc.abstractmethod
    def build(self) -> SequenceClasses:
        """Return the sequence classes."""

    @property
    def sizes(self) -> tuple[int, int]:
        """K and M. Override it if they are known without building the table."""
        built = self.build()
        return built.K, built.M

    def contents(self) -> dict[str, str]:
        """Return hashes, by name, of data outside the fields, such as the content of a file."""
        return {}


class SequenceClasses(Task):
    r"""K sequence classes over a vocabulary of M tokens: an immutable pytree of arrays.

    Create one with `sequence_classes`, which checks the table, or with the `build` of a task.

    Attributes:
        probs: (K, M) :math:`P(l \mid n)`, the probability of contextual token l in class n; rows
            sum to 1.
        prior: (K,) probability :math:`\pi(n)` of drawing class n; sums to 1.
        query: (K,) query token :math:`\psi(n)` of each class, in [0, M).
        next_token: (K,) next token :math:`\nu(n)` of each class, in [0, M); no two classes share
            one.
        queries: (Q,) the distinct query tokens, sorted; row i of the stored Z belongs to query i.
        query_index: (K,) the row of the stored Z that class n uses.
        support: (K, S) contextual tokens of each class in increasing order, S the largest
            number of them; shorter rows are padded with tokens of probability zero.
        owner: (M,) the only class that contains the token; `SHARED` for a token of several classes,
            `UNSEEN` for a token of none.
        shared: (C,) the tokens of several classes.
        place: (M,) index of the token in its owner's row of `support`; for a shared token, its
            index in `shared`.
        place_shared: (K, C) index of each shared token in each row of `support`; S in rows that do
            not contain it.

    `probs` and `prior` are stored in NumPy's float64, so that a task keeps its precision when JAX
    runs in float32; entry points cast them to their own precision.

    Example:
        >>> task = dynsim.SynSmall().build()
        >>> task.K, task.M
        (2, 34)
    """

    probs: Float[AnyArray, "K M"]
    prior: Float[AnyArray, " K"]
    query: Int[AnyArray, " K"]
    next_token: Int[AnyArray, " K"]
    queries: Int[AnyArray, " Q"]
    query_index: Int[AnyArray, " K"]
    support: Int[AnyArray, "K S"]
    owner: Int[AnyArray, " M"]
    shared: Int[AnyArray, " C"]
    place: Int[AnyArray, " M"]
    place_shared: Int[AnyArray, "K C"]

    def build(self) -> SequenceClasses:
        """Return the task itself, which is already built."""
        return self

    def contents(self) -> dict[str, str]:
        """Return a hash of the arrays that determine the task, under the name `task_holds`."""
        digest = hashlib.sha256()
        for name in FIELDS:
            array = np.asarray(getattr(self, name))
            # In one byte order and width, so that the hash is the same on any machine.
            exact = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            digest.update(f"{name}{exact.shape}".encode() + exact.tobytes())
        return {"task_holds": digest.hexdigest()[:16]}

    def astype(self, dtype: str) -> SequenceClasses:
        """Return the same task with its probabilities as JAX arrays of `dtype`."""
        both = cast(self.probs, dtype), cast(self.prior, dtype)
        return eqx.tree_at(lambda task: (task.probs, task.prior), self, both)

    @property
    def K(self) -> int:
        """Number of sequence classes, which is the number of next tokens."""
        return self.probs.shape[0]

    @property
    def M(self) -> int:
        """Vocabulary size."""
        return self.probs.shape[1]

    @property
    def num_queries(self) -> int:
        """Number of distinct query tokens."""
        return self.queries.shape[0]

    def distinct(self, local: bool = False) -> Bool[Array, "K M"]:
        r"""Return a mask of each class's distinct tokens: :math:`|\Omega(l)| = 1` (section 3.1).

        Args:
            local: count only the classes with the same query (paper, section 7), instead of all.
        """
        present, number = self._classes_with(local)
        return jnp.asarray(present & (number == 1))

    def common(self, local: bool = False) -> Bool[Array, "K M"]:
        r"""Return a mask of each class's common tokens: :math:`|\Omega(l)| > 1`; `local` as in
        `distinct`."""
        present, number = self._classes_with(local)
        return jnp.asarray(present & (number > 1))

    def _classes_with(self, local: bool) -> tuple[Bool[AnyArray, "K M"], Int[AnyArray, "K M"]]:
        """Return whether a token occurs in a class, and in how many classes, in NumPy if the task
        is concrete: JAX would compile a program for every operation."""
        numpy = jnp if checks.is_traced(self) else np
        present = numpy.asarray(self.probs) > 0
        # Row n of the product below counts the classes that n is compared with.
        same = numpy.ones((self.K, self.K), dtype=bool)
        if local:
            query = numpy.asarray(self.query_index)
            same = query[:, None] == query[None, :]
        return present, same.astype(np.int32) @ present.astype(np.int32)

    def __repr__(self) -> str:
        return (
            f"SequenceClasses(K={self.K} classes, M={self.M} tokens, {self.num_queries} queries, "
            f"<= {self.support.shape[1]} contextual tokens per class)"
        )


def sequence_classes(
    probs: ArrayLike,
    query: ArrayLike,
    next_token: ArrayLike | None = None,
    prior: ArrayLike | None = None,
) -> SequenceClasses:
    r"""Create a task from a table :math:`P(l \mid n)`, which is checked.

    Args:
        probs: (K, M) :math:`P(l \mid n)`, non-negative; rows must sum to 1 within 1e-5, and are
            then normalised exactly.
        query: (K,) query token :math:`\psi(n)` of each class, in [0, M). Classes may share one.
        next_token: (K,) next token :math:`\nu(n)` of each class, in [0, M), all different; by
            default 0 .. K-1. It names an output, so it may also be the id of a contextual token.
        prior: (K,) positive sampling probability of each class, summing to 1; by default 1/K.

    Raises:
        ValueError: naming the field, the class and the wrong value.

    Example:
        >>> task = dynsim.sequence_classes([[0.6, 0.4, 0.0], [0.6, 0.0, 0.4]], query=[0, 1])
        >>> task.distinct()[0].tolist()
        [False, True, False]
    """
    table = numeric("probs", probs)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"probs: must have shape (K, M) with K, M >= 1, got {table.shape}")
    K, M = table.shape
    if M < 2:
        raise ValueError(f"probs: M = {M}: the vocabulary needs at least 2 tokens")
    # Each class has a next token of its own.
    if K > M:
        raise ValueError(f"probs: K = {K} classes but M = {M} tokens: needs K <= M")
    for n, row in enumerate(table):
        _check_row(f"probs[{n}] (class {n})", row, "token")
    tokens = np.arange(K) if next_token is None else next_token
    weights = np.full(K, 1 / K) if prior is None else numeric("prior", prior)
    if weights.shape != (K,):
        raise ValueError(f"prior: must have shape ({K},), one per class, got {weights.shape}")
    if (weights == 0).any():
        n = int(np.argmin(weights))
        raise ValueError(f"prior[{n}] (class {n}) = 0: must be positive, or leave the class out")
    _check_row("prior", weights, "class")

    query_ids = _token_ids("query", query, K, M)
    next_ids = _token_ids("next_token", tokens, K, M)
    for n in range(K):
        earlier = np.flatnonzero(next_ids[:n] == next_ids[n])
        if earlier.size:
            raise ValueError(
                f"next_token[{n}] (class {n}) = {next_ids[n]}: already the next token of class "
                f"{earlier[0]}; the next token names the class, so it must differ"
            )
    table, weights = table / table.sum(1, keepdims=True), weights / weights.sum()
    # A task is immutable: compiled programs and stores rely on its content.
    table.setflags(write=False)
    weights.setflags(write=False)
    # Sorted, so that a row of Z belongs to the same query in any order of the classes.
    queries, query_index = np.unique(query_ids, return_inverse=True)
    size = int((table > 0).sum(1).max())
    # A stable sort keeps the tokens of the support in increasing order, in front of the rest.
    support = np.argsort(table <= 0, axis=1, kind="stable")[:, :size]
    present = table > 0
    classes_with = present.sum(0)
    shared = np.flatnonzero(classes_with > 1)
    owner = np.where(
        classes_with == 1, present.argmax(0), np.where(classes_with > 1, SHARED, UNSEEN)
    )
    # Position of each token in its class's row: the number of tokens that the class has before it.
    column = np.where(present, present.cumsum(1) - 1, size)
    place = np.where(classes_with == 1, column[present.argmax(0), np.arange(M)], 0)
    place[shared] = np.arange(shared.size)
    return SequenceClasses(
        probs=table,
        prior=weights,
        query=cast(query_ids, np.int32),
        next_token=cast(next_ids, np.int32),
        queries=cast(queries, np.int32),
        query_index=cast(query_index, np.int32),
        support=cast(support, np.int32),
        owner=cast(owner, np.int32),
        shared=cast(shared, np.int32),
        place=cast(place, np.int32),
        place_shared=cast(column[:, shared], np.int32),
    )


def numeric(field: str, value: ArrayLike) -> np.ndarray:
    """Return an array in float64; `ValueError` for anything but concrete real numbers."""
    if checks.is_traced(value):
        raise ValueError(
            f"{field}: a task is built from concrete values; to differentiate with respect to "
            f"{field}, replace the leaf of a built task with equinox.tree_at"
        )
    try:
        if np.iscomplexobj(value):
            raise TypeError("complex numbers")
        return np.array(as_numpy(field, value), dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{field}: must be an array of real numbers ({error})") from None


def _check_row(name: str, row: np.ndarray, entry: str) -> None:
    for bad, rule in ((~np.isfinite(row), "must be finite"), (row < 0, "must be >= 0")):
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(f"{name}, {entry} {i} = {row[i]}: {rule}")
    if not row.any():
        raise ValueError(f"{name}: has no support, all {row.size} entries are 0")
    if abs(row.sum() - 1) > _SUM_TOLERANCE:
        raise ValueError(f"{name}: sums to {row.sum():.8g}, must sum to 1")


def _token_ids(field: str, value: ArrayLike, K: int, M: int) -> np.ndarray:
    ids = numeric(field, value)
    if ids.shape != (K,):
        raise ValueError(f"{field}: must have shape ({K},), one per class, got {ids.shape}")
    for n, token in enumerate(ids):
        if token != np.floor(token) or not 0 <= token < M:
            raise ValueError(
                f"{field}[{n}] (class {n}) = {token:g}: must be a token id in [0, {M})"
            )
    return ids.astype(np.int32)
