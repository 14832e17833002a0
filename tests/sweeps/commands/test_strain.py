"""What `dynsim explain` says of steps and batches, at both sides of its bounds, and their numbers
against those of gradients written out."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import dynsim
from dynsim import Status, Trajectory
from dynsim.precision import precision
from dynsim.problem.train import problem_in, started
from sweeps.commands import strain
from sweeps.systems.base import Row

KEY = jax.random.key(3)


class Sampled(dynsim.Problem):
    """Three weights, of which each example pulls two."""

    def init(self, key: PRNGKeyArray) -> Float[Array, "3"]:
        return jnp.array([1.0, -2.0, 0.5])

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, "B 3"]:
        return jax.random.normal(key, (batch, 3)) * jnp.array([[1.0, 0.3, 0.0]])

    def loss(self, params: Float[Array, "3"], data: Float[Array, "B 3"]) -> Float[Array, ""]:
        return jnp.sum(params**2) / 2 - jnp.mean(data, axis=0) @ params


class Few(Sampled):
    """The same with the mean over all examples."""

    def population_loss(self, params: Float[Array, "3"]) -> Float[Array, ""]:
        return jnp.sum(params**2) / 2


def test_the_scatter_of_squares_is_that_of_the_batches_written_out() -> None:
    steps, batch = 40, 5
    weights = np.array([1.0, -2.0, 0.5])
    batches = Few().batches(KEY, steps, batch)
    gradients = np.array(
        [weights - np.asarray(batches(jnp.int32(k)), float).mean(axis=0) for k in range(32)]
    )
    squares = gradients**2
    relative = squares.var(axis=0, ddof=1) / squares.mean(axis=0) ** 2
    found = strain.variance_of_squares(Few(), KEY, steps, batch)
    # Batches are float32, of which one more rounding may differ.
    assert found == pytest.approx(relative.mean(), rel=1e-5)


def told(
    monkeypatch: pytest.MonkeyPatch, descended: list[float], status: Status = Status.OK
) -> dict[str, Row]:
    """The table if descent has these losses at 0, 10 and 1000 steps, and the theory 4, 3 and 2, and
    then 0 where it is not compared."""
    monkeypatch.setattr(strain, "DESCENT", 3000)
    monkeypatch.setattr(strain, "LARGEST", 0)

    def train(*given: Any, times: np.ndarray, **more: Any) -> Trajectory:
        assert times.tolist() == [0, 10, 1000]
        bad = -1 if status == Status.OK else 700
        loss = {"loss": np.array(descended)}
        return Trajectory(times, loss, None, np.array(status), np.array(bad))

    monkeypatch.setattr(strain.dynsim, "train", train)
    # No step of descent is between whole ones.
    times, loss = np.array([0.0, 0.5, 10, 1000, 1001]), np.array([4.0, 3.5, 3, 2, 0])
    _, rows = strain.against_descent(Few(), dynsim.sgd(0.1), KEY, "flow", times, loss)
    return {row.quantity: row for row in rows}


DEVIATION = "deviation of descent, share of the fall"


def test_steps_are_strained_by_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss falls by 4, also where it is not compared; 5 % of it is 0.2."""
    near = told(monkeypatch, [4.0, 2.8125, 2.0])
    assert near[DEVIATION] == Row(DEVIATION, 0.1875 / 4, 0.0, "", 10.0)
    # The end is not compared.
    assert math.isnan(near["loss at the end"].error)
    far = told(monkeypatch, [4.0, 2.75, 2.0])[DEVIATION]
    assert (far.prediction, far.worst) == (0.25 / 4, 10)
    assert far.strained == (
        "eta -> 0 (flow): up to step 1000 the loss of descent at these rates deviates by "
        "up to 6.2 % of its decrease, above 5 %"
    )
    lost = told(monkeypatch, [4.0, 2.75, math.inf], Status.DIVERGED)[DEVIATION]
    assert lost.strained == "eta -> 0 (all flows): descent at these rates diverges by step 700"


@pytest.mark.parametrize(
    ("factor", "strained"),
    # A loss of zero is no factor away.
    [(1.19, False), (1 / 1.19, False), (1.21, True), (1 / 1.21, True), (0.0, False)],
)
def test_a_small_loss_may_be_off_by_a_fifth(
    monkeypatch: pytest.MonkeyPatch, factor: float, strained: bool
) -> None:
    loss = np.array([4.0, 1e-3])
    run = Trajectory(
        np.array([0, 9]), {"loss": loss * [1, factor]}, None, np.array(0), np.array(-1)
    )
    monkeypatch.setattr(strain, "LARGEST", 0)
    monkeypatch.setattr(strain.dynsim, "train", lambda *_, **__: run)
    given = (Few(), dynsim.sgd(0.1), KEY, "flow", np.array([0.0, 9.0]), loss)
    end = strain.against_descent(*given)[1][0]
    assert end.error == pytest.approx(1e-3 * abs(factor - 1))
    sentence = (
        f"eta -> 0 (flow): at step 9 descent at these rates has a loss of {1e-3 * factor:.3g} "
        "where the theory has 0.001"
    )
    assert end.strained == sentence * strained


