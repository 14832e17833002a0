"""Theorem 2 of Scan and Snap on sequence classes that are no ideal: does z move as predicted?

Everything is judged by signs of z(t) - z(0), with the sign that most of the tokens have as the
trivial prediction to beat.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int8

import dynsim
from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from odes import yz
from sweeps.studies.words import rules as text_rules

THEORIES = {each.name: each for each in yz.THEORIES if each.name in ("eq10", "plain")}
"""Theories whose z(t) predicts signs too, where they apply."""


class Score(NamedTuple):
    """Shares of (class, token) pairs for which a rule is right; NaN where it speaks of none.

    Attributes:
        right: (S,) of the pairs that the rule speaks of.
        weighted: (S,) the same, pairs weighted by pi(n) P(l|n).
        base, base_weighted: (S,) what predicting everywhere the more frequent sign achieves on
            these pairs, looked up afterwards.
        by_class: (S, K) `right` of each class.
        spoken: share of the pairs that the rule speaks of.
    """

    right: Float[np.ndarray, " S"]
    weighted: Float[np.ndarray, " S"]
    base: Float[np.ndarray, " S"]
    base_weighted: Float[np.ndarray, " S"]
    by_class: Float[np.ndarray, "S K"]
    spoken: float


@dataclasses.dataclass(frozen=True, eq=False)
class Fates:
    """Trained and predicted fates of the top tokens of each class.

    Attributes:
        times: (S,) optimiser steps, from 2 on: the first step from zero weights moves Y alone.
        z: (S, K, M) trained attention logits, less those of the start.
        loss, accuracy: (S,) of training.
        status: status of training, a `dynsim.Status`.
        theory_z: (S, K, M) of each theory that applies.
        missing: why the others do not.
        signs: (S, K, M) predicted sign of z by each rule and theory, 0 where it is silent.
        top: (K, M) mask of the tokens that are judged.
        scores: scores of each rule and theory.
    """

    times: np.ndarray
    z: Float[np.ndarray, "S K M"]
    loss: Float[np.ndarray, " S"]
    accuracy: Float[np.ndarray, " S"]
    status: int
    theory_z: Mapping[str, Float[np.ndarray, "S K M"]]
    missing: Mapping[str, str]
    signs: Mapping[str, Int8[np.ndarray, "S K M"]]
    top: Bool[np.ndarray, "K M"]
    scores: Mapping[str, Score]


def fates(
    task: SequenceClasses,
    optimizer: Rule,
    *,
    steps: int,
    top: int = 12,
    threshold: float = 0.8,
    length: int | float = math.inf,
    batch: int | float = math.inf,
    seed: int = 0,
    embedded: Mapping[str, Any] | None = None,
) -> Fates:
    """Train the Y/Z layer from zero weights and judge every rule on the tokens of each class.

    Args:
        optimizer: `dynsim.sgd` or `dynsim.momentum`.
        steps: number of optimiser steps, >= 2.
        top: number of tokens of each class to judge, the most probable ones. A logit belongs to
            a query, so a token of several of its classes counts in each.
        threshold: threshold of owned tokens, see `dynsim.classes.owned`.
        length, batch: of `dynsim.layer` and `dynsim.train`; by default full-batch descent on the
            population.
        seed: seed of the data, where they are sampled, and of `embedded` weights.
        embedded: settings of `dynsim.QKV`, the layer in ordinary parameters, to train that
            instead, at the same rates; its z is that of the effective layer.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    checks.integer("steps", steps, 2)
    checks.integer("top", top, 1)
    times = dynsim.log_times(steps)
    times = times[times >= 2]
    options: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "times": np.r_[0, times],
        "record": ("z", "loss", "accuracy"),
        "dtype": "float64",
    }
    key = jax.random.key(seed)
    if embedded is None:
        run = dynsim.train(dynsim.layer(task, length), optimizer, key, **options)
    else:
        run = dynsim.train(dynsim.QKV(task, length, **embedded), optimizer, key, **options)
    z, loss, accuracy = (np.asarray(run.observables[n]) for n in ("z", "loss", "accuracy"))
    z, loss, accuracy = z[1:] - z[0], loss[1:], accuracy[1:]
    theory_z, missing = {}, {}
    for name, theory in THEORIES.items():
        reason = theory.why_not(task, optimizer)
        if reason:
            missing[name] = reason
            continue
        solved = theory.solve(task, optimizer, np.float64(times), record=("z",))
        if int(solved.status) == dynsim.Status.OK:
            theory_z[name] = np.asarray(solved.observables["z"])
        else:
            missing[name] = f"its solve ended as {dynsim.Status(int(solved.status)).name}"
    constant = text_rules.rules(task, optimizer, threshold)
    signs = {name: np.broadcast_to(sign, z.shape) for name, sign in constant.items()}
    signs |= {name: np.sign(values).astype(np.int8) for name, values in theory_z.items()}
    judged = top_tokens(task, top)
    weight = np.asarray(task.prior)[:, None] * np.asarray(task.probs)
    scores = {name: score(np.sign(z), given, judged, weight) for name, given in signs.items()}
    return Fates(
        np.asarray(times),
        z,
        loss,
        accuracy,
        int(run.status),
        theory_z,
        missing,
        signs,
        judged,
        scores,
    )


def top_tokens(task: SequenceClasses, count: int) -> Bool[np.ndarray, "K M"]:
    """Mask of the `count` most probable contextual tokens of each class, or of all it has."""
    probs = np.asarray(task.probs)
    order = np.argsort(-probs, axis=1, kind="stable")[:, :count]
    mask = np.zeros(probs.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask & (probs > 0)


def score(
    actual: Int8[np.ndarray, "S K M"],
    predicted: Int8[np.ndarray, "S K M"],
    judged: Bool[np.ndarray, "K M"],
    weight: Float[np.ndarray, "K M"],
) -> Score:
    """Judge `predicted` signs on the pairs `judged`; a logit that stands still is no one's."""
    spoken = judged & (predicted != 0)
    right = spoken & (actual == predicted)

    def share(mask: np.ndarray, weights: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        total = np.where(spoken, weights, 0).sum(axes)
        part = np.where(mask, weights, 0).sum(axes)
        return np.where(total > 0, part / np.where(total > 0, total, 1), np.nan)

    def base(weights: np.ndarray) -> np.ndarray:
        shares = [share(spoken & (actual == sign), weights, (1, 2)) for sign in (-1, 1)]
        return np.maximum(*shares)

    ones = np.ones_like(weight)
    return Score(
        right=share(right, ones, (1, 2)),
        weighted=share(right, weight, (1, 2)),
        base=base(ones),
        base_weighted=base(weight),
        by_class=share(right, ones, (2,)),
        spoken=float(spoken.sum() / np.broadcast_to(judged, spoken.shape).sum()),
    )
