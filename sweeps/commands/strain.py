"""Checks for `dynsim explain`: rows that compare theories with descent, up to the edge."""

import dataclasses
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
from odes.theory import refusal

LARGEST = 300
"""Maximum number of weights for measuring sharpness, so that `explain` answers within seconds."""
TIMES, SHARP = (48, 256), 2**13
"""Limits of the number of steps of descent at which loss and sharpness are measured, and the number
of steps times weights."""
DESCENT = 10**7
"""Maximum of steps times weights of descent, of which at least `FEWEST` steps are made."""
FEWEST = 1000
REFINED = 6
"""Maximum number of repetitions of descent to find the edge; three suffice for 1e5 steps."""
APART, FACTOR = 0.05, 0.2
"""Distances of the loss of descent from that of a theory above which small steps are strained: as a
share of its fall, and at the end as a share of the loss."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table of `explain`.

    Attributes:
        quantity: what is predicted.
        prediction: its value; NaN if it has none.
        error: estimated error of the prediction, 0 if it is exact, NaN if unknown.
        strained: the assumption that is strained, the theories that make it, and by how much; empty
            if none is.
        worst: optimiser step at which it is most strained, NaN if it is so in the whole run.
    """

    quantity: str
    prediction: float | str
    error: float = math.nan
    strained: str = ""
    worst: float = math.nan


def against_descent(
    problem: Problem,
    rule: Rule,
    key: PRNGKeyArray,
    theory: str,
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, " S"],
) -> tuple[Callable[[float], float], list[Row]]:
    """Compare the loss of a theory with that of descent, step by step, and follow the sharpness of
    descent to the edge of stability.

    Returns:
        A function that returns by how much the step at which the loss reaches a level differs, NaN
        if unknown; and rows, first that of the loss at the last step.
    """
    size = size_of(problem)
    begun = times <= max(DESCENT // size, FEWEST)
    # Times of the theory that are whole steps.
    some = np.flatnonzero(begun & (times == np.rint(times)))
    spaced = dynsim.log_times(int(times[some][-1]), int(np.clip(SHARP // size, *TIMES)))
    some = some[np.unique(np.searchsorted(times[some], spaced))]
    stable = size <= LARGEST and not rule.is_adaptive and not refusal(check_threshold, rule)

    def descent(at: np.ndarray) -> Trajectory:
        # Without a number of steps, all of these runs have one program.
        return dynsim.train(
            *(problem, rule, key),
            steps=None,
            times=at,
            batch=math.inf,
            dtype="float64",
            record=["loss", PRECONDITIONED] if stable else "loss",
        )

    steps = times[some].astype(int)
    run, theirs = descent(steps), loss[some]
    mine = np.asarray(run["loss"])
    # A solve that failed has no values from some step on.
    solved = np.isfinite(theirs)
    last = int(steps[solved][-1])
    sentence, worst, share = "", math.nan, math.nan
    rows, end = [], Row("loss at the end", float(loss[-1]))
    if int(run.status) != Status.OK:
        worst = float(run.first_bad_step)
        sentence = f"eta -> 0 (all flows): descent at these rates diverges by step {worst:g}"
    else:
        distance = np.where(solved, np.abs(mine - theirs), 0.0)
        fall = np.abs(loss[np.isfinite(loss)] - loss[0]).max()
        share, worst = float(distance.max() / fall) if fall else 0.0, steps[distance.argmax()]
        if distance.max() > APART * fall:
            sentence = (
                f"eta -> 0 ({theory}): up to step {last} the loss of descent at these rates "
                f"deviates by up to {100 * share:.2g} % of its decrease, above {100 * APART:g} %"
            )
        if some[-1] == len(times) - 1 and solved[-1]:
            end = dataclasses.replace(end, error=float(distance[-1]))
        # A loss that falls by decades may be off by a factor at its end.
        ours, other = float(mine[solved][-1]), float(theirs[solved][-1])
        if not sentence and 0 < (1 + FACTOR) * min(ours, other) < max(ours, other):
            strained = (
                f"eta -> 0 ({theory}): at step {last} descent at these rates has a loss of "
                f"{ours:.3g} where the theory has {other:.3g}"
            )
            end = dataclasses.replace(end, strained=strained, worst=float(last))
    rows.append(Row("deviation of descent, share of the fall", share, 0.0, sentence, float(worst)))
    if stable:
        rows += edge(descent, steps, np.asarray(run[PRECONDITIONED]))

    def apart(level: float) -> float:
        return float(abs(crossings(steps, mine, level) - crossings(steps, theirs, level)))

    return apart, [end, *rows]


def edge(
    descent: Callable[[np.ndarray], Trajectory], steps: np.ndarray, sharpness: np.ndarray
) -> list[Row]:
    """Return rows about the preconditioned sharpness, and solve for the step at which it reaches
    the edge of stability. `descent` is repeated at steps between those that enclose it."""
    # The values before a divergence are valid.
    valid = np.isfinite(sharpness)
    steps, sharpness = steps[valid], sharpness[valid]
    if not valid[0]:
        return []
    rows = [Row("preconditioned sharpness at the start", float(sharpness[0]), 0.0)]
    beyond = sharpness > EDGE
    if not beyond.any():
        at = float(steps[sharpness.argmax()])
        rows.append(Row("largest preconditioned sharpness", float(sharpness.max()), worst=at))
        return [*rows, Row("edge of stability reached at step", "not reached")]
    if beyond[0]:
        sentence = (
            f"edge of stability (all flows): the run starts beyond it, at a preconditioned "
            f"sharpness of {sharpness[0]:.3g}, above {EDGE:g}: the first steps overshoot; training "
            "catapults or diverges"
        )
        return [*rows, Row("edge of stability reached at step", 0.0, 0.0, sentence, 0.0)]
    number, successive = len(valid), False
    for _ in range(REFINED):
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
    return [*rows, Row("edge of stability reached at step", step, 0.5, sentence, float(b))]
