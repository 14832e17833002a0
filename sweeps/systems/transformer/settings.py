"""Transformers on text as the sweep engine and the figures see them: their settings."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from dynsim.classes.corpus import Corpus, load_corpus, synthetic_corpus
from dynsim.decoding import (
    Count,
    Index,
    NotNegative,
    Rate,
    Size,
    SizeOrNone,
    Steps,
    Tokens,
)
from dynsim.precision import DType
from dynsim.problem.choice import Choice
from dynsim.training.rule import Rule
from dynsim.training.run_checks import check_rule
from dynsim.transformer.model import Positions, TransformerSpec
from dynsim.transformer.task import Text, text
from sweeps.systems.base import Fields, Run, Times, steps_of
from sweeps.systems.problems import rules
from sweeps.systems.problems.parts import Template, taken

SYNTHETIC = "synthetic"
MIN_VOCABULARY = 2
NUMBERS = ("eta", *rules.SCHEDULED, *rules.NUMBERS)
CORPORA: dict[str, dict[str, Any]] = {
    SYNTHETIC: {},
    "of one file": {"min_count": 3},
    "of a folder": {"train": "train.txt", "held_out": "valid.txt", "min_count": 3},
}
"""What each kind of corpus reads, with defaults."""
SIZES = ("layers", "heads", "width", "mlp", "length")
STATIC = (*SIZES, "steps", "batch", "num_held_out", "min_count")


class Fixed(NamedTuple):
    """What runs of one program share besides the arrays of their text and their numbers.

    Attributes:
        sizes: the transformer, for a vocabulary that the text decides.
        rule: the rule without its numbers.
        steps, batch, num_held_out: as of `TextTraining`.
    """

    sizes: TransformerSpec
    rule: Template
    steps: int
    batch: int
    num_held_out: int

    def spec(self, vocabulary: int) -> TransformerSpec:
        """The transformer for so many tokens."""
        return dataclasses.replace(self.sizes, vocabulary=vocabulary)


@dataclasses.dataclass(frozen=True)
class TextTraining(rules.OneRate, Run[Fixed]):
    """A decoder-only transformer trained on windows of a text.

    Attributes:
        task: text.
        corpus: a text file, a folder with one file per split, or synthetic for a generated text.
        train: for a folder: file of the training text, which defines the vocabulary; train.txt if
            omitted.
        held_out: for a folder: file of the held-out text; valid.txt if omitted. Of a single file or
            a generated text, the first 90 % are for training and the next 5 % are held out.
        min_count: for files: words with fewer occurrences in the training text become <unk>; 3 if
            omitted.
        prompt: position in the held-out text where the prompt starts whose attention is recorded.
        layers: number of transformer blocks, 1 to 6.
        heads: number of attention heads per block.
        width: width of the residual stream.
        mlp: hidden units of the MLP of each block; 0 for no MLP.
        positions: learned position embeddings, or none.
        steps: optimiser steps of a run.
        batch: windows per step.
        length: tokens T of a window.
        num_held_out: number of held-out windows to measure on.
        dtype: precision of training.
    """

    AXES: ClassVar = Fields(traced=NUMBERS, static=STATIC, whole=STATIC)

    task: Literal["text"] = "text"
    corpus: str = SYNTHETIC
    train: str | None = None
    held_out: str | None = None
    min_count: Count | None = None
    prompt: Index = 0
    layers: Size = 1
    heads: Size = 2
    width: Size = 32
    mlp: SizeOrNone = 64
    positions: Positions = "learned"
    eta: Rate = 1.0
    steps: Steps = 1000
    batch: Count = 20
    length: Tokens = 35
    num_held_out: Count = 64
    dtype: DType = "float32"

    def read(self) -> Corpus:
        """The corpus; `ValueError` where it cannot be read or is too short."""
        if self.corpus == SYNTHETIC:
            return _synthetic()
        names = CORPORA["of a folder"]
        return load_corpus(
            self.corpus,
            min_count=self.value("min_count"),
            train=self.train or names["train"],
            valid=self.held_out or names["held_out"],
            test=None,
        )

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the corpus, the optimiser and the schedule read."""
        one = self.corpus if self.corpus == SYNTHETIC else "of one file"
        kind = one if self.corpus == SYNTHETIC or os.path.isfile(self.corpus) else "of a folder"
        return Choice("corpus", kind, CORPORA), *super().choices

    def make_task(self) -> Text:
        """The text and the prompt; `ValueError` where there is none."""
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
        return text(found.train, found.valid, len(found.vocabulary), prompt[None])

    def make_optimizer(self) -> Rule:
        """The update rule; `ValueError` for numbers that cannot be."""
        self.check_read()
        return rules.rule(self, rules.schedule(self, self.eta))

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser by name."""
        return taken(self.make_optimizer(), None).numbers

    def check_whole(self) -> None:
        """Raise `ValueError` for a schedule that ends after the run."""
        check_rule(self.make_optimizer(), self.steps, False)

    def check(self) -> None:
        """Raise `ValueError`, naming the field, for what the constructors do not see."""
        super().check()
        self.fixed()

    def fixed(self) -> Fixed:
        """What its program takes for granted; `ValueError` for sizes that cannot be."""
        sizes = TransformerSpec(
            MIN_VOCABULARY,
            self.length,
            self.layers,
            self.heads,
            self.width,
            self.mlp,
            self.positions,
        )
        rule = taken(self.make_optimizer(), None).template
        return Fixed(sizes, rule, self.steps, self.batch, self.num_held_out)

    def steps_recorded(self, times: Times) -> tuple[int, ...]:
        """The optimiser steps at which a run records; `ValueError` unless they increase within
        [0, steps]."""
        return steps_of(times, self.steps)

    @staticmethod
    def stiffness(numbers: Mapping[str, Float[np.ndarray, " P"]]) -> Float[np.ndarray, " P"]:
        """The learning rate."""
        return numbers["eta"]

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


def describe(run: TextTraining) -> str:
    """The splits, the optimiser and the sizes but the number of layers, in two lines."""
    if run.corpus == SYNTHETIC:
        splits = "generated text: first 90 % for training, next 5 % held out"
    elif os.path.isdir(run.corpus):
        train, held_out = run.value("train"), run.value("held_out")
        splits = f"{Path(run.corpus).name}: trained on {train}, held out {held_out}"
    else:
        splits = f"{Path(run.corpus).name}: first 90 % for training, next 5 % held out"
    seen = run.value("min_count")
    rare = "" if run.corpus == SYNTHETIC else f", words seen less than {seen} times <unk>"
    clip = "not clipped" if run.clip is None else f"clipped to norm {run.clip:g}"
    return (
        f"{splits}{rare}\n{run.optimizer}, gradient {clip}, {run.steps} steps of {run.batch} "
        f"windows of {run.length} tokens, {run.heads} head(s), width {run.width}, MLP {run.mlp}"
    )


@dataclasses.dataclass(frozen=True)
class TextFigure:
    """What the figures of transformers on text have in common.

    Attributes:
        corpus: a folder with one file a split, a text file, or synthetic.
        train: file of the training text in a folder, train.txt if left out.
        held_out: file of the held-out text in a folder, valid.txt if left out.
        min_count: words of a file that its training text has less often become <unk>; 20 if left
            out.
        clip: largest norm of the gradient, 0 for none: without, SGD at rates above 2 diverges.
        optimizer: update rule.
        heads: attention heads of a block.
        width: size of the residual stream.
        mlp: hidden units of a block's MLP; 0 leaves it out.
        steps: optimiser steps of a run.
        batch: windows per step.
        length: tokens of a window.
    """

    corpus: str = SYNTHETIC
    train: str | None = None
    held_out: str | None = None
    min_count: Count | None = None
    clip: NotNegative = 0.5
    optimizer: rules.Optimizer = "sgd"
    heads: Size = 2
    width: Size = 32
    mlp: SizeOrNone = 64
    steps: Steps = 1000
    batch: Count = 20
    length: Tokens = 35

    def variation(self, **fields: Any) -> TextTraining:
        """The run that these options and `fields` describe."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(TextFigure)}
        if self.min_count is None and self.corpus != SYNTHETIC:
            shared["min_count"] = 20
        return TextTraining(**{**shared, "clip": self.clip or None, **fields})
