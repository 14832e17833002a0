"""'dynsim explain NAME' against problems of which everything is known in closed form."""

import math
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from sweeps.commands.breakdown.noise import few_squares
from sweeps.commands.breakdown.steps import against_descent
from tests.sweeps.studies.scaling.quadratic import Bowl

NAME = f"{Bowl.__module__}:Bowl"


def settings(**given):
    return {"rule": "sgd", "eta": 0.01, "steps": 100, "batch": math.inf, **given}


@pytest.mark.usefixtures("quick_theory")
def test_losses_and_times_are_those_of_the_closed_form():
    found = sweeps.explain(NAME, **settings())
    # The loss falls like exp(-2 eta bend t) from 3 bend / 2, that of descent like 0.98^(2 t).
    rate, last = 0.04, math.exp(-4)
    start, end = found["loss at the start"], found["loss at the end"]
    assert (start.prediction, start.error) == (pytest.approx(3), 0)
    assert end.prediction == pytest.approx(3 * last, rel=1e-4)
    assert end.error == pytest.approx(3 * (last - 0.98**200), rel=0.01)
    for share, name in ((0.5, "half"), (0.9, "90 %")):
        row = found[f"{name} of the decrease by step"]
        # Linear between 256 logarithmic times, which are whole steps.
        exact = -math.log(1 - share * (1 - last)) / rate
        assert row.prediction == pytest.approx(exact, abs=0.02)
        # Descent reaches the same level earlier.
        level = math.log(1 - share * (1 - last)) / (2 * math.log(0.98))
        assert row.error == pytest.approx(exact - level, abs=0.05)
    assert (found.theory, found.status) == ("flow of the weights", "OK")
    assert set(found.applicable) == {"plain", "corrected"}
    assert "does not describe optimizer = sgd" in found.refused["matched-adam"]
    assert found.strained == ()
    # eta times the curvature, wherever the weights are.
    for name in ("preconditioned sharpness at the start", "largest preconditioned sharpness"):
        assert found[name].prediction == pytest.approx(0.02)
    assert found["edge of stability reached at step"].prediction == "not reached"


@pytest.mark.usefixtures("quick_theory")
def test_steps_that_are_too_large_are_named_with_the_worst_one():
    found = sweeps.explain(NAME, **settings(eta=0.2))
    row = found["deviation of descent, share of the decrease"]
    # The loss falls by 0.6^2 a step, that of the flow like exp(-0.8); most apart after the first.
    apart = math.exp(-0.8) - 0.36
    assert (row.prediction, row.worst) == (pytest.approx(apart, rel=1e-3), 1)
    assert row.strained in found.strained


class Normal(dynsim.Problem):
    """Mean of normal numbers: (w - x)^2 / 2 from w = 1, without a population loss.

    Attributes:
        exact: mean loss over all numbers.
        weight: the weight itself.
    """

    def init(self, key):
        return jnp.ones(())

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, params, data):
        return jnp.mean((params - data) ** 2) / 2

    def observables(self):
        return {"exact": lambda self, w: (w**2 + 1) / 2, "weight": lambda self, w: w}


ETA, BATCH, STEPS = 0.1, 8, 80
DECAY = (1 - ETA) ** 2
VARIANCE = ETA**2 / BATCH / (1 - DECAY) * (1 - DECAY**STEPS)
"""Of the weight across seeds, which is normal."""


@pytest.fixture(scope="module")
def normal():
    return sweeps.explain(f"{__name__}:Normal", **settings(eta=ETA, batch=BATCH, steps=STEPS))


