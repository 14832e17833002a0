"""Theorem 2 on real text: the words that attention comes to favour in training."""

import dataclasses
import functools
import math
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import dynsim
from dynsim.classes.corpus import Corpus, Estimate, estimate_classes, load_corpus, synthetic_corpus
from dynsim.classes.task import OverlapReport, overlap_report
from dynsim.decoding import (
    Count,
    CountOrInf,
    Index,
    Positive,
    Rate,
    Seed,
    Share,
    Steps,
    Tokens,
)
from sweeps import output
from sweeps.language.tree import check_fields
from sweeps.output import drawing
from sweeps.output.cells import cell_edges
from sweeps.studies.words.fates import Fates, fates, table, title

RIGHT, WRONG = 0, 1
"""Colours of correct and of wrong predictions, by index."""
COLUMNS = 4
"""Largest number of panels in a row."""


@dataclasses.dataclass(frozen=True)
class CorpusFigure:
    """Predicted against trained fate of the top words of sequence classes estimated from text.

    Attributes:
        corpus: a text file, or a folder with one text file per split; a generated text by default.
        train: file of the training text in such a folder.
        num_queries: number of query words.
        classes_per_query: number of next words of each query word.
        length: tokens per window of text, the query included.
        tokens_per_class: number of contextual words that each class adds to the vocabulary.
        stop_words: how many of the most frequent words to leave out of the contexts.
        top: number of words of each class to score, its most frequent ones.
        threshold: smallest share of a word's occurrences with which a class owns it, in (0.5, 1].
        steps: optimiser steps.
        eta_y: learning rate of Y.
        eta_z: learning rate of Z.
        batch: sequences per step, as long as the windows; inf for descent on the population loss.
        seed: seed of the sampled sequences, the generated text and the starting factors.
        scale: W_Q and W_K of the layer in ordinary parameters start normal with standard deviation
            scale / sqrt(d), d = M; their rate is chosen so that Z starts to move at eta_z.
        out: folder for the figure, corpus.npz and corpus.json.
    """

    corpus: Path | None = None
    train: str = "train.txt"
    num_queries: Count = 2
    classes_per_query: Count = 3
    length: Tokens = 35
    tokens_per_class: Count = 50
    stop_words: Index = 0
    top: Count = 12
    threshold: Share = 0.8
    steps: Steps = 1000
    eta_y: Rate = 1.0
    eta_z: Rate = 1.0
    batch: CountOrInf = math.inf
    seed: Seed = 0
    scale: Positive = 1.0
    out: Path = Path("out/figures")


def run(config: CorpusFigure) -> list[Path]:
    """Estimate the classes, train and score; print the table and write the figure.

    `dynsim.TaskFile` reads the task from the npz file, which also has logits and predictions.
    """
    check_fields(config)
    output.check_directory(config.out)
    text = corpus(config)
    estimate = estimate_classes(
        text.train,
        text.vocabulary,
        num_queries=config.num_queries,
        classes_per_query=config.classes_per_query,
        length=config.length,
        tokens_per_class=config.tokens_per_class,
        stop_words=config.stop_words,
    )
    overlaps = overlap_report(estimate.task, config.threshold)
    judged = functools.partial(
        fates,
        estimate.task,
        steps=config.steps,
        top=config.top,
        threshold=config.threshold,
        length=math.inf if math.isinf(config.batch) else config.length,
        batch=config.batch,
        seed=config.seed,
    )
    found, width = judged(dynsim.sgd(config.eta_y, config.eta_z)), estimate.task.M
    embedded = {"width": width, "scale": config.scale, "value_scale": 0.0}
    rate = config.eta_z * width / (2 * config.scale**2)
    ordinary = judged(dynsim.sgd(config.eta_y, rate), embedded=embedded)
    print(table(estimate, overlaps, found, ordinary))
    numbers, kept = report(config, estimate, overlaps, found, ordinary), arrays(estimate, found)
    kept["z_ordinary"], figure = ordinary.z, draw(estimate, found)
    return output.write(config.out, "corpus", figure=figure, arrays=kept, report=numbers)


def corpus(config: CorpusFigure) -> Corpus:
    """Read the text (only the training split of a folder), or generate one."""
    if config.corpus is None:
        return synthetic_corpus(config.seed)
    return load_corpus(config.corpus, train=config.train, valid=None, test=None)


def arrays(estimate: Estimate, found: Fates) -> dict[str, Any]:
    """Return the arrays of a task for `dynsim.TaskFile`, and all logits, signs and scores."""
    task = estimate.task
    fields = ("probs", "query", "next_token", "prior")
    return {
        **{field: np.asarray(getattr(task, field)) for field in fields},
        "tokens": estimate.tokens,
        "windows": estimate.windows,
        "times": found.times,
        "z": found.z,
        "top": found.top,
        **{f"z/{name}": z for name, z in found.theory_z.items()},
        "sign": found.signs,
        "score": found.scores,
    }


