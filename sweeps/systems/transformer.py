"""Decoder-only transformers on text."""

import dataclasses
import functools
import hashlib
import os
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from dynsim.classes.corpus import Corpus, load_corpus, synthetic_corpus
from dynsim.decoding import Count, Index, Tokens
from dynsim.problem.choice import Choice
from dynsim.transformer.language import LanguageModel
from dynsim.transformer.task import text
from sweeps.systems.base import Labels
from sweeps.systems.problems.options import Options, problem_system
from sweeps.systems.problems.parts import taken

SYNTHETIC = "synthetic"
CORPORA: dict[str, dict[str, Any]] = {
    SYNTHETIC: {},
    "of one file": {"min_count": 3},
    "of a folder": {"train": "train.txt", "held_out": "valid.txt", "min_count": 3},
}
"""What each kind of corpus reads, with defaults."""


@dataclasses.dataclass(frozen=True)
class CorpusOptions(Options):
    """Settings that choose a text.

    Attributes:
        corpus: a text file, a folder with one file per split, or synthetic for a generated text.
        train: for a folder: file of the training text, which defines the vocabulary; train.txt if
            omitted.
        held_out: for a folder: file of the held-out text; valid.txt if omitted. Of a single file or
            a generated text, the first 90 % are for training and the next 5 % are held out.
        min_count: for files: words with fewer occurrences in the training text become <unk>; 3 if
            omitted.
        prompt: position in the held-out text where the prompt starts whose attention is recorded.
        length: tokens T of a window.
    """

    corpus: str = SYNTHETIC
    train: str | None = None
    held_out: str | None = None
    min_count: Count | None = None
    prompt: Index = 0
    length: Tokens = 35

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the corpus, the optimiser and the schedule read."""
        kind = "of one file" if os.path.isfile(self.corpus) else "of a folder"
        kind = self.corpus if self.corpus == SYNTHETIC else kind
        return Choice("corpus", kind, CORPORA), *super().choices

    def read(self) -> Corpus:
        """The corpus; `ValueError` where it cannot be read or is too short."""
        if self.corpus == SYNTHETIC:
            return _synthetic()
        names = CORPORA["of a folder"]
        train, valid = self.train or names["train"], self.held_out or names["held_out"]
        counted = self.value("min_count")
        return load_corpus(self.corpus, min_count=counted, train=train, valid=valid, test=None)

    @functools.cached_property
    def bare(self) -> LanguageModel:  # type: ignore[override]
        """The problem with its text, whose vocabulary programs have to know."""
        self.check_read()
        found = self.read()
        if found.valid is None:
            raise ValueError(f"corpus = {self.corpus!r}: is too short for a held-out part")
        prompt = found.valid[self.prompt :][: self.length]
        if len(prompt) < self.length:
            raise ValueError(
                f"prompt = {self.prompt}: must leave length = {self.length} of the "
                f"{len(found.valid)} held-out tokens"
            )
        made = text(found.train, found.valid, len(found.vocabulary), prompt[None])
        return LanguageModel(made, **{name: getattr(self, name) for name in self.FIELDS})

    def numbers(self) -> dict[str, ArrayLike]:
        """Those of the rule: the problem has none, and its text need not be read."""
        return taken(self.rule, None).numbers

    def contents(self) -> dict[str, str]:
        """A hash of the words that the files hold, by the name `text`."""
        if self.corpus == SYNTHETIC:
            return {}
        every = dataclasses.replace(self, min_count=1).read()
        words = " ".join([*every.words(every.train), "", *every.words(every.held_out)])
        return {"text": hashlib.sha256(words.encode()).hexdigest()[:16]}


@functools.cache
def _synthetic() -> Corpus:
    return synthetic_corpus()


_EMPTY = np.zeros(36, int)
SYSTEM = problem_system(
    # The text is that of the settings.
    LanguageModel(text(_EMPTY, _EMPTY, 2)),
    "transformer",
    task="text",
    options=CorpusOptions,
    labels=Labels(
        about={
            "eta": ("learning rate", "1/step"),
            "length": ("tokens of a window", "tokens"),
            "steps": ("optimiser steps", "step"),
            "clip": ("largest norm of the gradient", "nat"),
            "loss": ("cross entropy on held-out text", "nat"),
            "batch_loss": ("cross entropy of the next batch", "nat"),
            "entropy": ("entropy of attention on held-out text", "nat"),
            "layer_entropy": ("entropy of attention on held-out text by layer", "nat"),
            "top": ("largest weight of a row of attention", "1"),
            "change": ("attention that moved since the record before", "1"),
        },
        inner_dims={
            **dict.fromkeys(("layer_entropy", "layer_top", "layer_change"), ("layer",)),
            "attention": ("prompt", "layer", "head", "query", "key"),
        },
    ),
    tile=1,
    eta=1.0,
    batch=20,
)
TextTraining: Any = SYSTEM.run
"""Settings of a run."""
