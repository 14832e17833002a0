"""Where linear noise breaks down: its standard deviations and means against short trainings."""

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
from dynsim.problem.build import narrowed
from dynsim.problem.checks import has_population
from dynsim.problem.observables import flow_table, measured
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import BATCH_LOSS
from odes.batch_noise import size_of
from odes.solver.linear_noise import AVERAGE_SQUARES, UNEVEN, last_uneven
from sweeps.commands.breakdown import MOST_WEIGHTS
from sweeps.systems.base import Row

STD_RATIO, MEAN_SHIFT, SIGNIFICANT = 1.2, 0.05, 3.0
"""Linear noise breaks down if a standard deviation differs from the predicted one by this factor,
and means if noise shifts them by this share of their change, where both also exceed their standard
error by the third number."""
NOISE_TIMES, MEAN_TIMES, FIRST_SHARE = 10, 256, 64
"""Numbers of times at which noise is tested, and at which a mean loss is estimated; and share of
the run after which the first test is. Before, too few examples have been seen."""
RUNS, EXAMPLES, MOST_EXAMPLES = (32, 128), (128, 4096), 512
"""Limits of the number of runs and of examples per step, and the most examples per step if the mean
need not be estimated."""
HELD_OUT, MOST_NUMBERS = (512, 2**14), 16
"""Limits of fresh examples for a mean loss; maximum total size of tested observables."""
GROUPS, GROUPED = 16, "loss of groups"
"""Number of groups of fresh examples, between which a mean loss differs by its sampling error, and
the name of their means."""
WORK, LEAST_WORK, BATCH_WORK, HELD_OUT_WORK = 2e9, 2e5, 2**23, 2**26
"""Approximate number of operations for noise, the least one of a step, that of all batches of a
step, and that of the fresh examples. Runs and examples are fewer for long runs; the longest are
tested up to an earlier step."""
ROUNDING = 1e-9
"""Share of the largest value below which differences are rounding errors."""
SQUARE_BATCHES = 32
"""Number of batches drawn at the start to measure the scatter of squared gradients."""


def _delegate(name: str) -> Any:
    return lambda self, *arguments: getattr(self.problem, name)(*arguments)


class HeldOut(Problem):
    """A problem without a population loss, with the mean loss of fresh examples as an observable.
    They are the same at all times, so that their sampling error hides no change."""

    problem: Problem
    data: PyTree

    init, draw, batches, loss = map(_delegate, ("init", "draw", "batches", "loss"))
    groups, is_frozen = map(_delegate, ("groups", "is_frozen"))
    divergence_limit, allows_nonfinite = map(_delegate, ("divergence_limit", "allows_nonfinite"))

    def observables(self) -> Mapping[str, Callable[..., Array]]:
        def own(function: Callable[..., Array]) -> Callable[..., Array]:
            return lambda self, params: function(*self.problem.snapshot(params))

        others = {name: own(function) for name, function in self.problem.observables().items()}
        return {"loss": lambda self, params: self.problem.loss(params, self.data), **others}

    def losses(self, params: PyTree) -> Float[Array, " E"]:
        """Return the loss of each of the examples."""
        one = lambda x: self.problem.loss(params, jax.tree.map(lambda leaf: leaf[None], x))  # noqa: E731
        return jax.vmap(one)(self.data)

    def by_group(self, params: PyTree) -> Float[Array, " G"]:
        """Return the mean loss of each group of examples."""
        return jnp.mean(self.losses(params).reshape(GROUPS, -1), axis=1)


_started = eqx.filter_jit(started)


