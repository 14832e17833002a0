"""What the figures of transformers on text have in common."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from dynsim.decoding import Count, NotNegative, Size, SizeOrNone, Steps, Tokens
from sweeps.systems.problems.rules import Optimizer
from sweeps.systems.transformer import SYNTHETIC, TextTraining


@dataclasses.dataclass(frozen=True)
class TextFigure:
    """Options of a figure of transformers on text.

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
    optimizer: Optimizer = "sgd"
    heads: Size = 2
    width: Size = 32
    mlp: SizeOrNone = 64
    steps: Steps = 1000
    batch: Count = 20
    length: Tokens = 35

    def variation(self, **fields: Any) -> Any:
        """The run that these options and `fields` describe."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(TextFigure)}
        if self.min_count is None and self.corpus != SYNTHETIC:
            shared["min_count"] = 20
        return TextTraining(**{**shared, "clip": self.clip or None, **fields})


def describe(run: Any) -> str:
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
