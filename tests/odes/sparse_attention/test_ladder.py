"""Retrieval: the reduction against descent on all weights, the plateau, what is printed, and the
moments of batches by Isserlis' theorem."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import solve_ivp

import dynsim
import odes
from dynsim import Status, schedules
from dynsim.sparse_attention import Scored
from odes import sparse_attention
from odes.sparse_attention import finite_batch

pytestmark = pytest.mark.usefixtures("x64")
# A statistical test fails by chance with this probability; with fixed keys for ever, or never.
P_VALUE = 1e-6
THEORIES = odes.hierarchy.of_class(dynsim.Retrieval)
SMALL = dynsim.Retrieval(12, 5, 3, 0.2)
KEY = jax.random.key(0)


def test_a_step_has_the_law_of_its_tokens():
    """Loss and gradient of batches drawn by what they read, and drawn as tokens."""
    task = dynsim.Retrieval(5, 3, 2, 0.3)
    W = np.random.default_rng(1).normal(size=(3, 3))
    # One of the others has most of the attention, so that slopes hang together.
    params = Scored(W, np.array([3.0, 0.0, 0.5, 1.0, 1.0]))

    def read(key, tokens):
        data = task.draw(key, 2) if tokens else task.batches(key, 1, 2)(jnp.int32(0))
        loss, slope = task.loss_and_gradient(params, data)
        a, W = slope.a, slope.W
        products = a[0] * a[1], a[0] * W[0, 0], jnp.sum(a[:3] ** 2)
        return jnp.stack([loss, a[0], a[1], a[4], W[0, 1], *products])

    found, want = (
        jax.jit(jax.vmap(lambda key, t=tokens: read(key, t)))(jax.random.split(key, 10_000))
        for key, tokens in ((jax.random.key(0), False), (jax.random.key(1), True))
    )
    for one, other in zip(found.T, want.T, strict=True):
        assert stats.ks_2samp(one, other).pvalue > P_VALUE


@pytest.mark.more
def test_descent_on_all_weights_is_the_flow_of_four_numbers():
    times, rule, options = [0, 10, 40, 120, 300], dynsim.sgd(0.5), {"batch": math.inf}
    run = dynsim.train(SMALL, rule, KEY, steps=300, times=times, dtype="float64", **options)
    flow = THEORIES["corrected"].solve(SMALL, rule, times)
    assert (run.status, flow.status) == (Status.OK, Status.OK)
    for name in ("loss", "attention", "readout"):
        # Descent is eta^2 from the corrected flow: eta = 1 is 1 % of a growth time here.
        np.testing.assert_allclose(flow[name], run[name], rtol=2e-3, atol=2e-3)
    assert run["loss"][-1] < 0.2 * run["loss"][0]
    # All weights of a kind have moved alike, which is what the four numbers stand for.
    W, target = np.asarray(run.params.W), np.asarray(SMALL.target("float64"))
    np.testing.assert_allclose((W / target).std(0), 0, atol=1e-12)


def test_the_gradient_of_four_numbers_is_that_of_all_weights():
    """Weight by weight, at a point where the four numbers and both moments differ; and what is
    measured there."""
    state = sparse_attention.Alike(*map(jnp.asarray, (0.3, 0.7, 1.1, -0.4)))
    fixed, sign = np.arange(5) == 0, np.sign(SMALL.target("float64"))
    copy = np.arange(12) >= 9
    params = Scored(
        np.where(fixed, state.fixed, state.rest) * sign, np.where(copy, state.copy, state.other)
    )
    slope = jax.jit(jax.grad(lambda p: SMALL.population_loss(p)))(params)
    got = jax.jit(lambda at: sparse_attention.gradient(SMALL, at))(state)
    np.testing.assert_allclose(slope.W, np.where(fixed, got.fixed, got.rest) * sign, rtol=1e-12)
    np.testing.assert_allclose(slope.a, np.where(copy, got.copy, got.other), rtol=1e-12)
    found, (want,) = sparse_attention.measure(state, SMALL), SMALL.snapshot(params)
    np.testing.assert_allclose(found, want, rtol=1e-12)


@pytest.mark.parametrize("B", [1, 3])
def test_eqs_13_and_14_are_the_reduction_but_for_how_copies_share_the_pull(B):
    """Without a fixed token W = w sign(W*)/d, whose rate is eq. 13. Eq. 14 is the slope of the loss
    by Da, to which B copies and T - B others add 1/B and 1/(T - B) of it."""
    task, w, gap = dynsim.Retrieval(12, 5, B), 1.7, 0.9
    state = sparse_attention.Alike(*map(jnp.asarray, (w / 5, w / 5, gap, 0.0)))
    printed = tuple(map(jnp.asarray, (w, gap)))
    slope = sparse_attention.gradient(task, state)
    w_rate, gap_rate = sparse_attention.field(task, printed)
    assert float(w_rate) == pytest.approx(-5 * float(slope.rest), rel=1e-12)
    pulled = float(slope.other - slope.copy)
    assert float(gap_rate) * (1 / B + 1 / (12 - B)) == pytest.approx(pulled, rel=1e-12)
    np.testing.assert_allclose(
        sparse_attention.printed_snapshot(printed, task),
        sparse_attention.measure(state, task),
        rtol=1e-12,
    )


@pytest.mark.parametrize(("B", "p", "mu"), [(1, 0.0, 0.0), (3, 0.3, 0.8)])
def test_the_closed_form_solves_the_early_equations_and_blows_up_in_time(B, p, mu):
    """|W|' = (B r/T) e^Da, Da' = (r/T) |W| e^Da in SciPy, with W along the moments of the last
    token, and the loss of all weights there."""
    T, d, eta = 12, 5, 0.1
    task, rule = dynsim.Retrieval(T, d, B, p), dynsim.sgd(eta, momentum=mu or None)
    moments = (1 - p) / d + p * (np.arange(d) == 0)
    r = np.linalg.norm(moments)
    end = math.sqrt(math.pi / 2) * T / (math.sqrt(B) * r) * (1 - mu) / eta
    times = end * np.array([0.3, 0.9])
    rate = eta / (1 - mu) * r / T * np.array([B, 1.0])
    early_equations = solve_ivp(
        lambda t, x: rate * np.exp(x[1]) * [1, x[0]], (0, times[-1]), (0, 0), t_eval=times,
        rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    found = THEORIES["escape"].solve(task, rule, [*times, 1.001 * end])
    target, copy = task.target("float64"), np.arange(T) >= T - B
    for i, (size, gap) in enumerate(early_equations.y.T):
        W = size / (r * d**0.5) * moments * np.sign(target)
        (want,) = task.snapshot(Scored(W, gap * copy))
        for name in ("loss", "attention", "readout"):
            assert found[name][i] == pytest.approx(float(getattr(want, name)), rel=1e-8)
    assert (found["loss"][2], found["attention"][2]) == (0, 1)


# Last, because the fixture stays for the rest of the file.
@pytest.mark.usefixtures("quick_theory")
def test_the_plateau_is_the_closed_form_as_tokens_grow():
    """Before the escape, at T = 2^14, from d = 64 to 4096: the difference to the flow is of first
    order in 1/sqrt(d)."""
    errors = []
    for d in (64, 4096):
        task = dynsim.Retrieval(2**14, d, 2)
        times = np.array([0.3, 0.6, 0.8]) * float(sparse_attention.escape_time(task))
        found = {
            name: THEORIES[name].solve(task, dynsim.sgd(1.0), times, record=("readout",))
            for name in ("plain", "escape")
        }
        errors.append(np.abs(found["escape"]["readout"] / found["plain"]["readout"] - 1))
    assert (errors[1] < 0.02).all()
    np.testing.assert_allclose(errors[0] / errors[1], 8, rtol=0.3)
    # Eq. 6 is later, by more than a factor of 2 at T = 256, d = 64.
    task = dynsim.Retrieval(256, 64)
    assert float(sparse_attention.linear_escape_time(task, 0.2)) == pytest.approx(6869.3, abs=0.1)


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize("rule", [dynsim.sgd(0.5), dynsim.sgd(0.05, momentum=0.9)], ids=str)
def test_what_is_printed_is_integrated_as_printed(rule):
    """By SciPy, and with momentum at the rate eta / (1 - mu), which is the same in both rules."""
    task, times = dynsim.Retrieval(12, 5, 2), [20.0, 60.0]
    field = jax.jit(lambda state: jnp.stack(sparse_attention.field(task, tuple(state))))
    of = lambda t, x: 0.5 * np.asarray(field(x))
    solved = solve_ivp(of, (0, 60), (0, 0), t_eval=times, rtol=1e-9, atol=1e-12)
    found = THEORIES["printed"].solve(task, rule, times)
    assert (found.status, found.source) == (Status.OK, "printed")
    for i, state in enumerate(solved.y.T):
        want = sparse_attention.printed_snapshot(tuple(map(jnp.asarray, state)), task)
        for name, value in want._asdict().items():
            # Equal steps of at most a unit of time, to the fourth order.
            np.testing.assert_allclose(found[name][i], value, rtol=1e-4, err_msg=name)
    assert found["gap"][-1] > 0.2


TASK, RULE = dynsim.Retrieval(24, 24), dynsim.adam(0.01)


def quadratic(blocks, d):
    """Mean and variance of z^T M z for z ~ N(0, I/d), by Isserlis' theorem."""
    M = np.block(blocks)
    return np.trace(M) / d, ((M + M.T) ** 2).sum() / 2 / d**2


