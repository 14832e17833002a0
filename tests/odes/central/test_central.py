"""Central flows of valleys that sharpen, where everything is known in closed form.

L = (1 + y^2) x^2 / 2 - b y from x = 0. Until the sharpness 1 + y^2 reaches 2/eta, y' = eta b. From
then on y stays, and the variance s of x holds it: y' = -eta (-b + s y), so that s = b/y. Where the
rate falls, y follows 2/eta = 1 + y^2, and s = (b - y'/eta)/y. Where it falls too fast for y to
follow, s = 0 and y' = eta b again. What holds it solves a complementarity problem: against SciPy
and its own conditions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

import dynsim
import odes
from dynsim import Status, schedules
from odes.central.edge import complement as solve
from tests.odes.test_problem import Bowl, Line

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


def central(problem, rule, times, **options):
    return odes.central_flow(problem, rule, times, key=KEY, record=[*OWN, WEIGHTS], **options)


def test_a_valley_is_the_closed_form():
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
def test_a_falling_rate_moves_the_edge_and_a_drop_leaves_it():
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


def test_three_valleys_at_the_edge_are_three_flows_of_one():
    """Their eigenvalues are equal there, so that the eigenvectors found mix the valleys. If two are
    followed, the slowest is the third at the edge, at step 51.7."""
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
    for end, status in ((60, (Status.BEYOND_EDGE, np.ceil(REACHED))), (50, (Status.OK, -1))):
        found = central(Valleys(SLOPES), dynsim.sgd(ETA), [40, end], follow=2)
        assert (found.status, found.first_bad_step) == status


@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        # 1.9 times 1 + 0.08 is just beyond.
        (Line(), dynsim.sgd(1.9, decay=0.08, decoupled=True)),
        (Line(), dynsim.sgd(3.0)),
    ],
    ids=["parabola beyond by decay", "parabola"],
)
@pytest.mark.more
def test_what_no_oscillation_holds_is_a_status(problem, rule):
    found = odes.central_flow(problem, rule, [0, 5], key=KEY)
    assert (found.status, found.first_bad_step) == (Status.BEYOND_EDGE, 1)
    assert found["loss"].shape == (2,)


BOTH = {
    n: schedules.cosine(eta, 40, 0.1, warmup=10) for n, eta in (("first", 0.3), ("second", 0.15))
}
OF_SCIPY = pytest.mark.full("test_rmsprop_at_the_edge_is_what_scipy_integrates")


@pytest.mark.parametrize(
    "rule",
    [
        dynsim.sgd(BOTH, decay=0.2, decoupled=True),
        pytest.param(dynsim.rmsprop(0.02, b2=0.8, eps=0.5, decay=0.2), marks=OF_SCIPY),
    ],
    ids=["schedules by group, decoupled decay", "rmsprop"],
)
@pytest.mark.more
def test_off_the_edge_it_is_the_flow(rule):
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


def test_a_batch_of_rates_is_one_program():
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


@pytest.mark.more
def test_larger_problems_search_for_their_eigenvectors():
    """Beyond 200 weights."""
    slopes, times = np.array([SLOPE, *[0.001] * 104]), np.array([40, 80, 81])
    found = central(Valleys(tuple(slopes.tolist())), dynsim.sgd(ETA), times, follow=1)
    np.testing.assert_array_equal(found["at_edge"], [0, 1, 1])
    y = np.minimum(START + ETA * slopes * times[:, None], EDGE)
    # As of a single valley.
    np.testing.assert_allclose(found["y"], y, rtol=1e-5)
    np.testing.assert_allclose(found["oscillation"][1:], SLOPE / EDGE, rtol=2e-3)
    np.testing.assert_allclose(
        found["preconditioned_sharpness"], ETA * (1 + y[:, 0] ** 2), rtol=1e-5
    )


def test_rmsprop_at_the_edge_is_what_scipy_integrates():
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

    def variance(y):
        r, sharp = eta * (1 + y**2) / 2 - eps, 1 + y**2
        speed = eta / (b + eps)
        # y speed (b - s y) = (1 - b2) (sharp^2 s - r^2) / (2 r eta)
        average = (1 - b2) / (2 * r * eta)
        return (y * speed * b + average * r**2) / (average * sharp**2 + y**2 * speed)

    field = lambda t, y: eta * (b - variance(y[0]) * y[0]) / (b + eps) + 0 * y
    precise = {"t_eval": times, "rtol": 1e-10, "atol": 1e-12}
    solved = solve_ivp(field, (100, 300), found["y"][0], **precise)
    assert np.ptp(solved.y[0]) > 0.05
    # First order in a step, in which y moves by 1e-3 of itself.
    np.testing.assert_allclose(found["y"][:, 0], solved.y[0], rtol=1e-3)
    # The variance is that of the step that ends there, which lags by about a step: at first 1.1 %.
    want = [variance(y) for y in solved.y[0]]
    np.testing.assert_allclose(found["oscillation"], want, rtol=2e-2)


SOLVE = jax.jit(solve)


@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-7), ("float32", 1e-2)])
def test_random_problems_satisfy_all_conditions(dtype, atol):
    """Some eigenvalues are beyond the edge and some below; entries of B spread over powers of ten.
    A search that starts at the answer ends there; elsewhere it finds the same."""
    for k in (2, 3, 4):
        rng = np.random.default_rng(k)
        E = rng.normal(size=(8, k, k, 3 * k))
        size = 10 ** (0.5 * rng.uniform(-1, 1, (8, k)))
        E = (E + E.transpose(0, 2, 1, 3)) * (size[:, None] * size[:, :, None])[..., None]
        A = np.stack([np.diag(each) for each in rng.normal(size=(8, k))]).astype(dtype)
        E = E.astype(dtype)
        with jax.enable_x64(dtype == "float64"):
            found = jax.vmap(SOLVE)(jnp.asarray(A), jnp.asarray(E))
            again = jax.vmap(SOLVE)(jnp.asarray(A), jnp.asarray(E), found.X)
            away = jax.vmap(SOLVE)(jnp.asarray(A), jnp.asarray(E), 3 * found.X + jnp.eye(k)[None])
        assert found.X.dtype == dtype
        assert np.all(found.solved & away.solved)
        assert not again.turns.any()
        X = np.asarray(found.X, np.float64)
        largest = np.abs(X).max(axis=(1, 2))
        # The tolerance, in units of the norms of E_ii, times the condition of B.
        off = np.abs(np.asarray(away.X) - X).max(axis=(1, 2))
        assert (off <= 10 * atol * largest).all()
        # The other matrix and the products are NumPy's.
        slack = A + np.einsum("bklx,bkl,bijx->bij", E, X, E)
        np.testing.assert_allclose(found.slack, slack, atol=atol * np.abs(A).max())
        assert np.linalg.eigvalsh(X).min() > -atol
        assert np.linalg.eigvalsh(slack).min() > -atol
        assert (np.abs(np.einsum("bij,bij->b", X, slack)) / (1 + largest)).max() < atol
        # Neither is zero throughout, so that the products say something.
        assert X.max() > 0.1 > atol


def test_what_no_push_satisfies_is_not_solved():
    """Nothing changes the first eigenvalue, as on a quadratic loss."""
    E = jnp.zeros((2, 2, 3)).at[1, 1].set(1.0)
    found = SOLVE(jnp.diag(jnp.array([-1.0, 1.0])), E)
    assert (found.solved, found.turns) == (False, 2000)
    assert SOLVE(jnp.diag(jnp.array([1.0, -1.0])), E).solved


NUMBERS = np.random.default_rng(0)
POINTS = NUMBERS.normal(size=(24, 3))
VALUES = np.sin(2 * POINTS[:, 0]) + POINTS[:, 1] * POINTS[:, 2]


class Network(dynsim.Problem):
    def init(self, key):
        first, last = jax.random.split(key)
        outer = jax.random.normal(last, (10,)) / jnp.sqrt(10.0)
        return {"W": jax.random.normal(first, (10, 3)), "b": jnp.zeros(10), "v": outer}

    def population_loss(self, params):
        hidden = jnp.tanh(POINTS @ params["W"].T + params["b"][None])
        return jnp.mean((hidden @ params["v"] - VALUES) ** 2) / 2


ALL_WEIGHTS = {"weights": lambda _, params: ravel_pytree(params)[0]}


@pytest.mark.full("test_a_valley_is_the_closed_form")
def test_gradient_descent_at_the_edge_of_stability():
    eta, times = 0.4, np.arange(1000, 3001, 100)
    given = {"key": KEY, "record": ["loss", ALL_WEIGHTS]}
    central = odes.central_flow(
        Network(), dynsim.sgd(eta), times, key=KEY, record=["loss", ALL_WEIGHTS, *OWN[:3]]
    )
    flow = odes.flow(Network(), dynsim.sgd(eta), times, **given)
    descent = odes.descent(Network(), dynsim.sgd(eta), np.arange(times[-1] + 50), **given)
    assert central.status == dynsim.Status.OK
    np.testing.assert_allclose(central["preconditioned_sharpness"], 2, rtol=1e-3)
    _, whole = ravel_pytree(central.params)
    with jax.enable_x64(True):
        hessian = jax.jit(jax.hessian(lambda w: Network().population_loss(whole(w))))
        middles = [np.mean(descent["weights"][t - 4 : t + 5], axis=0) for t in times]
        found = [np.linalg.eigvalsh(hessian(jnp.asarray(w)))[-1] for w in middles]
    # Descent goes about the edge by a few percent.
    np.testing.assert_allclose(np.mean(found), 2 / eta, rtol=0.02)
    # What is left is descent's error of first order before the edge, and its first burst there.
    away, without = (np.linalg.norm(each["weights"] - middles, axis=1) for each in (central, flow))
    assert np.all(away < 0.65 * without)
    # Bursts of a hundred steps, one of which more or less is a tenth.
    measured = np.mean(descent["loss"][950:3050])
    assert abs(np.mean(central["averaged_loss"]) / measured - 1) < 0.1
    assert np.mean(flow["loss"]) < 0.6 * measured