@pytest.mark.parametrize("times_edge", [0.01, 1.5])
@pytest.mark.more
def test_the_sharpness_at_the_start_is_that_of_the_hessian(times_edge: float) -> None:
    problem = dynsim.Regression(D=2, N=7, heads=2)
    with precision("float64"):
        parts = started(problem, KEY, None, "float64")
        flat, unravel = ravel_pytree(parts.params)
        cast = problem_in(problem, "float64")
        hessian = jax.hessian(lambda x: cast.population_loss(parts.whole(unravel(x))))
        largest = float(np.linalg.eigvalsh(jax.jit(hessian)(flat)).max())
    rule = dynsim.sgd(2 * times_edge / largest)
    times, loss = np.array([0.0, 1, 2]), np.array([1.0, 0.9, 0.8])
    rows = {
        r.quantity: r for r in strain.against_descent(problem, rule, KEY, "flow", times, loss)[1]
    }
    # Equal but for the solver of eigenvalues.
    start = rows["preconditioned sharpness at the start"].prediction
    assert start == pytest.approx(2 * times_edge, rel=1e-6)
    step = rows["edge of stability reached at step"].prediction
    assert step == ("not reached" if times_edge < 1 else 0)


def test_no_edge_is_told_where_none_is_known() -> None:
    rules = (dynsim.adam(0.1), dynsim.rmsprop(0.1), dynsim.from_optax(optax.sgd, learning_rate=0.1))
    times, loss = np.array([0.0, 1, 2]), np.array([1.0, 0.9, 0.8])
    for rule in rules:
        rows = strain.against_descent(Few(), rule, KEY, "flow", times, loss)[1]
        assert not any("sharpness" in row.quantity for row in rows)


def curves(runs: np.ndarray, std: float, error: float) -> dict[str, Row]:
    """The table of an observable whose mean goes from 0 to 1 and then to 2, which linear noise
    gives this standard deviation at the end, and of runs (R, 3) from it."""
    mean = np.array([0.0, 1.0, 2.0])
    times = np.array([0.0, 5.0, 9.0])
    codes = np.array(0), np.array(-1)
    linear = Trajectory(
        times,
        {"x": mean},
        None,
        *codes,
        covariance=np.array([0.0, 1.0, std**2])[:, None, None],
        mean_error={"x": np.zeros(3)},
        std_error={"x": np.array([0.0, error, error])},
    )
    many = np.zeros(len(runs), int)
    found = Trajectory(times, {"x": mean + runs}, None, many, many - 1)
    return {row.quantity: row for row in strain.compared(linear, found, np.arange(3), ["x"])}


def signs(number: int, *sizes: float) -> np.ndarray:
    """Runs whose values are these sizes with either sign: their deviation has no sampling error."""
    sign = np.where(np.arange(number) % 2, 1.0, -1.0)[:, None]
    return sign * np.array(sizes) * math.sqrt((number - 1) / number)


@pytest.mark.parametrize(
    ("ratio", "error", "strained"),
    [
        (1.19, 0.0, False),
        (1.21, 0.0, True),
        (1 / 1.19, 0.0, False),
        (1 / 1.21, 0.0, True),
        # ln 1.5 is 0.41, beyond three errors of 0.13 but not of 0.14.
        (1.5, 0.13, True),
        (1.5, 0.14, False),
    ],
)
def test_noise_is_strained_beyond_its_bound_and_error(
    ratio: float, error: float, strained: bool
) -> None:
    row = curves(signs(64, 0.0, 1.0, 2 * ratio), 2.0, 2 * error)["std of x at step 9"]
    assert (row.prediction, row.error) == (pytest.approx(2), 2 * error)
    assert bool(row.strained) == strained
    if strained:
        assert row.worst == 9
        assert f"that of x is {2 * ratio:.2g} in 64 runs, {ratio:.2g} times the predicted 2;" in (
            row.strained
        )


def test_the_worst_step_need_not_be_the_last() -> None:
    row = curves(signs(64, 0.0, 3.0, 2.5), 2.0, 0.0)["std of x at step 9"]
    assert (row.prediction, row.worst) == (pytest.approx(2), 5)