@pytest.mark.parametrize(("d", "walk"), [(300, 0.0006), (6, 0.0)])
def test_moments_are_those_of_quadratic_forms_in_the_tokens(d, walk):
    """Of weights drawn once: scores have gradients z^T M z with z = (x_T, x_1, ..., x_n), and an
    entry of W has the product of two normal numbers, of which all is known."""
    n, B, u, gap = 3, 2, 0.05, 0.8
    task = dynsim.Retrieval(n + B, d, B)
    target = np.asarray(task.target("float64"))
    signs = np.sign(target)
    W = u * signs + walk**0.5 * np.random.default_rng(0).normal(size=(d, d))
    a = np.exp(gap * (np.arange(n + B) >= n))
    rest, alike = a[[0, -1]] / a.sum()
    A = B * alike
    # Output minus target is the sum of missed x_i, attention's mean token that of mean x_i, and b,
    # along which scores are pulled, is W^T times the former.
    missed, mean = [A * W - target, *n * [rest * W]], np.array([A, *n * [rest]])
    pulled = [W.T @ each for each in missed]
    of_copy, of_other = (
        quadratic([[weight * share * b.T for share in np.eye(n + 1)[i] - mean] for b in pulled], d)
        for i, weight in ((0, alike), (1, rest))
    )
    together = sum(m * c for m, c in zip(missed, mean, strict=True)) / d
    apart = sum((m**2).sum(1) for m in missed) / d * (mean**2).sum() / d
    entry = (signs * together).mean(), apart.mean() + (together**2).mean()
    want_mean, want_variance = np.transpose([entry, of_copy, of_other])
    loss = sum((m**2).sum() for m in missed) / d / 2
    got = finite_batch.moments(task, jnp.array([u, gap + 0.7, 0.7]), jnp.asarray(walk))
    # The expansion is one in 1/d, and so is the scatter of sums over entries that walk. If none
    # does, all is exact but for the squares of matrices in the variance of scores.
    rtol = 3 / d if walk else 1e-12
    np.testing.assert_allclose(got.mean, want_mean, rtol=rtol)
    np.testing.assert_allclose(got.variance[0], want_variance[0], rtol=rtol)
    if walk:
        np.testing.assert_allclose(got.variance, want_variance, rtol=rtol)
    np.testing.assert_allclose(got.snapshot, [loss, A, d * u, gap], rtol=rtol)
    np.testing.assert_allclose(got.curvature, (mean**2).sum() / d, rtol=1e-12)


