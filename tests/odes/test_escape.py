"""How far escape rates of the modified equation are off: exact rates of descent and of the
equation, by linear equations and integrals on a grid."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import dynsim
import odes
from dynsim.problem.base import FullBatch
from tests.odes.problems import Example

KEY = jax.random.key(0)


class Well(Example):
    """The potential (w^2 - 1)^2 / 4, with noise of standard deviation s (1 + c w)."""

    s: float = 1.0
    c: float = 0.25
    start = (-1.0,)

    def potential(self, w):
        return jnp.sum((w**2 - 1) ** 2) / 4

    def loss(self, w, x):
        return self.potential(w) + jnp.mean(x) * self.s * (w[0] + self.c * w[0] ** 2 / 2)


class Cubic(Well):
    """The potential w^2 / 2 - w^3 / 3, whose barrier is at 1."""

    start = (0.0,)

    def potential(self, w):
        return jnp.sum(w**2 / 2 - w**3 / 3)


SLOPES = {Well: (lambda w: w**3 - w, lambda w: 3 * w**2 - 1, lambda w: 6 * w)}
SLOPES[Cubic] = (lambda w: w - w**2, lambda w: 1 - 2 * w, lambda w: -2 + 0 * w)
ENDS = {Well: (-1.0, 0.0, 1.0), Cubic: (0.0, 1.0, 1.6)}
"""The minimum, the barrier, and where a run has escaped."""


def exact(problem, **options):
    """With the examples +1 and -1, whose moments are those of a normal up to the third."""
    given = FullBatch(problem, np.array([1.0, -1.0], np.float32))
    start, barrier, _ = ENDS[type(problem)]
    return odes.escape_error(
        given, dynsim.sgd(0.05), start, barrier, **{"batch": 1, "key": KEY} | options
    )


def time_of_descent(problem, eta, density):
    """Mean number of steps to escape, from the density of a step at Gauss-Legendre nodes."""
    start, _, end = ENDS[type(problem)]
    low = max(start - 1.3, -1 / problem.c + 0.01 if problem.c > 0 else -math.inf)
    x, share = np.polynomial.legendre.leggauss(900)
    x, share = (low + end + (end - low) * x) / 2, share * (end - low) / 2
    after = x - eta * SLOPES[type(problem)][0](x)
    step = density(x, after[:, None], eta * problem.s * (1 + problem.c * x)[:, None]) * share
    return float(np.interp(start, x, np.linalg.solve(np.eye(x.size) - step, np.ones(x.size))))


def time_of_paths(problem, eta, order):
    """Mean first-passage time of the equation, by its integrals."""
    (G, H, T), (start, _, end) = SLOPES[type(problem)], ENDS[type(problem)]
    low = max(start - 1.3, -1 / problem.c + 0.01 if problem.c > 0 else -math.inf)
    w, second = np.linspace(low, end, 40_001), order == 2
    noise, slope = problem.s * (1 + problem.c * w), problem.s * problem.c
    drift = -eta * G(w) - second * (eta**2 / 2 * G(w) * H(w) - eta**3 / 4 * noise**2 * T(w))
    root = eta * (noise + second * eta / 2 * (H(w) * noise + slope * G(w)))
    integral = lambda y: scipy.integrate.cumulative_trapezoid(y, w, initial=0)
    potential = integral(2 * drift / root**2)
    potential -= potential[np.searchsorted(w, start)]
    inner = integral(2 * np.exp(potential) / root**2)
    above = w >= start
    return float(np.trapezoid((np.exp(-potential[above]) * inner[above]), w[above]))


@pytest.mark.parametrize(
    "problem",
    [
        Well(1.0, 0.25),
        Well(1.0, -0.5),
        Cubic(1.0, 0.6),
        Well(1.2, 0.0),
    ],
    ids=repr,
)
@pytest.mark.more
def test_noise_that_depends_on_the_weight_changes_the_escape_rate(problem):
    eta = 0.05
    start, barrier, _ = ENDS[type(problem)]
    slope, s, c = SLOPES[type(problem)][0], problem.s, problem.c
    want = scipy.integrate.quad(
        lambda w: 4 * slope(w) ** 2 * c / (s**2 * (1 + c * w) ** 3), start, barrier
    )[0]
    descent = time_of_descent(problem, eta, scipy.stats.norm.pdf)
    for order, share in ((1, 0.25), (2, 1)):
        found = exact(problem, order=order)
        assert found.multiplicative == pytest.approx(-share * want, rel=1e-6, abs=1e-12)
        assert abs(found.skewed) < 1e-9
        # Of the log of the ratio, to first order in the rate.
        ratio = math.log(time_of_paths(problem, eta, order) / descent)
        assert abs(found.multiplicative - ratio) < 0.6 * eta


@pytest.mark.more
def test_skewed_noise_changes_the_escape_rate_by_more_at_a_smaller_rate():
    """Batches of exponential examples have a gamma distribution."""
    problem, batch = Well(40.0, 0.0), 1600

    def density(x, mean, scale):
        # A step is against the noise, which is a sum of exponentials of mean 0 and variance 1.
        of_sum = scipy.stats.gamma(batch)
        return of_sum.pdf((mean - x) / scale * batch + batch) * batch / scale

    examples = scipy.stats.expon.ppf((np.arange(20_000) + 0.5) / 20_000) - 1
    given = FullBatch(problem, examples.astype(np.float32))
    normal = Well(problem.s / batch**0.5, 0.0)
    for eta in (0.1, 0.05):
        found = odes.escape_error(
            given, dynsim.sgd(eta), -1.0, 0.0, batch=batch, key=KEY, order=2, examples=20_000
        )
        ratio = math.log(
            time_of_descent(normal, eta, scipy.stats.norm.pdf)
            / time_of_descent(problem, eta, density)
        )
        assert found.skewed == pytest.approx(ratio, rel=0.1)
        assert abs(found.multiplicative) < 1e-6


def test_a_mirrored_well_has_the_same_error_and_a_batch_is_less_noise():
    class Mirrored(Well):
        def loss(self, w, x):
            return super().loss(-w, x)

    one = exact(Well(1.0, 0.5))
    given = FullBatch(Mirrored(1.0, 0.5), np.array([1.0, -1.0], np.float32))
    other = odes.escape_error(given, dynsim.sgd(0.05), 1.0, 0.0, batch=1, key=KEY)
    assert other.multiplicative == pytest.approx(one.multiplicative, rel=1e-6)
    four = exact(Well(1.0, 0.5), batch=4)
    assert four.multiplicative == pytest.approx(4 * one.multiplicative, rel=1e-6)


@pytest.mark.more
def test_examples_that_are_drawn_give_an_error():
    rule, options = dynsim.sgd(0.05), {"batch": 1, "order": 2, "examples": 256}
    found = [
        odes.escape_error(Well(1.0, 0.5), rule, -1.0, 0.0, key=key, **options)
        for key in jax.random.split(KEY, 8)
    ]
    want = exact(Well(1.0, 0.5), order=2).multiplicative
    for name, value in (("multiplicative", want), ("skewed", 0.0)):
        values = np.array([getattr(each, name) for each in found])
        errors = np.array([getattr(each, f"{name}_error") for each in found])
        # Of eight values, the deviation has an error of 27 %; few examples shift it by 1 / 256.
        assert abs(values.mean() - value) < 4 * errors.mean() / 8**0.5 + abs(want) / 64
        assert values.std(ddof=1) / errors.mean() == pytest.approx(1, abs=0.8)
