"""The rows of `dynsim explain` that only the attention layer in Y and Z has: its exact descent, the
transition times of the closed form, the state at the end, and the assumptions that break down. This
module avoids importing xarray."""

import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

import dynsim
from dynsim import Ratio, Rule, Trajectory, checks
from dynsim.classes.overlap import directions
from odes import decoder, symmetric
from odes.solver.posed import Rescaled, why_not_described
from odes.symmetric.solve import inapplicable
from odes.symmetric.state import SymmetricTask
from odes.theory import Training
from odes.yz import population
from sweeps.systems.base import Prediction, Row
from sweeps.systems.experiment import Experiment
from sweeps.systems.reduction import classes_of

AnyTask = dynsim.SequenceClasses | SymmetricTask

RECORD = ("loss", "accuracy", "entropy", "z_top_distinct", "z_top_common", "speed")
TIMES = 64
"""Number of recorded times."""
DESCENT_STEPS = 100_000
"""Maximum number of steps to solve descent of a symmetric task, which is exact for any rate."""
# Thresholds above which an assumption breaks down. Overlap: gamma's error against the
# population flow exceeds 5 % there (`make tables TABLES=eq10`). Kick: h* - h (Lemma 7) is a tenth
# of the logit scale. Ratio: Assumption 1(c) of the paper, a decoder faster than attention.
OVERLAP, KICK, RATIO = 0.3, 0.1, 2.0
EQUAL = 1e-6
"""Relative difference of priors that rounding of a table to float32 makes."""
MOVED = 0.05
"""Difference of logits of top distinct and top common token below which attention has not moved;
attention changes by the exponential of it, so by about this fraction."""


def check_moves(run: Experiment) -> None:
    """Raise `ValueError` for an attention layer whose zero weights would not move."""
    schedules = run.rule.build().of_groups("Y", "Z").schedules
    if "Y" in schedules and schedules["Y"].peak == 0:
        setting = "ratio" if isinstance(getattr(run.rule, "eta", None), Ratio) else "eta_y"
        raise ValueError(f"{setting} = 0: nothing moves from zero weights; must be positive")


def predict(run: Experiment) -> Prediction:
    """Solve the layer at T, batch -> infinity: by descent of the symmetric reduction, or by a flow
    for very many steps or a task without symmetry."""
    steps, rule, start = checks.steps("steps", run.steps), run.rule.build(), run.bare.start
    if start != "zero":
        raise ValueError(f"start = {start!r}: the prediction starts from zero weights")
    check_moves(run)
    task, times = classes_of(run), dynsim.log_times(steps, TIMES)
    sizes = f"K = {int(task.K)}, M = {int(task.M)}"
    if isinstance(task, SymmetricTask):
        training, reduced = Training(task, rule, steps=steps), task
    else:
        layer = dynsim.Layer(task, length=math.inf, start="zero")
        training = Training(layer, rule, steps=steps)
        if inapplicable(training) is not None:
            solved = population.solve(task, rule, times, record=RECORD)
            return Prediction("population flow", training, solved, sizes)
        reduced = symmetric.symmetric_task(task)
    if steps > DESCENT_STEPS:
        solved = symmetric.solve(reduced, rule, times, record=RECORD)
        return Prediction("symmetric reduction, flow", training, solved, sizes)
    solved = symmetric.descend(reduced, rule, steps=steps, times=times, record=RECORD)
    return Prediction("symmetric reduction, step by step", training, solved, sizes, exact=True)


def rows(run: Experiment, prediction: Prediction) -> Iterator[Row]:
    """Yield transition times, the values at the end, and the assumptions that break down."""
    problem, rule = prediction.training.problem, prediction.training.rule
    task = problem.classes if isinstance(problem, dynsim.Layer) else problem
    stages, final = stages_of(task, rule), final_of(prediction.solved)
    if stages:
        yield Row("gamma peaks at step", stages["peak"])
        yield Row("gamma at its peak", stages["peak_gamma"])
        yield Row("rise ends about step (t0')", stages["rise_end"])
        yield Row("decay begins about step (t0)", stages["snap"])
        yield Row("regime", regime(prediction.training.steps, stages, final) or "")
    final["effective_tokens"] = math.exp(final["entropy"])
    for name, value in final.items():
        if name != "loss":
            yield Row(f"{name} at the end", value, 0.0 if prediction.exact else math.nan)
    yield from broken_assumptions(run.bare.length, task, rule, stages)


