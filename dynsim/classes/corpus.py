"""Text as token ids (WikiText folders, single text files, and a small generated corpus), and the
sequence classes estimated from it.

Words are separated by whitespace, and every line ends in `<eos>`, including empty lines, as for
language models trained on WikiText; token counts agree with the published ones.

A class is a pair of a query (last token of a window) and the token that follows. Its P(l|n) is
the distribution of the `length` - 1 tokens before the query over all windows that end with this
pair; order and repetition within a window are ignored, as in the theory. Windows overlap, so their
counts are not independent, and standard errors from the counts are too small.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dynsim import checks, numeric
from dynsim.classes.task import SequenceClasses, sequence_classes
from dynsim.precision import AnyArray

UNKNOWN, END = "<unk>", "<eos>"


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A text as token ids of one vocabulary.

    Attributes:
        vocabulary: the words, by decreasing count in the training split, then alphabetically;
            always includes `<unk>` and `<eos>`.
        train: (N,) int32 token ids of the training split.
        valid: (V,) int32, or None without one.
        test: (T,) int32, or None without one.
    """

    vocabulary: tuple[str, ...]
    train: Int[np.ndarray, " N"]
    valid: Int[np.ndarray, " V"] | None = None
    test: Int[np.ndarray, " T"] | None = None

    def ids(self, words: Iterable[str]) -> Int[np.ndarray, " W"]:
        """Return the ids of `words`, as int32; a word outside the vocabulary becomes `<unk>`.

        Raises:
            ValueError: for a single string, whose letters would otherwise be looked up.
        """
        if isinstance(words, str):
            raise ValueError(f"words = {words!r}: must be a sequence of words, not one string")
        return _ids(words, self.vocabulary)

    def words(self, ids: Int[AnyArray, " W"] | Sequence[int]) -> list[str]:
        """Return the words with these `ids`."""
        return [self.vocabulary[i] for i in np.asarray(ids)]

    @property
    def held_out(self) -> Int[np.ndarray, " V"]:
        """The validation split; `ValueError` if there is none."""
        if self.valid is None:
            raise ValueError("corpus: has no validation split")
        return self.valid

    def __repr__(self) -> str:
        sizes = [split.size for split in (self.train, self.valid, self.test) if split is not None]
        return f"Corpus({len(self.vocabulary)} words, splits of {sizes} tokens)"


def load_corpus(
    path: str | Path,
    *,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    lower: bool = False,
    train: str = "train.txt",
    valid: str | None = "valid.txt",
    test: str | None = "test.txt",
) -> Corpus:
    """Read a word-level corpus from UTF-8 files.

    Args:
        path: a folder with one file per split, or one text file: the first 90 % of its tokens are
            for training, then 5 % each for validation and test.
        min_count: words that occur less often in the training split become `<unk>`.
        max_vocabulary: size of the vocabulary, which always includes `<unk>` and `<eos>`: the
            rarest words become `<unk>`. None keeps all words with `min_count`.
        lower: convert the text to lower case first.
        train: file of the training split in the folder; the vocabulary comes from it.
        valid: file of the validation split in the folder, or None.
        test: file of the test split in the folder, or None.

    Raises:
        ValueError: for a file that is missing, empty or not UTF-8, a bad count, or a vocabulary
            of fewer than 2 words besides `<unk>`.
    """
    checks.integer("min_count", min_count, 1)
    if max_vocabulary is not None:
        checks.integer("max_vocabulary", max_vocabulary, 3)
    path = Path(path)
    if os.path.isdir(path):
        splits = {
            split: _read(path / name, lower, split)
            for split, name in {"train": train, "valid": valid, "test": test}.items()
            if name is not None
        }
    else:
        splits = _split(_read(path, lower, "path"))
    return _corpus(splits, min_count, max_vocabulary)


def batches(
    tokens: Int[np.ndarray, " N"], length: int = 35, batch: int = 20
) -> Int[np.ndarray, "num_batches batch length_1"]:
    """Cut a text into sequences of length + 1 tokens: `length` inputs, and targets one token later.

    The text is cut into `batch` contiguous streams, and sequence b of batch i continues sequence b
    of batch i - 1. Every token but the first is a target once, except for the fewer than batch *
    length final tokens that do not fill another batch.

    Returns:
        (num_batches, batch, length + 1) int32.

    Raises:
        ValueError: if the text is too short for one batch.
    """
    checks.integer("batch", batch, 1)
    _check_length(tokens, length, batch)
    num_batches = (len(tokens) - 1) // (batch * length)
    # The last token of a stream is its final target and the first input of the next stream.
    start = np.arange(batch) * num_batches * length
    window = np.arange(num_batches) * length
    index = window[:, None, None] + start[None, :, None] + np.arange(length + 1)
    return np.asarray(numeric.integers("tokens", tokens), np.int32)[index]


def sample_windows(
    tokens: Int[AnyArray, " N"], key: PRNGKeyArray, batch: int, length: int
) -> Int[Array, "batch length_1"]:
    """Draw `batch` windows of length + 1 tokens at uniform positions, for use inside `jit`.

    Raises:
        ValueError: if the text is shorter than a window.
    """
    checks.integer("batch", batch, 1)
    _check_length(tokens, length, 1)
    ids = jnp.asarray(numeric.integers("tokens", tokens), jnp.int32)
    start = jax.random.randint(key, (batch,), 0, len(tokens) - length)
    return ids[start[:, None] + jnp.arange(length + 1)[None, :]]