@pytest.mark.more
def test_what_is_recorded_is_tested_without_a_population_loss(normal):
    """w^2 / 2 of a normal w with variance v has the standard deviation (m^2 v + v^2 / 2)^(1/2), of
    which linear noise has only the first part; that of w itself is exact."""
    m = (1 - ETA) ** STEPS
    row = normal["std of exact at step 80"]
    # Estimated from some thousand examples per step, whose mean also moves the weight by a little.
    assert row.prediction < 0.1 * math.sqrt(VARIANCE**2 / 2)
    assert row.worst == 80
    true = math.sqrt(m**2 * VARIANCE + VARIANCE**2 / 2)
    said = float(row.strained.split("that of exact is ")[1].split()[0])
    assert said == pytest.approx(true, rel=0.5)  # of 128 chi-squared numbers, at 3 errors
    weight = normal["std of weight at step 80"]
    assert weight.prediction == pytest.approx(math.sqrt(VARIANCE), rel=0.03)
    assert not weight.strained
    assert not normal["shift of weight by noise at step 80"].strained


def test_means_without_a_population_loss_have_their_errors(normal):
    loss = (DECAY ** np.arange(STEPS + 1) + 1) / 2
    fallen = lambda share: loss[0] - share * (loss[0] - loss[-1])
    exact = {
        "loss at the start": 1.0,
        "loss at the end": loss[-1],
        "half of the decrease by step": np.interp(-fallen(0.5), -loss, np.arange(STEPS + 1)),
        "90 % of the decrease by step": np.interp(-fallen(0.9), -loss, np.arange(STEPS + 1)),
        # Of the mean of 8 halves of squared normal numbers.
        "std of batch_loss at step 80": math.sqrt(1 / 2 / BATCH),
    }
    for name, value in exact.items():
        row = normal[name]
        assert abs(row.prediction - value) < 4 * row.error, name
        assert 0 < row.error < 0.05 * value, name


class Pulled(dynsim.Problem):
    """Weights in a bowl, which every example pulls by numbers of their own."""

    number: int = 1

    def init(self, key):
        return jnp.ones(self.number)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, self.number))

    def loss(self, params, data):
        return self.population_loss(params) - jnp.mean(data, axis=0) @ params

    def population_loss(self, params):
        return jnp.sum(params**2) / 2


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_noise_is_compared_with_runs():
    steps, eta, batch = 20, 0.02, 16
    found = sweeps.explain(f"{__name__}:Pulled", **settings(eta=eta, batch=batch, steps=steps))
    mean, square = (1 - eta) ** steps, (1 - eta) ** (2 * steps)
    variance = eta**2 / batch * (1 - square) / (1 - (1 - eta) ** 2)
    row = found[f"std of loss at step {steps}"]
    assert row.prediction == pytest.approx(mean * math.sqrt(variance), rel=0.1)
    assert abs(row.prediction - mean * math.sqrt(variance)) < 4 * row.error
    moved = found[f"shift of loss by noise at step {steps}"]
    assert abs(moved.prediction - variance / 2) < 4 * moved.error
    assert not any("linear noise" in each for each in found.strained)


class Told(Pulled):
    """A bowl with a theory that knows the batch."""

    ASSUMES: ClassVar = "nothing"

    @classmethod
    def theories(cls):
        theory = odes.system(
            "half",
            "my half of the batch",
            cls.ASSUMES,
            lambda t, state, training: jnp.zeros_like(state),
            lambda training, weights: jnp.asarray(1.0),
            lambda t, state, training: {"loss": state * training.batch / (2 + t)},
        )
        return (theory,)


class Limit(Told):
    """One whose theory holds for small steps alone, so that descent says how far off it is."""

    ASSUMES: ClassVar = "eta -> 0"


@pytest.mark.parametrize(("kind", "error"), [("Told", math.nan), ("Limit", 2 - 0.8**4 / 2)])
@pytest.mark.more
def test_the_theory_of_the_problem_comes_first(kind, error):
    found = sweeps.explain(f"{__name__}:{kind}", **settings(eta=0.2, batch=8, steps=2))
    start, end = (found[f"loss at the {name}"] for name in ("start", "end"))
    assert (found.theory, start.prediction, end.prediction) == ("my half of the batch", 4, 2)
    assert end.error == pytest.approx(error, rel=1e-4, nan_ok=True)
    assert [*found.applicable][:2] == ["half", "plain"]
    # Neither small steps nor large batches are assumed by a theory that knows both.
    assert kind == "Limit" or not any("eta -> 0" in each for each in found.strained)


