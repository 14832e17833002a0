"""`dynsim explain NAME` against problems of which everything is known in closed form."""

import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import dynsim
import odes
import sweeps
from sweeps import cli
from sweeps.commands import strain
from sweeps.commands.explain import Explanation

NAME = "tests.sweeps.commands.test_explain_problem:Bowl"


class Bowl(dynsim.Problem):
    """Three weights in a quadratic bowl.

    Attributes:
        bend: curvature of two directions.
        other: curvature of the third one.
    """

    bend: float = 2.0
    other: float = 2.0

    def init(self, key: PRNGKeyArray) -> Float[Array, "3"]:
        return jnp.ones(3)

    def population_loss(self, params: Float[Array, "3"]) -> Float[Array, ""]:
        return jnp.sum(jnp.array([self.bend, self.bend, self.other]) * params**2) / 2

    def groups(self, params: Float[Array, "3"]) -> str:
        return "all"


def settings(**given: object) -> dict[str, object]:
    return {"rule": "sgd", "eta": 0.01, "steps": 100, "batch": math.inf, **given}


@pytest.mark.usefixtures("quick_theory")
def test_losses_and_times_are_those_of_the_closed_form() -> None:
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
@pytest.mark.full(
    "test_losses_and_times_are_those_of_the_closed_form",
    "odes/test_problem.py::test_plain_flow_is_the_closed_form_in_eta_time",
)
def test_a_schedule_is_in_the_times_and_its_parts_are_told() -> None:
    found = sweeps.explain(
        NAME, **settings(eta={"kind": "linear", "peak": 0.01, "steps": 100, "warmup": 20})
    )
    assert found["the rate has kinks or jumps at step"].prediction == "20"
    # The loss falls like exp(-4 x), x the sum of the rates, which is taken step by step here.
    rates = 0.01 * np.r_[np.arange(20) / 20, 1 - np.arange(80) / 80]
    loss = 3 * np.exp(-4 * np.r_[0, np.cumsum(rates)])
    level = (loss[0] + loss[-1]) / 2
    half = found["half of the decrease by step"].prediction
    assert half == pytest.approx(np.interp(-level, -loss, np.arange(101)), abs=0.1)


@pytest.mark.more
def test_a_pulse_of_the_rate_is_resolved() -> None:
    """Ten steps of 400: the loss falls like exp(-2 eta bend t) in them, and nowhere else."""
    eta, shares = (lambda k: jnp.where((k >= 300) & (k < 310), 0.05, 0.0)), (0.5, 0.9)
    table = sweeps.explain(sweeps.Experiment(Bowl(), dynsim.sgd(eta), steps=400, batch=math.inf))
    end = math.exp(-0.2 * 10)
    assert table["loss at the end"].prediction == pytest.approx(3 * end, rel=1e-6)
    for share, name in zip(shares, ("half", "90 %"), strict=True):
        exact = 300 - math.log(1 - share * (1 - end)) / 0.2
        # A loss is linear between whole steps: with h = 0.2 off by h^2 / 8 of itself.
        row = table[f"{name} of the decrease by step"]
        assert row.prediction == pytest.approx(exact, abs=0.2**2 / 8 / 0.2)
        assert row.error > 0


@pytest.mark.usefixtures("quick_theory")
def test_steps_that_are_too_large_are_named_with_the_worst_one() -> None:
    found = sweeps.explain(NAME, **settings(eta=0.2))
    row = found["deviation of descent, share of the fall"]
    # The loss falls by 0.6^2 a step, that of the flow like exp(-0.8); most apart after the first.
    apart = math.exp(-0.8) - 0.36
    assert (row.prediction, row.worst) == (pytest.approx(apart, rel=1e-3), 1)
    assert f"{100 * apart:.2g} % of its decrease" in row.strained
    assert row.strained in found.strained


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.full("test_steps_that_are_too_large_are_named_with_the_worst_one")
def test_a_small_loss_that_is_off_by_a_factor_is_said() -> None:
    """With eta bend = 0.04 descent has 0.96^300 where the flow has exp(-12): 22 % less."""
    (sentence,) = sweeps.explain(NAME, **settings(eta=0.02, steps=150)).strained
    assert sentence == (
        "eta -> 0 (flow of the weights): at step 150 descent at these rates has a loss of "
        f"{3 * 0.96**300:.3g} where the theory has {3 * math.exp(-12):.3g}"
    )
    assert sweeps.explain(NAME, **settings(eta=0.02, steps=100)).strained == ()


