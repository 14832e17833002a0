"""Noise in descent against perturbation theory by finite differences, all in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import schedules
from dynsim.training.rule import of_layer
from dynsim.yz.model import YZ
from odes.solver import linear_noise, second_order
from odes.solver.linear_noise import Descent

pytestmark = pytest.mark.usefixtures("x64")

START = np.array([0.7, -0.4])
TIMES = (0, 1, 3, 6)
FALL = schedules.linear(0.1, 8, 0.5)
# Covariance of the noise at p: F F^T with F = diag(1, 2 + p_0).
RULES = {
    "sgd": dynsim.sgd(0.2, 0.3),
    "momentum": dynsim.sgd(0.1, 0.2, momentum=0.7),
    "nesterov": dynsim.sgd(FALL, 0.2, momentum=0.7, nesterov=True, decay=0.3),
    "rmsprop": dynsim.rmsprop({"Y": FALL, "Z": 0.2}, eps=0.1, decay=0.3, decoupled=True),
    "adam": dynsim.adam(0.05, 0.03),
}


def some(*shown):
    """Rules with noise in their averages of squares or without; by default those `shown`."""
    cases = [*((name, False) for name in RULES), ("rmsprop", True), ("adam", True)]
    names = [f"{name} divided" if divided else name for name, divided in cases]
    marks = [() if name in shown else pytest.mark.full for name in names]
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def gradient(p):
    """Of p_0^2 + p_1^2 / 2 + p_0^2 p_1 + p_0^4, which is not linear."""
    return np.array([2 * p[0] + 2 * p[0] * p[1] + 4 * p[0] ** 3, p[1] + p[0] ** 2])


def path(rule, noise, divided=0, added=None):
    """(7, 2) weights of descent with noise (6, 2), by the textbook rules; with a
    share `divided` of the variance of the noise in averages of squares, and what is `added`."""
    falls = np.array([each.length == 8 for each in rule.schedules.values()])
    peaks = np.array([float(each.peak) for each in rule.schedules.values()])
    # Of what another rule reads any number will do.
    mu, b1, b2, eps = (float(getattr(rule, name, 0.5)) for name in ("mu", "b1", "b2", "eps"))
    decay = 0.0 if rule.decay is None else float(rule.decay)
    p, v, m, w = START.copy(), np.zeros(2), np.zeros(2), np.zeros(2)
    found = [p]
    for k in range(TIMES[-1]):
        g = gradient(p) + noise[k] + (0 if rule.decoupled else decay * p)
        square = g**2 + divided * np.array([1, (2 + p[0]) ** 2])
        square += 0 if added is None else added[k]
        v, m, w = mu * v + g, b1 * m + (1 - b1) * g, b2 * w + (1 - b2) * square
        adam = m / (1 - b1 ** (k + 1)) / (np.sqrt(w / (1 - b2 ** (k + 1))) + eps)
        d = {
            "sgd": g,
            "momentum": v,
            "nesterov": mu * v + g,
            "rmsprop": g / (np.sqrt(w) + eps),
            "adam": adam,
        }[rule.name.removesuffix("w")]
        d = d + (decay * p if rule.decoupled else 0)
        p = p - peaks * (1 - falls * k / 16) * d
        found.append(p)
    return np.array(found)


def reached(rule, noise, divided=0, added=None):
    """(S, 2) two observables at `TIMES`."""
    p = path(rule, noise, divided, added)[list(TIMES)]
    return np.stack([p[:, 0] + p[:, 1], p[:, 0] ** 2], axis=1)


def factors(rule, divided=0):
    """Root of the covariance at each step of descent without noise."""
    return [np.diag([1.0, 2 + p[0]]) for p in path(rule, np.zeros((TIMES[-1], 2)), divided)[:-1]]


def descent(rule, divided=False):
    def derive(params, k):
        x, y = params.Y[0, 0], params.Z[0, 0]
        slope = 2 * x + 2 * x * y + 4 * x**3, y + x**2
        # What is derived along lambda: F^T (p . lambda) has the derivative F^T lambda at fixed F.
        scale = jax.lax.stop_gradient(jnp.stack([jnp.ones(()), 2 + x]))
        return YZ(*(s[None, None] for s in slope)), scale * jnp.stack([x, y])

    def observe(params, k):
        x, y = params.Y[0, 0], params.Z[0, 0]
        return jnp.stack([x + y, x**2]), None

    variance = lambda p, k: YZ(jnp.ones_like(p.Y), (2 + p.Y) ** 2)
    options = {"groups": of_layer(start()), "variance": variance if divided else None}
    return Descent(rule, derive, lambda along: along @ along.T, observe, **options)


def start():
    return YZ(jnp.asarray(START[:1, None]), jnp.asarray(START[1:, None]))


@pytest.mark.parametrize(("name", "divided"), some("nesterov", "rmsprop", "adam divided"))
def test_covariance_is_that_of_perturbation_theory(name, divided):
    rule, h = RULES[name].astype("float64"), 1e-5
    found = jax.jit(lambda: linear_noise.spread(descent(rule, divided), start(), TIMES))()
    quiet = np.zeros((TIMES[-1], 2))
    np.testing.assert_allclose(found.values, reached(rule, quiet, divided), rtol=1e-12)
    want = np.zeros((len(TIMES), 2, 2))
    for k, root in enumerate(factors(rule, divided)):
        for direction in root.T:
            noise = quiet.copy()
            noise[k] = h * direction
            slope = (reached(rule, noise, divided) - reached(rule, -noise, divided)) / (2 * h)
            want += slope[:, :, None] * slope[:, None, :]
    # Central differences miss by h^2, and by rounding of 1e-16 over h.
    np.testing.assert_allclose(found.covariance, want, rtol=1e-6, atol=1e-12)


def test_squares_of_the_noise_scatter_too():
    rule, h, size = RULES["adam"].astype("float64"), 1e-5, np.array([0.7, 1.9])
    along = lambda params, k, mu: jnp.stack([mu.Y[:, 0, 0], mu.Z[:, 0, 0]]).T @ np.diag(size)
    squares = lambda params, k, mu: along(params, k, mu) @ along(params, k, mu).T
    given = descent(rule, divided=True)
    spread = lambda each: np.asarray(linear_noise.spread(each, start(), TIMES).covariance)
    found = spread(given._replace(squares=squares)) - spread(given)
    quiet, want = np.zeros((TIMES[-1], 2)), np.zeros((len(TIMES), 2, 2))
    for k, i in np.ndindex(quiet.shape):
        added = quiet.copy()
        added[k, i] = h * size[i]
        slope = (reached(rule, quiet, 1, added) - reached(rule, quiet, 1, -added)) / (2 * h)
        want += slope[:, :, None] * slope[:, None, :]
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-12)


def sample(params, key):
    one, other = jax.random.normal(key, (2,))
    return YZ(one[None, None], (other * (2 + params.Y[0, 0]))[None, None])


@pytest.mark.parametrize(("name", "divided"), some("momentum", "adam", "rmsprop divided"))
def test_drift_is_that_of_perturbation_theory(name, divided):
    rule, h = RULES[name].astype("float64"), 1e-3
    found = jax.jit(
        lambda key: second_order.drift(descent(rule, divided), sample, start(), TIMES, key, 4096)
    )(jax.random.key(0))
    quiet = np.zeros((TIMES[-1], 2))
    # Where noise is in the averages of squares from the start, its own square takes that place.
    less = (reached(rule, quiet, 1 - h**2) - reached(rule, quiet, 1)) / h**2
    want = less if divided else np.zeros((len(TIMES), 2))
    for k, root in enumerate(factors(rule, divided)):
        for direction in root.T:
            noise = quiet.copy()
            noise[k] = h * direction
            ends = [reached(rule, each, divided) for each in (noise, -noise, quiet)]
            want = want + (ends[0] + ends[1] - 2 * ends[2]) / (2 * h**2)
    # Five standard errors by the draws; differences miss by h^2 of the fourth derivative, and by
    # rounding of 1e-16 over h^2.
    allowed = 5 * np.sqrt(found.errors.mean) + 1e-4 * np.abs(want) + 1e-9
    assert (np.abs(found.drift - want) <= allowed).all()
    assert (np.sqrt(found.errors.mean)[2:] < 0.1 * np.abs(want[2:]).max()).all()


def test_the_next_order_of_the_covariance_is_that_of_noise_that_grows_with_the_weights():
    # x <- x - eta (x + a x s xi): what has j factors xi is uncorrelated with what has others, and
    # has a share of (eta a s)^(2 j) of the variance of x.
    eta, a, first, steps = 0.2, 0.5, 1.5, 8
    want = math.comb(steps, 2) * (eta * a) ** 4 * (1 - eta) ** (2 * steps - 4) * first**2
    still, rule = jnp.zeros((1, 1)), dynsim.sgd(eta).astype("float64")
    observe = lambda params, k: (params.Y[0], None)
    given = Descent(rule, lambda params, k: (params, None), lambda along: along, observe)
    noise = lambda params, key: YZ(a * params.Y * jax.random.normal(key), still)
    at, times = YZ(jnp.full((1, 1), first), still), (steps,)
    run = lambda key: second_order.drift(given, noise, at, times, key, 2**17, covariance=True)
    found = jax.jit(run)(jax.random.key(0))
    # The product of two normal numbers has a kurtosis of 9: the draws leave an error of 0.8 %.
    np.testing.assert_allclose(found.covariance[0, 0, 0], want, rtol=0.03)
