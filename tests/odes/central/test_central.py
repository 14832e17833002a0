"""Central flows of valleys that sharpen, where everything is known in closed form.

L = (1 + y^2) x^2 / 2 - b y from x = 0. Until the sharpness 1 + y^2 reaches 2/eta, y' = eta b. From
then on y stays, and the variance s of x holds it: y' = -eta (-b + s y), so that s = b/y. Where the
rate falls, y follows 2/eta = 1 + y^2, and s = (b - y'/eta)/y. Where it falls too fast for y to
follow, s = 0 and y' = eta b again.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import dynsim
import odes
from dynsim import Status, schedules
from dynsim.problem import sharpness
from odes.central import edge
from tests.odes.test_problem import Bowl

KEY = jax.random.key(0)
OWN = ["averaged_loss", "preconditioned_sharpness", "oscillation", "at_edge"]
WEIGHTS = {"x": lambda _, p: p["x"], "y": lambda _, p: p["y"]}
ETA, START, SLOPE = 0.25, 2.0, 0.05
EDGE = np.sqrt(2 / ETA - 1)
REACHED = (EDGE - START) / (ETA * SLOPE)
"""Steps after which the sharpness of a valley is 2/eta: 51.7."""


class Valleys(dynsim.Problem):
    """Valleys side by side, which sharpen at rates b of their own."""

    slopes: tuple[float, ...] = (SLOPE,)

    def init(self, key):
        zeros = jnp.zeros(len(self.slopes))
        return {"x": zeros, "y": zeros + START}

    def population_loss(self, params):
        x, y = params["x"], params["y"]
        return jnp.sum((1 + y**2) * x**2 / 2 - jnp.array(self.slopes) * y)

    def groups(self, params):
        return {"x": "across", "y": "along"}


def central(problem: Any, rule: Any, times: Any, **options: Any) -> dynsim.Trajectory:
    return odes.central_flow(problem, rule, times, key=KEY, record=[*OWN, WEIGHTS], **options)


def test_a_valley_is_the_closed_form() -> None:
    """Before the edge, with a time between whole steps, and at it."""
    times = np.array([0, 20.3, 51, 60, 200])
    found = central(Valleys(), dynsim.sgd(ETA), times)
    assert (found.status, found.first_bad_step, found.source) == (Status.OK, -1, "central")
    before = times < REACHED
    y = np.where(before, START + ETA * SLOPE * times, EDGE)
    variance = np.where(before, 0, SLOPE / EDGE)
    # Rounding before the edge. At the edge, a part of a step goes d = eta b/4 beyond and comes back
    # by what is linear there: y is off by d^2/(2y) = 2e-6, the variance by d/y = 1.2e-3 of itself.
    np.testing.assert_allclose(found["y"][before, 0], y[before], rtol=1e-13)
    np.testing.assert_allclose(found["y"][:, 0], y, rtol=1e-5)
    np.testing.assert_allclose(found["oscillation"], variance, rtol=2e-3)
    np.testing.assert_array_equal(found["oscillation"][before], 0)
    np.testing.assert_allclose(found["preconditioned_sharpness"], ETA * (1 + y**2), rtol=1e-5)
    np.testing.assert_array_equal(found["at_edge"], ~before)
    mean = -SLOPE * y + (1 + y**2) * variance / 2
    np.testing.assert_allclose(found["averaged_loss"], mean, rtol=2e-3)
    np.testing.assert_array_equal(found["x"], 0)


@pytest.mark.more
def test_a_falling_rate_moves_the_edge_and_a_drop_leaves_it() -> None:
    """2/eta = 1 + y^2 while the rate falls slowly from 0.3 to 0.2. Another rate halves at step 150:
    then y moves freely, at eta b, up to the new edge."""
    slow = schedules.linear(0.3, 200, 2 / 3)
    steps = central(Valleys((0.2,)), dynsim.sgd(slow), [5, 99, 100, 149, 150])
    found = {name: steps[name][2::2] for name in steps.observables}
    # A flow reads the rate half a step late, and here that of the middle of the last part.
    rate_at = lambda t: 0.3 - 0.1 * (t - 0.5) / 200
    rate = rate_at(np.array([100, 150]) - 0.125)
    sharpness = steps["preconditioned_sharpness"][0] / (1 + steps["y"][0, 0] ** 2)
    assert sharpness == pytest.approx(rate_at(5 - 0.125), rel=1e-12)
    y = np.sqrt(2 / rate - 1)
    np.testing.assert_allclose(found["y"][:, 0], y, rtol=1e-5)
    speed = 0.1 / 200 / (rate**2 * y)
    np.testing.assert_allclose(found["oscillation"], (0.2 - speed / rate) / y, rtol=1e-2)
    # In the last step y moved by b times the integral of the rate, and back by the oscillation at
    # the last of its rates. A rate of an eighth of a step earlier is by 1.2e-4 to 1.5e-4 larger.
    pulled = 0.2 * rate_at(np.array([99.5, 149.5])) - np.diff(steps["y"][1:, 0])[::2]
    np.testing.assert_allclose(pulled, rate * found["y"][:, 0] * found["oscillation"], rtol=5e-5)
    halved = schedules.steps(0.3, (150,), (0.5,))
    found = central(Valleys((0.2,)), dynsim.sgd(halved), [150, 151, 160, 300])
    begin = np.sqrt(2 / 0.3 - 1)
    want = [begin, begin + 0.15 * 0.2, begin + 0.15 * 0.2 * 10, np.sqrt(2 / 0.15 - 1)]
    # With d = eta b/4 = 0.015, d^2/(2y) = 4.7e-5.
    np.testing.assert_allclose(found["y"][:, 0], want, atol=6e-5)
    np.testing.assert_array_equal(found["oscillation"][1:3], 0)
    assert found.status == Status.OK


SLOPES = (0.05, 0.08, 0.1)


def test_three_valleys_at_the_edge_are_three_flows_of_one() -> None:
    """Their eigenvalues are equal there, so that the eigenvectors found mix the valleys."""
    times, slopes = np.array([40, 100]), np.array(SLOPES)
    found = central(Valleys(SLOPES), dynsim.sgd(ETA), times, follow=3)
    np.testing.assert_array_equal(found["at_edge"], [2, 3])
    y = np.minimum(START + ETA * slopes * times[:, None], EDGE)
    variance = np.where(y == EDGE, slopes / EDGE, 0)
    # As of a single valley, with a slope of 0.1.
    np.testing.assert_allclose(found["y"], y, rtol=1e-5)
    np.testing.assert_allclose(found["oscillation"], variance.sum(axis=1), rtol=4e-3)
    mean = np.sum((1 + y**2) * variance / 2 - slopes * y, axis=1)
    np.testing.assert_allclose(found["averaged_loss"], mean, rtol=4e-3)


def test_more_eigenvalues_than_are_followed_are_a_status_from_their_step_on() -> None:
    """The slowest of three valleys is the third at the edge, at step 51.7."""
    found = central(Valleys(SLOPES), dynsim.sgd(ETA), [40, 60], follow=2)
    assert (found.status, found.first_bad_step) == (Status.BEYOND_EDGE, np.ceil(REACHED))
    early = central(Valleys(SLOPES), dynsim.sgd(ETA), [40, 50], follow=2)
    assert (early.status, early.first_bad_step) == (Status.OK, -1)


class Parabola(dynsim.Problem):
    """A sharpness that nothing changes."""

    def init(self, key):
        return jnp.float32(1)

    def population_loss(self, params):
        return params**2 / 2


@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        # 1.9 times 1 + 0.08 is just beyond.
        (Parabola(), dynsim.sgd(1.9, decay=0.08, decoupled=True)),
        (Parabola(), dynsim.sgd(3.0)),
        (Valleys(), dynsim.sgd(0.5)),
    ],
    ids=["parabola beyond by decay", "parabola", "valley that starts beyond"],
)
@pytest.mark.more
def test_what_no_oscillation_holds_is_a_status(problem: Any, rule: dynsim.Rule) -> None:
    found = odes.central_flow(problem, rule, [0, 5], key=KEY)
    assert (found.status, found.first_bad_step) == (Status.BEYOND_EDGE, 1)
    assert found["loss"].shape == (2,)


@pytest.mark.parametrize(
    "rule",
    [
        dynsim.sgd(
            {
                "first": schedules.cosine(0.3, 40.0, 0.1, warmup=10.0),
                "second": schedules.cosine(0.15, 40.0, 0.1, warmup=10.0),
            },
            decay=0.2,
            decoupled=True,
        ),
        pytest.param(
            dynsim.rmsprop(0.02, b2=0.8, eps=0.5, decay=0.2),
            marks=pytest.mark.full("test_rmsprop_at_the_edge_is_what_scipy_integrates"),
        ),
    ],
    ids=["schedules by group, decoupled decay", "rmsprop"],
)
@pytest.mark.more
def test_off_the_edge_it_is_the_flow(rule: dynsim.Rule) -> None:
    record = {"all": lambda _, p: jnp.append(p["b"], p["a"])}
    kind = "corrected" if rule.name == "sgd" else "rmsprop"
    times, options = [0.0, 7.3, 40], {"key": KEY, "record": [record]}
    precise = odes.Tolerances(1e-11, 1e-13)
    flow = odes.flow(Bowl(), rule, times, kind=kind, tolerances=precise, **options)
    found = odes.central_flow(Bowl(), rule, times, key=KEY, record=[record, *OWN])
    assert found["preconditioned_sharpness"].max() < 2
    assert found.status == Status.OK
    # Runge-Kutta's error of the fourth order at eta H (1 + eta H/2) of up to 1.5 a step, in fourths
    # of it, and the rate's curvature within a fourth.
    np.testing.assert_allclose(found["all"], flow["all"], rtol=0, atol=4e-6)


@pytest.mark.full("test_a_valley_is_the_closed_form")
def test_what_is_recorded_between_changes_nothing() -> None:
    rule = dynsim.sgd(ETA)
    few = central(Valleys(SLOPES), rule, [80])
    many = central(Valleys(SLOPES), rule, [3, 40.1, 52.7, 80])
    for name in few.observables:
        np.testing.assert_allclose(many[name][-1], few[name][-1], rtol=1e-12, err_msg=name)


@pytest.mark.more
def test_a_batch_of_rates_is_one_program() -> None:
    """One below the edge throughout, one that gets there, one that starts beyond; and two that are
    by 0.08 and by 0.13 beyond it in their first step, of which 0.1 is too much."""
    etas = jnp.array([0.1, 0.25, 0.5, 0.41, 0.42])
    run = lambda eta: central(Valleys(), dynsim.sgd(eta), [0, 80], dtype="float32")
    batch = jax.vmap(run)(etas)
    ok, beyond = Status.OK, Status.BEYOND_EDGE
    assert batch.status.tolist() == [ok, ok, beyond, ok, beyond]
    assert batch.first_bad_step.tolist() == [-1, -1, 1, -1, 1]
    # The excess over the edge, 4e-3 of 2, is known to 1e-4 of itself in float32.
    want = [START + 0.1 * SLOPE * 80, EDGE]
    np.testing.assert_allclose(batch["y"][:2, -1, 0], want, rtol=1e-5)
    np.testing.assert_allclose(batch["oscillation"][:2, -1], [0, SLOPE / EDGE], rtol=1e-2)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Turns that the solver of the edge takes, in the order of its calls."""
    counted: list[int] = []
    solve = edge.complement

    def counting(*args: Any) -> Any:
        found = solve(*args)
        jax.debug.callback(lambda turns: counted.append(int(turns)), found.turns)
        return found

    monkeypatch.setattr(edge, "complement", counting)
    return counted