class Normal(dynsim.Problem):
    """Mean of normal numbers: (w - x)^2 / 2 from w = 1, without a population loss.

    Attributes:
        exact: mean loss over all numbers.
        weight: the weight itself.
    """

    def init(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.ones(())

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, " B"]:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Float[Array, ""], data: Float[Array, " B"]) -> Float[Array, ""]:
        return jnp.mean((params - data) ** 2) / 2

    def observables(self):  # type: ignore[no-untyped-def]
        return {"exact": lambda self, w: (w**2 + 1) / 2, "weight": lambda self, w: w}


ETA, BATCH, STEPS = 0.1, 8, 80
DECAY = (1 - ETA) ** 2
VARIANCE = ETA**2 / BATCH / (1 - DECAY) * (1 - DECAY**STEPS)
"""Of the weight across seeds, which is normal."""


@pytest.fixture(scope="module")
def normal() -> Explanation:
    return sweeps.explain(f"{__name__}:Normal", **settings(eta=ETA, batch=BATCH, steps=STEPS))


@pytest.mark.more
def test_what_is_recorded_is_tested_without_a_population_loss(normal: Explanation) -> None:
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


def test_means_without_a_population_loss_have_their_errors(normal: Explanation) -> None:
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


class Wells(dynsim.Problem):
    """A weight that escapes from a maximum between two wells, pulled by noise to either side.

    Attributes:
        square: squared weight.
    """

    def init(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.asarray(0.02)

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, " B"]:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Float[Array, ""], data: Float[Array, " B"]) -> Float[Array, ""]:
        return self.population_loss(params) - jnp.mean(data) * params / 10

    def population_loss(self, params: Float[Array, ""]) -> Float[Array, ""]:
        return (params**2 - 1) ** 2 / 4

    def observables(self):  # type: ignore[no-untyped-def]
        return {"square": lambda self, w: w**2}


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_noise_is_tested_in_the_whole_run_and_the_worst_step_told() -> None:
    """At the end, all runs are in a well, where linear noise is right about the square."""
    steps, batch, eta = 400, 4, 0.1
    found = sweeps.explain(f"{__name__}:Wells", **settings(eta=eta, batch=batch, steps=steps))
    row = found[f"std of square at step {steps}"]
    random = np.random.default_rng(0)
    w, std = np.full(4000, 0.02), {}
    for k in range(steps + 1):
        std[k] = np.std(w**2)
        w -= eta * (w**3 - w - random.normal(size=w.shape) / batch**0.5 / 10)
    # Around a well of curvature 2, w^2 has twice the standard deviation of w.
    still = 2 * math.sqrt(eta**2 / 100 / batch / (1 - (1 - 2 * eta) ** 2))
    assert std[steps] == pytest.approx(still, rel=0.1)
    assert row.prediction == pytest.approx(still, rel=0.1)
    assert 10 < row.worst < 100
    said = float(row.strained.split("that of square is ")[1].split()[0])
    assert said == pytest.approx(std[int(row.worst)], rel=0.4)


