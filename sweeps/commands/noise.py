"""Checks for `dynsim explain`: rows that compare linear noise with short trainings."""

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
from dynsim.compiling import called
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.checks import flow_table, has_population, measured
from dynsim.problem.train import problem_in, started
from dynsim.training.recording import BATCH_LOSS
from odes.batch_noise import THEORY, size_of
from odes.solver.linear_noise import AVERAGE_SQUARES, UNEVEN, last_uneven
from sweeps.commands.strain import Row

LARGEST = 300
"""Maximum number of weights for averages of squares, which need the gradients of all examples, if
the mean is known without."""
WIDER, MOVED, SURE = 1.2, 0.05, 3.0
"""Linear noise is strained if a standard deviation differs from the predicted one by this factor,
and means if noise shifts them by this share of their change, where both also exceed their standard
error by the third number."""
PASSES, MEANS, LATEST = 10, 256, 64
"""Numbers of times at which noise is tested, and at which a mean loss is estimated; and share of
the run after which the first test is. Before, too few examples have been seen."""
RUNS, EXAMPLES, HELD_OUT, NUMBERS = (32, 128), (128, 4096), (512, 2**14), 16
"""Limits of the number of runs, of examples per step, and of fresh examples for a mean loss;
maximum total size of the observables whose noise is tested."""
KNOWN = 512
"""Maximum number of examples per step for a problem with a population loss, which need not estimate
the mean."""
GROUPS = 16
"""Number of groups of fresh examples, between which a mean loss differs by its sampling error."""
WORK, LEAST, AT_ONCE, PASSED = 2e9, 2e5, 2**23, 2**26
"""Approximate number of operations for noise, the least one of a step, that of all batches of a
step, and that of the fresh examples. Runs and examples are fewer for long runs; the longest are
tested up to an earlier step."""
NOTHING = 1e-9
"""Share of the largest value below which differences are rounding errors."""
BATCHES = 32
"""Number of batches drawn at the start to measure the scatter of squared gradients."""


_started = eqx.filter_jit(started)


class HeldOut(Problem):
    """A problem without a population loss, with the mean loss of fresh examples as an observable.
    They are the same at all times, so that their sampling error hides no change."""

    problem: Problem
    data: PyTree

    def init(self, key: PRNGKeyArray) -> PyTree:
        return self.problem.init(key)

    def draw(self, key: PRNGKeyArray, batch: int) -> PyTree:
        return self.problem.draw(key, batch)

    def batches(
        self, key: PRNGKeyArray, steps: int | None, batch: int
    ) -> Callable[[Array], PyTree]:
        return self.problem.batches(key, steps, batch)

    def loss(self, params: PyTree, data: PyTree) -> Float[Array, ""]:
        return self.problem.loss(params, data)

    def losses(self, params: PyTree) -> Float[Array, " E"]:
        """Return the loss of each of the examples."""
        one = lambda x: self.problem.loss(params, jax.tree.map(lambda leaf: leaf[None], x))  # noqa: E731
        return jax.vmap(one)(self.data)

    def groups(self, params: PyTree) -> PyTree:
        return self.problem.groups(params)

    def is_frozen(self, params: PyTree) -> PyTree:
        return self.problem.is_frozen(params)

    def divergence_limit(self) -> Any:
        return self.problem.divergence_limit()

    def observables(self) -> Mapping[str, Callable[..., Array]]:
        own = {n: functools.partial(_own, f) for n, f in self.problem.observables().items()}
        return {"loss": lambda self, params: self.problem.loss(params, self.data), **own}


def _groups(held: HeldOut, params: PyTree) -> Float[Array, " G"]:
    return jnp.mean(held.losses(params).reshape(GROUPS, -1), axis=1)


