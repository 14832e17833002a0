"""Checks for `dynsim explain`: which assumptions the steps, learning rates and batch of a run
strain, when its flow reaches the edge of stability, and how far batch noise scatters its loss."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

import odes
from dynsim import Problem, Rule, Status, log_times
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.checks import check_groups, has_population
from dynsim.problem.sharpness import EDGE, check_threshold
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import BATCH_LOSS, PRECONDITIONED
from odes.batch_noise import THEORY, orders, size_of
from odes.solver.flows import checked_flow
from odes.solver.linear_noise import AVERAGE_SQUARES, UNEVEN, last_uneven
from odes.theory import refusal

LARGEST = 300
"""Maximum number of weights for measuring sharpness and, with averages of squares, noise, so that
`explain` answers within seconds."""
TIMES = 16
"""Approximate number of steps of the flow at which to measure the sharpness."""
# Thresholds above which an assumption counts as strained. Curvature: eta lambda = 0.2 along a
# direction, where a step moves the weights 10 % less than the flow does. Apart: distance of the
# loss of descent from that of the flow, as a share of its fall. Factor: the same at the end, as a
# share of the loss. Noise: distance of the gradient of a batch, as a share of its norm.
CURVATURE, APART, FACTOR, NOISY = 0.2, 0.05, 0.2, 0.5
COMPARED = 1000
"""Maximum number of steps over which descent is compared with the flow."""
TURNS = 50
"""Number of power iterations, each a Hessian-vector product."""
FIRST, WORK = 300, 300_000
"""Maximum number of steps to propagate noise, and maximum of steps times weights, so that `explain`
answers within half a minute."""
EXAMPLES, BATCHES_OF, DRAWS = (32, 128), 4, 16
"""Examples per step (in batches, within limits), and noise draws for the next order in 1/B."""
NOTHING = 1e-9
"""Share of the loss below which a standard deviation is rounding error."""
WIDER, MOVED = 1.2, 0.05
"""Linear noise is strained if the next order multiplies the standard deviation by the first number;
a flow, if noise shifts the mean by the second one as a share of the fall."""
BATCHES = 32
"""Number of batches drawn at the start to measure the scatter of squared gradients."""


def too_coarse(
    problem: Problem,
    rule: Rule,
    key: jax.Array,
    steps: int,
    theory: str,
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, " S"],
) -> list[str]:
    """Return the assumptions that the step size strains: by the curvature, and by descent itself,
    whose loss is compared with that of a `theory` at `times`."""
    found = []
    if not rule.is_adaptive:
        size = largest_curvature(problem, rule, key, steps)
        if size > CURVATURE:
            limit = "" if rule.has_inertia else "; descent is unstable above 2"
            found.append(
                f"eta -> 0 (all flows): eta times the largest curvature at the start is {size:.2g},"
                f" above {CURVATURE}{limit}"
            )
    early = times <= COMPARED
    # A checkpointed run may end before its schedule.
    run = odes.descent(problem, rule, times[early], key=key, record="loss", checkpoint=True)
    apart, fall = (np.abs(each).max() for each in (run["loss"] - loss[early], loss - loss[0]))
    over = f"over the first {int(times[early][-1])} steps"
    if int(run.status) != Status.OK:
        found.append(f"eta -> 0 (all flows): {over} descent at these rates diverges")
    elif apart > APART * fall:
        found.append(
            f"eta -> 0 ({theory}): {over} the loss of descent at these rates deviates by up to "
            f"{100 * apart / fall:.2g} % of its decrease, above {100 * APART:g} %"
        )
    else:
        # A loss that falls by decades may be off by a factor at its end.
        mine, other = float(run["loss"][-1]), float(loss[early][-1])
        if min(mine, other) > 0 and abs(math.log(mine / other)) > math.log1p(FACTOR):
            found.append(
                f"eta -> 0 ({theory}): at step {int(times[early][-1])} descent at these rates has "
                f"a loss of {mine:.3g} where the theory has {other:.3g}"
            )
    return found


def too_noisy(problem: Problem, key: jax.Array, steps: int, batch: int | float) -> list[str]:
    """Return the assumptions that the batch size strains."""
    if math.isinf(batch):
        return []
    return noise_sentences(batch, batch_noise(problem, key, steps, int(batch)))


def noise_sentences(batch: int | float, share: float) -> list[str]:
    """Return the strained assumptions if the batch gradient is off by `share` of its norm."""
    if share <= NOISY:
        return []
    return [
        f"batch -> infinity (all flows): the gradient of {batch:g} examples at the start is off by "
        f"{share:.2g} of its norm, above {NOISY}; `dynsim compare` also trains on batches"
    ]


def largest_curvature(problem: Problem, rule: Rule, key: jax.Array, steps: int) -> float:
    """Return the largest eigenvalue of the Hessian of the population loss at the start, times the
    largest learning rates of the run (dimensionless)."""
    with precision("float64"):
        return float(_curvature(problem, rule.astype("float64"), key, steps=steps))


@eqx.filter_jit
def _curvature(problem: Problem, rule: Rule, key: jax.Array, *, steps: int) -> jax.Array:
    parts, cast = started(problem, key, None, "float64"), problem_in(problem, "float64")
    groups = check_groups(cast, rule, parts)
    rates = jax.tree.map(jnp.max, rule.rate(jnp.arange(steps)))
    start, unravel = ravel_pytree(parts.params)
    gradient = jax.grad(lambda flat: cast.population_loss(parts.whole(unravel(flat))))

    def product(vector: jax.Array) -> jax.Array:
        _, bent = jax.jvp(gradient, (start,), (vector,))
        return -ravel_pytree(rule.descend(unravel(bent), rates, groups))[0]

    def dominant(shift: jax.Array | float) -> jax.Array:
        """Return the eigenvalue farthest from -`shift`."""

        def turn(_: int, vector: jax.Array) -> jax.Array:
            turned = product(vector) + shift * vector
            return turned / jnp.linalg.norm(turned)

        vector = jax.random.normal(jax.random.key(0), start.shape, start.dtype)
        vector = jax.lax.fori_loop(0, TURNS, turn, vector / jnp.linalg.norm(vector))
        return vector @ product(vector)

    # At a saddle the eigenvalue farthest from 0 may be negative; the largest is farthest from it.
    return dominant(jnp.abs(dominant(0.0)))


def batch_noise(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Return the relative distance of a batch gradient from the population's, at the start."""
    with precision("float64"):
        return float(_batch_noise(problem, key, steps=steps, batch=batch))


