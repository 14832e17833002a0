"""Test of Theorem 2 of Scan and Snap on realistic sequence classes: does z move as predicted?

The theorem describes distinct tokens, which gain, and a single common token, which loses. In text
nearly all tokens are common. The theorem's criterion, however, holds for any token: by Eq. 10, the
drift of the logit of token l for query m is

    z_ml' ~ sum_{n in psi^-1(m)} pi(n) f_nl (f_nl f_n . h_n - h_nl),  h_n = sum_{n' != n} b_nn' f_n'

with b_nn' = gamma_n beta_nn', so l gains if it belongs more to its own classes than to the classes
that overlap them. Distinct tokens have h_nl = 0 and f_n . h_n = xi_n > 0. We test two versions:

- Theorem 1's beta, for the decoder update of Lemma 3; at the start gamma_n ~ pi(n).
- The plain update that training follows [ours]. From Y = Z = 0, to first order in t,
  Y = eta_Y t sum_n pi(n) f_n (e_nu(n) - 1/M)^T and
  g_n = eta_Y t (pi(n) f_n - (1/M) sum_n' pi(n') f_n').
  The part of g_n along f_n drops out, leaving b_nn' = eta_Y t pi(n') / M, which is exact for any
  overlap while alpha is uniform.

All scores compare signs of z(t) - z(0). The baseline predicts the majority sign everywhere.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int8

import dynsim
from dynsim import checks
from dynsim.classes.corpus import Estimate
from dynsim.classes.task import OverlapReport, SequenceClasses, directions, owned
from dynsim.precision import precision
from dynsim.training.rule import Rule
from odes import predictions, yz
from odes.theory import Training
from odes.yz import eq10 as attention
from sweeps.output import aligned

RULES = {
    "theorem-2": "Theorem 2 and Corollary 2, to the letter",
    "owned": "tokens mainly of one class gain, others lose",
    "owned-local": "the same, among classes of one query",
    "eq10-start": "Eq. 10's criterion at the start",
    "flow-start": "criterion of the plain update at the start",
}
"""Rules that need no solver, by name."""


def rules(
    task: SequenceClasses, optimizer: Rule, threshold: float
) -> dict[str, Int8[np.ndarray, "K M"]]:
    """Return the sign of z that each of `RULES` predicts for the query of each class, 0 for tokens
    that the query never sees and without a prediction. "eq10-start" is omitted where Eq. 10 does
    not apply."""
    present = _for_query(task, np.asarray(task.probs) > 0)

    def sign(values: np.ndarray) -> np.ndarray:
        return np.where(present, np.sign(values), 0).astype(np.int8)

    found = {"theorem-2": predictions.sign_of_drift(task)}
    for name, local in (("owned", False), ("owned-local", True)):
        found[name] = sign(np.where(_for_query(task, owned(task, threshold, local)), 1, -1))
    if attention.inapplicable(Training(dynsim.Layer(task), optimizer)) is None:
        found["eq10-start"] = sign(eq10_drift(task))
    found["flow-start"] = sign(plain_drift(task))
    return found


def eq10_drift(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    """Return z' / (eta_Z eta_Y t) by Eq. 10 at zero logits, for the query of each class."""
    with precision("float64"):
        cast = task.astype("float64")
        f = jnp.asarray(directions(task))
        drift = attention.drift(cast, f, jnp.asarray(cast.prior), jnp.asarray(cast.prior))
        return np.asarray(drift.Z)[np.asarray(task.query_index)]


def plain_drift(task: SequenceClasses) -> Float[np.ndarray, "K M"]:
    """Return z' / (eta_Z eta_Y t) as t -> 0 for the query of each class, by the population flow
    from zero weights."""
    f, prior = directions(task), np.asarray(task.prior)
    # Class n's own part of h_n, along f_n, drops out below.
    h = prior @ f / task.M
    along = (f @ h)[:, None]
    return _sum_by_query(task, prior[:, None] * f * (f * along - h))


def _sum_by_query(task: SequenceClasses, values: np.ndarray) -> np.ndarray:
    """Return the sum over the classes of the same query, for each class."""
    rows = np.asarray(task.query_index)
    return (rows[:, None] == rows[None, :]).astype(values.dtype) @ values


def _for_query(task: SequenceClasses, mask: np.ndarray) -> np.ndarray:
    """Return whether any class of the query has the token in its `mask`."""
    return _sum_by_query(task, mask.astype(np.int64)) > 0


THEORIES = {each.name: each for each in yz.THEORIES if each.name in ("eq10", "plain")}
"""Theories whose z(t) also predicts signs, where they apply."""


