"""Theories that users write as vector fields."""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import dynsim
import odes
import sweeps
from dynsim import Status
from odes.theory import Theory, Training
from sweeps.systems import registry


class Line(dynsim.Problem):
    """Online regression on a line with label noise."""

    spread: float = 0.3

    def init(self, key: Any) -> Any:
        return jax.random.normal(key, ())

    def draw(self, key: Any, batch: int) -> Any:
        x, noise = jax.random.normal(key, (2, batch))
        return x, x + self.spread * noise

    def loss(self, w: Any, data: Any) -> Any:
        return jnp.mean((w * data[0] - data[1]) ** 2) / 2

    def observables(self) -> dict[str, Any]:
        return {"square": lambda problem, w: (w - 1) ** 2}

    @classmethod
    def theories(cls) -> Any:
        return (SQUARE,)


def field(t: Any, square: Any, training: Training) -> Any:
    eta, B = training.rate(t), training.batch
    return (-2 * eta + eta**2 * (1 + 2 / B)) * square + eta**2 * training.problem.spread**2 / B


def theory(**options: Any) -> Theory:
    return odes.system(
        "square",
        "mean square error of w",
        "normal inputs",
        field,
        lambda training, w: (w - 1) ** 2,
        lambda t, square, training: {"square": square},
        **options,
    )


SQUARE = theory()
KEY = jax.random.key(3)
TIMES = [0.0, 10.0, 50.0, 100.0]
# Solvers reach 1e-8 of each step; over a hundred steps that may add up.
CLOSE = {"rtol": 1e-6}


@pytest.mark.more
def test_a_linear_field_is_its_closed_form() -> None:
    eta, B, noise = 0.05, 4, 0.2
    found = SQUARE.solve(Line(noise), dynsim.sgd(eta), TIMES, key=KEY, batch=B)
    rate, force = -2 * eta + eta**2 * (1 + 2 / B), eta**2 * noise**2 / B
    start = found["square"][0]
    expected = (start + force / rate) * np.exp(rate * np.array(TIMES)) - force / rate
    np.testing.assert_allclose(found["square"], expected, **CLOSE)
    assert (found.status, found.source) == (Status.OK, "square")
    assert found.params == pytest.approx(expected[-1], rel=1e-6)


def test_a_discrete_field_is_added_at_every_step() -> None:
    """(1 + r) x + f with the rate of each step; the change of a step that is not whole does not
    count, and the run ends where `stop` says so."""
    eta = dynsim.schedules.steps(0.3, [20], [0.1])
    options = {"key": KEY, "batch": 2}
    times = [0, 1, 20, 21, 100]
    found = theory(discrete=True).solve(Line(0.5), dynsim.sgd(eta), times, **options)
    want = [float(found["square"][0])]
    for k in range(100):
        rate = 0.3 if k < 20 else 0.03
        want.append(want[-1] * (1 - 2 * rate + 2 * rate**2) + rate**2 * 0.125)
    np.testing.assert_allclose(found["square"], np.array(want)[times], rtol=1e-9)
    assert (found.status, found.first_bad_step) == (Status.OK, -1)
    ends = theory(discrete=True, stop=lambda t, square, training: t >= 20)
    found = ends.solve(Line(0.5), dynsim.sgd(eta), times, **options)
    assert (found.status, found.first_bad_step) == (Status.DIVERGED, 21)
    grows = theory(discrete=True).solve(Line(), dynsim.sgd(1e3), [0, 100], **options)
    assert (grows.status, grows.first_bad_step) == (Status.DIVERGED, 100)
    with pytest.raises(ValueError, match="discrete = True: a map has no solver"):
        theory(discrete=True, tolerances=odes.Tolerances(1e-3, 1e-6))


def test_what_is_no_variant_is_compared_without_being_asked_for() -> None:
    formula = lambda problem, init, time: {"square": jnp.exp(-2 * time)}
    for made in (theory, functools.partial(odes.closed_form, "fall", "fall", "", formula)):
        assert not made().variant
        assert made(variant=True).variant