def test_an_infinite_batch_is_descent_on_all_weights():
    times = [0, 1, 10, 60]
    run = dynsim.train(
        TASK, RULE, jax.random.key(0), steps=60, batch=math.inf, times=times, dtype="float64"
    )
    found = finite_batch.solve(TASK, RULE, times, batch=math.inf)
    for name in ("loss", "attention", "readout", "gap"):
        # Rounding, in the first step of scores by a gradient of rounding's size.
        np.testing.assert_allclose(found[name], run[name], rtol=1e-6, atol=1e-9)


def test_training_is_the_map_of_means_and_of_the_covariance_of_an_entry_with_its_average():
    """Falling rates, and decays at which every term of the covariance counts; in NumPy the map of
    (delta, its part of m) is a matrix, and its covariance is that of all noise until then."""
    steps, batch, b1, b2, eps = 24, 4, 0.7, 0.8, 1e-3
    rule = dynsim.adam(schedules.linear(0.03, 30, 0.2), b1=b1, b2=b2, eps=eps)
    found = finite_batch.solve(TASK, rule, range(steps + 1), batch=batch)
    known = jax.jit(lambda params, walk: finite_batch.moments(TASK, params, walk))
    p, m, v, covariance = np.zeros(3), np.zeros(3), np.zeros(3), np.zeros((2, 2))
    for k in range(steps + 1):
        now = known(jnp.asarray(p), jnp.asarray(covariance[0, 0]))
        for name, value in now.snapshot._asdict().items():
            # Rounding.
            np.testing.assert_allclose(found[name][k], value, rtol=1e-9, atol=1e-12, err_msg=name)
        S, g, variance = float(now.curvature), np.asarray(now.mean), np.asarray(now.variance)
        # The mean square of what Adam averages, in which an entry of W is off by delta.
        square = g**2 + variance / batch + np.array([S**2 * covariance[0, 0], 0, 0])
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * square
        m_hat, root = m / (1 - b1 ** (k + 1)), np.sqrt(v / (1 - b2 ** (k + 1)))
        gain = 0.03 * (1 - 0.8 * k / 30) / (root + eps)
        move = gain[0] / (1 - b1 ** (k + 1))
        averaged = np.array([[1, 0], [(1 - b1) * S, b1]])
        moved = np.array([[1, -move], [0, 1]])
        of_average = averaged @ covariance @ averaged.T
        of_average[1, 1] += (1 - b1) ** 2 * variance[0] / batch
        covariance, p = moved @ of_average @ moved.T, p - gain * m_hat
    # It is not small, and the loss sees it.
    assert covariance[0, 0] > 0.05 * p[0] ** 2