@eqx.filter_jit
def _batch_noise(problem: Problem, key: jax.Array, *, steps: int, batch: int) -> jax.Array:
    cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
    with jax.enable_x64(False):
        data = problem_in(problem, "float32").batches(key, steps, batch)(jnp.int32(0))
    weights = parts.whole(parts.params)
    exact = eqx.filter_grad(cast.population_loss)(weights)
    _, found = cast.loss_and_gradient(weights, narrowed(data, "float64"))
    want, got = (ravel_pytree(gradient)[0] for gradient in (exact, found))
    return jnp.linalg.norm(got - want) / jnp.linalg.norm(want)


@dataclasses.dataclass(frozen=True)
class Reached:
    """The preconditioned sharpness along the flow of all weights; the edge of stability is at 2
    (`dynsim.problem.sharpness`).

    Attributes:
        start: sharpness before the first step.
        largest: largest measured value.
        step: optimiser steps after which it reaches the edge, interpolated linearly; 0 for a run
            that starts above it, NaN for one that stays below.
    """

    start: float
    largest: float
    step: float

    def __str__(self) -> str:
        if self.step == 0:
            return (
                f"The run starts beyond the edge of stability (preconditioned sharpness "
                f"{self.start:.3g}; the edge is {EDGE:g}): the first steps overshoot; training "
                "catapults or diverges."
            )
        if math.isnan(self.step):
            return (
                "The flow stays below the edge of stability: the preconditioned sharpness is at "
                f"most {self.largest:.3g}, the edge is {EDGE:g}."
            )
        return (
            f"The flow reaches the edge of stability at step {self.step:.3g} (preconditioned "
            f"sharpness {EDGE:g}); training then oscillates, moves to flatter weights or diverges."
        )


def reached(problem: Problem, rule: Rule, key: jax.Array, steps: int) -> Reached | None:
    """Return when the flow of a run reaches the edge. Returns None for a problem that is large or
    has no population loss, a rule without an edge or a flow, Adam and RMSProp, whose preconditioner
    is not part of a flow, and a flow that fails before it reaches the edge."""
    if rule.is_adaptive or refusal(check_threshold, rule):
        return None
    if not has_population(problem) or refusal(checked_flow, rule):
        return None
    start = jax.tree.leaves(eqx.filter_eval_shape(problem.init, key))
    weights = [each for each in start if isinstance(each, jax.ShapeDtypeStruct)]
    if sum(each.size for each in weights) > LARGEST:
        return None
    run = odes.flow(problem, rule, log_times(steps, TIMES), key=key, record=PRECONDITIONED)
    sharpness = np.asarray(run[PRECONDITIONED])
    # The values before a failure of the flow are valid.
    valid = np.isfinite(sharpness)
    if not valid[0]:
        return None
    found = of_curve(np.asarray(run.times)[valid], sharpness[valid])
    return None if math.isnan(found.step) and int(run.status) != Status.OK else found


def of_curve(times: np.ndarray, sharpness: np.ndarray) -> Reached:
    """Return the edge on a curve of the preconditioned sharpness."""
    beyond = np.flatnonzero(sharpness > EDGE)
    step = math.nan
    if beyond.size:
        first = beyond[0]
        # From the last point below the edge to the first above it.
        part = slice(max(first - 1, 0), first + 1)
        step = float(np.interp(EDGE, sharpness[part], times[part]))
    return Reached(float(sharpness[0]), float(sharpness.max()), step)