class Coupled(Valleys):
    """Two valleys, each of which has a third of its sharpness from the other's y."""

    slopes: tuple[float, ...] = (SLOPE, 0.06)

    def population_loss(self, params):
        shared = (params["y"] + jnp.sum(params["y"])) / 3
        x, b = params["x"], jnp.array(self.slopes)
        return jnp.sum((1 + shared**2) * x**2 / 2 - b * params["y"])


def test_at_the_edge_the_search_starts_at_the_last_oscillation(turns: list[int]) -> None:
    """Which is the answer where nothing changes any more: with shared = S y for a symmetric S, the
    variances s have S (s shared) = b."""
    found = central(Coupled(), dynsim.sgd(ETA), [100], follow=2)
    jax.effects_barrier()
    variance = np.linalg.solve(np.array([[2, 1], [1, 2]]) / 3, Coupled().slopes) / EDGE
    # As of a single valley.
    np.testing.assert_allclose(found["oscillation"], variance.sum(), rtol=4e-3)
    assert max(turns) > 5
    assert max(turns[-20:]) <= 1


def test_a_run_beyond_the_edge_does_not_slow_down_its_batch(turns: list[int]) -> None:
    """In a batch of runs the solver runs for all of them; where no oscillation holds a sharpness,
    it would take all its turns."""
    run = lambda eta: odes.central_flow(Parabola(), dynsim.sgd(eta), [20], dtype="float32", key=KEY)
    batch = jax.vmap(run)(jnp.array([1.0, 3.0]))
    jax.effects_barrier()
    assert batch.first_bad_step.tolist() == [-1, 1]
    # Those of the step in which one is lost.
    assert sum(n > 0 for n in turns) == 1 < 20 < len(turns)


