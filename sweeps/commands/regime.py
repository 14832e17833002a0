"""The state of an attention-layer run at its end, and the assumptions it strains."""

import math

import jax.numpy as jnp
import numpy as np

from dynsim import Rule, Trajectory
from dynsim.classes.task import directions
from odes.solver.posed import Rescaled
from odes.symmetric.state import SymmetricTask
from sweeps.commands.strain import Row
from sweeps.compare.stages import Task, prior_of, stages_by_class

# Thresholds above which an assumption counts as strained. Overlap: gamma's error against the
# population flow exceeds 5 % there (`dynsim validate overlap`). Kick: h* - h (Lemma 7) is a tenth
# of the logit scale. Ratio: Assumption 1(c) of the paper, a decoder faster than attention.
OVERLAP, KICK, RATIO = 0.3, 0.1, 2.0
NOISY = 0.5
"""Distance of the gradient of a batch, as a share of its norm, above which it counts as noisy."""
EQUAL = 1e-6
"""Relative difference of priors that rounding of a table to float32 makes."""
MOVED = 0.05
"""Difference of logits of top distinct and top common token below which attention has not moved;
attention changes by the exponential of it, so by about this fraction."""


def symmetric_noise(task: SymmetricTask, batch: int | float) -> float:
    r"""`batch_noise` of symmetric classes from zero weights, to leading order in 1/T [ours].

    An example of class n contributes :math:`-f_n u_n^T` to the gradient, with
    :math:`u_n = e_n - 1/M` and :math:`|f_n| = 1`, and nothing to that of Z. So the mean square over
    batches of the distance from the mean G is :math:`(1 - 1/M - |G|^2) / B`, and
    :math:`|G|^2 = (1 - 1/M - (K-1)\, f_n \cdot f_{n'} / M) / K`.
    """
    K, M, (overlap, _) = int(task.K), int(task.M), starting_overlap(task)
    mean = (1 - 1 / M - (K - 1) * overlap / M) / K
    return math.sqrt(max(1 - 1 / M - mean, 0) / mean / batch)


def stages_of(task: Task, rule: Rule) -> dict[str, float] | None:
    """Return the closed form's transition times, class averages; None if it does not apply."""
    found = stages_by_class(task, rule)
    return {n: float(np.mean(np.asarray(t))) for n, t in found._asdict().items()} if found else None


def final_of(solved: Trajectory) -> dict[str, float]:
    """Return the last recorded values, averaged over classes."""
    return {name: float(np.mean(np.asarray(v)[-1])) for name, v in solved.observables.items()}


def regime(steps: int, stages: dict[str, float] | None, final: dict[str, float]) -> str | None:
    """Describe the state of a run at its end; None if the closed form does not apply."""
    if stages is None:
        return None
    if steps <= stages["rise_end"]:
        return "scanning at the end"
    # Without a t0 (M <= 3) there is no second stage.
    if not steps >= stages["snap"]:
        return "in transition at the end"
    apart = abs(final["z_top_distinct"] - final["z_top_common"])
    if apart < MOVED:
        return f"decoder learned, attention unmoved: its logits are {apart:.2g} apart"
    return "snapped"


def strained(
    length: int | float, task: Task, rule: Rule, stages: dict[str, float] | None
) -> list[Row]:
    """Return the assumptions that a run strains, in rows."""
    rows = []
    overlap, tokens = starting_overlap(task)
    if overlap > OVERLAP:
        mean = "mean f_n.f_n' at the start"
        reason = f"weak overlap (Theorem 1, Eq. 10): {mean} is {overlap:.2f}, above {OVERLAP}"
        rows.append(Row(mean, overlap, 0.0, reason, 0.0))
    if stages is not None:
        rescaled, prior = Rescaled.of(rule), prior_of(task)
        kick = float(rescaled.rate * rescaled.eta_y) * float(np.max(prior))
        if kick > KICK * math.log(task.M):
            reason = (
                f"eta -> 0 (all flows): a step moves a class's logit by up to {kick:.2g}, above "
                f"{KICK} ln M = {KICK * math.log(task.M):.2g}; gamma peaks after "
                f"{stages['peak']:.2g} steps"
            )
            rows.append(Row("largest change of a logit in a step", kick, 0.0, reason))
        if rescaled.eta_z > 0 and (ratio := float(rescaled.eta_y / rescaled.eta_z)) < RATIO:
            reason = (
                f"decoder faster than attention (Assumption 1c): eta_Y / eta_Z = {ratio:.3g}, "
                f"below {RATIO:g}"
            )
            rows.append(Row("eta_Y / eta_Z", ratio, 0.0, reason))
        if rule.has_inertia:
            reason = "no inertia (closed form, Eq. 10): momentum enters them only as eta / (1 - mu)"
            rows.append(Row("momentum", getattr(rule, "mu", math.nan), 0.0, reason))
        if (uneven := float(np.max(prior) / np.min(prior))) > 1 + EQUAL:
            reason = (
                "equally likely classes (Theorem 1, Theorem 4, and times t / K): priors differ by "
                f"a factor of up to {uneven:.3g}; each class has its own times, with 1 / prior in "
                "place of K, of which the table has the mean"
            )
            rows.append(Row("largest ratio of priors", uneven, 0.0, reason))
    if not math.isinf(length) and length <= 10 * tokens:
        reason = (
            f"T -> infinity (this prediction, and all theories but those of finite T): "
            f"T = {length} tokens sample {tokens} possible ones; `dynsim compare` also "
            "solves the finite-T theories"
        )
        rows.append(Row("T", length, 0.0, reason))
    return rows


def noise_sentences(batch: int | float, share: float) -> list[str]:
    """Return the strained assumptions if the batch gradient is off by `share` of its norm."""
    if share <= NOISY:
        return []
    return [
        f"batch -> infinity (all flows): the gradient of {batch:g} examples at the start is off by "
        f"{share:.2g} of its norm, above {NOISY}; `dynsim compare` also trains on batches"
    ]


def starting_overlap(task: Task) -> tuple[float, int]:
    """Return the mean of f_n . f_n' over pairs of classes at zero weights, and tokens per class."""
    if isinstance(task, SymmetricTask):
        common = float(task.sum_common(jnp.asarray(task.rho) ** 2))
        tokens = task.sum_distinct(jnp.ones(np.shape(task.p))) + task.sum_common(
            jnp.ones(np.shape(task.rho))
        )
        return common / (common + float(task.sum_distinct(jnp.asarray(task.p) ** 2))), int(tokens)
    f = directions(task)
    pairs = (f @ f.T - np.eye(task.K)).sum() / max(task.K * (task.K - 1), 1)
    return float(pairs), task.support.shape[1]
