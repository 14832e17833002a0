"""Retrieval by Adam at finite batch: the moments of its gradients, and training."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
from dynsim import schedules
from dynsim.sparse_attention import Scored
from odes.sparse_attention import finite_batch

TASK, RULE = dynsim.Retrieval(24, 24), dynsim.adam(0.01)


def quadratic(blocks: list[list[np.ndarray]], d: int) -> tuple[float, float]:
    """Mean and variance of z^T M z for z ~ N(0, I/d), by Isserlis' theorem."""
    M = np.block(blocks)
    return np.trace(M) / d, ((M + M.T) ** 2).sum() / 2 / d**2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("d", "walk"), [(300, 0.0006), (6, 0.0)])
def test_moments_are_those_of_quadratic_forms_in_the_tokens(d: int, walk: float) -> None:
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


@pytest.mark.full("test_moments_are_those_of_quadratic_forms_in_the_tokens")
@pytest.mark.parametrize(("magnitude", "walk", "gap"), [(0.08, 0.003, 1.5), (0.3, 0.01, 0.5)])
def test_moments_are_those_of_sampled_gradients(magnitude: float, walk: float, gap: float) -> None:
    task = dynsim.Retrieval(12, 24, B=2)
    signs = np.sign(np.asarray(task.target()))

    def sampled(key: jax.Array) -> jax.Array:
        of_weights, of_batch = jax.random.split(key)
        W = magnitude * signs + walk**0.5 * jax.random.normal(of_weights, signs.shape)
        params = Scored(W, jnp.zeros(12).at[-2:].set(gap))
        each = jax.vmap(lambda key: jax.grad(task.loss)(params, task.draw(key, 1)))
        found = each(jax.random.split(of_batch, 256))
        parts = found.W * signs[None], found.a[:, -2:], found.a[:, :-2]
        return jnp.stack([jnp.stack([x.mean(), x.var(axis=0, ddof=1).mean()]) for x in parts])

    found = jax.jit(lambda keys: jax.lax.map(sampled, keys))(
        jax.random.split(jax.random.key(0), 200)
    )
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / 200**0.5
    got = finite_batch.moments(task, jnp.array([magnitude, gap, 0.0]), jnp.asarray(walk))
    # The expansion is one in 1/d = 4 %.
    assert (np.abs(got.mean - mean[:, 0]) < 0.02 * np.abs(mean[:, 0]) + 4 * error[:, 0]).all()
    assert (np.abs(got.variance - mean[:, 1]) < 0.04 * mean[:, 1] + 4 * error[:, 1]).all()


@pytest.mark.more
def test_training_escapes_when_the_theory_does() -> None:
    times = np.arange(0, 161, 4)
    runs = jax.jit(
        jax.vmap(lambda key: dynsim.train(TASK, RULE, key, steps=160, batch=8, times=times)["loss"])
    )(jax.vmap(jax.random.key)(np.arange(8)))
    found = finite_batch.solve(TASK, RULE, times, batch=8)["loss"]
    silent = odes.theories(TASK)["matched-adam"].solve(TASK, RULE, times)["loss"]
    escapes = lambda loss: np.interp(-0.4, -np.asarray(loss), times)
    trained = np.mean([escapes(loss) for loss in runs])
    # Measured 2 % early; the theory without noise has half of the time.
    assert escapes(found) == pytest.approx(trained, rel=0.06)
    assert escapes(silent) < 0.75 * trained


@pytest.mark.usefixtures("x64")
def test_an_infinite_batch_is_descent_on_all_weights() -> None:
    times = [0, 1, 10, 60]
    run = dynsim.train(
        TASK, RULE, jax.random.key(0), steps=60, batch=math.inf, times=times, dtype="float64"
    )
    found = finite_batch.solve(TASK, RULE, times, batch=math.inf)
    for name in ("loss", "attention", "readout", "gap"):
        # Rounding, in the first step of scores by a gradient of rounding's size.
        np.testing.assert_allclose(found[name], run[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("task", "rule", "batch", "message"),
    [
        (TASK, dynsim.sgd(1.0), 8, "optimizer = sgd: the finite-batch theory describes adam"),
        (TASK, dynsim.adam(0.1, decay=0.1), 8, "decay = 0.1: the finite-batch theory excludes"),
        (dynsim.Retrieval(24, 24, p=0.5), RULE, 8, "p = 0.5: must be 0; the finite-batch theory"),
        (TASK, RULE, 0.5, "batch = 0.5: must be"),
    ],
)
def test_what_is_not_described_is_named(task, rule, batch, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        finite_batch.solve(task, rule, [0, 1], batch=batch)


@pytest.mark.usefixtures("x64")
def test_training_is_the_map_of_means_and_of_the_covariance_of_an_entry_with_its_average() -> None:
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
