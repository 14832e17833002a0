"""Panels of the trained logits of words, and of how often their signs are predicted."""

from itertools import zip_longest
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch

from papers.scan_and_snap import words
from sweeps import drawing

COLUMNS = 4
"""Largest number of panels in a row."""
COLOURS = ("trained logit, sign as by the plain criterion", "trained logit, opposite sign")


def draw(estimate, fates):
    """A panel for each class, in rows by query, and the scores over time."""
    task = estimate.task
    served = [np.flatnonzero(np.asarray(task.query_index) == q) for q in range(task.num_queries)]
    columns = min(max(len(classes) for classes in served), COLUMNS)
    rows = [row[i : i + columns] for row in served for i in range(0, len(row), columns)]
    heights = [2.5 * len(rows) + 0.8, 2.6]
    figure = plt.figure(figsize=(max(3 * columns, 8), sum(heights)), layout="constrained")
    # Separate subfigures, so that the long names of rules take no room from the panels.
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    axes = above.subplots(len(rows), columns, squeeze=False)
    for row, panels in zip(rows, axes, strict=True):
        for n, ax in zip_longest(row, panels):
            ax.set_axis_off() if n is None else plot_class(estimate, fates, n, ax)
    for ax in axes[-1]:
        ax.set_xlabel("attention logit $z$")
    mesh = plot_scores(fates, ax=(scores := below.subplots()))
    below.colorbar(mesh, ax=scores, label="share of correct signs", extend="min", pad=0.08)
    key: list[Any] = [
        Patch(color=drawing.colour(place), label=label) for place, label in enumerate(COLOURS)
    ]
    if "eq10-start" in fates.signs:
        key.append(drawing.key("sign by Eq. 10's criterion", color="0.4", marker=">", ls=""))
    above.legend(handles=key, loc="outside upper center", ncols=2, frameon=False)
    return figure


def plot_class(estimate, fates, n, ax):
    """Final trained logits of the top words of a class, the most frequent on top."""
    tokens = np.flatnonzero(fates.top[n])
    tokens = tokens[np.argsort(-np.asarray(estimate.task.probs)[n, tokens], kind="stable")]
    end = {"time": -1, "class": n, "token": tokens}
    z, y = fates.z.isel(end), np.arange(len(tokens))
    wrong = np.sign(z) != fates.signs["flow-start"].isel(end)
    ax.barh(y, z, color=[drawing.colour(int(each)) for each in wrong])
    extent = 1.15 * max(float(abs(z).max()), 1e-12)
    for sign, marker in ((1, ">"), (-1, "<")) if "eq10-start" in fates.signs else ():
        chosen = fates.signs["eq10-start"].isel(end).values == sign
        ax.plot(np.full(chosen.sum(), sign * extent), y[chosen], marker, color="0.4", ms=4)
    ax.set_yticks(y, [estimate.words[token].replace("$", r"\$") for token in tokens])
    ax.set(xlim=(-1.1 * extent, 1.1 * extent), title=estimate.names[n].replace("$", r"\$"))
    ax.invert_yaxis()
    ax.axvline(0, color="k", lw=0.8)
    ax.grid(alpha=0.25, axis="x")


def plot_scores(fates, ax):
    """Share of correct signs over time, with a row for each rule and one for the majority sign;
    curves of perfect rules would coincide."""
    spoken = {name: each for name, each in fates.scores.items() if each.spoken > 0}
    base = next(each.base for each in spoken.values() if each.spoken == 1)
    shares = np.array([*(each.right for each in spoken.values()), base])
    # Cells of a logarithmic axis.
    log = np.log(fates.z.time.values)
    middle = (log[1:] + log[:-1]) / 2
    edges = np.exp([2 * log[0] - middle[0], *middle, 2 * log[-1] - middle[-1]])
    colours = {"cmap": "cividis", "vmin": 0.5, "vmax": 1, "rasterized": True}
    mesh = ax.pcolormesh(edges, np.arange(len(shares) + 1) - 0.5, shares, **colours)
    for row, share in enumerate(shares[:, -1]):
        ax.annotate(f" {share:.2f}", (1, row), xycoords=("axes fraction", "data"), va="center")
    titles = [*(words.TITLES[name] for name in spoken), "the more frequent sign everywhere"]
    ax.set_yticks(range(len(shares)), titles)
    ax.invert_yaxis()
    title = "share of correct signs (numbers: at the end)"
    ax.set(xscale="log", xlabel="optimiser steps", title=title)
    return mesh
