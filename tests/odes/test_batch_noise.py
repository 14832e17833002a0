"""Linear noise of any problem: closed forms, a Lyapunov recursion in NumPy, the layer, runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
from dynsim.problem.base import FullBatch
from dynsim.problem.train import started
from odes.batch_noise import noise, noise_record_of
from odes.solver import linear_noise as solver
from tests.odes.problems import Example

KEY = jax.random.key(0)
ROOT = np.array([[1.0, 0.0], [0.6, 0.8]])
"""Of the covariance of the gradient of one example, which four examples have exactly."""
FOUR = np.concatenate([ROOT.T, -ROOT.T]) * 2**0.5
H = np.array([1.0, 0.3])
START = np.array([0.5, -1.0])


class Bowl(Example):
    """A quadratic whose examples pull it to one side each."""

    start, shape = START, (2,)

    def draw(self, key, batch):
        return super().draw(key, batch) @ ROOT.T.astype(np.float32)

    def loss(self, params, data):
        return jnp.sum(H * params**2) / 2 - jnp.mean(data @ params)


class Regression(Example):
    """Linear regression, whose noise changes with the weights."""

    start, shape = (1.0, -0.5, 0.25), (4,)

    def loss(self, params, data):
        return jnp.mean((data[:, :3] @ params - data[:, 3]) ** 2) / 2


class Softmax(Example):
    """Classification by one layer from random weights."""

    def init(self, key):
        return jax.random.normal(key, (6, 3)) / 2

    def draw(self, key, batch):
        x, y = jax.random.split(key)
        inputs = jax.random.normal(x, (batch, 6))
        return inputs, jax.random.categorical(y, 2 * inputs[:, :3])

    def loss(self, params, data):
        chosen = jax.nn.log_softmax(data[0] @ params)[jnp.arange(len(data[1])), data[1]]
        return -jnp.mean(chosen)


def solve(problem, rule, times, **options):
    options = {"key": KEY, "starts": 1, "batch": 8, "record": "weights"} | options
    return odes.linear_noise(problem, rule, times, **options)


def test_the_covariance_in_a_bowl_is_that_of_an_ornstein_uhlenbeck_process_in_steps():
    """At all times, or interpolated between those of some `passes`."""
    eta, times = 0.2, [1, 4, 9, 30, 100]
    found = solve(FullBatch(Bowl(), FOUR), dynsim.sgd(eta), [0, *times])
    a = 1 - eta * H
    both, k = np.outer(a, a), np.array([0, *times])[:, None, None]
    want = eta**2 * ROOT @ ROOT.T / 8 * (1 - both**k) / (1 - both)
    # The starting weights are those of float32, which has them exactly.
    np.testing.assert_allclose(found["weights"], START * a ** k[:, 0], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.covariance, want, rtol=1e-6, atol=1e-12)
    few = solve(FullBatch(Bowl(), FOUR), dynsim.sgd(eta), times, passes=3)
    np.testing.assert_allclose(few["weights"], found["weights"][1:], rtol=1e-12)
    at, variance = np.log1p(times), np.asarray(found.covariance)[1:, 0, 0]
    want = np.interp(at, at[[0, 2, 4]], variance[[0, 2, 4]])
    np.testing.assert_allclose(few.covariance[:, 0, 0], want, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("derive", [jax.jacrev, jax.jacfwd])
@pytest.mark.more
def test_derivatives_are_those_of_the_closed_form(derive):
    """By the rate and by the size of the starting weights; the covariance is computed at two of
    the times, and the mean is followed to all of them."""

    def solved(rate, size):
        options = {"init": size * jnp.asarray(START), "passes": 2}
        found = solve(FullBatch(Bowl(), FOUR), dynsim.sgd(rate), [0, 3, 5, 8], **options)
        return jnp.concatenate([found["weights"][2], found.std["weights"][3]])

    def exact(rate, size):
        a, C = 1 - rate * H, np.diag(ROOT @ ROOT.T)
        std = rate * jnp.sqrt(C / 8 * (1 - a**16) / (1 - a**2))
        return jnp.concatenate([size * START * a**5, std])

    got, want = (each(of, (0, 1))(0.1, 2.0) for each, of in ((derive, solved), (jax.jacrev, exact)))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_momentum_widens_the_stationary_distribution():
    eta, mu = 0.2, 0.8
    found = solve(FullBatch(Bowl(), FOUR), dynsim.sgd(eta, momentum=mu), [400])
    # Of x'' ... in steps: the stationary solution of the Lyapunov equation of (x, v).
    want = eta * (1 + mu) / (1 - mu) / H / (2 * (1 + mu) - eta * H) / 8
    np.testing.assert_allclose(found.std["weights"][0] ** 2, want, rtol=1e-6)


def test_regression_has_the_covariance_of_a_lyapunov_recursion():
    rng, steps, eta, decay, batch = np.random.default_rng(0), 12, 0.1, 0.05, 4
    data = rng.standard_normal((50, 4)).astype(np.float32)
    x, y = data[:, :3].astype(float), data[:, 3].astype(float)
    w, sigma, gram = np.array([1.0, -0.5, 0.25]), np.zeros((3, 3)), x.T @ x / 50
    rates = eta * (1 - np.arange(steps) / steps)
    for rate in rates:
        each = x * (x @ w - y)[:, None]
        move = np.eye(3) - rate * (gram + decay * np.eye(3))
        sigma = move @ sigma @ move.T + rate**2 * np.cov(each.T, ddof=0) / batch
        w = w - rate * (each.mean(0) + decay * w)
    rule = dynsim.sgd(dynsim.schedules.linear(eta, steps), decay=decay)
    found = solve(FullBatch(Regression(), data), rule, [steps], batch=batch)
    np.testing.assert_allclose(found["weights"][0], w, rtol=1e-6)
    np.testing.assert_allclose(found.covariance[0], sigma, rtol=1e-6, atol=1e-9)


def noise_of(problem, examples):
    """Of batches of 8, in float64, which must be enabled; and the starting weights."""
    parts = started(problem, KEY, None, "float64")
    asked = noise_record_of(problem, "weights")
    given = parts, dynsim.sgd(0.1), KEY, jnp.asarray(8.0), asked, examples
    return noise.Noise(problem, *given), parts.params


def test_squares_of_normal_noise_have_twice_its_squared_covariance():
    """Along vectors mu, of noise xi with covariance C/B: Cov(xi_i^2, xi_j^2) = 2 (C_ij/B)^2."""
    mu = jnp.array([[1.0, 0.0], [1.0, -2.0]])
    with jax.enable_x64(True):
        made, weights = noise_of(FullBatch(Bowl(), FOUR), 4)
        found = jax.vmap(lambda k: made.squares(weights, k, mu))(jnp.arange(8000)).mean(0)
    want = 2 * mu @ (ROOT @ ROOT.T / 8) ** 2 @ mu.T
    # The variance of a square, of kurtosis 15, from 32 draws has an error of 0.66.
    np.testing.assert_allclose(found, want, atol=3 * 0.66 / 8000**0.5 * np.abs(want).max())


def test_two_starts_have_the_variance_of_two():
    class Random(Bowl):
        def init(self, key):
            return jax.random.normal(key, (2,))

    problem, rule = FullBatch(Random(), FOUR), dynsim.sgd(0.2)
    both = solve(problem, rule, [3], starts=2)
    one, other = (solve(problem, rule, [3], key=key) for key in jax.random.split(KEY))
    apart = one["weights"] - other["weights"]
    want = np.asarray(one.covariance) + apart[:, :, None] * apart[:, None] / 2
    np.testing.assert_allclose(both.covariance, want, rtol=1e-6)
    np.testing.assert_allclose(both["weights"], (one["weights"] + other["weights"]) / 2, rtol=1e-6)
    means = np.stack([one["weights"][0], other["weights"][0]])
    variances = np.stack([one.std["weights"][0], other.std["weights"][0]]) ** 2
    whole, errors = noise.of_starts(means, variances)
    np.testing.assert_allclose(both.mean_error["weights"][0] ** 2, errors.mean, rtol=1e-6)
    std_error = np.sqrt(errors.variance / whole) / 2
    np.testing.assert_allclose(both.std_error["weights"][0], std_error, rtol=1e-6)


def test_the_scatter_of_estimated_means_is_no_spread_of_runs():
    """Four starts with gradients from only 16 examples each: their means scatter by half of the
    variance of a run, which the variance is without, on average over 400 repetitions."""

    class Random(Bowl):
        def init(self, key):
            return jax.random.normal(key, (2,)) / 20

    options = {"starts": 4, "examples": 16, "dtype": "float32"}
    run = lambda key: solve(Random(), dynsim.sgd(0.2), [3], key=key, **options)
    found = jax.jit(jax.vmap(run))(jax.random.split(KEY, 400)).std["weights"][:, 0] ** 2
    a = 1 - 0.2 * H
    want = a**6 / 20**2 + 0.2**2 / 8 * np.diag(ROOT @ ROOT.T) * (1 - a**6) / (1 - a**2)
    # Four standard errors.
    np.testing.assert_allclose(found.mean(0), want, rtol=4 * 0.023)


CORNERS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], "float32")


class Known(Example):
    """A quadratic whose mean loss is known, with examples of variance 1 of some kurtosis."""

    kind: str = "normal"
    start = (0.0, 0.0)

    def draw(self, key, batch):
        if self.kind == "rademacher":
            return jax.random.rademacher(key, (batch, 2), "float32")
        scale = 2**-0.5 if self.kind == "laplace" else 1.0
        return getattr(jax.random, self.kind)(key, (batch, 2)) * scale

    def loss(self, params, data):
        return self.population_loss(params) - jnp.mean(data @ params)

    def population_loss(self, params):
        return jnp.sum(params**2) / 2


@pytest.mark.parametrize(
    ("kind", "kurtosis"), [("normal", 3), ("laplace", 6), ("rademacher", 1)], ids=str
)
@pytest.mark.more
def test_the_error_of_a_standard_deviation_is_that_of_as_many_examples(kind, kurtosis):
    """A variance from E examples has the relative variance (kurtosis - 1) / E in each of the steps,
    whose weights in the sum fall as a^2k. The mean follows the known loss."""
    eta, steps, examples = 0.1, 60, 512
    found = solve(Known(kind), dynsim.sgd(eta), [steps], examples=examples)
    squares = (1 - eta) ** (2 * np.arange(steps))
    std = eta * np.sqrt(squares.sum() / 8)
    share = np.sqrt((kurtosis - 1) / examples * (squares**2).sum()) / squares.sum() / 2
    assert (np.abs(found.std["weights"] - std) < 4 * share * std + 1e-3 * std).all()
    # Their fourth moments are estimated; of two points the variance is off by its mean alone.
    want = share * std if kurtosis > 1 else 0
    np.testing.assert_allclose(found.std_error["weights"], [[want] * 2], rtol=0.25, atol=2e-3 * std)
    np.testing.assert_array_equal(found.mean_error["weights"], 0)


@pytest.mark.parametrize(("batch", "examples"), [(8, 512), (40, 640)])
@pytest.mark.more
def test_estimated_gradients_move_the_mean_by_a_share_of_a_deviation(batch, examples):
    """By default from 512 examples, or from those of sixteen batches."""
    found = solve(Bowl(), dynsim.sgd(0.2), [5, 40], batch=batch)
    share = np.asarray(found.mean_error["weights"] / found.std["weights"])
    np.testing.assert_allclose(share, (batch / examples) ** 0.5, rtol=1e-6)
    off = np.abs(found["weights"] - START * (1 - 0.2 * H) ** np.array([[5], [40]]))
    assert (0 < off).all()
    assert (off < 4 * np.asarray(found.mean_error["weights"])).all()
    # Nothing is estimated from a fixed set of examples.
    fixed = solve(FullBatch(Bowl(), FOUR), dynsim.sgd(0.2), [5, 40])
    for each in (fixed.mean_error, fixed.std_error):
        np.testing.assert_array_equal(each["weights"], 0)
    names = ["weights_std", "batch_loss", "weights_std_error", "weights_error"]
    named = solve(Bowl(), dynsim.sgd(0.2), [5, 40], batch=batch, record=names)
    for name, part in zip(names[::2] + names[3:], ("std", "std_error", "mean_error"), strict=False):
        np.testing.assert_allclose(named[name], getattr(found, part)["weights"], rtol=1e-12)


def test_the_loss_of_a_batch_has_the_noise_of_the_batch_and_the_errors_of_its_examples():
    """Before the first step: of E losses, their mean and their variance, whose own fourth moments
    scatter by 1 % for this E."""
    E = 100_000
    found = solve(Bowl(), dynsim.sgd(0.2), [0], record="batch_loss", examples=E)
    std = np.linalg.norm(ROOT.T @ START) / 8**0.5
    np.testing.assert_allclose(found.mean_error["batch_loss"], std * (8 / E) ** 0.5, rtol=0.02)
    np.testing.assert_allclose(found.std_error["batch_loss"], std * (2 / E) ** 0.5 / 2, rtol=0.05)
    found = solve(FullBatch(Bowl(), FOUR), dynsim.sgd(0.2), [0], record="batch_loss")
    assert found["batch_loss"][0] == pytest.approx(np.sum(H * START**2) / 2)
    assert found.std["batch_loss"][0] ** 2 == pytest.approx(np.var(FOUR @ START) / 8)


@pytest.mark.parametrize(("number", "few", "most"), [(32, 8, 1.1), (8, 8, 1.1), (2, 2, 1.4)])
def test_errors_of_starts_are_their_scatter_across_repetitions(number, few, most):
    """For variances within starts that scatter, and that are larger where means are far off."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(number, 20_000))
    variances = rng.gamma(4, 0.5, size=(few, 20_000)) + means[:few] ** 2 / 2
    found, errors = noise.of_starts(means, variances)
    # One between starts, and 2.5 within them.
    assert np.mean(found) == pytest.approx(3.5, rel=0.02)
    assert np.sqrt(np.mean(errors.mean)) == pytest.approx(np.std(means.mean(0)), rel=0.03)
    # The jackknife is unbiased for many starts; the larger of two estimates is too large for few.
    assert 0.9 < np.sqrt(np.mean(errors.variance)) / np.std(found) < most