def _own(function: Callable[..., Array], held: HeldOut, params: PyTree) -> Array:
    """Return an observable of the problem itself."""
    return function(*held.problem.snapshot(params))


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean loss at (S,) steps, with its standard error if it is estimated, except for that of
    the examples, which are the same at all times: `groups` has steps (T,), and the loss (T, G) of
    each group of examples at these steps."""

    times: np.ndarray
    loss: np.ndarray
    error: np.ndarray
    groups: tuple[np.ndarray, np.ndarray] | None = None

    def sampled(self, statistic: Callable[[np.ndarray, np.ndarray], float]) -> float:
        """Return the error of a statistic of (times, loss) due to the choice of the examples."""
        if self.groups is None:
            return 0.0
        times, groups = self.groups
        found = [statistic(times, group) for group in groups.T]
        return float(np.std(found, ddof=1) / len(found) ** 0.5)


@dataclasses.dataclass(frozen=True)
class Noise:
    """What `noise` returns.

    Attributes:
        rows: rows about standard deviations across seeds, and shifts of means.
        compared: what linear noise was compared with.
        mean: the mean loss of a problem without a population loss.
        status, first_bad_step: of descent.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    compared: str = ""
    mean: Mean | None = None
    status: int = Status.OK
    first_bad_step: int = -1


