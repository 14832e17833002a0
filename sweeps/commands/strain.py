"""The tests of a prediction by `dynsim explain`: its loss against descent, up to the edge of
stability, and linear noise against short trainings."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import dynsim
import odes
from dynsim import Problem, Rule, Status, Trajectory
from dynsim.compiling import call_compiled
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.checks import flow_table, has_population, measured
from dynsim.problem.sharpness import EDGE, check_threshold
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import BATCH_LOSS, PRECONDITIONED
from dynsim.trajectory import crossings
from odes.batch_noise import size_of
from odes.solver.linear_noise import AVERAGE_SQUARES, UNEVEN, last_uneven
from odes.theory import error_message
from sweeps.systems.base import Row

LARGEST = 300
"""Maximum number of weights for measuring sharpness, and for averages of squares if the mean is
known without: they need the gradients of all examples."""
TIMES, SHARP = (48, 256), 2**13
"""Limits of the number of steps of descent at which loss and sharpness are measured, and the number
of steps times weights."""
DESCENT, FEWEST = 10**7, 1000
"""Maximum of steps times weights of descent, of which at least some steps are made."""
REFINED = 6
"""Maximum number of repetitions of descent to find the edge."""
APART, FACTOR = 0.05, 0.2
"""Distances of the loss of descent from that of a theory above which small steps are strained: as a
share of its fall, and at the end as a share of the loss."""

WIDER, MOVED, SURE = 1.2, 0.05, 3.0
"""Linear noise is strained if a standard deviation differs from the predicted one by this factor,
and means if noise shifts them by this share of their change, where both also exceed their standard
error by the third number."""
PASSES, MEANS, LATEST = 10, 256, 64
"""Numbers of times at which noise is tested, and at which a mean loss is estimated; and share of
the run after which the first test is. Before, too few examples have been seen."""
RUNS, EXAMPLES, KNOWN, HELD_OUT, NUMBERS = (32, 128), (128, 4096), 512, (512, 2**14), 16
"""Limits of the number of runs, of examples per step, the most of these if the mean need not be
estimated, limits of fresh examples for a mean loss; maximum total size of tested observables."""
GROUPS, GROUPED = 16, "loss of groups"
"""Number of groups of fresh examples, between which a mean loss differs by its sampling error, and
the name of their means."""
WORK, LEAST, AT_ONCE, PASSED = 2e9, 2e5, 2**23, 2**26
"""Approximate number of operations for noise, the least one of a step, that of all batches of a
step, and that of the fresh examples. Runs and examples are fewer for long runs; the longest are
tested up to an earlier step."""
NOTHING = 1e-9
"""Share of the largest value below which differences are rounding errors."""
BATCHES = 32
"""Number of batches drawn at the start to measure the scatter of squared gradients."""


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
    some = np.flatnonzero((times <= max(DESCENT // size, FEWEST)) & (times == np.rint(times)))
    spaced = dynsim.log_times(int(times[some][-1]), int(np.clip(SHARP // size, *TIMES)))
    some = some[np.unique(np.searchsorted(times[some], spaced))]
    stable = size <= LARGEST and not rule.is_adaptive and not error_message(check_threshold, rule)

    def descent(at: np.ndarray) -> Trajectory:
        # Without a number of steps, all of these runs have one program.
        record = ["loss", PRECONDITIONED] if stable else "loss"
        options = {"batch": math.inf, "dtype": "float64", "record": record}
        return dynsim.train(problem, rule, key, steps=None, times=at, **options)

    steps = times[some].astype(int)
    run, theirs = descent(steps), loss[some]
    mine = np.asarray(run["loss"])
    # A solve that failed has no values from some step on.
    solved = np.isfinite(theirs)
    last = int(steps[solved][-1])
    end = Row("loss at the end", float(loss[-1]))
    far = Row("deviation of descent, share of the fall", math.nan, 0.0)
    if int(run.status) != Status.OK:
        worst = int(run.first_bad_step)
        sentence = f"eta -> 0 (all flows): descent at these rates diverges by step {worst}"
        far = far._replace(strained=sentence, worst=float(worst))
    else:
        distance = np.where(solved, np.abs(mine - theirs), 0.0)
        fall = np.abs(loss[np.isfinite(loss)] - loss[0]).max()
        share = float(distance.max() / fall) if fall else 0.0
        far = far._replace(prediction=share, worst=float(steps[distance.argmax()]))
        if distance.max() > APART * fall:
            sentence = (
                f"eta -> 0 ({theory}): up to step {last} the loss of descent at these rates "
                f"deviates by up to {100 * share:.2g} % of its decrease, above {100 * APART:g} %"
            )
            far = far._replace(strained=sentence)
        if some[-1] == len(times) - 1 and solved[-1]:
            end = end._replace(error=float(distance[-1]))
        # A loss that falls by decades may be off by a factor at its end.
        ours, other = float(mine[solved][-1]), float(theirs[solved][-1])
        if not far.strained and 0 < (1 + FACTOR) * min(ours, other) < max(ours, other):
            sentence = (
                f"eta -> 0 ({theory}): at step {last} descent at these rates has a loss of "
                f"{ours:.3g} where the theory has {other:.3g}"
            )
            end = end._replace(strained=sentence, worst=float(last))

    def apart(level: float) -> float:
        return float(abs(crossings(steps, mine, level) - crossings(steps, theirs, level)))

    sharp = edge(descent, steps, np.asarray(run[PRECONDITIONED])) if stable else []
    return apart, [end, far, *sharp]


def edge(
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
    reached = "edge of stability reached at step"
    if (largest := float(sharpness.max())) <= EDGE:
        at = float(steps[sharpness.argmax()])
        rows.append(Row("largest preconditioned sharpness", largest, worst=at))
        return [*rows, Row(reached, "not reached")]
    if sharpness[0] > EDGE:
        sentence = (
            f"edge of stability (all flows): the run starts beyond it, at a preconditioned "
            f"sharpness of {sharpness[0]:.3g}, above {EDGE:g}: the first steps overshoot; training "
            "catapults or diverges"
        )
        return [*rows, Row(reached, 0.0, 0.0, sentence, 0.0)]
    successive = False
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
    return [*rows, Row(reached, step, 0.5, sentence, float(b))]


def _inner(name: str) -> Any:
    return lambda self, *given: getattr(self.problem, name)(*given)


class HeldOut(Problem):
    """A problem without a population loss, with the mean loss of fresh examples as an observable.
    They are the same at all times, so that their sampling error hides no change."""

    problem: Problem
    data: PyTree

    init, draw, batches, loss = map(_inner, ("init", "draw", "batches", "loss"))
    groups, is_frozen = map(_inner, ("groups", "is_frozen"))
    divergence_limit, allows_nonfinite = map(_inner, ("divergence_limit", "allows_nonfinite"))

    def observables(self) -> Mapping[str, Callable[..., Array]]:
        def own(function: Callable[..., Array]) -> Callable[..., Array]:
            return lambda self, params: function(*self.problem.snapshot(params))

        found = {name: own(function) for name, function in self.problem.observables().items()}
        return {"loss": lambda self, params: self.problem.loss(params, self.data), **found}

    def losses(self, params: PyTree) -> Float[Array, " E"]:
        """Return the loss of each of the examples."""
        one = lambda x: self.problem.loss(params, jax.tree.map(lambda leaf: leaf[None], x))  # noqa: E731
        return jax.vmap(one)(self.data)

    def by_group(self, params: PyTree) -> Float[Array, " G"]:
        """Return the mean loss of each group of examples."""
        return jnp.mean(self.losses(params).reshape(GROUPS, -1), axis=1)


_started = eqx.filter_jit(started)


def noise(
    problem: Problem, rule: Rule, key: PRNGKeyArray, steps: int, batch: int
) -> tuple[list[Row], str, Trajectory | None]:
    """Predict standard deviations across seeds by linear noise, and compare them and the means with
    those of short trainings from the same weights, at several times of the whole run.

    Returns:
        Rows; what linear noise was compared with; and descent of a problem without a population
        loss, with the mean loss of fresh examples, its standard error due to other examples, and
        the means `GROUPED`.
    """
    known, size = has_population(problem), max(size_of(problem), 1)
    if known and size > LARGEST and isinstance(rule, AVERAGE_SQUARES):
        return [], "", None
    few = few_squares(problem, rule, key, steps, batch)
    # In one program: an orthogonal start alone takes many.
    weights = call_compiled(_started, problem, key, None, "float64")
    whole = weights.combine(weights.params)
    # Operations for the loss of an example; a gradient takes three times as many. The theory needs
    # it forwards and, for each number, backwards; averages of squares need all gradients.
    least = EXAMPLES[0]
    batches = jax.eval_shape(lambda: narrowed(problem.draw(key, least), "float64"))
    program = jax.jit(lambda params, data: problem.loss(weights.combine(params), data))
    costs = program.lower(weights.params, batches).cost_analysis() or {}
    each = max(float(costs.get("flops", 0.0)) / least, 2.0 * size)
    runs = int(np.clip(AT_ONCE // (batch * each), *RUNS))
    # Examples that neither theory nor training uses.
    fresh = jax.random.fold_in(key, HELD_OUT[1])
    number = int(np.clip(PASSED // (runs * each), *HELD_OUT)) // GROUPS * GROUPS
    if not known:
        with jax.enable_x64(False):
            data = problem_in(problem, "float32").draw(fresh, number)
        problem = HeldOut(problem, narrowed(data, "float64"))
    # Those recorded by default come first; large observables, such as matrices, are left out.
    table, names, numbers = flow_table(problem), [], 0
    every = [name for name in table.functions if name not in table.refused]
    usual = [name for name in every if name == "loss" or name in problem.RECORD]
    record = table.resolve([*dict.fromkeys([*usual, *every])])
    shapes = eqx.filter_eval_shape(lambda w: measured(problem, record, w), whole)
    for name, shape in shapes.items():
        if numbers + shape.size <= NUMBERS:
            names.append(name)
            numbers += shape.size
    most = KNOWN if known else EXAMPLES[1]
    examples = int(np.clip(max(AT_ONCE // (16 * each), 4 * batch), EXAMPLES[0], most))
    turns = 6 + 3 * numbers + 12 * isinstance(rule, AVERAGE_SQUARES)
    work = lambda: each * (3 * batch * runs + turns * examples)  # noqa: E731
    while work() * steps > WORK and (runs, examples) != (RUNS[0], EXAMPLES[0]):
        runs, examples = max(runs // 2, RUNS[0]), max(examples // 2, EXAMPLES[0])
    end = int(min(steps, max(WORK // max(work(), LEAST), 1)))
    times = np.unique(np.rint(np.geomspace(max(end / LATEST, 1), end, PASSES)).astype(int))
    times = np.r_[0, times] if known else dynsim.log_times(end, MEANS).astype(int)
    at = np.unique(np.rint(np.linspace(0, len(times) - 1, PASSES + 1)).astype(int))
    options: Any = {"batch": batch, "starts": 1, "examples": examples, "passes": len(at)}
    linear = odes.linear_noise(problem, rule, times, key=key, record=names, **options)
    # NumPy computes the rows: JAX would compile each operation on its own.
    linear = jax.device_get(linear)
    mean = None if known else linear
    if int(linear.status) != Status.OK:
        return [], "", mean

    train = functools.partial(dynsim.train, problem, rule, steps=None, init=whole, dtype="float64")
    one = functools.partial(train, times=times[at], batch=batch, record=names)
    keys = jax.random.split(jax.random.fold_in(fresh, 1), runs)
    rows = compared(linear, jax.device_get(jax.vmap(one)(keys)), at, names)
    if isinstance(problem, HeldOut):
        # The groups of examples share one run, so that they differ by their sampling error alone.
        found = train(fresh, times=times, batch=examples, record={GROUPED: HeldOut.by_group})
        both = {**linear.observables, GROUPED: np.asarray(found[GROUPED])}
        mean = dataclasses.replace(linear, observables=both)
        losses = jax.jit(lambda p: problem.losses(weights.combine(p)))(found.params)
        losses = np.asarray(losses, np.float64)
        apart = losses - losses.mean()
        # Of a batch, the variance of its examples is added.
        total = math.sqrt(float(np.mean(apart**2)) / batch + float(linear.std["loss"][-1]) ** 2)
        # The variance of a variance is (m_4 - m_2^2) / n, and d std = d variance / (2 std).
        wider = math.sqrt(np.var(apart**2) / len(apart)) / batch
        error = wider / total / 2 if total else 0.0
        rows.append(Row(f"std of {BATCH_LOSS} at step {end}", total, error))
    where = ", ".join(map(str, times[at][1:]))
    return [*rows, *few], f"{runs} runs from the same weights at steps {where} of {steps}", mean


def compared(linear: Trajectory, runs: Trajectory, at: np.ndarray, names: list[str]) -> list[Row]:
    """Return rows of standard deviations and of shifts of means, from linear noise at some indices
    `at` of its times and from runs at these times."""
    total, number = runs.ok.size, int(np.sum(runs.ok))
    if number < 2:
        return [Row("share of runs that diverge", 1.0, 0.0, "all theories: training diverges")]
    rows, times = [], np.asarray(linear.times)[at]
    noisy = "linear noise (standard deviations across seeds)"
    if lost := total - number:
        share = lost / total
        sentence = f"{noisy}, batch -> infinity (all flows): {lost} of {total} runs diverge"
        error = math.sqrt(share * (1 - share) / total)
        rows.append(Row("share of runs that diverge", share, error, sentence))

    def add(
        quantity: str, values: Any, errors: Any, size: Any, strained: Any, text: str, *shown: Any
    ) -> None:
        # The row has the largest number at the last time; the sentence is about the worst one.
        j = int(np.abs(values[-1]).argmax())
        row = Row(f"{quantity} at step {times[-1]:g}", float(values[-1, j]), float(errors[-1, j]))
        if strained.any():
            t, j = np.unravel_index(np.where(strained, size, -1.0).argmax(), size.shape)
            sentence = text.format(*(each[t, j] for each in shown), step=times[t], name=name)
            row = row._replace(strained=sentence, worst=float(times[t]))
        rows.append(row)

    tiny = float(np.finfo(np.float64).tiny)
    across = runs.across_runs()
    for name in names:
        # One row per time, as in `across`, and one column per number of the observable.
        errors = linear.mean_error or {}, linear.std_error or {}
        predicted = (linear.observables, errors[0], linear.std, errors[1])
        values = [np.asarray(each[name], np.float64)[at] for each in predicted]
        mean, mean_error, std, std_error, *there = (
            np.reshape(each, (len(at), -1)) for each in (*values, *across[name])
        )
        floor = max(NOTHING * float(np.abs(mean).max()), tiny)
        got, want = np.maximum(there[2], floor), np.maximum(std, floor)
        wider = np.abs(np.log(got / want))
        unsure = SURE * np.hypot(there[3] / got, std_error / want)
        strained = (wider > math.log(WIDER)) & (wider > unsure)
        text = (
            f"{noisy}: at step {{step:g}} that of {{name}} is {{:.2g}} in {number} runs, {{:.2g}} "
            "times the predicted {:.2g}; use odes.sde, or pass draws to odes.linear_noise"
        )
        shown = there[2], got / want, std
        add(f"std of {name}", std, std_error, wider, strained, text, *shown)
        moved, error = there[0] - mean, np.hypot(there[1], mean_error)
        change = np.abs(mean - mean[0]).max(axis=0)
        strained = np.abs(moved) > np.maximum(MOVED * change, np.maximum(SURE * error, floor))
        text = (
            "batch -> infinity (means by all flows): at step {step:g} noise moves the mean of "
            f"{{name}} by {{:.2g}}, above {100 * MOVED:g} % of its change"
        )
        share = np.abs(moved) / np.maximum(change, tiny)
        add(f"shift of {name} by noise", moved, error, share, strained, text, moved)
    return rows


def few_squares(
    problem: Problem, rule: Rule, key: PRNGKeyArray, steps: int, batch: int
) -> list[Row]:
    """Return the step up to which the average of squares in Adam or RMSProp has so few terms that
    linear noise is strained, in a row."""
    if not isinstance(rule, AVERAGE_SQUARES):
        return []
    last = last_uneven(variance_of_squares(problem, key, steps, batch), float(rule.b2), steps)
    if not last:
        return []
    sentence = (
        f"linear noise (standard deviations across seeds): up to step {last} the average square of "
        f"{rule.name} has varied by more than {100 * math.sqrt(UNEVEN):.0f} % across seeds; expect "
        "errors above 5 %"
    )
    return [Row("average of too few squares up to step", last, math.nan, sentence, 1.0)]


def variance_of_squares(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Return the relative variance of the squared batch gradient at the start, over weights."""
    with precision("float64"):
        cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
        drawn = jax.jit(problem_in(problem, "float32").batches(key, steps, batch))
        weights = parts.combine(parts.params)

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
