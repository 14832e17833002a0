"""Sequence classes estimated from a text.

A class is a pair of a query (last token of a window) and the token that follows. Its P(l|n) is
the distribution of the `length` - 1 tokens before the query over all windows that end with this
pair; order and repetition within a window are ignored, as in the theory. Windows overlap, so their
counts are not independent, and standard errors from the counts are too small.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from dynsim import checks, numeric
from dynsim.classes.corpus import END, UNKNOWN
from dynsim.classes.task import SequenceClasses, sequence_classes
from dynsim.precision import AnyArray

Rare = Literal["drop", "merge"]
"""Treatment of contextual tokens outside the vocabulary: left out, or merged into one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Sequence classes of a text.

    Attributes:
        task: the classes, with their own token ids; the prior is proportional to `windows`.
        words: (M,) the word of each token of the task.
        tokens: (M,) the id of each token in the corpus.
        windows: (K,) number of windows from which P(l|n) is estimated.
        stop_mass: (K,) fraction of the contextual tokens that were left out as stop words.
        rare_mass: (K,) fraction of the others that are not in the task's vocabulary and were
            dropped or merged into `<unk>`.
        coverage: share of all windows of the text that belong to a class.
        length: length of a window, including the query.
    """

    task: SequenceClasses
    words: tuple[str, ...]
    tokens: Int[np.ndarray, " M"]
    windows: Int[np.ndarray, " K"]
    stop_mass: Float[np.ndarray, " K"]
    rare_mass: Float[np.ndarray, " K"]
    coverage: float
    length: int

    @property
    def names(self) -> tuple[str, ...]:
        """(K,) names of the classes, "query next"."""
        pairs = zip(np.asarray(self.task.query), np.asarray(self.task.next_token), strict=True)
        return tuple(f"{self.words[query]} {self.words[label]}" for query, label in pairs)


def estimate_classes(
    tokens: Int[AnyArray, " N"] | Sequence[int],
    vocabulary: Sequence[str],
    *,
    num_queries: int = 4,
    classes_per_query: int = 3,
    length: int = 35,
    tokens_per_class: int = 50,
    stop_words: int = 0,
    rare: Rare = "drop",
    exclude: Sequence[str] = (UNKNOWN, END),
) -> Estimate:
    """Estimate sequence classes from a text.

    Queries are the most frequent tokens with enough different followers, and the classes of a query
    are its most frequent next tokens. A next token belongs to one class: if it follows several
    queries, it goes to the one that it follows most often, and the others use their next most
    frequent one. The vocabulary of the task consists of the most frequent contextual tokens of each
    class, the queries and the next tokens.

    Args:
        tokens: token ids of the text.
        vocabulary: the word of each id.
        num_queries: number of queries.
        classes_per_query: number of classes of each query.
        length: length of a window, >= 2: `length` - 1 contextual tokens and the query.
        tokens_per_class: number of contextual tokens that each class adds to the vocabulary.
        stop_words: number of the most frequent words of the text to leave out of the contexts.
            They are common to all classes, and the reason why classes of real text overlap.
        rare: treatment of contextual tokens outside the vocabulary: "drop" leaves them out and
            renormalises P(l|n), "merge" turns them into `<unk>`.
        exclude: words that may be contextual tokens, but neither queries nor next tokens.

    Raises:
        ValueError: for an invalid argument, a text shorter than a window and its next token, or one
            with too few queries or next tokens.
    """
    checks.integer("num_queries", num_queries, 1)
    checks.integer("classes_per_query", classes_per_query, 1)
    checks.integer("length", length, 2)
    checks.integer("tokens_per_class", tokens_per_class, 2)
    checks.integer("stop_words", stop_words, 0)
    checks.choice("rare", rare, ("drop", "merge"))
    tokens, words = np.asarray(numeric.integers("tokens", tokens), np.int64), tuple(vocabulary)
    if tokens.size <= length:
        raise ValueError(
            f"tokens: got {tokens.size}; must be more than length = {length}, for a window "
            "and its next token"
        )
    if tokens.min() < 0 or tokens.max() >= len(words):
        raise ValueError(
            f"tokens: from {tokens.min()} to {tokens.max()}, must be ids in [0, {len(words)})"
        )
    if rare == "merge" and UNKNOWN not in words:
        raise ValueError(f"rare = 'merge': needs {UNKNOWN} in the vocabulary")
    excluded = np.isin(words, list(exclude))
    # The first query with a whole window before it is the token number `length` - 1.
    pairs = _choose(tokens[length - 1 :], excluded, num_queries, classes_per_query)
    last = np.arange(length - 1, tokens.size - 1)
    before = np.arange(1 - length, 0)
    counts, windows = np.zeros((len(pairs), len(words))), np.zeros(len(pairs), np.int64)
    for n, (query, label) in enumerate(pairs):
        at = last[(tokens[last] == query) & (tokens[last + 1] == label)]
        context = tokens[at[:, None] + before[None, :]]
        counts[n] = np.bincount(context.ravel(), minlength=len(words))
        windows[n] = at.size
    # Words that are frequent in the text, whether or not a context has them.
    stop = np.argsort(-np.bincount(tokens, minlength=len(words)), kind="stable")[:stop_words]
    stop_mass = counts[:, stop].sum(1) / counts.sum(1)
    counts[:, stop] = 0
    if not counts.any(1).all():
        raise ValueError(f"stop_words = {stop_words}: leaves some class without a contextual token")
    # Ties are broken by id, so that the same text gives the same task on any machine.
    top = np.argsort(-counts, axis=1, kind="stable")[:, :tokens_per_class]
    frequent = top[np.take_along_axis(counts, top, axis=1) > 0]
    unknown = [words.index(UNKNOWN)] if rare == "merge" else []
    ids = np.unique(np.concatenate([frequent, pairs.ravel(), unknown]).astype(np.int64))
    table, total = counts[:, ids], counts.sum(1)
    outside = total - table.sum(1)
    if rare == "merge":
        table[:, np.searchsorted(ids, unknown[0])] += outside
    query, label = np.searchsorted(ids, pairs).T
    task = sequence_classes(
        table / table.sum(1, keepdims=True), query, label, windows / windows.sum()
    )
    names = tuple(words[token] for token in ids)
    coverage = float(windows.sum() / last.size)
    return Estimate(task, names, ids, windows, stop_mass, outside / total, coverage, length)


def _choose(
    tokens: np.ndarray, excluded: Bool[np.ndarray, " V"], num_queries: int, per_query: int
) -> Int[np.ndarray, "K 2"]:
    """Choose query and next token of each class, sorted by the queries' counts."""
    size = excluded.size
    # The pair (query, label) as one number, query * size + label.
    pairs = tokens[:-1] * size + tokens[1:]
    allowed = ~excluded[tokens[:-1]] & ~excluded[tokens[1:]]
    codes, counts = np.unique(pairs[allowed], return_counts=True)
    # Each code is a different follower of its query.
    followers = np.bincount(codes // size, minlength=size)
    frequency = np.where(followers >= per_query, np.bincount(tokens[:-1], minlength=size), 0)
    queries = np.argsort(-frequency, kind="stable")[:num_queries]
    if queries.size < num_queries or not frequency[queries].all():
        raise ValueError(
            f"num_queries = {num_queries}: only {np.count_nonzero(frequency)} words of the text "
            f"are followed by classes_per_query = {per_query} different words"
        )
    labels_of: dict[int, list[int]] = {int(query): [] for query in queries}
    used = set()
    # The most frequent pairs first, so that a next token goes to the query that it follows most.
    for code in codes[np.argsort(-counts, kind="stable")]:
        query, label = divmod(int(code), size)
        if query in labels_of and label not in used and len(labels_of[query]) < per_query:
            labels_of[query].append(label)
            used.add(label)
    for query, labels in labels_of.items():
        if len(labels) < per_query:
            raise ValueError(
                f"classes_per_query = {per_query}: token {query} has only {len(labels)} next "
                "tokens that do not belong to another class"
            )
    return np.array([(query, label) for query, labels in labels_of.items() for label in labels])
