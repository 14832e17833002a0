"""Figures of JoMA, joint MLP and attention dynamics (arXiv:2310.00535)."""

import math

import jax
import numpy as np
import xarray as xr
from scipy import special, stats

import dynsim
import odes

MU = 3 * np.sort(np.random.default_rng(0).random(10)) + 1
FIRST, RATE, TEMPERATURE, STEPS = 0.05, 0.02, 1.5, 5000
"""Numbers of the paper's code: v += 0.02 (mu - v) o softmax(v^2 / 3), starting at 0.05."""


def toy(steps: int = STEPS) -> dict[str, np.ndarray]:
    """Times and attention entropies of the toy of Fig. 4 by the paper's recursion and in closed
    form, and the limit of the entropy."""
    v, course = np.full(MU.size, FIRST), []
    for _ in range(steps + 1):
        course.append(v)
        v = v + RATE * (MU - v) * special.softmax(v**2 / (2 * TEMPERATURE))
    with jax.enable_x64(True):
        s = np.r_[0, np.geomspace(1e-3, 3, 600)]
        t, weights = odes.joma.toy.under_softmax(s, MU, np.full(MU.size, FIRST), TEMPERATURE)
    t, weights = np.asarray(t), np.asarray(weights)
    known = t <= RATE * steps  # times of the recursion
    return {
        "time": RATE * np.arange(steps + 1),
        "entropy": entropy(np.array(course)),
        "closed/time": t[known],
        "closed/entropy": entropy(weights[known]),
        "end": entropy(MU),
    }


def entropy(v: np.ndarray) -> np.ndarray:
    """Entropy of the attention softmax(v^2 / (2 T)) of the toy, in nat."""
    share = special.softmax(v**2 / (2 * TEMPERATURE), axis=-1)
    return np.asarray(stats.entropy(share, axis=-1))


def invariance(frequencies, steps: int) -> xr.DataArray:
    """Correlation over tokens of z with its value by Theorem 1 from V, in training as in Fig. 2."""
    problem = dynsim.JoMA(dynsim.JoMAClasses(frequencies), temperature=0.5)
    times, record = dynsim.log_times(steps, 300), ("logits", "conserved")
    options = {"steps": steps, "batch": math.inf, "times": times, "record": record}
    run = dynsim.train(problem, dynsim.sgd(0.1), jax.random.key(0), **options)
    z, conserved = 0.5 * np.asarray(run["logits"])[:, 0], np.asarray(run["conserved"])
    predicted = z - conserved + conserved[:1]  # Theorem 1: what is conserved keeps its start
    values = [np.corrcoef(each)[0, 1] for each in np.stack([z, predicted], axis=1)]
    return xr.DataArray(values, {"time": np.asarray(run.times)}, "time")


def theorem1_error(first: xr.Dataset, last: xr.Dataset, temperature=1.0) -> xr.DataArray:
    """Root mean square error over tokens and seeds of Theorem 1, which gives the sum over queries
    of T z, relative to how far that sum has moved between two records."""
    moved = temperature * (last.logits - first.logits).sum("query", min_count=1)
    missed, over = last.conserved - first.conserved, ("token", "seed")
    return np.sqrt((missed**2).mean(over) / (moved**2).mean(over))
