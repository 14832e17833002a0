"""Errors in 1/T: descent at infinite T and to first order in 1/T, against the loss of finite T.

That loss is an average over count vectors: over all of them, or over two samples whose distance
shows their error.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import pandas as pd
from scipy import stats

import dynsim
from sweeps import drawing

RECORD = {"loss": "loss", "z_top_distinct": "top distinct logit"}
NEGLIGIBLE = 1e-20
"""Count vectors less probable than this are left out of an enumeration."""


def small_task() -> dynsim.SequenceClasses:
    """Two classes of three tokens, one common, small enough to enumerate."""
    return dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 1])


def enumerated(task: dynsim.SequenceClasses, length: int) -> dynsim.Examples:
    """All count vectors of `length` - 1 tokens, of classes of three, weighted by probability."""
    vectors = np.indices((length, length)).reshape(2, -1).T
    vectors = np.c_[vectors, length - 1 - vectors.sum(1)]
    vectors = vectors[vectors[:, 2] >= 0]  # three counts that add up to T - 1
    parts = []
    for n, (row, prior) in enumerate(zip(task.probs, task.prior, strict=True)):
        probability = stats.multinomial.pmf(vectors, length - 1, np.asarray(row, float)[row > 0])
        likely = probability > NEGLIGIBLE
        counts = np.zeros((likely.sum(), task.M))
        counts[:, row > 0] = vectors[likely]
        parts.append((np.full(len(counts), n), counts, prior * probability[likely]))
    return dynsim.Examples(*map(np.concatenate, zip(*parts, strict=True)))


def sampled(task: dynsim.SequenceClasses, length: int, number: int, seed: int) -> dynsim.Examples:
    """`number` count vectors of each class."""
    rng = np.random.default_rng(seed)
    probs = np.asarray(task.probs, np.float64)
    counts = [rng.multinomial(length - 1, row / row.sum(), number) for row in probs]
    weight, classes = np.asarray(task.prior) / number, np.arange(task.K)
    parts = np.repeat(classes, number), np.concatenate(counts).astype(float)
    return dynsim.Examples(*parts, np.repeat(weight, number))


def errors(
    task: dynsim.SequenceClasses,
    rule: dynsim.Rule,
    steps: int,
    lengths: np.ndarray,
    examples: Callable[[int], Sequence[dynsim.Examples]],
) -> dict[str, np.ndarray]:
    """Relative errors (L, 2) of loss and logit after descent, of both theories, against the mean of
    descents on its `examples`, and its uncertainty: half of the distance of two samples."""

    def descended(problem: dynsim.Problem) -> np.ndarray:
        options = {"steps": steps, "batch": math.inf, "record": [*RECORD], "dtype": "float64"}
        run = dynsim.train(problem, rule, jax.random.key(0), **options)
        return np.array([run["loss"][-1], run["z_top_distinct"][-1, 0]])

    exact, finite = [], []
    for length in map(int, lengths):
        layer = dynsim.Layer(task, length)
        exact.append([descended(dynsim.FullBatch(layer, each)) for each in examples(length)])
        try:
            layer.check_population()
        except ValueError:  # too short for the expansion
            finite.append(np.full(2, np.nan))
        else:
            finite.append(descended(layer))
    runs = np.array(exact)
    mean = runs.mean(1)
    return {
        "infinite": abs(descended(dynsim.Layer(task, math.inf)) / mean - 1),
        "finite": abs(np.array(finite) / mean - 1),
        "reference": np.ptp(runs, axis=1) / 2 / abs(mean),
    }


def exponents(lengths: np.ndarray, error: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Powers of T of the errors of both theories, for T >= 64."""
    far = lengths >= 64  # where the leading power of 1/T dominates
    x, error = np.log(lengths[far]), {name: error[name][far] for name in ("infinite", "finite")}
    return pd.DataFrame({n: np.polyfit(x, np.log(y), 1)[0] for n, y in error.items()}, [*RECORD])


def table(lengths: np.ndarray, error: Mapping[str, np.ndarray]) -> str:
    """Errors and their uncertainty in %."""
    names = pd.MultiIndex.from_product([error, RECORD])
    return pd.DataFrame(100 * np.concatenate([*error.values()], 1), lengths, names).to_string(
        float_format="{:.3g}".format
    )


def plot(lengths, error, ax):
    """Relative errors over T, with the reference's uncertainty as bars, and lines of slope -1 and,
    for an exact reference, -2."""
    exact = not error["reference"].any()
    for place, name in enumerate(RECORD.values()):
        unsure = None if exact else error["reference"][:, place]
        for fmt, kind, label in (
            ("o:", "infinite", "T infinite"),
            ("s-", "finite", "first order in 1/T"),
        ):
            style = {"fmt": fmt, "color": drawing.colour(place), "capsize": 2}
            ax.errorbar(lengths, error[kind][:, place], unsure, label=f"{name}, {label}", **style)
    for power, kind in ((1, "infinite"), (2, "finite"))[: 1 + exact]:
        drawing.power(ax, lengths[-3], lengths[-1], 2 * error[kind][-1].max(), "T", power)
    ax.set(xscale="log", yscale="log")
    drawing.ticks(ax.xaxis, lengths[lengths > 1.3 * np.r_[1, lengths[:-1]]])
    drawing.finished(ax, xlabel="sequence length T", ylabel="relative error")
