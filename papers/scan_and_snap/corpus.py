"""Theorem 2 on real text: the words that attention comes to favour in training.

Classes are estimated from the text: a query, the last word of a window, with a next word. The layer
trains on them, in Y and Z, and in ordinary parameters U, W_Q, W_K, W_V; we compare the signs of z
with those that the theorem, its criterion and the theories predict.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Annotated

import annotated_types as at
import numpy as np
import pandas as pd

import dynsim
import sweeps
from papers.scan_and_snap import word_panels, words

TOP = 12
"""Number of words of each class to judge, its most frequent ones."""


class Corpus(sweeps.Figure):
    """Predicted against trained fate of the top words of sequence classes estimated from text.

    Attributes:
        corpus: a text file, or a folder with one text file per split; a generated text by default.
        train: file of the training text in such a folder.
        num_queries: number of query words.
        classes_per_query: number of next words of each query word.
        stop_words: how many of the most frequent words to leave out of the contexts.
        steps: optimiser steps.
    """

    NAME = "corpus"

    corpus: Path | None = None
    train: str = "train.txt"
    num_queries: Annotated[int, at.Ge(1)] = 2
    classes_per_query: Annotated[int, at.Ge(1)] = 3
    stop_words: Annotated[int, at.Ge(0)] = 0
    steps: Annotated[int, at.Ge(2)] = 1000

    def draw(self, data):
        text = dynsim.classes.synthetic_corpus(0)
        if self.corpus is not None:
            only = {"train": self.train, "valid": None, "test": None}
            text = dynsim.classes.load_corpus(self.corpus, **only)
        names = ("num_queries", "classes_per_query", "stop_words")
        estimate = dynsim.classes.estimate_classes(
            text.train,
            text.vocabulary,
            length=35,
            tokens_per_class=50,
            **{name: getattr(self, name) for name in names},
        )
        task = estimate.task
        fates = functools.partial(words.fates, task=task, steps=self.steps, top=TOP)
        direct = fates(dynsim.Layer(task, math.inf), rule=dynsim.sgd(1.0, 1.0))
        # Normal W_Q and W_K of standard deviation 1 / sqrt(M): Z starts to move at the rate 1.
        factors = dynsim.QKV(task, math.inf, width=task.M, scale=1.0, value_scale=0.0)
        ordinary = fates(factors, rule=dynsim.sgd(1.0, task.M / 2))
        overlaps = dynsim.classes.overlap_report(task, words.OWNED)
        fields = ("probs", "query", "next_token", "prior")
        # `dynsim.TaskFile` reads the task from these.
        arrays = {name: np.asarray(getattr(task, name)) for name in fields}
        arrays |= {"tokens": estimate.tokens, "windows": estimate.windows}
        arrays |= {"times": direct.z.time, "z": direct.z, "top": direct.top}
        arrays |= {f"z/{name}": each for name, each in direct.theory.items()}
        arrays |= {"sign": direct.signs, "score": direct.scores, "z_ordinary": ordinary.z}
        report = {"words": estimate.words, "classes": estimate.names, "missing": direct.missing}
        report["overlap"] = dataclasses.asdict(overlaps)
        text = "\n".join(lines(estimate, overlaps, direct, ordinary))
        return sweeps.Picture(word_panels.draw(estimate, direct), arrays, text, report=report)


def lines(estimate, overlaps, direct, ordinary):
    """The classes, whether the theory's assumptions hold, and how often each rule is right."""
    yield (
        f"{estimate.task.K} classes over {estimate.task.M} words, {estimate.coverage:.1%} of the "
        f"windows; contextual words left out: {estimate.stop_mass.mean():.0%} as stop words, "
        f"{estimate.rare_mass.mean():.0%} as rare"
    )
    yield (
        f"overlap of two classes: mean {overlaps.all.mean:.3f}, max {overlaps.all.max:.3f}; "
        f"beta < 0: {overlaps.negative:.0%}; words: {overlaps.distinct} distinct, "
        f"{overlaps.common} common, of which {overlaps.nearly_distinct} owned"
    )
    for layer, fates in (("Y and Z", direct), ("U, W_Q, W_K, W_V", ordinary)):
        loss, accuracy = (float(fates.run[name][-1]) for name in ("loss", "accuracy"))
        yield f"\ntraining of {layer}: loss {loss:.4g}, accuracy {accuracy:.3f}"
        ends = [
            each.drop_vars("by_class").isel(time=-1).to_pandas() for each in fates.scores.values()
        ]
        yield pd.DataFrame(ends, [words.TITLES[name] for name in fates.scores]).to_string(
            float_format="{:.3f}".format
        )
    yield from (f"{name}: {reason}" for name, reason in direct.missing.items())