def noise_rows(
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
    if known and size > MOST_WEIGHTS and isinstance(rule, AVERAGE_SQUARES):
        return [], "", None
    squares = few_squares(problem, rule, key, steps, batch)
    # In one program: an orthogonal start alone takes many.
    weights = call_compiled(_started, problem, key, None, "float64")
    whole = weights.combine(weights.params)

    # Operations for the loss of an example; a gradient takes three times as many. The theory needs
    # it forwards and, for each number, backwards; averages of squares need all gradients.
    least = EXAMPLES[0]
    batches = jax.eval_shape(lambda: narrowed(problem.draw(key, least), "float64"))
    program = jax.jit(lambda params, data: problem.loss(weights.combine(params), data))
    costs = program.lower(weights.params, batches).cost_analysis() or {}
    flops = max(float(costs.get("flops", 0.0)) / least, 2.0 * size)
    runs = int(np.clip(BATCH_WORK // (batch * flops), *RUNS))
    # Examples that neither theory nor training uses.
    fresh = jax.random.fold_in(key, HELD_OUT[1])
    number = int(np.clip(HELD_OUT_WORK // (runs * flops), *HELD_OUT)) // GROUPS * GROUPS
    if not known:
        with jax.enable_x64(False):
            data = problem_in(problem, "float32").draw(fresh, number)
        problem = HeldOut(problem, narrowed(data, "float64"))

    # Observables that are recorded by default come first; large ones, such as matrices, are left
    # out.
    table, names, numbers = flow_table(problem), [], 0
    every = [name for name in table.functions if name not in table.refused]
    usual = [name for name in every if name == "loss" or name in problem.RECORD]
    record = table.resolve([*dict.fromkeys([*usual, *every])])
    shapes = eqx.filter_eval_shape(lambda w: measured(problem, record, w), whole)
    for name, shape in shapes.items():
        if numbers + shape.size <= MOST_NUMBERS:
            names.append(name)
            numbers += shape.size

    # Fewer runs and examples, and then fewer steps, until the work is done in seconds.
    most = MOST_EXAMPLES if known else EXAMPLES[1]
    examples = int(np.clip(max(BATCH_WORK // (16 * flops), 4 * batch), EXAMPLES[0], most))
    turns = 6 + 3 * numbers + 12 * isinstance(rule, AVERAGE_SQUARES)
    work = lambda: flops * (3 * batch * runs + turns * examples)  # noqa: E731
    while work() * steps > WORK and (runs, examples) != (RUNS[0], EXAMPLES[0]):
        runs, examples = max(runs // 2, RUNS[0]), max(examples // 2, EXAMPLES[0])
    end = int(min(steps, max(WORK // max(work(), LEAST_WORK), 1)))
    times = np.geomspace(max(end / FIRST_SHARE, 1), end, NOISE_TIMES)
    times = np.unique(np.rint(times).astype(int))
    times = np.r_[0, times] if known else dynsim.log_times(end, MEAN_TIMES).astype(int)
    at = np.unique(np.rint(np.linspace(0, len(times) - 1, NOISE_TIMES + 1)).astype(int))

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
    rows = compare_noise(linear, jax.device_get(jax.vmap(one)(keys)), at, names)
    if isinstance(problem, HeldOut):
        # The groups of examples share one run, so that they differ by their sampling error alone.
        run = train(fresh, times=times, batch=examples, record={GROUPED: HeldOut.by_group})
        both = {**linear.observables, GROUPED: np.asarray(run[GROUPED])}
        mean = dataclasses.replace(linear, observables=both)
        losses = jax.jit(lambda p: problem.losses(weights.combine(p)))(run.params)
        losses = np.asarray(losses, np.float64)
        deviations = losses - losses.mean()
        # Of a batch, the variance of its examples is added.
        variance = float(np.mean(deviations**2)) / batch
        total = math.sqrt(variance + float(linear.std["loss"][-1]) ** 2)
        # The variance of a variance is (m_4 - m_2^2) / n, and d std = d variance / (2 std).
        wider = math.sqrt(np.var(deviations**2) / len(deviations)) / batch
        error = wider / total / 2 if total else 0.0
        rows.append(Row(f"std of {BATCH_LOSS} at step {end}", total, error))
    where = ", ".join(map(str, times[at][1:]))
    about = f"{runs} runs from the same weights at steps {where} of {steps}"
    return [*rows, *squares], about, mean


def compare_noise(
    linear: Trajectory, runs: Trajectory, at: np.ndarray, names: list[str]
) -> list[Row]:
    """Return rows of standard deviations and of shifts of means, from linear noise at some indices
    `at` of its times and from runs at these times."""
    total, number = runs.ok.size, int(np.sum(runs.ok))
    if number < 2:
        return [Row("share of runs that diverge", 1.0, 0.0, "all theories: training diverges")]
    rows, times = [], np.asarray(linear.times)[at]
    noisy = "linear noise (standard deviations across seeds)"
    if diverged := total - number:
        share = diverged / total
        sentence = f"{noisy}, batch -> infinity (all flows): {diverged} of {total} runs diverge"
        # Of a share of independent runs, by the binomial distribution.
        error = math.sqrt(share * (1 - share) / total)
        rows.append(Row("share of runs that diverge", share, error, sentence))

    tiny = float(np.finfo(np.float64).tiny)
    across = runs.across_runs()
    for name in names:
        # One row per time, as in `across`, and one column per number of the observable.
        errors = linear.mean_error or {}, linear.std_error or {}
        predicted = (linear.observables, errors[0], linear.std, errors[1])
        values = [np.asarray(arrays[name], np.float64)[at] for arrays in predicted]
        mean, mean_error, std, std_error, run_mean, run_mean_error, run_std, run_std_error = (
            np.reshape(array, (len(at), -1)) for array in (*values, *across[name])
        )
        floor = max(ROUNDING * float(np.abs(mean).max()), tiny)

        # The row has the largest number at the last time; its sentence is about the worst one.
        j = int(np.abs(std[-1]).argmax())
        quantity = f"std of {name} at step {times[-1]:g}"
        row = Row(quantity, float(std[-1, j]), float(std_error[-1, j]))
        got, want = np.maximum(run_std, floor), np.maximum(std, floor)
        log_ratio = np.abs(np.log(got / want))
        unsure = SIGNIFICANT * np.hypot(run_std_error / got, std_error / want)
        wider = (log_ratio > math.log(STD_RATIO)) & (log_ratio > unsure)
        if wider.any():
            t, j = np.unravel_index(np.where(wider, log_ratio, -1.0).argmax(), wider.shape)
            sentence = (
                f"{noisy}: at step {times[t]:g} that of {name} is {run_std[t, j]:.2g} in {number} "
                f"runs, {(got / want)[t, j]:.2g} times the predicted {std[t, j]:.2g}; use "
                "odes.sde, or pass draws to odes.linear_noise"
            )
            row = row._replace(strained=sentence, worst=float(times[t]))
        rows.append(row)

        shift, error = run_mean - mean, np.hypot(run_mean_error, mean_error)
        j = int(np.abs(shift[-1]).argmax())
        quantity = f"shift of {name} by noise at step {times[-1]:g}"
        row = Row(quantity, float(shift[-1, j]), float(error[-1, j]))
        change = np.abs(mean - mean[0]).max(axis=0)
        limit = np.maximum(MEAN_SHIFT * change, np.maximum(SIGNIFICANT * error, floor))
        moved = np.abs(shift) > limit
        if moved.any():
            share = np.abs(shift) / np.maximum(change, tiny)
            t, j = np.unravel_index(np.where(moved, share, -1.0).argmax(), moved.shape)
            sentence = (
                f"batch -> infinity (means by all flows): at step {times[t]:g} noise moves the "
                f"mean of {name} by {shift[t, j]:.2g}, above {100 * MEAN_SHIFT:g} % of its change"
            )
            row = row._replace(strained=sentence, worst=float(times[t]))
        rows.append(row)
    return rows


def few_squares(
    problem: Problem, rule: Rule, key: PRNGKeyArray, steps: int, batch: int
) -> list[Row]:
    """Return the step up to which the average of squares in Adam or RMSProp has so few terms that
    linear noise breaks down, in a row."""
    if not isinstance(rule, AVERAGE_SQUARES):
        return []
    with precision("float64"):
        cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
        draw = jax.jit(problem_in(problem, "float32").batches(key, steps, batch))
        weights = parts.combine(parts.params)

        @eqx.filter_jit
        def gradient(data: PyTree) -> Float[Array, " n"]:
            return ravel_pytree(cast.loss_and_gradient(weights, data)[1])[0]

        # One at a time, as a batch may fill the memory.
        gradients = []
        for k in range(SQUARE_BATCHES):
            with jax.enable_x64(False):
                data = draw(jnp.int32(k))
            gradients.append(np.asarray(gradient(narrowed(data, "float64"))))
    squares = np.square(gradients)
    mean, variance = squares.mean(axis=0), squares.var(axis=0, ddof=1)
    # Weights whose gradient vanishes do not move.
    moving = mean > 0
    relative = float(np.mean(variance[moving] / mean[moving] ** 2)) if moving.any() else 0.0
    last = last_uneven(relative, float(rule.b2), steps)
    if not last:
        return []
    sentence = (
        f"linear noise (standard deviations across seeds): up to step {last} the average square of "
        f"{rule.name} has varied by more than {100 * math.sqrt(UNEVEN):.0f} % across seeds; expect "
        "errors above 5 %"
    )
    return [Row("average of too few squares up to step", last, math.nan, sentence, 1.0)]
