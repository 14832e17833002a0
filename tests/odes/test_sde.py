"""Paths of the stochastic modified equation: linear equations, moments of descent, escape times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.stats

import dynsim
import odes
from dynsim.problem.train import started
from odes.batch_noise import noise_record_of
from odes.batch_noise.modified import GradientInputs, Path
from odes.batch_noise.noise import Noise
from tests.odes.problems import Example
from tests.odes.test_batch_noise import ROOT, START, Bowl, H

KEY = jax.random.key(3)
MANY = 20_000
"""Paths: a standard deviation has a sampling error of 0.5 %."""


class Exact(Bowl):
    """With the population loss of the bowl."""

    def population_loss(self, params):
        return jnp.sum(H * params**2) / 2


class Line(Example):
    """Regression on one input with label noise, so that noise grows with the weight."""

    shape = (2,)

    def loss(self, params, data):
        return jnp.mean((data[:, 0] * params + data[:, 1] / 2) ** 2) / 2

    def population_loss(self, params):
        return jnp.sum(params**2) / 2


class DoubleWell(Example):
    """A weight in the potential (w^2 - 1)^2 / 4, from its left minimum."""

    start, noise = (-1.0,), 1.5

    def population_loss(self, params):
        return jnp.sum((params**2 - 1) ** 2) / 4

    def loss(self, params, data):
        return self.population_loss(params) + self.noise * jnp.mean(data) * params[0]


def solve(problem, rule, times, **options):
    given = {"batch": 4, "key": KEY, "paths": MANY, "examples": 8, "record": "weights"}
    return odes.sde(problem, rule, times, **given | options)


@pytest.mark.parametrize("mu", [None, 0.8])
@pytest.mark.more
def test_a_bowl_has_the_moments_of_the_linear_equation(mu):
    """Of dz = A z dt + B dW for the weights, or for weights and velocity, at five sampling errors:
    means and covariances are exponentials of matrices."""
    times, both = np.array([2, 5, 20]), np.eye(2)
    if mu is None:
        A, B, begin = -0.2 * np.diag(H), 0.2 * ROOT / 2, 0.0
    else:
        rate = -np.log(mu)
        A = np.block([[0 * both, -0.1 * both], [rate / (1 - mu) * np.diag(H), -rate * both]])
        B, begin = np.concatenate([0 * ROOT, rate / (1 - mu) * ROOT / 2]), 0.5
    paths = solve(Exact(), dynsim.sgd(0.2 if mu is None else 0.1, momentum=mu), times)
    assert np.asarray(paths.ok).all()
    weights = np.asarray(paths["weights"])
    for found, t in zip(weights.transpose(1, 0, 2), times + begin, strict=True):
        whole = scipy.linalg.expm(t * np.block([[A, B @ B.T], [0 * A, -A.T]]))
        fall, noise = whole[: len(A), : len(A)], whole[: len(A), len(A) :]
        mean, covariance = fall[:2, :2] @ START, (noise @ fall.T)[:2, :2]
        std = np.sqrt(covariance.diagonal())
        # The midpoint method errs by (eta h)^2 / 24 of a step, splitting by as little.
        slack = 5 / MANY**0.5 + 0.002
        assert (np.abs(found.mean(0) - mean) < slack * std + 0.002 * np.abs(mean)).all()
        np.testing.assert_allclose(found.std(0), std, rtol=0.02)
        # Of a covariance, the error is at most sqrt(2 / n) of the product of the deviations.
        off = np.abs(np.cov(found.T) - covariance)
        assert (off < 2**0.5 * slack * np.outer(std, std)).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_derivatives_by_the_rate_are_differences_along_the_same_path():
    last = lambda rate: solve(Exact(), dynsim.sgd(rate), [0, 3, 8], paths=None)["weights"][-1, 0]
    want = (last(0.1 + 1e-5) - last(0.1 - 1e-5)) / 2e-5
    for derive in (jax.grad, jax.jacfwd):
        assert derive(last)(0.1) == pytest.approx(float(want), rel=1e-7)


def of_descent(eta, mu, steps, batch):
    """Mean and standard deviation of the weight on a `Line` after some steps of SGD, exactly: the
    gradient is x^2 w + x y / 2 with normal x and y, so that E (x^2)^2 = 3."""
    mean, moments = np.array([1.0, 0.0]), np.outer([1.0, 0.0], [1.0, 0.0])
    A, b = np.array([[1 - eta, -eta * mu], [1.0, mu]]), np.array([-eta, 1.0])
    for _ in range(steps):
        variance = (2 * moments[0, 0] + 1 / 4) / batch
        moments = A @ moments @ A.T + variance * np.outer(b, b)
        mean = A @ mean
    return mean[0], (moments[0, 0] - mean[0] ** 2) ** 0.5


@pytest.mark.parametrize(
    ("mu", "most"),
    # Of the deviation at the smaller rate. First order has an error of 5 % without momentum; the
    # equation with it has one of 0.6 %.
    [(None, 0.017), pytest.param(0.5, 0.012, marks=pytest.mark.full)],
)
@pytest.mark.more
def test_second_order_has_mean_and_deviation_of_descent_to_second_order(mu, most):
    """Errors of the mean, which begins at 1, and relative ones of the deviation, at a rate and at
    half of it."""
    eta, steps, found = 0.4 * (1 - (mu or 0)), 4 if mu is None else 6, []
    # The noise is so small that its own noise, which is taken to first order, does not count.
    options = {"order": 2, "batch": 64, "paths": 40_000, "substeps": 1 if mu is None else 3}
    for k in (1, 2):
        times = [steps, 2 * steps]
        paths = solve(Line(), dynsim.sgd(eta / k, momentum=mu), times, **options)
        each = paths.across_runs()["weights"]
        mean, std = of_descent(eta / k, mu or 0.0, times[k - 1], 64)
        found.append([each.mean[k - 1, 0] - mean, each.std[k - 1, 0] / std - 1])
    coarse, fine = np.abs(found)
    # Sampling errors are 0.4 % for deviations, and less for means.
    assert (fine < coarse / 4 + 0.006).all()
    assert fine[1] < most


def path_of(problem, rule, examples, order=2):
    """For batches of 4, in float64, which must be enabled."""
    parts = started(problem, KEY, None, "float64")
    asked = noise_record_of(problem, "weights")
    return Path(Noise(problem, parts, rule, KEY, jnp.asarray(4.0), asked, examples), order)


@pytest.mark.parametrize("problem", [Line(), Bowl()], ids=["with population", "without"])
def test_the_noise_of_a_step_has_the_covariance_of_its_examples(problem):
    """Over the batch, less what their mean has where there is no population; at a rate that
    falls, of which half of the schedule is over."""
    rule = dynsim.sgd(dynsim.schedules.linear(0.3, 10), decay=0.2)
    with jax.enable_x64(True):
        path = path_of(problem, rule, 12, order=1)
        start, t = path.noise.parts.params, jnp.asarray(5.5)
        each = np.asarray(path.noise.gradients(start, jnp.int32(5)))
        moved = np.asarray(jax.vmap(lambda dW: path.diffusion(t, (start,), dW)[0])(jnp.eye(12)))
    own = 0 if isinstance(problem, Line) else 1 / 12
    want = 0.15**2 * np.cov(each.T) * (1 / 4 - own)
    np.testing.assert_allclose(moved.T @ moved, np.atleast_2d(want), rtol=1e-9, atol=1e-15)


def test_second_order_with_momentum_changes_the_noise_of_a_step():
    """By eta / (4 (1 + mu)) (H N - N' G), with G and N written out by hand."""
    eta, mu, decay, w = 0.2, 0.5, 0.3, 0.7
    x, y, u = np.random.default_rng(0).normal(size=(3, 5))
    with jax.enable_x64(True):
        path = path_of(Line(), dynsim.sgd(eta, momentum=mu, decay=decay), 5)
        drawn = GradientInputs(jnp.asarray(0.0), jnp.stack([x, y], axis=1), jnp.asarray(u))
        found = path.gradient(drawn, jnp.array([w]))
    N, slope = u @ (x**2 * w + x * y / 2), u @ x**2
    H, G = 1 + decay, (1 + decay) * w
    want = w + N + eta / (4 * (1 + mu)) * (H * N - slope * G)
    np.testing.assert_allclose(found, [want], rtol=1e-12)


@pytest.mark.parametrize("problem", [Line(), Bowl()], ids=["with population", "without"])
@pytest.mark.more
def test_second_order_with_momentum_begins_with_noise_of_the_velocity(problem):
    mu, batch, number = 0.5, 4, 20_000
    with jax.enable_x64(True):
        path = path_of(problem, dynsim.sgd(0.1, momentum=mu), 16)
        start = path.noise.parts.params
        each = np.asarray(path.noise.gradients(start, jnp.int32(-1)))
        states = jax.vmap(path.start)(jax.random.split(KEY, number))
        weights, velocity, mean = map(np.asarray, (*states, path.posed.state[1]))
    own = 0 if isinstance(problem, Line) else 1 / 16 / (1 + mu) ** 2
    # The mean over the examples has noise of its own where there is no population.
    want = each.var(axis=0, ddof=1) * ((3 + mu) / (1 + mu) ** 3 / batch - own)
    np.testing.assert_array_equal(weights, np.broadcast_to(np.asarray(start), weights.shape))
    np.testing.assert_allclose(velocity.var(axis=0), want, rtol=5 * (2 / number) ** 0.5)
    assert (np.abs(velocity.mean(axis=0) - mean) < 5 * np.sqrt(want / number)).all()


@pytest.mark.parametrize("problem", [Exact(), Bowl()], ids=["with population", "without"])
@pytest.mark.more
def test_the_loss_of_a_batch_scatters_as_batches_do(problem):
    """Whatever part of it the examples of the gradient have."""
    found = solve(problem, dynsim.sgd(0.1), [0], record="batch_loss").across_runs()["batch_loss"]
    std = np.sqrt(START @ ROOT @ ROOT.T @ START / 4)
    assert found.std[0] == pytest.approx(std, rel=0.03)
    assert abs(found.mean[0] - np.sum(H * START**2) / 2) < 5 * std / MANY**0.5


class Cubic(DoubleWell):
    """A weight in the potential 1 + w^2 / 2 + w^3 / 6, from its minimum."""

    start, noise = (0.0,), 0.5

    def population_loss(self, params):
        return jnp.sum(1 + params**2 / 2 + params**3 / 6)


@pytest.mark.more
def test_second_order_has_what_noise_adds_to_the_mean():
    """In a potential without symmetry noise moves the mean, here to -0.03."""
    eta, steps, rng = 0.4, 8, np.random.default_rng(0)
    runs = np.zeros(1_000_000)
    for _ in range(steps):
        runs -= eta * (runs + runs**2 / 2 + rng.standard_normal(runs.size) / 2)
    options = {"batch": 1, "paths": 40_000, "examples": 4, "order": 2}
    found = solve(Cubic(), dynsim.sgd(eta), [steps], **options).across_runs()["weights"]
    # A share of (eta H)^2 is 0.005, the sampling error of the paths 0.0013; the term in C D^2 G is
    # 0.01.
    assert abs(found.mean[0, 0] - runs.mean()) < 0.007
    # To a share of (eta H)^2 / 4.
    assert found.std[0, 0] == pytest.approx(runs.std(), rel=0.04)


class Grouped(Exact):
    def init(self, key):
        return {"a": jnp.ones(1), "b": -jnp.ones(1)}

    def population_loss(self, params):
        return jnp.sum(jnp.cosh(params["a"] - params["b"]) + params["b"] ** 2)

    def loss(self, params, data):
        return self.population_loss(params) + jnp.mean(data) * params["a"][0]

    def groups(self, params):
        return {"a": "a", "b": "b"}

    def observables(self):
        return {"weights": lambda self, p: jnp.concatenate([p["a"], p["b"]])}


@pytest.mark.parametrize(
    ("order", "kind", "substeps"),
    [(2, "corrected", 2), pytest.param(1, "matched", 1, marks=pytest.mark.full)],
)
def test_without_noise_it_is_the_flow(order, kind, substeps):
    rule = dynsim.sgd({"a": dynsim.schedules.cosine(0.02, 30), "b": 0.01}, momentum=0.9, decay=0.1)
    options = {"batch": 10**14, "order": order, "paths": None, "substeps": substeps}
    found = solve(Grouped(), rule, [0, 3, 30], **options)
    want = odes.flow(Grouped(), rule, [0, 3, 30], key=KEY, kind=kind, record="weights")
    # Noise of the share 1e-7, and steps of one, or of a half, in an oscillation of 20 of them.
    np.testing.assert_allclose(found["weights"], want["weights"], rtol=2e-3 / substeps**2)


def escapes(weights):
    """First step at which each path (R, S) is beyond 1/2, where the well beyond holds it."""
    beyond = weights > 0.5
    assert beyond.any(axis=1).all()
    return beyond.argmax(axis=1)


def escape_of_descent(eta):
    """Mean number of steps of SGD from -1 to beyond 1/2 in the double well, from the density of a
    step on a grid."""
    w = np.linspace(-3, 0.5, 2001)
    step = scipy.stats.norm.pdf(w, (w - eta * (w**3 - w))[:, None], 1.5 * eta) * (w[1] - w[0])
    step[:, [0, -1]] /= 2
    return float(np.interp(-1, w, np.linalg.solve(np.eye(w.size) - step, np.ones(w.size))))


@pytest.mark.full("test_second_order_has_what_noise_adds_to_the_mean")
@pytest.mark.parametrize("order", [1, 2])
def test_paths_leave_a_well_after_the_mean_first_passage_time(order):
    """As training does."""
    rule, steps, number = dynsim.sgd(0.1), 5000, 4000
    # The barrier is 2.2 temperatures, and 1 in 20,000 stays so long.
    options = {"batch": 1, "paths": number, "examples": 16, "order": order}
    found = solve(DoubleWell(), rule, range(steps), **options)
    left = escapes(np.asarray(found["weights"])[..., 0])
    error = left.std() / number**0.5
    # Of the equations and their solver; at second order without the term in C D^2 G, 12 %.
    want = escape_of_descent(0.1)
    assert abs(left.mean() - want) < 0.03 * want + 3 * error
    # An escape is Poisson: its times are exponential but for those to reach the top.
    assert left.std() == pytest.approx(left.mean(), rel=0.15)
    if order == 2:
        return
    given = {"steps": steps, "batch": 1, "times": range(steps), "record": "weights"}
    train = lambda key: dynsim.train(DoubleWell(), rule, key, **given)["weights"][:, 0]
    trained = escapes(np.asarray(jax.vmap(train)(jax.random.split(jax.random.key(8), 1000))))
    assert abs(trained.mean() - want) < 3 * trained.std() / 1000**0.5


class Falling(Exact):
    def loss(self, params, data):
        return super().loss(params, data) - jnp.sum(params**4) / 16

    def population_loss(self, params):
        return super().population_loss(params) - jnp.sum(params**4) / 16


def test_each_path_is_that_of_its_key_and_a_diverging_one_has_a_status():
    times = np.arange(0, 61, 2)
    options = {"batch": 1, "paths": 8, "record": ["weights", "loss"]}
    paths = solve(Falling(), dynsim.sgd(0.1), times, **options)
    status = np.asarray(paths.status)
    assert set(status) == {dynsim.Status.OK, dynsim.Status.DIVERGED}
    # The loss falls without bounds, which is no divergence as long as it is a number.
    bad = ~np.isfinite(np.asarray(paths["weights"])).all(axis=2)
    bad |= ~(np.asarray(paths["loss"]) <= 1000 * np.asarray(paths["loss"])[:, :1])
    first = np.where(bad.any(axis=1), times[bad.argmax(axis=1)], -1)
    np.testing.assert_array_equal(paths.first_bad_step, first)
    lone = int(np.argmax(status == dynsim.Status.OK))
    options |= {"paths": None, "key": jax.random.fold_in(KEY, lone)}
    alone = solve(Falling(), dynsim.sgd(0.1), times, **options)
    np.testing.assert_allclose(alone["weights"], paths["weights"][lone], rtol=1e-12)
    np.testing.assert_array_equal(alone["weights"][0], np.float32(START))