class Pulled(dynsim.Problem):
    """A weight in a bowl that every example pulls to its own side."""

    def init(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.ones(())

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, " B"]:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Float[Array, ""], data: Float[Array, " B"]) -> Float[Array, ""]:
        return params**2 / 2 - jnp.mean(data) * params

    def population_loss(self, params: Float[Array, ""]) -> Float[Array, ""]:
        return params**2 / 2


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize(
    ("steps", "strained"), [(20, False), pytest.param(250, True, marks=pytest.mark.full)]
)
@pytest.mark.more
def test_noise_is_compared_with_runs(steps: int, strained: bool) -> None:
    eta, batch = 0.02, 16
    found = sweeps.explain(f"{__name__}:Pulled", **settings(eta=eta, batch=batch, steps=steps))
    mean, square = (1 - eta) ** steps, (1 - eta) ** (2 * steps)
    variance = eta**2 / batch * (1 - square) / (1 - (1 - eta) ** 2)
    row = found[f"std of loss at step {steps}"]
    assert row.prediction == pytest.approx(mean * math.sqrt(variance), rel=0.1)
    assert abs(row.prediction - mean * math.sqrt(variance)) < 4 * row.error
    moved = found[f"shift of loss by noise at step {steps}"]
    assert abs(moved.prediction - variance / 2) < 4 * moved.error
    assert any("linear noise" in each for each in found.strained) == strained


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.full("sweeps/commands/test_strain.py::test_few_squares_of_noise_strain_adam")
def test_explain_has_the_sentence_about_few_squares() -> None:
    adam = settings(rule="adam", eta=1e-4, batch=1, steps=20)
    found = sweeps.explain(f"{__name__}:Pulled", **adam)
    assert any("average square of adam" in each for each in found.strained)


class Told(Pulled):
    """A bowl with theories that know the batch, or that fail."""

    @classmethod
    def theories(cls) -> tuple[odes.Theory, ...]:
        theory = odes.system(
            "half",
            "my half of the batch",
            "nothing",
            lambda t, state, training: jnp.zeros_like(state),
            lambda training, weights: jnp.asarray(1.0),
            lambda t, state, training: {"loss": state * training.batch / (2 + t)},
        )
        return (theory,)


@pytest.mark.more
def test_the_theory_of_the_problem_comes_first() -> None:
    found = sweeps.explain(f"{__name__}:Told", **settings(eta=0.2, batch=8, steps=2))
    ends = [found[f"loss at the {name}"].prediction for name in ("start", "end")]
    assert (found.theory, ends) == ("my half of the batch", [4, 2])
    assert "theory: my half of the batch (OK)" in found.text()
    assert [*found.applicable][:2] == ["half", "plain"]
    # Neither small steps nor large batches are assumed by a theory that knows both.
    assert not any("eta -> 0" in each for each in found.strained)


@pytest.mark.more
def test_a_theory_that_fails_is_named_with_the_step() -> None:
    """RMSProp around the minimum of a deep linear loss, whose flow takes too many steps."""
    found = sweeps.explain(f"{__name__}:Stiff", **settings(eta=1e-3, steps=200))
    assert found.status == "DIVERGED"
    row = found["loss at the end"]
    assert row.strained == (
        f"blow up: its solve ends DIVERGED; it has no prediction from step {row.worst:g} on"
    )
    # 1 / (1 - t / 50) ends at t = 50; the step is resolved up to the next recorded one.
    assert 50 <= row.worst <= 52
    assert re.search(r"loss at the end +- +blow up", found.text())


class Stiff(Pulled):
    """A bowl with a theory whose loss becomes infinite."""

    @classmethod
    def theories(cls) -> tuple[odes.Theory, ...]:
        def blown(problem: object, init: object, time: Array) -> dict[str, Array]:
            return {"loss": jnp.where(time < 0.05, 1 / (1 - time / 0.05), jnp.inf)}

        return (odes.closed_form("blown", "blow up", "nothing", blown),)


@pytest.mark.more
def test_descent_that_diverges_is_said() -> None:
    found = sweeps.explain(NAME, **settings(eta=1.1, steps=500))
    row = found["deviation of descent, share of the fall"]
    assert row.strained.startswith("eta -> 0 (all flows): descent at these rates diverges by step ")
    # The loss grows by 1.2^2 a step, and counts as diverged from a thousand times the first on.
    assert row.worst == pytest.approx(math.log(1000) / math.log(1.44), abs=2)