def report(
    config: CorpusFigure,
    estimate: Estimate,
    overlaps: OverlapReport,
    found: Fates,
    ordinary: Fates,
) -> dict[str, object]:
    """Collect settings, words, overlaps and final scores."""

    def scores(of: Fates) -> dict[str, object]:
        return {
            name: {k: v if k == "spoken" else v[-1] for k, v in score._asdict().items()}
            for name, score in of.scores.items()
        }

    return {
        "settings": {**dataclasses.asdict(config), "corpus": str(config.corpus), "out": None},
        "words": estimate.words,
        "classes": estimate.names,
        "windows": estimate.windows,
        "coverage": estimate.coverage,
        "stop_mass": estimate.stop_mass,
        "rare_mass": estimate.rare_mass,
        "overlap": dataclasses.asdict(overlaps),
        "loss": found.loss[-1],
        "accuracy": found.accuracy[-1],
        "status": dynsim.Status(found.status).name,
        "scores": scores(found),
        "scores_ordinary": scores(ordinary),
        "missing": dict(found.missing),
        "environment": output.environment(),
    }


def draw(estimate: Estimate, found: Fates) -> Figure:
    """Draw a panel for each class, in rows by query, and the rules' scores over time."""
    task = estimate.task
    served = [np.flatnonzero(np.asarray(task.query_index) == q) for q in range(task.num_queries)]
    columns = min(max(len(classes) for classes in served), COLUMNS)
    rows = [row[i : i + columns] for row in served for i in range(0, len(row), columns)]
    heights = [2.5 * len(rows) + 0.8, 2.6]
    figure = plt.figure(figsize=(max(3 * columns, 8), sum(heights)), layout="constrained")
    # Separate subfigures, so that the long names of rules take no room from the panels.
    (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
    axes = above.subplots(len(rows), columns, squeeze=False)
    for row, panels in zip(rows, axes, strict=True):
        for n, ax in zip_longest(row, panels):
            ax.set_axis_off() if n is None else plot_class(estimate, found, n, ax=ax)
    for ax in axes[-1]:
        ax.set_xlabel("attention logit $z$")
    mesh = plot_scores(found, ax=(scores := below.subplots()))
    below.colorbar(mesh, ax=scores, label="share of correct signs", extend="min", pad=0.08)
    # The legend goes above the panels.
    key: list[Patch | Line2D] = [
        Patch(color=drawing.colour(RIGHT), label="trained logit, sign as by the plain criterion"),
        Patch(color=drawing.colour(WRONG), label="trained logit, opposite sign"),
    ]
    if "eq10-start" in found.signs:
        key.append(drawing.key("sign by Eq. 10's criterion", color="0.4", marker=">", ls=""))
    above.legend(handles=key, loc="outside upper center", ncols=2, frameon=False)
    return figure


def plot_class(estimate: Estimate, found: Fates, n: int, ax: Axes) -> Axes:
    """Draw the final trained logits of the top words of class `n`, the most frequent on top.

    The colour of a bar shows whether the plain update's criterion predicts its sign; markers point
    to the sign predicted by Eq. 10's criterion, where that applies.
    """
    tokens = np.flatnonzero(found.top[n])
    tokens = tokens[np.argsort(-np.asarray(estimate.task.probs)[n, tokens], kind="stable")]
    z = found.z[-1, n, tokens]
    y = np.arange(len(tokens))
    right = np.sign(z) == found.signs["flow-start"][-1, n, tokens]
    ax.barh(y, z, color=[drawing.colour(RIGHT if good else WRONG) for good in right])
    extent = 1.15 * max(float(np.abs(z).max()), 1e-12)
    eq10 = found.signs.get("eq10-start", np.zeros_like(found.top[None], np.int8))[-1, n, tokens]
    for sign, marker in ((1, ">"), (-1, "<")):
        chosen = eq10 == sign
        ax.plot(np.full(chosen.sum(), sign * extent), y[chosen], marker, color="0.4", ms=4)
    ax.set_yticks(y, [estimate.words[token].replace("$", r"\$") for token in tokens])
    ax.set(xlim=(-1.1 * extent, 1.1 * extent))
    ax.set(title=estimate.names[n].replace("$", r"\$"))
    ax.invert_yaxis()
    ax.axvline(0, color="k", lw=0.8)
    ax.grid(alpha=0.25, axis="x")
    return ax


def plot_scores(found: Fates, ax: Axes) -> QuadMesh:
    """Draw a heat map of the share of correct signs over time, with a row for each rule and one for
    the majority sign; curves of perfect rules would coincide. Return its mesh."""
    spoken = {title(n): s.right for n, s in found.scores.items() if s.spoken}
    base = next(score.base for score in found.scores.values() if score.spoken == 1)
    rows = {**spoken, "the more frequent sign everywhere": base}
    shares = np.array(list(rows.values()))
    edges = np.arange(len(rows) + 1) - 0.5
    colours = {"cmap": "cividis", "vmin": 0.5, "vmax": 1, "rasterized": True}
    mesh = ax.pcolormesh(cell_edges(found.times, "log"), edges, shares, **colours)
    for row, share in enumerate(shares[:, -1]):
        at = {"xycoords": ("axes fraction", "data"), "va": "center"}
        ax.annotate(f" {share:.2f}", (1, row), **at)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set(
        xscale="log", xlabel="optimiser steps", title="share of correct signs (numbers: at the end)"
    )
    return mesh
