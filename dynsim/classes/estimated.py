"""Sequence classes estimated from text.

A class is a pair of a query (last token of a window) and the token that follows. Its P(l|n) is
the distribution of the `length` - 1 tokens before the query over all windows of the text that end
so; order and repetition within a window are lost, as in the theory. Windows overlap, so that their
counts are no independent draws and standard errors from the counts are too small.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from dynsim import checks
from dynsim.classes.corpus import END, UNKNOWN
from dynsim.classes.task import SequenceClasses, sequence_classes
from dynsim.precision import AnyArray

Rare = Literal["drop", "merge"]
"""What becomes of contextual tokens outside the vocabulary: left out, or merged into one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Sequence classes of a text.

    Attributes:
        task: the classes, with token ids of their own; the prior goes with `windows`.
        words: (M,) the word of each token of the task.
        tokens: (M,) its id in the corpus.
        windows: (K,) number of windows from which P(l|n) is estimated.
        stop_mass: (K,) share of the contextual tokens that were left out as stop words.
        rare_mass: (K,) share of the others that are not in the task's vocabulary and were dropped
            or merged into `<unk>`.
        coverage: share of all windows of the text that belong to a class.
        length: length of a window, the query included.
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
        """(K,) "query next", the class in words."""
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

    Queries are the most frequent tokens that enough others follow, and the classes of a query its
    most frequent next tokens. A next token names one class, so where it follows several queries it
    goes to the one that it follows most often, and the others take their next most frequent one.
    The vocabulary of the task is the union of the most frequent contextual tokens of each class,
    the queries and the next tokens.

    Args:
        tokens: token ids of the text.
        vocabulary: the word of each id.
        num_queries: number of queries.
        classes_per_query: number of classes of each query.
        length: length of a window, >= 2: `length` - 1 contextual tokens and the query.
        tokens_per_class: number of contextual tokens that each class adds to the vocabulary.
        stop_words: how many of the most frequent words of the text to leave out of the contexts.
            They are common to all classes, and the reason why classes of real text overlap.
        rare: treatment of contextual tokens outside the vocabulary: "drop" leaves them out and
            renormalises P(l|n), "merge" turns them into `<unk>`.
        exclude: words that may be contextual tokens, but neither queries nor next tokens.

    Raises:
        ValueError: for a bad argument, a text shorter than a window and its next token, or one
            with too few queries or next tokens.
    """
    checks.integer("num_queries", num_queries, 1)
    checks.integer("classes_per_query", classes_per_query, 1)
    checks.integer("length", length, 2)
    checks.integer("tokens_per_class", tokens_per_class, 2)
    checks.integer("stop_words", stop_words, 0)
    checks.choice("rare", rare, ("drop", "merge"))
    tokens, words = np.asarray(tokens, np.int64), tuple(vocabulary)
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
    barred = np.isin(words, list(exclude))
    pairs = _choose(tokens[length - 1 :], barred, num_queries, classes_per_query)
    last = np.arange(length - 1, tokens.size - 1)
    before = np.arange(1 - length, 0)
    counts, windows = np.zeros((len(pairs), len(words))), np.zeros(len(pairs), np.int64)
    for n, (query, label) in enumerate(pairs):
        at = last[(tokens[last] == query) & (tokens[last + 1] == label)]
        context = tokens[at[:, None] + before[None, :]]
        counts[n] = np.bincount(context.ravel(), minlength=len(words))
        windows[n] = at.size
    stop = np.argsort(-np.bincount(tokens, minlength=len(words)), kind="stable")[:stop_words]
    stop_mass = counts[:, stop].sum(1) / counts.sum(1)
    counts[:, stop] = 0
    if not counts.any(1).all():
        raise ValueError(f"stop_words = {stop_words}: leaves some class without a contextual token")
    # Equal counts in order of their ids, so that the same text gives the same task anywhere.
    top = np.argsort(-counts, axis=1, kind="stable")[:, :tokens_per_class]
    frequent = top[np.take_along_axis(counts, top, axis=1) > 0]
    unknown = [words.index(UNKNOWN)] if rare == "merge" else []
    kept = np.unique(np.concatenate([frequent, pairs.ravel(), unknown]).astype(np.int64))
    table, total = counts[:, kept], counts.sum(1)
    lost = total - table.sum(1)
    if rare == "merge":
        table[:, np.searchsorted(kept, unknown[0])] += lost
    query, label = np.searchsorted(kept, pairs).T
    task = sequence_classes(
        table / table.sum(1, keepdims=True), query, label, windows / windows.sum()
    )
    names = tuple(words[token] for token in kept)
    coverage = float(windows.sum() / last.size)
    return Estimate(task, names, kept, windows, stop_mass, lost / total, coverage, length)


def _choose(
    tokens: np.ndarray, barred: Bool[np.ndarray, " V"], num_queries: int, per_query: int
) -> Int[np.ndarray, "K 2"]:
    """Query and next token of each class, in order of the queries' counts."""
    size = barred.size
    pairs = tokens[:-1] * size + tokens[1:]
    codes, counts = np.unique(pairs[~barred[tokens[:-1]] & ~barred[tokens[1:]]], return_counts=True)
    followers = np.bincount(codes // size, minlength=size)
    frequency = np.where(followers >= per_query, np.bincount(tokens[:-1], minlength=size), 0)
    queries = np.argsort(-frequency, kind="stable")[:num_queries]
    if queries.size < num_queries or not frequency[queries].all():
        raise ValueError(
            f"num_queries = {num_queries}: only {np.count_nonzero(frequency)} words of the text "
            f"are followed by classes_per_query = {per_query} different words"
        )
    chosen: dict[int, list[int]] = {int(query): [] for query in queries}
    taken = set()
    for code in codes[np.argsort(-counts, kind="stable")]:
        query, label = divmod(int(code), size)
        if query in chosen and label not in taken and len(chosen[query]) < per_query:
            chosen[query].append(label)
            taken.add(label)
    for query, labels in chosen.items():
        if len(labels) < per_query:
            raise ValueError(
                f"classes_per_query = {per_query}: token {query} has only {len(labels)} next "
                "tokens that do not belong to another class"
            )
    return np.array([(query, label) for query, labels in chosen.items() for label in labels])