def test_averages_of_squares_have_the_error_of_their_examples():
    """Across repetitions: the mean follows the variance of the gradient, and the variance of a
    squared gradient is itself sampled."""
    problem, rule = Known("laplace"), dynsim.adam(0.02, b2=0.9)
    init = jnp.ones(2)
    run = lambda key: solve(
        *(problem, rule, [12]), key=key, init=init, examples=64, batch=1, dtype="float32"
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(KEY, 300))
    mean, std = (np.asarray(x["weights"])[:, 0] for x in (found.observables, found.std))
    errors = (np.asarray(x["weights"])[:, 0] for x in (found.mean_error, found.std_error))
    for values, error in zip((mean, std), errors, strict=True):
        np.testing.assert_allclose(np.sqrt(np.mean(error**2, axis=0)), values.std(0), rtol=0.35)


def test_the_next_order_has_the_error_of_its_draws():
    """At the minimum, the loss of normal weights of variance v has mean v / 2 for each of two, and
    the square of one a standard deviation of v sqrt 2."""
    eta, steps, draws = 0.1, 60, 256
    problem = FullBatch(Known(), CORNERS)
    found = solve(problem, dynsim.sgd(eta), [steps], draws=draws, record="loss")
    v = eta**2 / 8 * np.sum((1 - eta) ** (2 * np.arange(steps)))
    error = v / draws**0.5
    assert abs(found["loss"][0] - v) < 4 * error
    np.testing.assert_allclose(found.mean_error["loss"], error, rtol=0.3)
    # Of the variance of an exponential distribution, with a kurtosis of 9.
    np.testing.assert_allclose(found.std_error["loss"], v * np.sqrt(8 / draws) / 2, rtol=0.6)
    # The variance of four draws has three degrees of freedom: without bias, on average.
    few = {"draws": 4, "record": "loss", "dtype": "float32"}
    of_few = jax.jit(jax.vmap(lambda key: solve(problem, dynsim.sgd(eta), [steps], key=key, **few)))
    errors = of_few(jax.random.split(KEY, 1000)).mean_error["loss"]
    np.testing.assert_allclose(np.mean(errors**2), v**2 / 4, rtol=4 * (8 / 4 / 1000) ** 0.5)