@pytest.mark.more
def test_the_command_prints_text_or_json_and_names_bad_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["explain", NAME, "--steps", "5", "--batch", "inf", "--rule", "sgd"]
    command += ["--eta", "0.01"]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "half of the decrease by step" in printed
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # The same table.
    for row in found["rows"]:
        assert f"\n{row['quantity']} " in printed
    rows = {row["quantity"]: row for row in found["rows"]}
    assert rows["loss at the start"]["prediction"] == pytest.approx(3)
    assert rows["edge of stability reached at step"]["prediction"] == "not reached"
    assert found["strained"] == []
    assert cli.main([*command, "--clip", "1"]) == 2
    assert (
        "no theory describes its loss; clip = 1.0: no flow describes it" in capsys.readouterr().err
    )


def test_a_loss_that_does_not_fall_has_no_times() -> None:
    found = sweeps.explain(sweeps.experiment(NAME, **settings(eta=0.0, steps=5)))
    assert math.isnan(found["half of the decrease by step"].prediction)


@pytest.mark.parametrize("momentum", [None, 0.5])
@pytest.mark.parametrize("start", [1e-20, pytest.param(1e-150, marks=pytest.mark.full)])
def test_the_edge_is_reached_when_descent_written_out_reaches_it(
    start: float, momentum: float | None
) -> None:
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
    _, rows = strain.against_descent(Product(start), rule, jax.random.key(0), "flow", *curve(steps))
    row = {row.quantity: row for row in rows}["edge of stability reached at step"]
    assert row.prediction == pytest.approx(want, abs=1e-6 * want)
    assert (row.error, row.worst) == (0.5, k)


def curve(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """A made-up loss at 256 times."""
    times = dynsim.log_times(steps, 256).astype(float)
    return times, 1 / (1 + times)


class Product(dynsim.Problem):
    """Two weights whose product learns to be one.

    Attributes:
        begin: both weights at the start.
    """

    begin: float = 0.1

    def init(self, key: PRNGKeyArray) -> Float[Array, "2"]:
        return jnp.full(2, 1.0)

    def population_loss(self, params: Float[Array, "2"]) -> Float[Array, ""]:
        # Weights of float32 cannot be so small.
        scaled = params * self.begin
        return (scaled[0] * scaled[1] - 1) ** 2 / 2 / self.begin**2


@pytest.mark.parametrize(("warmup", "peak"), [(300, 2.5), (5000, 1.2)])
def test_the_edge_is_reached_when_a_rate_reaches_it(warmup: int, peak: float) -> None:
    """In a bowl of curvature 2 at the rate peak k / warmup: at the step warmup / peak."""
    rule = dynsim.sgd({"all": dynsim.schedules.constant(peak, warmup=warmup)})
    _, rows = strain.against_descent(
        Bowl(2.0, 0.5), rule, jax.random.key(0), "flow", *curve(warmup)
    )
    row = {row.quantity: row for row in rows}["edge of stability reached at step"]
    assert row.prediction == pytest.approx(warmup / peak, rel=1e-6)


@pytest.mark.parametrize("beyond", [False, True])
def test_a_run_that_starts_beyond_the_edge_is_named(beyond: bool) -> None:
    eta = 1.01 if beyond else 0.99
    _, rows = strain.against_descent(
        Bowl(2.0, 0.5), dynsim.sgd(eta), jax.random.key(0), "flow", *curve(20)
    )
    table = {row.quantity: row for row in rows}
    assert table["preconditioned sharpness at the start"].prediction == pytest.approx(2 * eta)
    row = table["edge of stability reached at step"]
    assert row.prediction == (0 if beyond else "not reached")
    assert ("the run starts beyond it" in row.strained) == beyond