def noise(
    problem: Problem, rule: Rule, key: PRNGKeyArray, steps: int | None, batch: int | float
) -> Noise:
    """Predict standard deviations across seeds by linear noise, and compare them and the means with
    those of short trainings from the same weights, at several times of the whole run. The result is
    empty for problems or rules that linear noise does not describe, and for large ones."""
    if steps is None or THEORY.why_not(problem, rule, batch, steps):
        return Noise()
    known, size, batch = has_population(problem), max(size_of(problem), 1), int(batch)
    if known and size > LARGEST and isinstance(rule, AVERAGE_SQUARES):
        return Noise()
    few = few_squares(problem, rule, key, steps, batch)
    # In one program: an orthogonal start alone takes many.
    weights = called(_started, problem, key, None, "float64")
    whole = weights.whole(weights.params)
    # Operations for the loss of an example; a gradient takes three times as many. The theory needs
    # it forwards and, for each number, backwards; averages of squares need all gradients.
    least = EXAMPLES[0]
    batches = jax.eval_shape(lambda: narrowed(problem.draw(jax.random.key(0), least), "float64"))
    program = jax.jit(lambda params, data: problem.loss(weights.whole(params), data))
    costs = program.lower(weights.params, batches).cost_analysis() or {}
    each = max(float(costs.get("flops", 0.0)) / least, 2.0 * size)
    runs = int(np.clip(AT_ONCE // (batch * each), *RUNS))
    # Examples that neither theory nor training uses.
    fresh = jax.random.fold_in(key, HELD_OUT[1])
    number = int(np.clip(PASSED // (runs * each), *HELD_OUT)) // GROUPS * GROUPS
    held = None
    if not known:
        with jax.enable_x64(False):
            data = problem_in(problem, "float32").draw(fresh, number)
        problem = held = HeldOut(problem, narrowed(data, "float64"))
    names, numbers = recorded(problem, whole)
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
    linear = odes.linear_noise(
        *(problem, rule, times),
        batch=batch,
        key=key,
        starts=1,
        examples=examples,
        passes=len(at),
        record=names,
    )
    # NumPy computes the rows: JAX would compile each operation on its own.
    linear = jax.device_get(linear)
    status, bad = int(linear.status), int(linear.first_bad_step)
    mean = None
    if not known:
        errors = linear.mean_error or {}
        mean = Mean(times, np.asarray(linear["loss"]), np.asarray(errors["loss"]))
    if status != Status.OK:
        return Noise([], "", mean, status, bad)

    train = functools.partial(dynsim.train, problem, rule, steps=None, init=whole, dtype="float64")
    one = functools.partial(train, times=times[at], batch=batch, record=names)
    keys = jax.random.split(jax.random.fold_in(fresh, 1), runs)
    rows = compared(linear, jax.device_get(jax.vmap(one)(keys)), at, names)
    if held and mean:
        # The groups of examples share one run, so that they differ by their sampling error alone.
        record = {"groups": _groups}
        found = train(fresh, times=times, batch=examples, record=record)
        mean = dataclasses.replace(mean, groups=(times, np.asarray(found["groups"])))
        last = jax.jit(lambda p: held.losses(weights.whole(p)))(found.params)
        losses = np.asarray(last, np.float64)
        apart = losses - losses.mean()
        # Of a batch, the variance of its examples is added.
        own = float(np.mean(apart**2)) / batch
        total = math.sqrt(own + float(linear.std["loss"][-1]) ** 2)
        # The variance of a variance is (m_4 - m_2^2) / n, and d std = d variance / (2 std).
        wider = math.sqrt(np.var(apart**2) / len(apart)) / batch
        error = wider / total / 2 if total else 0.0
        rows.append(Row(f"std of {BATCH_LOSS} at step {end}", total, error))
    told = ", ".join(map(str, times[at][1:]))
    return Noise(
        [*rows, *few], f"{runs} runs from the same weights at steps {told} of {steps}", mean
    )


def recorded(problem: Problem, weights: PyTree) -> tuple[list[str], int]:
    """Return the observables whose noise is tested, those recorded by default first, and their
    total size. Large ones, such as matrices, are left out."""
    table = flow_table(problem)
    every = [name for name in table.functions if name not in table.refused]
    usual = [name for name in every if name == "loss" or name in problem.RECORD]
    record = table.resolve([*dict.fromkeys([*usual, *every])])
    shapes = eqx.filter_eval_shape(lambda w: measured(problem, record, w), weights)
    names, numbers = [], 0
    for name, shape in shapes.items():
        if numbers + shape.size <= NUMBERS:
            names.append(name)
            numbers += shape.size
    return names, numbers


def compared(linear: Trajectory, runs: Trajectory, at: np.ndarray, names: list[str]) -> list[Row]:
    """Return rows of standard deviations and of shifts of means, from linear noise at some indices
    `at` of its times and from runs at these times."""
    if (number := int(np.sum(runs.ok))) < 2:
        return [Row("share of runs that diverge", 1.0, 0.0, "all theories: training diverges")]
    rows, times = [], np.asarray(linear.times)[at]
    if lost := runs.ok.size - number:
        share = lost / runs.ok.size
        error = math.sqrt(share * (1 - share) / runs.ok.size)
        sentence = (
            "linear noise (standard deviations across seeds), batch -> infinity (all flows): "
            f"{lost} of {runs.ok.size} runs diverge"
        )
        rows.append(Row("share of runs that diverge", share, error, sentence))
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
        wider = np.log(got / want)
        unsure = SURE * np.hypot(there[3] / got, std_error / want)
        strained = (np.abs(wider) > math.log(WIDER)) & (np.abs(wider) > unsure)
        t, j = _worst(np.abs(wider), strained)
        sentence = (
            f"linear noise (standard deviations across seeds): at step {times[t]:g} that of {name} "
            f"is {there[2][t, j]:.2g} in {number} runs, {got[t, j] / want[t, j]:.2g} times the "
            f"predicted {std[t, j]:.2g}; use odes.sde, or pass draws to odes.linear_noise"
        )
        rows.append(_row(f"std of {name}", std, std_error, strained, t, sentence, times))
        moved, error = there[0] - mean, np.hypot(there[1], mean_error)
        change = np.abs(mean - mean[0]).max(axis=0)
        strained = np.abs(moved) > np.maximum(MOVED * change, np.maximum(SURE * error, floor))
        t, j = _worst(np.abs(moved) / np.maximum(change, tiny), strained)
        sentence = (
            f"batch -> infinity (means by all flows): at step {times[t]:g} noise moves the mean of "
            f"{name} by {moved[t, j]:.2g}, above {100 * MOVED:g} % of its change"
        )
        rows.append(_row(f"shift of {name} by noise", moved, error, strained, t, sentence, times))
    return rows


def _worst(size: np.ndarray, strained: np.ndarray) -> tuple[int, int]:
    """Return the time and the number at which the size is largest, among the strained ones."""
    t, j = np.unravel_index(np.where(strained, size, -1.0).argmax(), size.shape)
    return int(t), int(j)


def _row(
    quantity: str,
    values: np.ndarray,
    errors: np.ndarray,
    strained: np.ndarray,
    worst: int,
    sentence: str,
    times: np.ndarray,
) -> Row:
    """Return the row of the largest number at the last time."""
    j = int(np.abs(values[-1]).argmax())
    row = Row(f"{quantity} at step {times[-1]:g}", float(values[-1, j]), float(errors[-1, j]))
    if not strained.any():
        return row
    return dataclasses.replace(row, strained=sentence, worst=float(times[worst]))


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