def test_descent_that_diverges_has_the_status_of_training():
    """From where the loss is above a thousand times the first one, here negative, on."""

    class Lower(Bowl):
        def loss(self, params, data):
            return super().loss(params, data) - 0.3

    times = list(range(0, 60, 3))
    found = solve(FullBatch(Lower(), FOUR), dynsim.sgd(2.5), times)
    losses = (H * (START * (1 - 2.5 * H) ** np.array(times)[:, None]) ** 2).sum(1) / 2 - 0.3
    # A thousandth of its inverse is far from it.
    assert -0.03 < losses[0] < 0
    assert found.status == dynsim.Status.DIVERGED
    assert found.first_bad_step == times[np.argmax(losses > 1000 * abs(losses[0]))] > 0


def ratio_to_training(rule, times, runs, **options):
    """Predicted over measured deviation of all weights of `Softmax` together."""
    problem = Softmax()
    options |= {"record": "weights", "init": problem.init(jax.random.key(3)), "batch": 32}
    given = {k: v for k, v in options.items() if k != "examples"} | {"steps": times[-1]}
    train = lambda key: dynsim.train(problem, rule, key, times=times, **given)["weights"]
    trained = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(1), runs))
    predicted = solve(problem, rule, times, **options).std["weights"]
    measured = np.asarray(trained, float).var(0, ddof=1).sum((1, 2))
    return np.sqrt((np.asarray(predicted) ** 2).sum((1, 2)) / measured)


