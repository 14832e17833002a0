"""Theories and rules of a user's own: closed forms, exponentials of matrices, a plain loop."""

import dataclasses
from typing import Annotated

import annotated_types as at
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import expm

import dynsim
import odes
import sweeps
from dynsim import Status
from tests.doors import refuses
from tests.odes.test_problem import PRECISE
from tests.odes.test_problem import Line as Parabola


class Line(dynsim.Problem):
    """Online regression on a line with label noise."""

    spread: float = 0.3

    def init(self, key):
        return jax.random.normal(key, ())

    def draw(self, key, batch):
        x, noise = jax.random.normal(key, (2, batch))
        return x, x + self.spread * noise

    def loss(self, w, data):
        return jnp.mean((w * data[0] - data[1]) ** 2) / 2

    def observables(self):
        return {"square": lambda problem, w: (w - 1) ** 2}

    @classmethod
    def theories(cls):
        return (SQUARE,)


def field(t, square, training):
    eta, B = training.rate(t), training.batch
    return (-2 * eta + eta**2 * (1 + 2 / B)) * square + eta**2 * training.problem.spread**2 / B


def theory(**options):
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


def test_a_linear_field_is_its_closed_form():
    eta, B, noise = 0.05, 4, 0.2
    found = SQUARE.solve(Line(noise), dynsim.sgd(eta), TIMES, key=KEY, batch=B)
    rate, force = -2 * eta + eta**2 * (1 + 2 / B), eta**2 * noise**2 / B
    start = found["square"][0]
    expected = (start + force / rate) * np.exp(rate * np.array(TIMES)) - force / rate
    np.testing.assert_allclose(found["square"], expected, **CLOSE)
    assert (found.status, found.source) == (Status.OK, "square")
    assert found.params == pytest.approx(expected[-1], rel=1e-6)


def test_a_discrete_field_is_added_at_every_step():
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
    made = theory(discrete=True, any_rule=True, variant=True)
    assert made.why_not(Line(), dynsim.adam(0.1)) is None
    assert SQUARE.why_not(Line(), dynsim.adam(0.1)) is not None
    assert (made.variant, SQUARE.variant) == (True, False)
    assert odes.theories(Line())["square"] is SQUARE


def test_a_formula_gets_the_sum_of_the_rates_over_one_minus_momentum():
    """Rates of 0.2 (1 - k / 10) add up to 0.68 after 4 steps, and to 1.1 after all ten."""
    formula = lambda problem, init, time: {"square": jnp.where(time > 4, jnp.nan, time)}
    made = odes.closed_form("time", "sum of the rates", "nothing", formula)
    rule = dynsim.sgd(dynsim.schedules.linear(0.2, 10), momentum=0.75)
    found = made.solve(Line(), rule, [0, 4, 10])
    np.testing.assert_allclose(found["square"], [0, 0.68 / 0.25, np.nan], rtol=1e-12)
    assert (found.status, found.first_bad_step) == (Status.DIVERGED, 10)


@pytest.mark.more
def test_a_stop_ends_the_run_with_a_status():
    until = theory(stop=lambda t, square, training: square < 0.5, solver=diffrax.Dopri5())
    # By default the batch is infinite: 4 exp(-0.0975 t) is 0.5 at t = 21.3.
    found = until.solve(Line(0.0), dynsim.sgd(0.05), TIMES, init=jnp.asarray(3.0))
    np.testing.assert_allclose(found["square"][:2], 4 * np.exp([0, -0.975]), rtol=1e-6)
    assert np.isinf(found["square"][2:]).all()
    assert (found.status, found.first_bad_step) == (Status.DIVERGED, 50)
    early = until.solve(Line(0.0), dynsim.sgd(0.05), [0.0, 10.0], init=jnp.asarray(3.0))
    assert early.status == Status.OK


@pytest.mark.more
def test_sweeps_solve_it_stored_or_in_memory(tmp_path):
    """A theory of the problem may be stored; one that it does not have has the same numbers."""
    run = sweeps.Experiment(Line(), dynsim.sgd(0.05), steps=60, batch=2)
    axes = {"spread": [0.1, 1.0], "batch": [1, 8], "seed": [0, 5]}
    named = sweeps.Sweep(run, axes, theory="square", record=["square"], times=(0, 60))
    found = sweeps.run(named, tmp_path / "square").load()
    own = dataclasses.replace(named, theory=dataclasses.replace(SQUARE, name="mine"))
    np.testing.assert_array_equal(sweeps.run(own).load().square, found.square)
    for place in ({"out": tmp_path / "mine"}, {"reuse": tmp_path / "square"}):
        refuses(lambda place=place: sweeps.run(own, **place), "theory = mine", *place)
    assert not list(tmp_path.glob("*mine*"))
    for noise, B, seed in ((0.1, 8, 5), (1.0, 1, 0)):
        y = found.square.sel(spread=noise, batch=B, seed=seed).values
        rate, force = -0.1 + 0.0025 * (1 + 2 / B), 0.0025 * noise**2 / B
        expected = (y[0] + force / rate) * np.exp(rate * 60) - force / rate
        np.testing.assert_allclose(y[1], expected, **CLOSE)


ETA, BETA, DECAY = 0.3, 0.8, 0.2
AT = np.array([0.0, 1.0, 7.0, 30.0])


class Averaged(dynsim.Rule):
    """Descends along an average of the gradient."""

    beta: Annotated[float, at.Ge(0), at.Le(1)] = BETA

    def direction(self):
        return optax.ema(self.beta, debias=False)

    def averages(self, params):
        return jax.tree.map(jnp.zeros_like, params)

    def flow(self, gradient, averages, t):
        del t
        rate = 1 - self.beta
        return averages, jax.tree.map(lambda g, m: rate * (g - m), gradient, averages)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.more
def test_its_flow_is_what_it_says(decoupled):
    rule = Averaged(ETA, decay=DECAY, decoupled=decoupled)
    found = odes.flow(Parabola(), rule, AT, key=KEY, record="loss", tolerances=PRECISE)
    rate = 1 - BETA
    # Of (p, m), where p^2 / 2 is the loss and p is 1 at the start.
    inside, outside = (0, DECAY) if decoupled else (DECAY, 0)
    slopes = np.array([[-ETA * outside, -ETA], [rate * (1 + inside), -rate]])
    p = np.array([expm(slopes * t)[0, 0] for t in AT])
    # Ten times the tolerance of the solver.
    np.testing.assert_allclose(found["loss"], p**2 / 2, rtol=1e-8, atol=1e-10)
    assert found.source == "own"


class Signed(dynsim.Rule):
    """Descends at a constant speed."""

    def direction(self):
        return optax.stateless(lambda gradient, params: jax.tree.map(jnp.sign, gradient))

    def flow(self, gradient, averages, t):
        del averages, t
        return jax.tree.map(jnp.sign, gradient), None


def test_a_rule_without_averages_has_a_flow():
    found = odes.flow(
        Parabola(), Signed(0.1), [0, 1, 7], key=KEY, record="loss", tolerances=PRECISE
    )
    np.testing.assert_allclose(found["loss"], np.array([1, 0.9, 0.3]) ** 2 / 2, rtol=1e-8)