@pytest.mark.more
def test_iterated_eigenvectors_are_those_of_the_whole_matrix() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(60, 60))
    matrix = matrix + matrix.T
    want, vectors = np.linalg.eigh(matrix)
    with jax.enable_x64(True):
        found = jnp.asarray(rng.normal(size=(60, 3)))
        for _ in range(2):
            values, found = sharpness.top(
                lambda v: jnp.asarray(matrix) @ v, 3, found, tolerance=edge.WANTED
            )
    # Residuals of 1e-6 are squared in eigenvalues.
    np.testing.assert_allclose(values, want[:-4:-1], rtol=1e-9)
    np.testing.assert_allclose(
        np.abs(vectors[:, :-4:-1].T @ np.asarray(found)), np.eye(3), atol=1e-5
    )


def test_larger_problems_search_for_their_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharpness, "DENSE", 0)
    # Of no other length, as a setting of the module is no part of a program.
    slopes, times = np.array([SLOPE, *[0.001] * 10]), np.array([40, 80, 81])
    found = central(Valleys(tuple(slopes.tolist())), dynsim.sgd(ETA), times, follow=1)
    np.testing.assert_array_equal(found["at_edge"], [0, 1, 1])
    y = np.minimum(START + ETA * slopes * times[:, None], EDGE)
    # As of a single valley.
    np.testing.assert_allclose(found["y"], y, rtol=1e-5)
    np.testing.assert_allclose(found["oscillation"][1:], SLOPE / EDGE, rtol=2e-3)
    np.testing.assert_allclose(
        found["preconditioned_sharpness"], ETA * (1 + y[:, 0] ** 2), rtol=1e-5
    )


