"""`dynsim explain NAME` against a quadratic, of which everything is known in closed form."""

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
from sweeps.commands import outlook, strain

NAME = "tests.sweeps.commands.test_outlook:Bowl"


class Bowl(dynsim.Problem):
    """Three weights in a quadratic bowl; a batch sees it scaled.

    Attributes:
        bend: curvature of two directions.
        other: curvature of the third one.
        scale: of the loss on batches.
    """

    bend: float = 2.0
    other: float = 2.0
    scale: float = 1.0

    def init(self, key: PRNGKeyArray) -> Float[Array, "3"]:
        return jnp.ones(3)

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, " B"]:
        return jnp.full(batch, self.scale)

    def loss(self, params: Float[Array, "3"], data: Float[Array, " B"]) -> Float[Array, ""]:
        return jnp.mean(data) * self.population_loss(params)

    def population_loss(self, params: Float[Array, "3"]) -> Float[Array, ""]:
        return jnp.sum(jnp.array([self.bend, self.bend, self.other]) * params**2) / 2

    def groups(self, params: Float[Array, "3"]) -> str:
        return "all"


def settings(**given: object) -> dict[str, object]:
    return {"rule": "sgd", "eta": 0.01, "steps": 100, "batch": math.inf, **given}


@pytest.mark.usefixtures("quick_theory")
def test_losses_and_times_are_those_of_the_closed_form() -> None:
    found = sweeps.explain(NAME, **settings())
    # The loss falls like exp(-2 eta bend t) from 3 bend / 2.
    rate, last = 0.04, math.exp(-4)
    assert found.start == pytest.approx(3)
    assert found.end == pytest.approx(3 * last, rel=1e-4)
    for share, step in ((0.5, found.half), (0.9, found.ninety)):
        # Linear between 256 logarithmic times, which are whole steps.
        assert step == pytest.approx(-math.log(1 - share * (1 - last)) / rate, abs=0.02)
    assert (found.theory, found.status, found.changes) == ("flow of the weights", "OK", ())
    assert set(found.applicable) == {"plain", "corrected"}
    assert "does not describe optimizer = sgd" in found.refused["matched-adam"]
    assert found.strained == ()
    # eta times the curvature, wherever the weights are.
    assert (found.edge.start, found.edge.largest) == (pytest.approx(0.02), pytest.approx(0.02))


def test_a_loss_is_recorded_at_256_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedError(Exception):
        pass

    def asked(sweep: sweeps.Sweep) -> None:
        raise AskedError(sweep.first.steps_recorded(sweep.times), sweep.axes)

    monkeypatch.setattr(outlook, "run_sweep", asked)
    with pytest.raises(AskedError) as found:
        sweeps.explain(NAME, **settings(steps=10**6, seed=7))
    assert found.value.args == (tuple(dynsim.log_times(10**6, 256)), {"seed": [7]})


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.full(
    "test_losses_and_times_are_those_of_the_closed_form",
    "odes/test_problem.py::test_plain_flow_is_the_closed_form_in_eta_time",
)
def test_a_schedule_is_in_the_times_and_its_parts_are_told() -> None:
    found = sweeps.explain(
        NAME, **settings(eta={"kind": "linear", "peak": 0.01, "steps": 100, "warmup": 20})
    )
    assert found.changes == (20.0,)
    # The loss falls like exp(-4 x), x the sum of the rates, which is taken step by step here.
    rates = 0.01 * np.r_[np.arange(20) / 20, 1 - np.arange(80) / 80]
    loss = 3 * np.exp(-4 * np.r_[0, np.cumsum(rates)])
    level = (loss[0] + loss[-1]) / 2
    assert found.half == pytest.approx(np.interp(-level, -loss, np.arange(101)), abs=0.1)


@pytest.mark.parametrize("other", [0.5, -7.0])
def test_the_largest_curvature_is_the_largest_one_also_at_a_saddle(other: float) -> None:
    rule = dynsim.sgd({"all": dynsim.schedules.constant(0.3, warmup=5)}, momentum=0.5)
    found = strain.largest_curvature(Bowl(2.0, other), rule, jax.random.key(0), 10)
    assert found == pytest.approx(0.6)


