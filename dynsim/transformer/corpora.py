"""Corpora that a language model reads when it is built."""

import abc
import dataclasses
import functools
import hashlib
import os
from pathlib import Path
from typing import ClassVar

import equinox as eqx

from dynsim import checks
from dynsim.classes.corpus import Corpus, load_corpus, synthetic_corpus
from dynsim.decoding import Count
from dynsim.transformer.task import Text, TextSource, text


class CorpusSource(TextSource):
    """A corpus, which is read when it is needed. Subclass it for a corpus of your own."""

    @abc.abstractmethod
    def read(self) -> Corpus:
        """The corpus; `ValueError` if it cannot be read."""

    def build(self, length: int, prompt: int) -> Text:
        """The training text, the held-out text, and one prompt from the latter."""
        found = self.read()
        if found.valid is None:
            raise ValueError(f"corpus = {self}: is too short for a held-out part")
        window = found.valid[prompt:][:length]
        if len(window) < length:
            raise ValueError(
                f"prompt = {prompt}: must leave length = {length} of the {len(found.valid)} "
                "held-out tokens"
            )
        return text(found.train, found.valid, len(found.vocabulary), window[None])


class SyntheticText(CorpusSource):
    """A generated text; see `dynsim.classes.synthetic_corpus`."""

    def read(self) -> Corpus:
        """The corpus, which is generated once."""
        return _synthetic()


@functools.cache
def _synthetic() -> Corpus:
    return synthetic_corpus()


def _as_text(path: str | Path) -> str:
    return str(path)


class _Stored(CorpusSource):
    """A corpus in files.

    Attributes:
        path: a path.
        min_count: words with fewer occurrences in the training text become <unk>.
    """

    path: str = eqx.field(converter=_as_text, static=True)
    min_count: Count = eqx.field(default=3, kw_only=True, static=True)

    def contents(self) -> dict[str, str]:
        """A hash of the words in the files, under the name `text`."""
        every = dataclasses.replace(self, min_count=1).read()
        words = " ".join([*every.words(every.train), "", *every.words(every.held_out)])
        return {"text": hashlib.sha256(words.encode()).hexdigest()[:16]}


class TextFile(_Stored):
    """A text file. The first 90 % of its tokens are for training, the next 5 % are held out.

    Attributes:
        path: path of the file.
    """

    ENDINGS: ClassVar = ("path", (".txt",))

    def read(self) -> Corpus:
        """The corpus; `ValueError` if the file cannot be read."""
        checks.regular("path", self.path)
        return load_corpus(self.path, min_count=self.min_count)


class TextFolder(_Stored):
    """A folder with one text file per split.

    Attributes:
        path: path of the folder.
        train: file of the training text, which defines the vocabulary.
        held_out: file of the held-out text.
    """

    train: str = eqx.field(default="train.txt", static=True)
    held_out: str = eqx.field(default="valid.txt", static=True)

    def read(self) -> Corpus:
        """The corpus; `ValueError` if a file cannot be read."""
        for name, file in {"train": self.train, "held_out": self.held_out}.items():
            if not os.path.isfile(os.path.join(self.path, file)):
                raise ValueError(f"{name} = {file!r}: must be a file in path = {self.path!r}")
        return load_corpus(
            self.path, min_count=self.min_count, train=self.train, valid=self.held_out, test=None
        )