def test_a_formula_gets_the_sum_of_the_rates_over_one_minus_momentum() -> None:
    """Rates of 0.2 (1 - k / 10) add up to 0.68 after 4 steps, and to 1.1 after all ten."""
    formula = lambda problem, init, time: {"square": jnp.where(time > 4, jnp.nan, time)}
    made = odes.closed_form("time", "sum of the rates", "nothing", formula)
    rule = dynsim.sgd(dynsim.schedules.linear(0.2, 10), momentum=0.75)
    found = made.solve(Line(), rule, [0, 4, 10])
    np.testing.assert_allclose(found["square"], [0, 0.68 / 0.25, np.nan], rtol=1e-12)
    assert (found.status, found.first_bad_step) == (Status.DIVERGED, 10)


@pytest.mark.more
def test_it_starts_where_training_starts() -> None:
    run = dynsim.train(Line(), dynsim.sgd(0.1), KEY, steps=1, batch=1, record="square")
    found = SQUARE.solve(Line(), dynsim.sgd(0.1), [0, 1], key=KEY, batch=1)
    # Weights are drawn in 32 bits.
    np.testing.assert_allclose(found["square"][0], run["square"][0], rtol=1e-6)
    given = SQUARE.solve(Line(), dynsim.sgd(0.1), [0.0], init=jnp.float32(3.0), batch=1)
    assert given["square"] == [4.0]


@pytest.mark.more
def test_schedules_are_followed_across_their_jumps() -> None:
    eta = dynsim.schedules.steps(0.3, [20, 60], [0.1, 0.01])
    found = SQUARE.solve(Line(0.5), dynsim.sgd(eta), TIMES, key=KEY, batch=2)

    def rate(t: float) -> float:
        # A flow reads the rate of step k from k to k + 1.
        return 0.3 * (1 if t < 20 else 0.1 if t < 60 else 0.01)

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        return (-2 * rate(t) + 2 * rate(t) ** 2) * y + rate(t) ** 2 * 0.125

    expected, y = [found["square"][0]], [float(found["square"][0])]
    for begin, end in [(0, 10), (10, 20), (20, 50), (50, 60), (60, 100)]:
        y = integrate.solve_ivp(slope, (begin, end - 1e-9), y, rtol=1e-10, atol=1e-12).y[:, -1]
        expected += [y[0]] if end in TIMES else []
    np.testing.assert_allclose(found["square"], expected, **CLOSE)


@pytest.mark.more
def test_the_mean_of_training_is_the_theory() -> None:
    """Exact for the mean: it is linear in the square. The flow is right to first order in eta."""
    rule, keys = dynsim.sgd(0.01), jax.random.split(KEY, 4000)
    train = lambda key: dynsim.train(
        Line(1.0), rule, key, steps=200, batch=2, times=[200], record="square", init=jnp.ones(())
    )
    runs = jax.vmap(train)(keys)["square"][:, 0]
    predicted = SQUARE.solve(Line(1.0), rule, [200.0], init=jnp.ones(()), batch=2)["square"][0]
    error = runs.std() / math.sqrt(len(keys))
    # An Euler step of 0.02 in place of the flow changes the relaxed level by 1 %.
    assert abs(runs.mean() - predicted) < 3 * error + 0.01 * predicted
    silent = SQUARE.solve(Line(1.0), rule, [200.0], init=jnp.ones(()))["square"][0]
    assert abs(runs.mean() - silent) > 10 * error


