"""Finite size: quadratures, their orders in 1/T, the noise of batches, and the picture."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import dynsim
import odes
from papers.scan_and_snap import finite_length, finite_size, noise
from papers.scan_and_snap.finite_size import FiniteSize


def test_enumeration_is_the_multinomial_law():
    """Without vectors below 1e-20: at T = 42 each class has two of 1.1e-20 and 1.9e-20."""
    task = finite_length.small_task()
    examples = finite_length.enumerated(task, 9)
    np.testing.assert_allclose(examples.weight.sum(), 1, rtol=1e-12)
    for n in range(2):
        mine = examples.classes == n
        counts, weight = examples.counts[mine], examples.weight[mine] * 2
        # 8 things on 3 places; mean and variance of each place.
        assert len(counts) == math.comb(10, 2)
        assert (counts.sum(1) == 8).all()
        p = np.asarray(task.probs)[n]
        np.testing.assert_allclose(weight @ counts, 8 * p, rtol=1e-12)
        np.testing.assert_allclose(weight @ (counts - 8 * p) ** 2, 8 * p * (1 - p), rtol=1e-12)
    vectors = np.array([(i, j, 41 - i - j) for i in range(42) for j in range(42 - i)])
    pmf = stats.multinomial.pmf(vectors, 41, [0.5, 0.3, 0.2])
    assert len(finite_length.enumerated(task, 42).classes) == 2 * (pmf > 1e-20).sum()


RATES = 2.0, 0.7


def descended(task, rows, weight, steps):
    """Loss at infinite length, and the attention logit of token 1 of the first query, after
    gradient descent by complex steps on rows of token weights, an equal number for each class."""
    probs = np.asarray(task.probs, float)
    K, M = probs.shape

    def loss(params, rows, weight):
        classes = np.repeat(np.arange(K), len(rows) // K)
        query, token = (np.asarray(each)[classes] for each in (task.query_index, task.next_token))
        Y, Z = params[: M * M].reshape(M, M), params[M * M :].reshape(-1, M)
        attention = rows * np.exp(Z[query])
        logits = attention / np.sqrt((attention**2).sum(1, keepdims=True)) @ Y
        return weight @ (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), token])

    params = np.zeros(M * M + task.num_queries * M)
    rates = np.where(np.arange(params.size) < M * M, *RATES)
    for _ in range(steps):
        nearby = params + 1e-30j * np.eye(params.size)
        gradient = [loss(each, rows, weight).imag / 1e-30 for each in nearby]
        params = params - rates * gradient
    return np.array([loss(params, probs, np.asarray(task.prior)).real, params[M * M + 1]])


def test_errors_are_those_of_descent_on_count_vectors():
    """The uncertainty is half of the distance between two samples."""
    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.4, 0.1]], [0, 1])
    rule, lengths, steps = dynsim.sgd(*RATES), np.array([3, 40]), 3
    samples = lambda T: [finite_length.sampled(task, T, 10, seed) for seed in (0, 1)]
    errors = finite_length.errors(task, rule, steps, lengths, samples)
    infinite = descended(task, np.asarray(task.probs, float), np.asarray(task.prior), steps)
    for i, length in enumerate(map(int, lengths)):
        assert {*np.concatenate([each.counts.sum(1) for each in samples(length)])} == {length - 1}
        a, b = (descended(task, each.counts, each.weight, steps) for each in samples(length))
        mean = (a + b) / 2
        np.testing.assert_allclose(errors["infinite"][i], np.abs(infinite / mean - 1), rtol=1e-6)
        np.testing.assert_allclose(errors["reference"][i], np.abs((a - b) / 2 / mean), rtol=1e-6)
    # Three tokens are too short for the expansion.
    np.testing.assert_array_equal(np.isnan(errors["finite"]), [[True] * 2, [False] * 2])
    # Ten vectors of each class, as many as the samples have.
    task = finite_length.small_task()
    every = finite_length.enumerated(task, 4)
    assert len(every.classes) == 20
    exact = finite_length.errors(task, rule, steps, np.array([4]), lambda T: [every])
    infinite = descended(task, np.asarray(task.probs, float), np.asarray(task.prior), steps)
    want = np.abs(infinite / descended(task, every.counts, every.weight, steps) - 1)
    np.testing.assert_allclose(exact["infinite"][0], want, rtol=1e-6)
    assert (exact["reference"] == 0).all()


def test_ratios_are_pooled_over_classes():
    runs = np.random.default_rng(0).normal(size=(1, 1, 50, 2)) * [1.0, 3.0]
    dims = ("eta_z", "batch", "seed")
    numbers = dict.fromkeys(("loss", "entropy"), (dims, runs[..., 0]))
    by_class = dict.fromkeys(("z_top_distinct", "z_top_common"), ((*dims, "class"), runs))
    status = {"status": (dims, np.zeros(runs.shape[:3], int))}
    trained = xr.Dataset({**numbers, **by_class, **status})
    theory = xr.Dataset({name + "_std": (dims[:2], [[2.0]]) for name in ("loss", "entropy")})
    for name in ("z_top_distinct", "z_top_common"):
        theory[name + "_std"] = (*dims[:2], "class"), [[[1.0, 3.0]]]
    theory["status"] = dims[:2], np.zeros((1, 1), int)
    found, variance = noise.ratio(trained, theory), runs.var(2, ddof=1)[0, 0]
    assert found.loss.item() == pytest.approx(2 / np.sqrt(variance[0]))
    assert found.z_top_distinct.item() == pytest.approx(np.sqrt(5 / variance.mean()))
    assert found.loss_error.item() == pytest.approx(found.loss.item() / np.sqrt(98))
    # With draws, whose relative error is independent of that of the runs.
    theory["loss_drawn"] = dims[:2], [[0.3]]
    theory["z_top_common_drawn"] = (*dims[:2], "class"), [[[0.1, 0.3]]]
    drawn = noise.ratio(trained, theory)
    for name, error in (("loss", 0.3), ("z_top_common", 0.2), ("entropy", 0.0)):
        relative = np.sqrt(1 / 98 + error**2)
        assert drawn[name + "_error"].item() == pytest.approx(found[name].item() * relative)
    theory["loss"] = dims[:2], [[3.0]]
    mean = runs[..., 0].mean()
    away = noise.distance(trained, {"first": theory})
    assert away["first"].item() == pytest.approx(3 / mean - 1)
    assert away.error.item() == pytest.approx(np.sqrt(variance[0] / 50) / mean)


def test_the_error_of_draws_is_that_of_the_mean_over_groups(monkeypatch):
    """17 draws are three in each of eight groups; numbers stand for rules."""
    monkeypatch.setattr(noise, "OBSERVABLES", ["loss"])

    def solve(_, rule, times, *, key, batch, **options):
        assert (times, options["draws"], options["length"]) == ([7], 3, 128)
        mean, variance = rule * batch * jax.random.uniform(key, 2)
        one, status = jnp.ones(1), jnp.int32(batch > 40)
        covariance = variance[None, None, None]
        return dynsim.Trajectory(one, {"loss": mean[None]}, None, status, status, "", covariance)

    monkeypatch.setattr(odes.spread, "solve", solve)
    rules = {0.1: 2.0, 0.3: 5.0}
    found = noise.second_order(rules, [32, 64], steps=7, length=128, draws=17)
    with jax.enable_x64(True):
        groups = jax.random.split(jax.random.key(0), noise.GROUPS)
        mean, variance = np.array([jax.random.uniform(key, 2) for key in groups]).T
    size = np.outer([2, 5], [32, 64])
    assert found.loss.dims == ("eta_z", "batch")
    np.testing.assert_array_equal(found.status, [[0, 1], [0, 1]])
    np.testing.assert_allclose(found.loss, size * mean.mean())
    np.testing.assert_allclose(found.loss_std, np.sqrt(size * variance.mean()))
    error = variance.std(ddof=1) / np.sqrt(8) / variance.mean() / 2
    np.testing.assert_allclose(found.loss_drawn, np.full((2, 2), error))


@pytest.mark.full(
    "test_ratios_are_pooled_over_classes", "test_errors_are_those_of_descent_on_count_vectors"
)
def test_the_figure_is_drawn_with_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(FiniteSize, "SAMPLES", 50)
    for name, lengths in (("LENGTHS", [64, 128, 256]), ("SAMPLED_LENGTHS", [20, 64, 128])):
        monkeypatch.setattr(finite_size, name, np.array(lengths))
    config = FiniteSize(seeds=16, steps=20, draws=16, rules=("sgd",), rates=(0.1,), out=tmp_path)
    picture = config.draw(config.computed())
    assert picture.report["finite"]["loss"] == pytest.approx(-2, abs=0.1)
    # At the smallest rate sixteen draws are enough: at first order 0.5 % off.
    means = picture.arrays["sgd/mean"]
    assert (abs(means["second"]) < 4 * means["error"]).all()
    assert len(picture.figure.axes) == 3