@pytest.mark.parametrize(
    ("rule", "times"),
    [
        (dynsim.sgd(0.3), [4, 40]),
        (dynsim.sgd(0.05, momentum=0.9), [4, 40]),
        # It divides by few squares in its first steps.
        (dynsim.rmsprop(3e-3), [40]),
    ],
    ids=["sgd", "momentum", "rmsprop"],
)
@pytest.mark.more
def test_seeds_of_a_softmax_classifier_scatter_as_predicted(rule, times):
    # A tenth for the noise of the estimated gradients and the next order in 1/B. Of 18 weights and
    # 256 runs, sampling errors are 1.4 %.
    assert (np.abs(ratio_to_training(rule, times, 256) - 1) < 0.1 + 4 * 0.014).all()


def test_it_predicts_means_and_errors_and_needs_memory_for_its_examples_and_segments():
    """Derivatives of all observables, and twice the states of a segment of sqrt(steps) steps, each
    with the size of the weights; and the examples of a step."""
    theory = odes.theories(Bowl())["linear-noise"]
    means = {n for n in theory.predicts(Bowl()) if not n.endswith(("_std", "_error"))}
    assert {"weights", "batch_loss"} <= means
    ends = "", "_std", "_error", "_std_error"
    assert {*theory.predicts(Bowl())} == {name + end for name in means for end in ends}
    assert "linear-noise" not in odes.theories(dynsim.Layer(dynsim.SynSmall(), 32))
    for batch, steps, names, states, examples in (
        (40, 1000, 3, 3 + 2 * 31, 640),
        (4, 0, 5, 7, 512),
    ):
        run = odes.Training(Bowl(), dynsim.sgd(0.1), batch, steps)
        # Two weights, and examples of two numbers.
        one, every = (8 * 8 * size + 2**14 for size in (2, 2 + 2 * examples))
        assert theory.memory(run, 2, ("loss",) * names) == states * one + 8 * every


@pytest.mark.more
def test_beyond_the_steps_with_few_squares_seeds_scatter_as_predicted_under_adam():
    """The squares of this gradient have a relative variance of 1.2, by which 12 steps would do if
    only the scatter of the last average counted: there the deviation is 0.9 of the measured one."""
    times = [12, solver.last_uneven(1.2, 0.999, 300)]
    # 1.2 (1 + 1/2 + ... + 1/55) = 5.5, a tenth of 55.
    assert times[1] == 55
    ratio = ratio_to_training(dynsim.adam(0.01), times, 1000, examples=2048)
    # Of 18 weights and 1000 runs, sampling errors are 0.7 %.
    assert ratio[0] < 0.95 - 4 * 0.007
    assert abs(ratio[1] - 1) < 0.05