@pytest.mark.more
def test_a_stop_ends_the_run_with_a_status() -> None:
    until = theory(stop=lambda t, square, training: square < 0.5, solver=diffrax.Dopri5())
    found = until.solve(Line(0.0), dynsim.sgd(0.05), TIMES, init=jnp.asarray(3.0), batch=1)
    # 4 exp(-0.0925 t) is 0.5 at t = 22.5.
    np.testing.assert_allclose(found["square"][:2], 4 * np.exp([0, -0.925]), rtol=1e-6)
    assert np.isinf(found["square"][2:]).all()
    assert (found.status, found.first_bad_step) == (Status.DIVERGED, 50)
    early = until.solve(Line(0.0), dynsim.sgd(0.05), [0.0, 10.0], init=jnp.asarray(3.0), batch=1)
    assert early.status == Status.OK


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (dynsim.sgd(0.1, momentum=0.9), {}, "describes gradient descent without momentum only"),
        (dynsim.adam(0.1), {}, "optimizer = adam: this theory describes gradient descent"),
        (dynsim.sgd(0.1, decay=0.1), {}, "decay = 0.1: this theory needs plain gradients"),
        (dynsim.sgd({"a": 0.1}), {}, "eta: has a rate for each group; this theory needs one"),
        (dynsim.sgd(0.1), {"batch": 64}, "^batch = 64: describes single examples$"),
        (dynsim.sgd(0.1), {"batch": 1, "steps": 7}, "^steps = 7: is odd$"),
        (dynsim.sgd(0.1), {"batch": 1, "key": None}, "^key = None: starting weights are random"),
        (dynsim.sgd(0.1), {"batch": 1, "record": "loss"}, "record = 'loss': must be one of square"),
    ],
)
def test_what_it_does_not_describe_is_an_error(
    rule: dynsim.Rule, options: dict[str, Any], message: str
) -> None:
    def reason(training: Training) -> str | None:
        if training.batch != 1:
            return f"batch = {training.batch}: describes single examples"
        odd = training.steps is not None and training.steps % 2
        return f"steps = {training.steps}: is odd" if odd else None

    with pytest.raises(ValueError, match=message):
        theory(inapplicable=reason).solve(Line(), rule, TIMES, **{"key": KEY, **options})


def test_a_theory_of_any_rule_says_itself_what_it_describes() -> None:
    mine = theory(any_rule=True)
    assert mine.why_not(Line(), dynsim.adam(0.1)) is None
    assert SQUARE.why_not(Line(), dynsim.adam(0.1)) is not None


@pytest.mark.more
def test_sweeps_tell_it_batch_and_steps() -> None:
    run = sweeps.Experiment(Line(), dynsim.sgd(0.05), steps=60, batch=2)
    axes = {"spread": [0.1, 1.0], "batch": [1, 8], "seed": [0, 5]}
    found = sweeps.run(sweeps.Sweep(run, axes, theory="square", record=["square"], times=(0, 60)))
    for noise, B, seed in ((0.1, 8, 5), (1.0, 1, 0)):
        y = found.square.sel(spread=noise, batch=B, seed=seed).values
        rate, force = -0.1 + 0.0025 * (1 + 2 / B), 0.0025 * noise**2 / B
        expected = (y[0] + force / rate) * np.exp(rate * 60) - force / rate
        np.testing.assert_allclose(y[1], expected, **CLOSE)


def test_sweeps_refuse_what_the_theory_refuses() -> None:
    class Single(Line):
        @classmethod
        def theories(cls) -> Any:
            return (theory(inapplicable=lambda t: None if t.batch == 1 else f"batch = {t.batch}"),)

    run = sweeps.Experiment(Single(), dynsim.sgd(0.1), steps=10, batch=64)
    square = registry.theories(registry.system_of(run))["square"]
    with pytest.raises(ValueError, match="theory 'square' does not apply: batch = 64"):
        registry.check_run(square, run)
    registry.check_run(square, run.at({"batch": 1}))


def test_a_theory_that_the_problem_does_not_have_is_swept_in_memory(tmp_path: Path) -> None:
    """With the numbers of the theory of the same equations that it has."""
    run = sweeps.Experiment(Line(), dynsim.sgd(0.1), steps=10, batch=2)
    named = sweeps.Sweep(run, {"spread": [0.1, 1.0]}, "square", ("square",), 4)
    own = dataclasses.replace(named, theory=dataclasses.replace(SQUARE, name="mine"))
    want, got = sweeps.run(named, tmp_path / "square").load(), sweeps.run(own).load()
    np.testing.assert_array_equal(got.square, want.square)
    assert json.loads(got.attrs["config"])["theory"] == "mine"
    message = "^theory = mine: only a theory of the problem can be stored; return it from the "
    for place, left_out in (
        ({"out": tmp_path / "mine"}, "out"),
        ({"reuse": tmp_path / "square"}, "reuse"),
    ):
        with pytest.raises(ValueError, match=f"{message}problem's `theories`, .* `{left_out}`$"):
            sweeps.run(own, **place)
    assert not list(tmp_path.glob("*mine*"))
    with pytest.raises(ValueError, match=r"theory = 3: must be of type str or odes\.Theory"):
        dataclasses.replace(named, theory=3)