class Score(NamedTuple):
    """Shares of (class, token) pairs for which a rule is right; NaN if it predicts none.

    Attributes:
        right: (S,) share of the pairs for which the rule makes a prediction.
        weighted: (S,) the same, pairs weighted by pi(n) P(l|n).
        base, base_weighted: (S,) the same for the majority sign of these pairs, in hindsight.
        by_class: (S, K) `right` of each class.
        spoken: share of the pairs for which the rule makes a prediction.
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
        z: (S, K, M) trained attention logits, minus those at the start.
        loss, accuracy: (S,) of training.
        status: status of training, a `dynsim.Status`.
        theory_z: (S, K, M) of each theory that applies.
        missing: the reason for each theory that does not apply.
        signs: (S, K, M) predicted sign of z by each rule and theory, 0 for no prediction.
        top: (K, M) mask of the scored tokens.
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
    """Train the Y/Z layer from zero weights and score every rule on the tokens of each class.

    Args:
        optimizer: `dynsim.sgd` or `dynsim.momentum`.
        steps: number of optimiser steps, >= 2.
        top: number of tokens of each class to score, the most probable ones. A logit belongs to
            a query, so a token counts once for each of the query's classes that have it.
        threshold: threshold of owned tokens, see `dynsim.classes.owned`.
        length, batch: see `dynsim.Layer` and `dynsim.train`; by default, the population loss.
        seed: seed of the sampled data and of the `embedded` weights.
        embedded: settings of `dynsim.QKV`, to train the layer in ordinary parameters instead,
            with the same optimizer; z is then that of the effective layer.

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
        run = dynsim.train(dynsim.Layer(task, length), optimizer, key, **options)
    else:
        run = dynsim.train(dynsim.QKV(task, length, **embedded), optimizer, key, **options)
    z, loss, accuracy = (np.asarray(run.observables[n]) for n in ("z", "loss", "accuracy"))
    z, loss, accuracy = z[1:] - z[0], loss[1:], accuracy[1:]
    theory_z, missing = {}, {}
    for name, theory in THEORIES.items():
        reason = theory.why_not(dynsim.Layer(task), optimizer)
        if reason:
            missing[name] = reason
            continue
        solved = theory.solve(task, optimizer, np.float64(times), record=("z",))
        if int(solved.status) == dynsim.Status.OK:
            theory_z[name] = np.asarray(solved.observables["z"])
        else:
            missing[name] = f"its solve ended as {dynsim.Status(int(solved.status)).name}"
    constant = rules(task, optimizer, threshold)
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
    """Mask the `count` most probable contextual tokens of each class, or all if it has fewer."""
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
    """Score `predicted` signs on the pairs `judged`; no sign is right for an unchanged logit."""
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


def table(
    estimate: Estimate, overlaps: OverlapReport, found: Fates, ordinary: Fates | None = None
) -> str:
    """Tabulate the estimate and how often each rule is right at the end; with `ordinary`, also for
    the layer in ordinary parameters."""
    task, status = estimate.task, dynsim.Status(found.status).name
    lines = [
        f"{task.K} classes of {task.num_queries} queries over {task.M} words, "
        f"{estimate.coverage:.1%} of the windows; contextual words left out: "
        f"{estimate.stop_mass.mean():.0%} as stop words, {estimate.rare_mass.mean():.0%} as rare",
        f"overlap f_n.f_n' of two classes: mean {overlaps.all.mean:.3f}, max "
        f"{overlaps.all.max:.3f}; largest eigenvalue of E {overlaps.spectral:.2f}; beta < 0: "
        f"{overlaps.negative:.0%}",
        f"words: {overlaps.distinct} distinct, {overlaps.common} common, of which "
        f"{overlaps.nearly_distinct} owned (share >= {overlaps.threshold:g}), "
        f"{overlaps.owned_mass.mean():.1%} of a class on average",
        f"training: loss {found.loss[-1]:.4g}, accuracy {found.accuracy[-1]:.3f}, {status}",
    ]
    lines += _scores(found, "top words of each class")
    lines += [f"{title(name)}: {reason}" for name, reason in found.missing.items()]
    rules = [n for n in ("owned", "eq10-start", "flow-start") if n in found.scores]
    rows: list[tuple[str, ...]] = [("right by class", "windows", *rules)]
    for n, (name, windows) in enumerate(zip(estimate.names, estimate.windows, strict=True)):
        shares = (f"{found.scores[rule].by_class[-1, n]:.3f}" for rule in rules)
        rows.append((name, str(windows), *shares))
    lines += ["", *aligned(rows, 28, 9, 12)]
    if ordinary is not None:
        status = dynsim.Status(ordinary.status).name
        lines += [
            "",
            f"training of U, W_Q, W_K, W_V: loss {ordinary.loss[-1]:.4g}, accuracy "
            f"{ordinary.accuracy[-1]:.3f}, {status}",
            *_scores(ordinary, "effective layer"),
        ]
    return "\n".join(lines)


def _scores(found: Fates, what: str) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "speaks of", "right", "base", "weighted", "base")]
    for name, score in found.scores.items():
        over_time = (score.right, score.base, score.weighted, score.base_weighted)
        values = (score.spoken, *(each[-1] for each in over_time))
        rows.append((title(name), *(f"{value:.3f}" for value in values)))
    heading = f"signs of z after {int(found.times[-1])} steps, {what}:"
    return ["", heading, *aligned(rows, 48, 10, 8, 8, 10, 8)]


def title(name: str) -> str:
    """Title of a rule or theory, for tables and legends."""
    titles = {theory.name: f"z(t), {theory.title}" for theory in yz.THEORIES}
    return RULES.get(name) or titles[name]