@pytest.mark.usefixtures("quick_theory")
def test_what_is_strained_is_said() -> None:
    gentle = sweeps.explain(NAME, **settings(batch=4, scale=1.4)).strained
    rough = sweeps.explain(NAME, **settings(batch=4, scale=1.6, eta=0.2)).strained
    # The gradient of a batch is `scale` times that of the population.
    assert gentle == ()
    assert "4 examples at the start is off by 0.6 of its norm" in rough[-1]
    assert "eta times the largest curvature at the start is 0.4, above 0.2" in rough[0]
    # The loss falls by 0.6^2 a step, that of the flow like exp(-0.8); most apart after the first.
    apart = 100 * (math.exp(-0.8) - 0.36)
    assert f"{apart:.2g} % of its decrease" in rough[1]


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.full("test_what_is_strained_is_said")
def test_a_small_loss_that_is_off_by_a_factor_is_said() -> None:
    """With eta bend = 0.04 descent has 0.96^300 where the flow has exp(-12): 22 % less."""
    (sentence,) = sweeps.explain(NAME, **settings(eta=0.02, steps=150)).strained
    assert sentence == (
        "eta -> 0 (flow of the weights): at step 150 descent at these rates has a loss of "
        f"{3 * 0.96**300:.3g} where the theory has {3 * math.exp(-12):.3g}"
    )
    assert sweeps.explain(NAME, **settings(eta=0.02, steps=100)).strained == ()


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
def test_noise_is_compared_with_its_next_order() -> None:
    name, eta, batch = f"{__name__}:Pulled", 0.02, 16
    for steps, strained in ((4, False), (250, True)):
        found = sweeps.explain(name, **settings(eta=eta, batch=batch, steps=steps))
        mean, square = (1 - eta) ** steps, (1 - eta) ** (2 * steps)
        variance = eta**2 / batch * (1 - square) / (1 - (1 - eta) ** 2)
        # Of 128 examples a step, and of 32 draws for the mean of a square.
        assert found.noise.std == pytest.approx(mean * math.sqrt(variance), rel=0.2)
        assert found.noise.moved == pytest.approx(variance / 2, rel=1)
        assert found.noise.wider > 1
        assert any("linear noise" in each for each in found.strained) == strained


class Many(Pulled):
    """400 such weights, each with numbers of its own."""

    def init(self, key: PRNGKeyArray) -> Float[Array, "n"]:
        return jnp.ones(400)

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, "B n"]:
        return jax.random.normal(key, (batch, 400))

    def loss(self, params: Float[Array, "n"], data: Float[Array, "B n"]) -> Float[Array, ""]:
        return self.population_loss(params) - jnp.mean(data, axis=0) @ params

    def population_loss(self, params: Float[Array, "n"]) -> Float[Array, ""]:
        return jnp.sum(params**2) / 2


@pytest.mark.full("test_noise_is_compared_with_its_next_order")
def test_noise_is_measured_in_hundreds_of_weights() -> None:
    eta, batch, steps = 0.08, 16, 50
    found = strain.measured(Many(), dynsim.sgd(eta), jax.random.key(0), steps, batch)
    assert found is not None
    mean, square = (1 - eta) ** steps, (1 - eta) ** (2 * steps)
    variance = eta**2 / batch * (1 - square) / (1 - (1 - eta) ** 2)
    # Of a normal weight, w^2 / 2 has the variance mean^2 v + v^2 / 2. As above.
    assert found.std == pytest.approx(mean * math.sqrt(400 * variance), rel=0.2)
    assert found.wider == pytest.approx(math.sqrt(1 + variance / mean**2 / 2), rel=0.2)
    assert "linear noise" in found.strained[0]


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
    said = [int(re.search(r"up to step (\d+) ", each)[1]) for each in found]
    assert said == ([] if step is None else [pytest.approx(step, rel=0.1)])


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.full("test_few_squares_of_noise_strain_adam")
def test_explain_has_the_sentence_about_few_squares() -> None:
    adam = settings(rule="adam", eta=1e-4, batch=1, steps=20)
    found = sweeps.explain(f"{__name__}:Pulled", **adam)
    assert any("average square of adam" in each for each in found.strained)
    assert not any("average square" in each for each in sweeps.explain(NAME, **settings()).strained)


class Told(Bowl):
    """A bowl with a theory that knows the batch."""

    @classmethod
    def theories(cls) -> tuple[odes.Theory, ...]:
        theory = odes.system(
            "half",
            "a loss of half the batch",
            "nothing",
            lambda t, state, training: jnp.zeros_like(state),
            lambda training, weights: jnp.asarray(1.0),
            lambda t, state, training: {"loss": state * training.batch / (2 + t)},
        )
        return (theory,)


def test_the_theory_of_the_problem_comes_first() -> None:
    found = sweeps.explain(f"{__name__}:Told", **settings(eta=0.2, batch=8, steps=2))
    assert (found.theory, found.start, found.end) == ("a loss of half the batch", 4, 2)
    assert [*found.applicable][:2] == ["half", "plain"]
    # Neither small steps nor large batches are assumed by a theory that knows both.
    assert found.strained == ()


def test_descent_that_diverges_is_said() -> None:
    (_, diverges) = sweeps.explain(NAME, **settings(eta=1.1, steps=500)).strained
    assert "over the first 500 steps descent at these rates diverges" in diverges


def test_the_command_prints_text_or_json_and_names_bad_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["explain", NAME, "--steps", "5", "--rule", "sgd", "--eta", "0.01"]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "half of the decrease by step" in printed
    assert "The flow stays below the edge of stability" in printed
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["start"] == pytest.approx(3)
    sharpness = pytest.approx(0.02)
    assert found["edge"] == {"start": sharpness, "largest": sharpness, "step": None}
    assert cli.main([*command, "--clip", "1"]) == 2
    assert (
        "no theory describes its loss; clip = 1.0: no flow describes it" in capsys.readouterr().err
    )


def test_a_loss_that_does_not_fall_has_no_times() -> None:
    run = sweeps.experiment(NAME, **settings(eta=0.0, steps=5))
    found = sweeps.explain(run)
    assert math.isnan(found.half)
    assert "half of the decrease by step           -" in found.text(run)
