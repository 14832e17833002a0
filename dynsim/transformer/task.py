"""Text as a task: training text, held-out text, and prompts for recording attention."""

import abc
import dataclasses
import functools
import hashlib
import os
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Int

from dynsim import checks, numeric
from dynsim.classes.corpus import Corpus, load_corpus, synthetic_corpus
from dynsim.decoding import Count
from dynsim.precision import AnyArray


class TextSource(eqx.Module):
    """The text that a language model is trained on, or its location."""

    @abc.abstractmethod
    def build(self, length: int, prompt: int) -> "Text":
        """Return the text.

        Args:
            length: number of tokens T of a window.
            prompt: position in the held-out text where a prompt of this length starts.
        """

    def contents(self) -> dict[str, str]:
        """Hashes of the data that was read, by name, to identify results of the same text."""
        return {}


class Text(TextSource):
    """Token ids of a text, in [0, vocabulary).

    Attributes:
        train: (N,) tokens from which windows are drawn.
        held_out: (E,) tokens on which loss and attention are measured.
        vocabulary: number of tokens M.
        prompts: (P, T) sequences whose attention maps can be recorded; none if omitted.

    Raises:
        ValueError: for an array with the wrong number of axes, without entries, with entries that
            are not integers, or with tokens outside the vocabulary.

    Example:
        >>> text = dynsim.Text(np.arange(400) % 7, np.arange(80) % 7, vocabulary=7)
        >>> problem = dynsim.LanguageModel(text)
    """

    train: Int[AnyArray, " N"]
    held_out: Int[AnyArray, " E"]
    vocabulary: int = eqx.field(static=True)
    prompts: Int[AnyArray, "P T"]

    def __init__(
        self,
        train: Int[ArrayLike, " N"],
        held_out: Int[ArrayLike, " E"],
        vocabulary: int,
        prompts: Int[ArrayLike, "P T"] | None = None,
    ) -> None:
        self.vocabulary = checks.integer("vocabulary", vocabulary, 2)
        self.train = self._tokens("train", train, 1)
        self.held_out = self._tokens("held_out", held_out, 1)
        # No prompts, of the shortest length that a window may have.
        none = np.zeros((0, 2), np.int32)
        self.prompts = none if prompts is None else self._tokens("prompts", prompts, 2)

    def _tokens(self, name: str, tokens: Int[ArrayLike, "..."], axes: int) -> np.ndarray:
        array = numeric.as_numpy(name, tokens)
        if array.ndim != axes or not array.size or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"{name}: has shape {array.shape} and dtype {array.dtype}, must be whole numbers "
                f"with {axes} axes, not empty"
            )
        bad = array[(array < 0) | (array >= self.vocabulary)]
        if bad.size:
            raise ValueError(
                f"{name}: has token {bad[0]}, must be in [0, vocabulary = {self.vocabulary})"
            )
        # The integers of JAX without x64.
        return array.astype(np.int32)

    def build(self, length: int, prompt: int) -> "Text":
        """Return the text itself, which has its own prompts."""
        del length, prompt
        return self


class CorpusSource(TextSource):
    """A corpus that is read when needed. Subclass it to define your own.

    Raises:
        ValueError: from `read`, if the corpus cannot be read.

    Example:
        >>> class Digits(dynsim.CorpusSource):
        ...     def read(self):
        ...         return dynsim.SyntheticText().read()
        ...
        >>> problem = dynsim.LanguageModel(Digits())
    """

    @abc.abstractmethod
    def read(self) -> Corpus:
        """Return the corpus; `ValueError` if it cannot be read."""

    def build(self, length: int, prompt: int) -> Text:
        """Return the training text, the held-out text, and one prompt from the latter."""
        corpus = self.read()
        if corpus.valid is None:
            raise ValueError(f"corpus = {self}: is too short for a held-out part")
        # Held-out text, which the model has not seen.
        window = corpus.valid[prompt:][:length]
        if len(window) < length:
            raise ValueError(
                f"prompt = {prompt}: must leave length = {length} of the {len(corpus.valid)} "
                "held-out tokens"
            )
        return Text(corpus.train, corpus.valid, len(corpus.vocabulary), window[None])


class SyntheticText(CorpusSource):
    """A generated text; see `dynsim.classes.synthetic_corpus`.

    Example:
        >>> problem = dynsim.LanguageModel(dynsim.SyntheticText())
    """

    def read(self) -> Corpus:
        """Return the corpus, which is generated only once."""
        return _synthetic()


@functools.cache
def _synthetic() -> Corpus:
    return synthetic_corpus()


def _as_text(path: str | Path) -> str:
    # Not `str`, because its signature does not say that it takes a `Path`.
    return str(path)


class _Stored(CorpusSource):
    """A corpus stored in files.

    Attributes:
        path: a path.
        min_count: words with fewer occurrences in the training text become <unk>.
    """

    path: str = eqx.field(converter=_as_text, static=True)
    min_count: Count = eqx.field(default=3, kw_only=True, static=True)

    def contents(self) -> dict[str, str]:
        """A hash of the words in the files, under the name `text`."""
        # All words, so that the hash does not depend on the vocabulary of the run.
        corpus = dataclasses.replace(self, min_count=1).read()
        words = " ".join([*corpus.words(corpus.train), "", *corpus.words(corpus.held_out)])
        return {"text": hashlib.sha256(words.encode()).hexdigest()[:16]}


class TextFile(_Stored):
    """A text file. The first 90 % of its tokens are for training, the next 5 % are held out.

    Attributes:
        path: path of the file.

    Raises:
        ValueError: for a file that is missing or cannot be read.

    Example:
        >>> Path("text.txt").write_text("the cat sat on the mat . " * 40)
        >>> problem = dynsim.LanguageModel(dynsim.TextFile("text.txt"))
    """

    ENDINGS: ClassVar = ("path", (".txt",))

    def read(self) -> Corpus:
        """Return the corpus; `ValueError` if the file cannot be read."""
        checks.regular("path", self.path)
        return load_corpus(self.path, min_count=self.min_count)


class TextFolder(_Stored):
    """A folder with one text file per split.

    Attributes:
        path: path of the folder.
        train: file of the training text, which defines the vocabulary.
        held_out: file of the held-out text.

    Raises:
        ValueError: for a file that is missing or cannot be read.

    Example:
        >>> for name in ("train.txt", "held_out.txt"):
        ...     Path(name).write_text("the cat sat on the mat . " * 40)
        ...
        >>> problem = dynsim.LanguageModel(dynsim.TextFolder(".", "train.txt", "held_out.txt"))
    """

    train: str = eqx.field(default="train.txt", static=True)
    held_out: str = eqx.field(default="valid.txt", static=True)

    def read(self) -> Corpus:
        """Return the corpus; `ValueError` if a file cannot be read."""
        for name, file in {"train": self.train, "held_out": self.held_out}.items():
            if not os.path.isfile(os.path.join(self.path, file)):
                raise ValueError(f"{name} = {file!r}: must be a file in path = {self.path!r}")
        return load_corpus(
            self.path, min_count=self.min_count, train=self.train, valid=self.held_out, test=None
        )