def stages_of(task: AnyTask, rule: Rule) -> dict[str, float] | None:
    """Return the closed form's transition times, averaged over classes; None if it does not
    apply."""
    # A time may be after the end of the run, where a user's function of the step has no rate.
    scaled = all(schedule.is_scaled for schedule in rule.schedules.values())
    if not scaled or why_not_described(rule, "the closed form") is not None:
        return None
    rescaled = Rescaled.of(rule)
    rate = rescaled.rate * rescaled.eta_y
    # A class of probability 1 / K has the times of K equally likely ones.
    stages = decoder.stages(rate, 1 / prior_of(task), task.M).at(rescaled.steps_at)
    return {name: float(np.mean(np.asarray(time))) for name, time in stages._asdict().items()}


def prior_of(task: AnyTask) -> np.ndarray:
    """Return the (K,) prior of the classes; of one class for a reduced task, whose classes are
    alike."""
    return np.ones(1) / int(task.K) if isinstance(task, SymmetricTask) else np.asarray(task.prior)


def final_of(solved: Trajectory) -> dict[str, float]:
    """Return the last recorded values, averaged over classes."""
    return {name: float(np.mean(np.asarray(v)[-1])) for name, v in solved.observables.items()}


def regime(
    steps: int | None, stages: dict[str, float] | None, final: dict[str, float]
) -> str | None:
    """Describe the state of a run at its end; None if the closed form does not apply."""
    if stages is None or steps is None:
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


def broken_assumptions(
    length: int | float, task: AnyTask, rule: Rule, stages: dict[str, float] | None
) -> Iterator[Row]:
    """Yield the assumptions that break down in a run."""
    overlap, tokens = starting_overlap(task)
    if overlap > OVERLAP:
        mean = "mean f_n.f_n' at the start"
        reason = f"weak overlap (Theorem 1, Eq. 10): {mean} is {overlap:.2f}, above {OVERLAP}"
        yield Row(mean, overlap, 0.0, reason, 0.0)
    if stages is not None:
        rescaled, prior = Rescaled.of(rule), prior_of(task)
        kick = float(rescaled.rate * rescaled.eta_y) * float(np.max(prior))
        if kick > KICK * math.log(task.M):
            reason = (
                f"eta -> 0 (all flows): a step moves a class's logit by up to {kick:.2g}, above "
                f"{KICK} ln M = {KICK * math.log(task.M):.2g}; gamma peaks after "
                f"{stages['peak']:.2g} steps"
            )
            yield Row("largest change of a logit in a step", kick, 0.0, reason)
        ratio = float(rescaled.eta_y / rescaled.eta_z) if rescaled.eta_z > 0 else math.inf
        if ratio < RATIO:
            reason = (
                f"decoder faster than attention (Assumption 1c): eta_Y / eta_Z = {ratio:.3g}, "
                f"below {RATIO:g}"
            )
            yield Row("eta_Y / eta_Z", ratio, 0.0, reason)
        if rule.has_inertia:
            reason = "no inertia (closed form, Eq. 10): momentum enters them only as eta / (1 - mu)"
            yield Row("momentum", getattr(rule, "mu", math.nan), 0.0, reason)
        uneven = float(np.max(prior) / np.min(prior))
        if uneven > 1 + EQUAL:
            reason = (
                "equally likely classes (Theorem 1, Theorem 4, and times t / K): priors differ by "
                f"a factor of up to {uneven:.3g}; each class has its own times, with 1 / prior in "
                "place of K, of which the table has the mean"
            )
            yield Row("largest ratio of priors", uneven, 0.0, reason)
    if not math.isinf(length) and length <= 10 * tokens:
        reason = (
            f"T -> infinity (this prediction, and all theories but those of finite T): "
            f"T = {length} tokens sample {tokens} possible ones; `dynsim compare` also "
            "solves the finite-T theories"
        )
        yield Row("T", length, 0.0, reason)


def starting_overlap(task: AnyTask) -> tuple[float, int]:
    """Return the mean of f_n . f_n' over pairs of classes at zero weights, and tokens per class."""
    if isinstance(task, SymmetricTask):
        # f_n . f_n' = sum rho^2 / (sum p^2 + sum rho^2): classes share their common tokens alone.
        p, rho = jnp.asarray(task.p), jnp.asarray(task.rho)
        distinct, common = float(task.sum_distinct(p**2)), float(task.sum_common(rho**2))
        tokens = task.sum_distinct(jnp.ones(p.shape)) + task.sum_common(jnp.ones(rho.shape))
        return common / (common + distinct), int(tokens)
    f = directions(task)
    pairs = (f @ f.T - np.eye(task.K)).sum() / max(task.K * (task.K - 1), 1)
    return float(pairs), task.support.shape[1]