@dataclasses.dataclass(frozen=True)
class Noise:
    """The loss at a step across runs from the same weights, by linear noise and to next order.

    Attributes:
        name: "loss", or "batch_loss" of a problem without a population loss.
        step: number of optimiser steps.
        fall: decrease of the loss up to this step.
        mean: mean loss without noise.
        std: standard deviation across seeds, by linear noise.
        wider: ratio of the standard deviation to next order in 1/B to `std`.
        moved: shift of the mean by noise.
    """

    name: str
    step: int
    fall: float
    mean: float
    std: float
    wider: float
    moved: float

    def __str__(self) -> str:
        share = f", {100 * self.std / abs(self.fall):.2g} % of the fall" if self.fall else ""
        return (
            f"Linear noise: at step {self.step} {self.name} is {self.mean:.4g} with a standard "
            f"deviation of {self.std:.2g} across seeds{share}. Noise moves the mean by "
            f"{self.moved:.2g}."
        )

    @property
    def strained(self) -> list[str]:
        """Return the assumptions that the noise strains, one sentence each."""
        found = []
        if not self.wider <= WIDER:
            found.append(
                f"linear noise (standard deviations across seeds): at step {self.step} the next "
                f"order in 1/B makes that of the loss {self.wider:.2g} times as large, above "
                f"{WIDER}; pass draws to odes.linear_noise"
            )
        if abs(self.moved) > MOVED * abs(self.fall):
            found.append(
                f"batch -> infinity (all flows): at step {self.step} noise moves the mean of the "
                f"loss by {self.moved:.2g}, above {100 * MOVED:g} % of its fall"
            )
        return found


def measured(
    problem: Problem, rule: Rule, key: jax.Array, steps: int, batch: int | float
) -> Noise | None:
    """Predict the noise of a run over its first steps. Returns None for problems or rules that
    linear noise does not describe, large problems, and runs that diverge."""
    if THEORY.why_not(problem, rule, batch, steps):
        return None
    size = size_of(problem)
    # Averages of squares need the gradients of all examples, which take ten times as long.
    if size > LARGEST and isinstance(rule, AVERAGE_SQUARES):
        return None
    end = min(steps, FIRST, max(WORK // size, 1))
    name = "loss" if problem.has("population_loss") else BATCH_LOSS
    examples = int(np.clip(BATCHES_OF * batch, *EXAMPLES))
    linear, second = orders(
        *(problem, rule, [0, end], batch, key),
        record=name,
        steps=(0, end),
        starts=1,
        examples=examples,
        squares=True,
        passes=2,
        draws=DRAWS,
    )
    if int(linear.status) != Status.OK:
        return None
    loss = np.asarray(linear[name], np.float64)
    std, whole = (float(each.std[name][-1]) for each in (linear, second))
    some = whole > NOTHING * np.abs(loss).max()
    return Noise(
        name,
        end,
        float(loss[0] - loss[-1]),
        float(loss[-1]),
        std,
        (whole / std if std else math.inf) if some else 1.0,
        float(second[name][-1] - loss[-1]),
    )


def few_squares(
    problem: Problem, rule: Rule, key: jax.Array, steps: int, batch: int | float
) -> list[str]:
    """Return the step up to which the average of squares in Adam or RMSProp has so few terms that
    linear noise is strained."""
    if not isinstance(rule, AVERAGE_SQUARES) or THEORY.why_not(problem, rule, batch, steps):
        return []
    last = last_uneven(variance_of_squares(problem, key, steps, int(batch)), float(rule.b2), steps)
    if not last:
        return []
    return [
        f"linear noise (standard deviations across seeds): up to step {last} the average square of "
        f"{rule.name} has varied by more than {100 * math.sqrt(UNEVEN):.0f} % across seeds; expect "
        "errors above 5 %"
    ]


def variance_of_squares(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Return the relative variance of the squared batch gradient at the start, a mean over
    weights."""
    with precision("float64"):
        cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
        drawn = jax.jit(problem_in(problem, "float32").batches(key, steps, batch))
        weights = parts.whole(parts.params)

        @eqx.filter_jit
        def gradient(data: PyTree) -> Float[Array, " n"]:
            return ravel_pytree(cast.loss_and_gradient(weights, data)[1])[0]

        # One at a time, as a batch may fill the memory.
        found = []
        for k in range(BATCHES):
            with jax.enable_x64(False):
                data = drawn(jnp.int32(k))
            found.append(np.asarray(gradient(narrowed(data, "float64"))))
    squares = np.square(found)
    mean, variance = squares.mean(axis=0), squares.var(axis=0, ddof=1)
    # Weights whose gradient vanishes do not move.
    moving = mean > 0
    return float(np.mean(variance[moving] / mean[moving] ** 2)) if moving.any() else 0.0