@pytest.mark.parametrize(
    # Of a change of 2; at step 5 the mean has the error 1 / 8, at step 9 none.
    ("moved", "strained"),
    [((0, 0.3, 0.09), False), ((0, 0.3, -0.11), True), ((0, 0.4, 0), True)],
)
def test_a_mean_is_moved_beyond_its_bound_and_error(
    moved: tuple[float, ...], strained: bool
) -> None:
    row = curves(signs(64, 0.0, 1.0, 0.0) + np.array(moved), 0.0, 0.0)[
        "shift of x by noise at step 9"
    ]
    assert row.prediction == pytest.approx(moved[2])
    assert bool(row.strained) == strained


def test_runs_that_diverge_are_counted() -> None:
    mean = {"x": np.zeros((8, 1))}
    status = np.where(np.arange(8) < 2, int(Status.DIVERGED), int(Status.OK))
    runs = Trajectory(np.array([0.0]), mean, None, status, status - 1)
    linear = Trajectory(
        np.array([0.0]),
        {"x": np.zeros(1)},
        None,
        np.array(0),
        np.array(-1),
        covariance=np.zeros((1, 1, 1)),
        mean_error={"x": np.zeros(1)},
        std_error={"x": np.zeros(1)},
    )
    (lost, *_) = strain.compared(linear, runs, np.arange(1), ["x"])
    assert (lost.quantity, lost.prediction) == ("share of runs that diverge", 0.25)
    assert lost.error == pytest.approx(math.sqrt(0.25 * 0.75 / 8))
    assert lost.strained.endswith("2 of 8 runs diverge")


class Many(dynsim.Problem):
    """400 weights in a bowl, which every example pulls by numbers of their own."""

    def init(self, key: PRNGKeyArray) -> Float[Array, "n"]:
        return jnp.ones(400)

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, "B n"]:
        return jax.random.normal(key, (batch, 400))

    def loss(self, params: Float[Array, "n"], data: Float[Array, "B n"]) -> Float[Array, ""]:
        return self.population_loss(params) - jnp.mean(data, axis=0) @ params

    def population_loss(self, params: Float[Array, "n"]) -> Float[Array, ""]:
        return jnp.sum(params**2) / 2


@pytest.mark.parametrize(
    ("batch", "b2", "step"),
    # The gradient is 1 - x with x of variance v = 1 / B, and (1 - x)^2 has the mean 1 + v and the
    # variance 4 v + 2 v^2: 3/2 of the squared mean for v = 1. With b2 close to 1, the average of k
    # has 1/k of that: a tenth on average over 73 steps, as 3/2 (1 + ... + 1/73) = 7.3. One of
    # (1 + b2) / (1 - b2) = 3, the most for b2 = 1/2, stays above.
    [(1, 0.9999, 73), (1, 0.5, 300), (100, 0.9999, None)],
)
def test_few_squares_of_noise_strain_adam(batch: int, b2: float, step: int | None) -> None:
    rule = dynsim.adam(1e-4, b2=b2)
    found = strain.few_squares(Many(), rule, jax.random.key(0), 300, batch)
    # The ratio of estimates from 32 batches has a bias of the order of 1/32 of itself.
    said = [int(re.search(r"up to step (\d+) ", row.strained)[1]) for row in found]
    assert said == ([] if step is None else [pytest.approx(step, rel=0.1)])


@pytest.mark.parametrize(
    ("b2", "variance"),
    [(0.99, 1.5), (0.99, 0.9), (0.999, 1.5), (0.9, 0.07), (0.9, 0.1001), (0.0, 0.2), (0.0, 0.05)],
)
def test_few_squares_are_counted_by_their_weights(
    monkeypatch: pytest.MonkeyPatch, b2: float, variance: float
) -> None:
    """The variance of an average is that of a square times the sum of its squared weights, which
    fall from 1 to (1 - b2) / (1 + b2); it is averaged over the steps so far."""
    monkeypatch.setattr(strain, "variance_of_squares", lambda *given: variance)
    found = strain.few_squares(Few(), dynsim.adam(0.1, b2=b2), KEY, 300, 4)

    total, last = 0.0, 0
    for k in range(1, 301):
        weights = b2 ** np.arange(k)
        total += variance * np.sum(weights**2) / np.sum(weights) ** 2
        last = k if total / k > 0.1 else last
    if not last:
        assert found == []
        return
    (row,) = found
    sentence = row.strained
    assert row.prediction == last
    assert f"up to step {last} the average square of adam has varied by more than 32 % " in sentence
    assert sentence.endswith("expect errors above 5 %")
