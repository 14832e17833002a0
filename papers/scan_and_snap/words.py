"""Criteria for the words that attention comes to favour, and how often they are right.

Theorem 2 describes distinct tokens, which gain, and a single common one, which loses. In text
nearly all tokens are common. But its criterion, the sign of the drift of z at the start, holds for
any token: for Eq. 10, with the decoder update of Lemma 3, and for the plain update of training.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import dynsim
import odes

TITLES = {
    "theorem-2": "Theorem 2 and Corollary 2, to the letter",
    "owned": "tokens mainly of one class gain, others lose",
    "owned-local": "the same, among classes of one query",
    "eq10-start": "Eq. 10's criterion at the start",
    "flow-start": "criterion of the plain update at the start",
    "plain": "z(t), population flow",
    "eq10": "z(t), Eq. 10, time of SGD",
}
"""Criteria and theories that predict signs of z."""
OWNED = 0.8
"""Smallest share of a token's occurrences with which a class owns it."""


class Fates(NamedTuple):
    """Logits z (time, class, token) of the query of each class, minus those at the start, at steps
    from 2 on: the first step from zero weights moves Y alone. The `run` that gave them; z of each
    `theory` that applies, and why others are `missing`; the `signs` of each criterion and theory, 0
    for no prediction, and their `scores` on the most probable tokens, the mask `top`."""

    z: xr.DataArray
    run: dynsim.Trajectory
    theory: dict[str, xr.DataArray]
    missing: dict[str, str]
    signs: dict[str, xr.DataArray]
    top: xr.DataArray
    scores: dict[str, xr.Dataset]


def fates(
    problem: dynsim.Problem, task: dynsim.SequenceClasses, rule: dynsim.Rule, steps: int, top: int
) -> Fates:
    """Train a layer on a task by full-batch descent, and score every criterion on the `top` tokens
    of each class."""
    times = dynsim.log_times(steps)
    times = times[times >= 2]  # z does not move in the first step
    options = {"steps": steps, "batch": math.inf, "record": ["z", "loss", "accuracy"]}
    options |= {"times": np.r_[0, times], "dtype": "float64"}
    run = dynsim.train(problem, rule, jax.random.key(0), **options)
    layer, theory, missing = dynsim.Layer(task), {}, {}
    along, dims = {"time": times}, ("time", "class", "token")
    z = xr.DataArray(np.asarray(run["z"])[1:] - np.asarray(run["z"])[0], along, dims)
    for name in ("plain", "eq10"):
        if not (why := odes.theories(layer)[name].why_not(layer, rule)):
            solved = odes.theories(layer)[name].solve(layer, rule, times, record=["z"])
            theory[name] = xr.DataArray(np.asarray(solved["z"]), along, dims)
            why = (
                "" if solved.ok else f"its solve ended as {dynsim.Status(int(solved.status)).name}"
            )
        missing |= {name: why} if why else {}
    theory = {name: each for name, each in theory.items() if name not in missing}
    start = criteria(task, "eq10" in theory)
    signs = {n: xr.DataArray(s, dims=dims[1:]).broadcast_like(z) for n, s in start.items()}
    signs |= {name: np.sign(each).astype(np.int8) for name, each in theory.items()}
    probs = xr.DataArray(np.asarray(task.probs), dims=dims[1:])
    rank = np.argsort(np.argsort(-probs.values, axis=1, kind="stable"), axis=1)
    judged = (probs > 0) & (rank < top)  # of equally probable tokens, the first
    weight = probs * xr.DataArray(np.asarray(task.prior), dims="class")
    actual = (z > 0).astype(int) - (z < 0)
    scores = {name: score(actual, each, judged, weight) for name, each in signs.items()}
    return Fates(z, run, theory, missing, signs, judged, scores)


def criteria(task: dynsim.SequenceClasses, eq10: bool) -> dict[str, np.ndarray]:
    """The sign (K, M) of z that each criterion predicts for the query of each class; 0 for tokens
    that the query never sees and without a prediction. Eq. 10's needs independent classes."""
    rows, probs = np.asarray(task.query_index), np.asarray(task.probs)

    def of_query(mask: np.ndarray) -> np.ndarray:
        return ((rows[:, None] == rows).astype(int) @ mask) > 0

    drifts = {
        name: 2.0 * of_query(dynsim.classes.owned(task, OWNED, local)) - 1
        for name, local in (("owned", False), ("owned-local", True))
    }
    if eq10:
        with jax.enable_x64(True):
            f = jnp.asarray(probs / np.linalg.norm(probs, axis=1, keepdims=True), float)
            prior = jnp.asarray(task.prior, float)
            drift = odes.eq10.drift(task.astype("float64"), f, prior, prior)
        drifts["eq10-start"] = np.asarray(drift.Z)[rows]  # of the query of each class
    drifts["flow-start"] = odes.predictions.drift_at_start(task)
    present = of_query(probs > 0)
    signs = {name: np.sign(each * present).astype(np.int8) for name, each in drifts.items()}
    return {"theorem-2": odes.predictions.sign_of_drift(task), **signs}


def score(
    actual: xr.DataArray, predicted: xr.DataArray, judged: xr.DataArray, weight: xr.DataArray
) -> xr.Dataset:
    """How often signs are right over time, among the `judged` pairs of class and token with a
    prediction: the share of pairs, also by `weight`, and for the more frequent sign in hindsight
    (`base`), the share in each class, and the share of pairs with a prediction."""
    spoken, pairs = judged & (predicted != 0), ("class", "token")
    right = (actual == predicted).astype(float).where(spoken)
    signs = xr.concat([(actual == sign).astype(float).where(spoken) for sign in (-1, 1)], "sign")
    shares = {"right": right.mean(pairs), "base": signs.mean(pairs).max("sign")}
    shares["weighted"] = right.weighted(weight).mean(pairs)
    shares["base_weighted"] = signs.weighted(weight).mean(pairs).max("sign")
    shares["spoken"] = spoken.sum() / judged.broadcast_like(spoken).sum()
    return xr.Dataset({**shares, "by_class": right.mean("token")})
