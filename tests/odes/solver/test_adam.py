"""Theories of Adam against Adam in NumPy: the flow of second order, noise in the denominator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import schedules
from dynsim.training.rule import of_layer
from dynsim.yz.model import YZ
from odes.solver import linear_noise
from odes.solver.adaptive import EXACT_STEPS
from odes.solver.flows import flows_of
from odes.solver.linear_noise import Descent
from odes.solver.posed import GroupedRule

pytestmark = pytest.mark.usefixtures("x64")

START = np.array([0.7, -0.4])
B1, B2, EPS = 0.8, 0.9, 0.5


def pair(x):
    """Two numbers as weights."""
    return YZ(*jnp.asarray(x)[:, None, None])


def gradient(x, y):
    """Of p_0^2 + p_1^2 / 2 + p_0^2 p_1 + p_0^4."""
    return 2 * x + 2 * x * y + 4 * x**3, y + x**2


RATES = {"Y": schedules.linear(0.3, 40, 0.5), "Z": schedules.linear(0.2, 20, 0.1)}
WANE = 0.4


def at(t):
    """Both rates of a flow. On a line, the rate of step k is that in the middle of the step."""
    k = t - 0.5
    return np.array([0.3 * (1 - k / 80), 0.2 * (1 - 0.9 * k / 20)])


def stacked(state):
    """Weights and averages, each as a row of two numbers."""
    return [np.array([float(x.Y[0, 0]), float(x.Z[0, 0])]) for x in state]


def posed_of(rule, kind, slope=gradient):
    """A flow from START, and its field, by time and state."""
    rule, pull = rule.astype("float64"), lambda task, p: YZ(*slope(p.Y, p.Z))
    driven = GroupedRule(rule.tabulated(20), of_layer(pair(START)))
    posed = flows_of(rule)[kind].pose(pull, None, driven, pair(START))
    return posed, jax.jit(lambda t, state: posed.field(t, state, posed.args))


def test_noise_in_the_denominator_is_that_of_runs():
    """Mean and standard deviation of 20 000 runs of Adam down a quadratic, with normal noise many
    times as large as the gradient, and larger the farther away."""
    rng, runs, steps, eta = np.random.default_rng(0), 20_000, 200, 2e-3
    H = np.array([0.5, 0.2])
    deviation = lambda p: 3 + p**2
    p, m, v = np.tile(START, (runs, 1)), np.zeros((runs, 2)), np.zeros((runs, 2))
    for k in range(1, steps + 1):
        g = H * p + deviation(p) * rng.standard_normal((runs, 2))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        p = p - eta * m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    values = lambda p, k: jnp.stack([p.Y[0, 0], p.Z[0, 0]])

    def derive(p, k):
        along = jax.lax.stop_gradient(deviation(values(p, k))) * values(p, k)
        return YZ(H[0] * p.Y, H[1] * p.Z), along

    descent = Descent(
        dynsim.adam(eta).astype("float64"),
        derive,
        lambda along: along @ along.T,
        lambda params, k: (values(params, k), None),
        variance=lambda params, k: jax.tree.map(lambda x: deviation(x) ** 2, params),
    )
    found = jax.jit(lambda: linear_noise.spread(descent, pair(START), (steps,)))()
    moved, want = np.asarray(found.values[0]) - START, p.mean(0) - START
    error = p.std(0) / runs**0.5
    # Noise in m and in v hang together, which takes 1/(4 t) off the drift of step t, 1 % of the
    # first 200 (docs/theory/adam.md). Without the variance the drift is several times as large.
    assert (np.abs(moved - want) < 0.06 * np.abs(want) + 4 * error).all()
    std = np.sqrt(np.diagonal(found.covariance[0]))
    np.testing.assert_allclose(std, p.std(0), rtol=0.05)


@pytest.mark.parametrize("kind", ["adam", "matched-adam", "rmsprop", "matched-rmsprop"])
def test_a_flow_obeys_the_equations_that_its_module_states(kind):
    """With rates that fall by group and decoupled decay; averages are integrals over the past."""
    matched, of_adam = kind.startswith("matched"), kind.endswith("adam")
    options = {"b1": B1} if of_adam else {}
    make = dynsim.adam if of_adam else dynsim.rmsprop
    rule = make(RATES, b2=B2, eps=EPS, decay=WANE, decoupled=True, **options)
    posed, field = posed_of(rule, kind)
    slope = lambda p: np.array(gradient(*p))
    decays = [-np.log(b) if matched else 1 - b for b in ([B1, B2] if of_adam else [B2])]
    powers = [1, 2] if of_adam else [2]
    begin = slope(START)

    # What the averages begin with: Adam's with nothing, RMSProp's with what its first step has;
    # matched ones half a step after the first, by the midpoint rule over the past.
    first = begin / (np.abs(begin) * (1 if of_adam else np.sqrt(1 - B2)) + EPS) + WANE * START
    first = -at(0.5) * first
    s = (np.arange(3000) + 0.5) / 2000
    past = np.where(s[:, None] < 1, begin, slope(START + first))
    want = [np.zeros(2), np.zeros(2)] if of_adam else [(1 - B2) * begin**2]
    if matched:
        pairs = zip(decays, powers, strict=True)
        want = [(r * np.exp(-r * (1.5 - s))[:, None] * past**n).sum(0) / 2000 for r, n in pairs]
    scale = [EPS**n for n in powers]
    p, *averages = stacked(posed.state)
    np.testing.assert_array_equal(p, START)
    for got, mean, size in zip(averages, want, scale, strict=True):
        # The midpoint rule misses by the square of 1/2000.
        np.testing.assert_allclose(got * size, mean, rtol=1e-6, atol=1e-12)

    p, m, v = np.array([0.5, -0.9]), np.array([0.3, -0.2]), np.array([0.7, 0.4])
    held = [m, v] if of_adam else [v]
    state = tuple(pair(x / size) for x, size in zip([p, *held], [1.0, *scale], strict=True))
    for t in (0.5, 1.5, 6.25):
        moved, *changes = stacked(field(jnp.asarray(t), state))
        if matched and t < 1:
            np.testing.assert_allclose(moved, first, rtol=1e-12)
            np.testing.assert_array_equal(changes, 0)
            continue
        elapsed = t + 0.5 if matched else t
        if of_adam:
            m_hat, v_hat = (x / -np.expm1(-r * elapsed) for x, r in zip(held, decays, strict=True))
            speed = -at(t) * (m_hat / (np.sqrt(v_hat) + EPS) + WANE * p)
        else:
            # RMSProp's gradient is that of half a unit before.
            motion = lambda p, t=t: -at(t) * (slope(p) / (np.sqrt(v) + EPS) + WANE * p)
            speed = motion(p - motion(p) / 2) if matched else motion(p)
        np.testing.assert_allclose(moved, speed, rtol=1e-12)
        for got, size, r, n, x in zip(changes, scale, decays, powers, held, strict=True):
            np.testing.assert_allclose(got * size, r * (slope(p) ** n - x), rtol=1e-12)


def test_the_flow_of_second_order_goes_on_from_the_averages_of_its_steps():
    """With rates that fall by group and decoupled decay: step by step, then with averages as old as
    those of step 11 when half of it has passed."""
    options = {"b1": B1, "b2": B2, "eps": EPS, "decay": WANE, "decoupled": True}
    posed, field = posed_of(dynsim.adam(RATES, **options), "corrected-adam")
    decays, size = np.array([[B1], [B2]]), np.array([[EPS], [EPS**2]])
    slow = 2 * (1 - decays) / (1 + decays)
    squares = lambda p: np.stack([gradient(*p), np.square(gradient(*p))])
    p, held = START, np.zeros((2, 2))
    for k in range(EXACT_STEPS):
        held = decays * held + (1 - decays) * squares(p)
        m_hat, v_hat = held / (1 - decays ** (k + 1))
        step = -at(k + 0.5) * (m_hat / (np.sqrt(v_hat) + EPS) + WANE * p)
        moved, *changes = stacked(field(jnp.asarray(k + 0.3), posed.state))
        np.testing.assert_allclose(moved, step, rtol=1e-12)
        np.testing.assert_array_equal(changes, 0)
        p = p + step
    # Half a unit of time of a decay towards what enters them.
    averages = np.stack(stacked(posed.state)[1:]) * size
    later = squares(p) + (averages - squares(p)) * np.exp(-slow / 2)
    np.testing.assert_allclose(later, decays * held + (1 - decays) * squares(p), rtol=1e-12)
    # An average of ones obeys the same equation.
    weights = 1 - decays ** (EXACT_STEPS + 1)
    for t in (10.25, 10.5, 13.75):
        scaled = (pair(p), *map(pair, averages / size))
        moved, *changes = stacked(field(jnp.asarray(t), scaled))
        m_hat, v_hat = averages / (1 + (weights - 1) * np.exp(-slow * max(t - 10.5, -0.5)))
        drive = m_hat / (np.sqrt(v_hat) + EPS)
        begin = p + at(t) * (drive + WANE * p) / 2
        np.testing.assert_allclose(moved, -at(t) * (drive + WANE * begin), rtol=1e-12)
        np.testing.assert_allclose(changes * size, slow * (squares(p) - averages), rtol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "heavy-ball", "matched"])
def test_flows_of_signs_obey_their_equations(kind):
    """Down p_0^2 + p_1^2 / 2 + (p_0^4 + p_1^4) / 4, with a sign that is linear within eta |H|, of
    an average that begins at zero; the matched one waits for half a step."""
    mu, h = 0.8, np.array([2.0, 1.0])
    options = {} if kind == "plain" else {"momentum": mu}
    slope = lambda x, y: (2 * x + x**3, y + y**3)
    posed, field = posed_of(dynsim.sign(RATES, **options), kind, slope)
    p, m = np.array([0.5, -0.9]), np.array([0.25, -0.9])
    state = tuple(map(pair, [p, m][: len(posed.state)]))
    G, width = h * p + p**3, h + 3 * p**2
    rate = -np.log(mu) if kind == "matched" else 1 - mu
    for t in (0.0, 0.3, 0.7, 3.25):
        moved, *change = stacked(field(jnp.asarray(t), state))
        eta = at(t - 0.5 if kind == "matched" else t)
        mean = G if kind == "plain" or t == 0 else m / -np.expm1(-rate * t)
        want = -eta * np.clip(mean / (eta * width), -1, 1)
        np.testing.assert_allclose(
            moved, 0 * p if kind == "matched" and t < 0.5 else want, rtol=1e-12
        )
        if kind != "plain":
            np.testing.assert_allclose(change, [rate * (G - m)], rtol=1e-12)
    # One of them is linear at last, and the other a sign.
    assert kind == "plain" or (np.abs(mean / (eta * width)) < 1).tolist() == [True, False]


@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy-ball", "nesterov"])
@pytest.mark.parametrize("kind", ["plain", "rescaled", "heavy-ball", "matched", "corrected"])
def test_flows_of_momentum_obey_the_equations_that_their_module_states(kind, nesterov):
    """With rates that fall by group and decoupled decay, which acts at the start of a step where
    the flow knows it; "plain" has no momentum."""
    mu = 0.0 if kind == "plain" else 0.8
    options = {"momentum": mu, "nesterov": nesterov} if mu else {}
    posed, field = posed_of(dynsim.sgd(RATES, decay=WANE, decoupled=True, **options), kind)
    slope = lambda p: np.array(gradient(*p))
    start = [START, {"corrected": slope(START) / (1 + mu)}.get(kind, 0 * START)]
    np.testing.assert_allclose(stacked(posed.state), start[: len(posed.state)], rtol=1e-12)
    assert len(posed.state) == (1 if kind in ("plain", "rescaled") else 2)

    p, v = np.array([0.5, -0.9]), np.array([0.3, -0.2])
    lag = {"heavy-ball": 1 - mu, "matched": -np.log(mu or 1), "corrected": 2 * (1 - mu) / (1 + mu)}
    for t in (0.3, 0.7, 3.25):
        # No rate is that of a time before the first step.
        eta = at(max(t - 0.5, 0) if kind == "matched" else t)
        G = slope(p)
        if kind in ("plain", "rescaled"):
            want = [-eta * (G / (1 - mu) + WANE * p)]
        else:
            ahead = lambda g: mu * v + g if nesterov else v
            moved = -eta * (ahead(G) + WANE * p)
            if kind == "corrected" or (kind == "matched" and nesterov):
                begin = p - moved / 2
                moved = -eta * (ahead(slope(begin)) + WANE * begin)
            # Before half a step no step has begun.
            moved = 0 * moved if kind == "matched" and nesterov and t < 0.5 else moved
            want = [moved, lag[kind] * (G / (1 - mu) - v)]
        got = stacked(field(jnp.asarray(t), tuple(map(pair, [p, v][: len(want)]))))
        np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=f"t = {t}")
