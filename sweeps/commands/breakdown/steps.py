"""Where the limit of small steps breaks down: the loss of a theory against descent, and the
sharpness of descent against the edge of stability."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, PRNGKeyArray

import dynsim
from dynsim import Problem, Rule, Status, Trajectory
from dynsim.problem.sharpness import EDGE, check_threshold
from dynsim.training.recording import PRECONDITIONED
from dynsim.trajectory import crossings
from odes.batch_noise import size_of
from odes.theory import error_message
from sweeps.commands.breakdown import MOST_WEIGHTS
from sweeps.systems.base import Row

TIMES, SHARPNESS_WORK = (48, 256), 2**13
"""Limits of the number of steps of descent at which loss and sharpness are measured, and the number
of steps times weights."""
DESCENT_WORK, LEAST_STEPS = 10**7, 1000
"""Maximum of steps times weights of descent, of which at least some steps are made."""
MOST_REFINEMENTS = 6
"""Maximum number of repetitions of descent to find the edge."""
DEVIATION, FACTOR = 0.05, 0.2
"""Distances of the loss of descent from that of a theory above which small steps break down: as a
share of its decrease, and at the end as a share of the loss."""


def against_descent(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray,
    theory: str,
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, " S"],
) -> tuple[Callable[[float], float], list[Row]]:
    """Compare the loss of a theory with that of descent, step by step, and follow the sharpness of
    descent to the edge of stability. Return a function that returns by how much the step at which
    the loss reaches a level differs, NaN if unknown; and rows, first that of the last loss."""
    size = size_of(problem)
    # Times of the theory that are whole steps.
    limit = max(DESCENT_WORK // size, LEAST_STEPS)
    some = np.flatnonzero((times <= limit) & (times == np.rint(times)))
    spaced = dynsim.log_times(int(times[some][-1]), int(np.clip(SHARPNESS_WORK // size, *TIMES)))
    some = some[np.unique(np.searchsorted(times[some], spaced))]
    has_edge = not rule.is_adaptive and not error_message(check_threshold, rule)
    sharp = size <= MOST_WEIGHTS and has_edge

    def descent(at: np.ndarray) -> Trajectory:
        # Without a number of steps, all of these runs have one program.
        record = ["loss", PRECONDITIONED] if sharp else "loss"
        options = {"batch": math.inf, "dtype": "float64", "record": record}
        return dynsim.train(problem, rule, key, steps=None, times=at, **options)

    steps = times[some].astype(int)
    run, theirs = descent(steps), loss[some]
    ours = np.asarray(run["loss"])
    # A solve that failed has no values from some step on.
    solved = np.isfinite(theirs)
    last = int(steps[solved][-1])
    end = Row("loss at the end", float(loss[-1]))
    deviation = Row("deviation of descent, share of the decrease", math.nan, 0.0)
    if int(run.status) != Status.OK:
        worst = int(run.first_bad_step)
        sentence = f"eta -> 0 (all flows): descent at these rates diverges by step {worst}"
        deviation = deviation._replace(strained=sentence, worst=float(worst))
    else:
        distance = np.where(solved, np.abs(ours - theirs), 0.0)
        decrease = np.abs(loss[np.isfinite(loss)] - loss[0]).max()
        share = float(distance.max() / decrease) if decrease else 0.0
        deviation = deviation._replace(prediction=share, worst=float(steps[distance.argmax()]))
        if distance.max() > DEVIATION * decrease:
            percent = f"{100 * share:.2g} % of its decrease, above {100 * DEVIATION:g} %"
            sentence = (
                f"eta -> 0 ({theory}): up to step {last} the loss of descent at these rates "
                f"deviates by up to {percent}"
            )
            deviation = deviation._replace(strained=sentence)
        if some[-1] == len(times) - 1 and solved[-1]:
            end = end._replace(error=float(distance[-1]))
        # A loss that decreases by decades may be off by a factor at its end.
        low, high = sorted(pair := (float(ours[solved][-1]), float(theirs[solved][-1])))
        if not deviation.strained and 0 < (1 + FACTOR) * low < high:
            sentence = (
                f"eta -> 0 ({theory}): at step {last} descent at these rates has a loss of "
                f"{pair[0]:.3g} where the theory has {pair[1]:.3g}"
            )
            end = end._replace(strained=sentence, worst=float(last))

    def step_error(level: float) -> float:
        return float(abs(crossings(steps, ours, level) - crossings(steps, theirs, level)))

    edge = edge_rows(descent, steps, np.asarray(run[PRECONDITIONED])) if sharp else []
    return step_error, [end, deviation, *edge]


def edge_rows(
    descent: Callable[[np.ndarray], Trajectory], steps: np.ndarray, sharpness: np.ndarray
) -> list[Row]:
    """Return rows about the preconditioned sharpness, and solve for the step at which it reaches
    the edge of stability. `descent` is repeated at steps between those that enclose it."""
    # The values before a divergence are valid.
    number, valid = len(steps), np.isfinite(sharpness)
    steps, sharpness = steps[valid], sharpness[valid]
    if not valid[0]:
        return []
    rows = [Row("preconditioned sharpness at the start", float(sharpness[0]), 0.0)]
    crossing = "edge of stability reached at step"
    if (largest := float(sharpness.max())) <= EDGE:
        at = float(steps[sharpness.argmax()])
        rows.append(Row("largest preconditioned sharpness", largest, worst=at))
        return [*rows, Row(crossing, "not reached")]
    if sharpness[0] > EDGE:
        sentence = (
            f"edge of stability (all flows): the run starts beyond it, at a preconditioned "
            f"sharpness of {sharpness[0]:.3g}, above {EDGE:g}: the first steps overshoot; training "
            "catapults or diverges"
        )
        return [*rows, Row(crossing, 0.0, 0.0, sentence, 0.0)]
    # The edge lies in (a, b], which shrinks by the number of steps in it with each repetition.
    successive = False
    for _ in range(MOST_REFINEMENTS):
        first = int(np.argmax(sharpness > EDGE))
        b = int(steps[first])
        a = int(steps[first - 1]) if first else max(b - number + 1, 0)
        if first and successive:
            break
        # As many steps as before, so that the program is the same. At last all of those before the
        # edge, as it may have been crossed for a few steps before.
        successive = b - a < number
        begin = max(b - number + 1, 0)
        steps = np.rint(np.linspace(a, b, number)).astype(int)
        steps = begin + np.arange(number) if successive else steps
        sharpness = np.asarray(descent(steps)[PRECONDITIONED])
    low, high = sharpness[first - 1 : first + 1]
    step = float(a + (EDGE - low) / (high - low))
    sentence = (
        f"edge of stability (all flows but the central one): descent reaches it at step {step:.5g} "
        f"(preconditioned sharpness {EDGE:g}); training then oscillates, moves to flatter weights "
        "or diverges"
    )
    # The step is a whole one; the interpolated time is at most so far from either.
    return [*rows, Row(crossing, step, 0.5, sentence, float(b))]
