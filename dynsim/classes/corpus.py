"""Text as token ids: WikiText folders, single text files, and a small generated corpus.

Words are separated by whitespace, and every line ends in `<eos>`, including empty lines, as for
language models trained on WikiText; token counts agree with the published ones.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from dynsim import checks, numeric
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