_TOPICS = {
    ("the", "captain"): ("ship", "wave", "sailor", "harbour", "anchor"),
    ("the", "king"): ("castle", "throne", "knight", "sword", "banner"),
    ("the", "doctor"): ("hospital", "fever", "nurse", "medicine", "ward"),
    ("a", "pilot"): ("airport", "wing", "cloud", "runway", "cabin"),
    ("a", "melody"): ("violin", "choir", "concert", "rhythm", "stage"),
    ("a", "harvest"): ("field", "wheat", "farmer", "barn", "plough"),
}
# Enough that each is rarer than the queries, which should be the most frequent words.
_STOP_WORDS = ("of", "and", "in", "to", "was", "with", "by", "on", "for", "from", "at", "his")
_STOP_WORDS += ("her", "it", "as", "had")


def synthetic_corpus(
    seed: int = 0,
    *,
    num_sentences: int = 2000,
    words_per_sentence: int = 12,
    topic_share: float = 0.5,
    sentences_per_topic: int = 6,
) -> Corpus:
    """Generate a text whose tokens are distinct or common by design, for tests and demos.

    Each sentence has one of 6 topics with 5 words each. Its words are drawn independently: words of
    the topic with decreasing probabilities, or one of 16 equally likely stop words. The sentence
    ends with the query of the topic, "the" or "a", and its next word.

    Args:
        seed: the same seed gives the same text.
        num_sentences: number of lines, >= 20, so that no split is empty.
        words_per_sentence: number of words drawn before the query, >= 1.
        topic_share: probability that such a word belongs to the topic, in (0, 1).
        sentences_per_topic: number of lines before a new topic is drawn, >= 1.

    Returns:
        A corpus with the splits of a single file.

    Raises:
        ValueError: for a number out of its range.
    """
    checks.integer("seed", seed, 0)
    checks.integer("num_sentences", num_sentences, 20)
    checks.integer("words_per_sentence", words_per_sentence, 1)
    checks.integer("sentences_per_topic", sentences_per_topic, 1)
    checks.real("topic_share", topic_share, 0, 1, open_minimum=True, open_maximum=True)
    # NumPy's generator, whose numbers do not depend on the version of JAX.
    rng = np.random.default_rng(seed)
    topics = [(ending, (*own, *_STOP_WORDS)) for ending, own in _TOPICS.items()]
    own, stop = np.arange(5, 0, -1), np.ones(len(_STOP_WORDS))
    probs = np.r_[topic_share * own / own.sum(), (1 - topic_share) * stop / stop.sum()]
    text = []
    for sentence in range(num_sentences):
        if sentence % sentences_per_topic == 0:
            ending, words = topics[rng.integers(len(topics))]
        text += [words[i] for i in rng.choice(len(probs), words_per_sentence, p=probs)]
        text += [*ending, END]
    return _corpus(_split(text), 1, None)


def _read(path: Path, lower: bool, field: str) -> list[str]:
    """Read the words of a file, with `<eos>` at the end of each line."""
    checks.regular(field, path)
    try:
        # The byte-order mark of some editors would become part of the first word.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = f"; {field}=None does without" if field in ("valid", "test") else ""
        raise ValueError(f"{field} = {path}: no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{field} = {path}: must be UTF-8 ({error})") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{field} = {path}: must be a readable file ({why})") from None
    if not text.split():
        raise ValueError(f"{field} = {path}: is empty; must contain at least one word")
    # Empty lines count: WikiText has an <eos> for each of them.
    lines = (text.lower() if lower else text).removesuffix("\n").split("\n")
    return [word for line in lines for word in (*line.split(), END)]


def _split(words: list[str]) -> dict[str, list[str]]:
    first, second = (len(words) * percent // 100 for percent in (90, 95))
    parts = {"train": words[:first], "valid": words[first:second], "test": words[second:]}
    return {name: part for name, part in parts.items() if part}


def _corpus(splits: dict[str, list[str]], min_count: int, max_vocabulary: int | None) -> Corpus:
    counts = collections.Counter(splits["train"])
    special = (UNKNOWN, END)
    words = [w for w, count in counts.items() if count >= min_count and w not in special]
    # Ties are broken by the alphabet, so that a text has one vocabulary.
    words.sort(key=lambda word: (-counts[word], word))
    if max_vocabulary is not None:
        words = words[: max_vocabulary - len(special)]
    frequencies = {word: counts[word] for word in (*words, END)}
    # All other words of the text become <unk>, and so does a literal "<unk>" in it.
    frequencies[UNKNOWN] = len(splits["train"]) - sum(frequencies.values())
    if len(frequencies) < 3:
        raise ValueError(
            f"vocabulary: {sorted(frequencies)} with min_count = {min_count}, max_vocabulary = "
            f"{max_vocabulary}: must have a word besides {UNKNOWN} and {END}"
        )
    vocabulary = tuple(sorted(frequencies, key=lambda word: (-frequencies[word], word)))
    return Corpus(vocabulary, **{n: _ids(part, vocabulary) for n, part in splits.items()})


def _ids(words: Iterable[str], vocabulary: tuple[str, ...]) -> Int[np.ndarray, " W"]:
    index = {word: i for i, word in enumerate(vocabulary)}
    unknown = index[UNKNOWN]
    ids = np.array([index.get(word, unknown) for word in words], np.int32)
    # A corpus is shared by all runs on it.
    ids.setflags(write=False)
    return ids


def _check_length(tokens: AnyArray, length: int, batch: int) -> None:
    checks.integer("length", length, 1)
    needed = batch * length + 1
    if len(tokens) < needed:
        raise ValueError(
            f"tokens: got {len(tokens)}; must be at least {needed} for batch = {batch} "
            f"sequences of length = {length} and their targets"
        )


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
