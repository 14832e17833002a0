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
    Decay,
    Index,
    NotNegative,
    Positive,
    Rate,
    Size,
    SizeOrNone,
    Steps,
    Tokens,
)
from dynsim.precision import DType
from dynsim.training.constant.descent import Descent, Kind
from dynsim.transformer.model import Positions, TransformerSpec
from dynsim.transformer.task import Text, text
from sweeps.systems.base import Fields, Run, Times, steps_of
from sweeps.systems.choice import RULES, Choice, Chooses, descent

SYNTHETIC = "synthetic"
MIN_VOCABULARY = 2
NUMBERS = ("eta", "momentum", "b1", "b2", "eps", "clip")
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
        kind, steps, batch, num_held_out: as `optimizer` and the fields of `TextTraining`.
    """

    sizes: TransformerSpec
    kind: Kind
    steps: int
    batch: int
    num_held_out: int

    def spec(self, vocabulary: int) -> TransformerSpec:
        """The transformer for so many tokens."""
        return dataclasses.replace(self.sizes, vocabulary=vocabulary)


@dataclasses.dataclass(frozen=True)
class TextTraining(Chooses, Run[Fixed]):
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
        optimizer: update rule; all weights share one learning rate.
        eta: learning rate.
        momentum: for momentum: heavy-ball coefficient mu in [0, 1); 0.9 if omitted.
        b1: for adam: decay of the first moment; 0.9 if omitted.
        b2: for adam: decay of the second moment; 0.999 if omitted.
        eps: for adam: epsilon; 1e-8 if omitted.
        clip: largest norm of the gradient of all weights together; no limit if omitted.
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
    optimizer: Kind = "sgd"
    eta: Rate = 1.0
    momentum: Decay | None = None
    b1: Decay | None = None
    b2: Decay | None = None
    eps: Positive | None = None
    clip: Positive | None = None
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
    def choices(self) -> tuple[Choice, Choice]:
        """What the corpus and the optimiser read."""
        one = self.corpus if self.corpus == SYNTHETIC else "of one file"
        kind = one if self.corpus == SYNTHETIC or os.path.isfile(self.corpus) else "of a folder"
        return Choice("corpus", kind, CORPORA), Choice("optimizer", self.optimizer, RULES)

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

    def make_optimizer(self) -> Descent:
        """The update rule; `ValueError` for numbers that cannot be."""
        return descent(self, clip=self.clip)

    def numbers(self) -> dict[str, ArrayLike]:
        """The numbers of the optimiser by name, the largest norm where there is one."""
        optimizer = self.make_optimizer()
        found = {name: getattr(optimizer, name) for name in NUMBERS}
        return {name: value for name, value in found.items() if value is not None}

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
        return Fixed(sizes, self.optimizer, self.steps, self.batch, self.num_held_out)

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
    optimizer: Kind = "sgd"
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