def test_rmsprop_at_the_edge_is_what_scipy_integrates() -> None:
    """At x = 0 and the edge, (1 + y^2) = 2 (r + eps)/eta with r = sqrt(v_x). Of its derivative, y
    y' = r'/eta, and of v_x' = (1 - b2) ((1 + y^2)^2 s - v_x) and y' = eta (b - s y)/(|b| + eps)
    follows s, as v_y = b^2 by then."""
    eta, b2, eps, b = 0.02, 0.9, 0.05, 0.05
    rule = dynsim.rmsprop(eta, b2=b2, eps=eps)
    early, times = np.arange(3.0, 7), np.array([100.0, 150, 200, 300])
    found = central(Valleys((b,)), rule, np.r_[early, times])
    np.testing.assert_array_equal(found["at_edge"], [0] * 4 + [1] * 4)
    # It starts at the edge. What it oscillates with there fills v_x, so that it falls below, where
    # nothing oscillates and v_x decays.
    np.testing.assert_array_equal(found["oscillation"][:4], 0)
    sharp = eta * (1 + found["y"][:4, 0] ** 2)
    root = sharp / found["preconditioned_sharpness"][:4] - eps
    # Of a scheme of fourth order.
    np.testing.assert_allclose(root, root[0] * np.exp((b2 - 1) / 2 * np.arange(4)), rtol=1e-8)
    found = {name: found[name][4:] for name in ("y", "oscillation")}

    def variance(y: float) -> float:
        r, sharp = eta * (1 + y**2) / 2 - eps, 1 + y**2
        speed = eta / (b + eps)
        # y speed (b - s y) = (1 - b2) (sharp^2 s - r^2) / (2 r eta)
        average = (1 - b2) / (2 * r * eta)
        return (y * speed * b + average * r**2) / (average * sharp**2 + y**2 * speed)

    solved = solve_ivp(
        lambda t, y: eta * (b - variance(y[0]) * y[0]) / (b + eps) + 0 * y,
        (100, 300),
        found["y"][0],
        t_eval=times,
        rtol=1e-10,
        atol=1e-12,
    )
    assert np.ptp(solved.y[0]) > 0.05
    # First order in a step, in which y moves by 1e-3 of itself.
    np.testing.assert_allclose(found["y"][:, 0], solved.y[0], rtol=1e-3)
    # The variance is that of the step that ends there, which lags by about a step: at first 1.1 %.
    want = [variance(y) for y in solved.y[0]]
    np.testing.assert_allclose(found["oscillation"], want, rtol=2e-2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": dynsim.sgd(0.1, momentum=0.9)}, "rule = momentum: central flows are derived for"),
        ({"rule": dynsim.adam(0.1)}, "rule = adam: central flows are derived for gradient descent"),
        ({"rule": dynsim.sgd(0.1, clip=1.0)}, "clip = 1.0: no central flow is known with it"),
        ({"rule": dynsim.sgd(0.1, noise=0.1)}, "noise = 0.1: no central flow is known with it"),
        (
            {"rule": dynsim.rmsprop(0.1, decay=0.1, decoupled=True)},
            "decoupled = True: the central flow of RMSProp is derived for coupled decay",
        ),
        ({"rule": dynsim.from_optax(dynsim.sgd)}, "rule = OptaxRule: theories describe"),
        ({"follow": 5}, "follow = 5: must be an integer <= 4"),
        ({"key": None}, "key = None: starting weights are random; pass a key, or `init`"),
        ({"record": "batch_loss"}, "record = 'batch_loss': is of a batch; a flow has none"),
        ({"record": "oscilation"}, "record = 'oscilation': did you mean 'oscillation'?"),
    ],
)
def test_what_it_does_not_describe_is_refused(changes: dict[str, Any], message: str) -> None:
    given = {"problem": Valleys(), "rule": dynsim.sgd(0.1), "times": [1.0], "key": KEY} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        odes.central_flow(**given)