def test_descent_that_diverges_is_said():
    found = sweeps.explain(NAME, **settings(eta=1.1, steps=500))
    row = found["deviation of descent, share of the decrease"]
    assert "diverges" in row.strained
    # The loss grows by 1.2^2 a step, and counts as diverged from a thousand times the first on.
    assert row.worst == pytest.approx(math.log(1000) / math.log(1.44), abs=2)


@pytest.mark.parametrize("momentum", [None, 0.5])
@pytest.mark.parametrize("start", [1e-20, pytest.param(1e-150, marks=pytest.mark.full)])
def test_the_edge_is_reached_when_descent_written_out_reaches_it(start, momentum):
    """The loss (u v - 1)^2 / 2 sharpens while u = v grow from a tiny start."""
    mu, eta, steps = momentum or 0.0, 1.05, 600
    eta *= 1 + mu
    edge = 2 * (1 + mu)
    w, velocity, k, before = np.full(2, start), np.zeros(2), 0, 0.0
    while True:
        u, v = w
        slope = u * v - 1
        sharpness = np.linalg.eigvalsh([[v**2, u * v + slope], [u * v + slope, u**2]])[-1] * eta
        if sharpness > edge:
            break
        velocity = mu * velocity + slope * w[::-1]
        w, k, before = w - eta * velocity, k + 1, sharpness
    want = k - 1 + (edge - before) / (sharpness - before)
    rule = dynsim.sgd(eta, momentum=momentum)
    _, rows = against_descent(Product(start), rule, jax.random.key(0), "flow", *curve(steps))
    row = {row.quantity: row for row in rows}["edge of stability reached at step"]
    assert row.prediction == pytest.approx(want, abs=1e-6 * want)
    assert (row.error, row.worst) == (0.5, k)


def curve(steps):
    """A made-up loss at 256 times."""
    times = dynsim.log_times(steps, 256).astype(float)
    return times, 1 / (1 + times)


class Product(dynsim.Problem):
    """Two weights whose product learns to be one.

    Attributes:
        begin: both weights at the start.
    """

    begin: float = 0.1

    def init(self, key):
        return jnp.full(2, 1.0)

    def population_loss(self, params):
        # Weights of float32 cannot be so small.
        scaled = params * self.begin
        return (scaled[0] * scaled[1] - 1) ** 2 / 2 / self.begin**2


@pytest.mark.parametrize(("warmup", "peak"), [(300, 2.5), (5000, 1.2)])
def test_the_edge_is_reached_when_a_rate_reaches_it(warmup, peak):
    """In a bowl of curvature 2 at the rate peak k / warmup: at the step warmup / peak."""
    rule = dynsim.sgd({"all": dynsim.schedules.constant(peak, warmup=warmup)})
    _, rows = against_descent(Bowl(2.0, 0.5), rule, jax.random.key(0), "flow", *curve(warmup))
    row = {row.quantity: row for row in rows}["edge of stability reached at step"]
    assert row.prediction == pytest.approx(warmup / peak, rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "b2", "step"),
    # The gradient is 1 - x with x of variance v = 1 / B, and (1 - x)^2 has the mean 1 + v and the
    # variance 4 v + 2 v^2: 3/2 of the squared mean for v = 1. With b2 close to 1, the average of k
    # has 1/k of that: a tenth on average over 73 steps, as 3/2 (1 + ... + 1/73) = 7.3. One of
    # (1 + b2) / (1 - b2) = 3, the most for b2 = 1/2, stays above.
    [(1, 0.9999, 73), (1, 0.5, 300), (100, 0.9999, None)],
)
def test_few_squares_of_noise_strain_adam(batch, b2, step):
    rule = dynsim.adam(1e-4, b2=b2)
    found = few_squares(Pulled(400), rule, jax.random.key(0), 300, batch)
    # The ratio of estimates from 32 batches has a bias of the order of 1/32 of itself.
    said = [int(re.search(r"up to step (\d+) ", row.strained)[1]) for row in found]
    assert said == ([] if step is None else [pytest.approx(step, rel=0.1)])
