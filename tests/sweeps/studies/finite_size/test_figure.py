"""The study of finite size: quadratures, orders, and its figure at a small size."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import dynsim
from sweeps.studies.finite_size import figure, order


def test_enumeration_is_the_multinomial_law() -> None:
    task, length = order.small_task(), 9
    examples = order.enumerated(task, length)
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


@pytest.mark.full(
    "test_enumeration_is_the_multinomial_law",
    "test_errors_are_those_of_descent_on_count_vectors",
    "dynsim/yz/test_finite_length.py::test_losses_gradient_and_slope_are_those_of_the_full_hessian",
)
def test_errors_fall_like_the_first_and_second_power_of_the_length() -> None:
    lengths = (64, 128, 256)
    errors = order.against_enumeration(dynsim.sgd(1.0, 1.0), lengths, 30)
    for place in range(2):
        # The next order in 1/T bends the lines by a few percent at T = 64.
        assert order.slope(lengths, errors.infinite[:, place]) == pytest.approx(-1, abs=0.1)
        assert order.slope(lengths, errors.finite[:, place]) == pytest.approx(-2, abs=0.1)


def test_the_small_task_has_one_common_token_and_a_query_for_each_class() -> None:
    task = order.small_task()
    assert np.asarray(task.query).tolist() == np.asarray(task.query_index).tolist() == [0, 1]
    p = np.asarray(task.probs)
    np.testing.assert_array_equal(p[0] * p[1] > 0, [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(np.sort(p), np.sort(p)[::-1])


def test_count_vectors_are_left_out_below_1e_20() -> None:
    """At T = 42 each class has one vector of 1.1e-20 and one of 1.9e-20."""
    task, length = order.small_task(), 42
    vectors = np.array([(i, j, 41 - i - j) for i in range(42) for j in range(42 - i)])
    pmf = stats.multinomial.pmf(vectors, 41, [0.5, 0.3, 0.2])
    assert ((pmf > 1e-20) & (pmf < 2e-20)).any()
    found = order.enumerated(task, length)
    assert len(found.classes) == 2 * (pmf > 1e-20).sum()


RATES = 2.0, 0.7


def descended(task: Any, rows: np.ndarray, weight: np.ndarray, steps: int) -> np.ndarray:
    """Loss at infinite length, and the attention logit of token 1 of the first query, after
    gradient descent by complex steps on rows of token weights, an equal number for each class."""
    probs = np.asarray(task.probs, float)
    K, M = probs.shape

    def loss(params: np.ndarray, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
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


@pytest.mark.more
def test_errors_are_those_of_descent_on_count_vectors() -> None:
    """The uncertainty is half of the distance between two samples."""
    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.4, 0.1]], [0, 1])
    rule, lengths, steps = dynsim.sgd(*RATES), (3, 5, 40), 3
    errors = order.against_samples(task, rule, lengths, steps, number=10)
    infinite = descended(task, np.asarray(task.probs, float), np.asarray(task.prior), steps)
    for i, length in enumerate(lengths):
        samples = [order.sampled(task, length, 10, seed) for seed in (0, 1)]
        assert {*np.concatenate([each.counts.sum(1) for each in samples])} == {length - 1}
        a, b = (descended(task, each.counts, each.weight, steps) for each in samples)
        mean = (a + b) / 2
        np.testing.assert_allclose(errors.infinite[i], np.abs(infinite / mean - 1), rtol=1e-6)
        np.testing.assert_allclose(errors.reference[i], np.abs((a - b) / 2 / mean), rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(errors.finite), [[True] * 2, [False] * 2, [False] * 2])
    options = {"steps": steps, "batch": math.inf, "record": order.RECORD, "dtype": "float64"}
    found = dynsim.train(dynsim.Layer(task, 40), rule, jax.random.key(1), **options)
    first = np.array([found["loss"][-1], found["z_top_distinct"][-1, 0]])
    # At the last of the lengths.
    np.testing.assert_allclose(errors.finite[2], np.abs(first / mean - 1), rtol=1e-6)
    # Ten vectors of each class, as many as the samples have.
    exact = order.against_enumeration(rule, (4,), steps)
    task = order.small_task()
    every = order.enumerated(task, 4)
    assert len(every.classes) == 20
    infinite = descended(task, np.asarray(task.probs, float), np.asarray(task.prior), steps)
    want = np.abs(infinite / descended(task, every.counts, every.weight, steps) - 1)
    np.testing.assert_allclose(exact.infinite[0], want, rtol=1e-6)
    assert (exact.reference == 0).all()


def test_ratios_are_pooled_over_classes() -> None:
    rng = np.random.default_rng(0)
    runs = rng.normal(size=(1, 1, 50, 2)) * [1.0, 3.0]
    dims = ("eta_z", "batch", "seed")
    numbers = dict.fromkeys(("loss", "entropy"), (dims, runs[..., 0]))
    by_class = dict.fromkeys(("z_top_distinct", "z_top_common"), ((*dims, "class"), runs))
    status = {"status": (dims, np.zeros(runs.shape[:3], int))}
    trained = xr.Dataset({**numbers, **by_class, **status})
    theory = xr.Dataset({"loss_std": (dims[:2], [[2.0]]), "entropy_std": (dims[:2], [[2.0]])})
    for name in ("z_top_distinct", "z_top_common"):
        theory[name + "_std"] = (*dims[:2], "class"), [[[1.0, 3.0]]]
    theory["status"] = dims[:2], np.zeros((1, 1), int)
    found = figure.ratio(trained, theory)
    variance = runs.var(2, ddof=1)[0, 0]
    assert found.loss.item() == pytest.approx(2 / np.sqrt(variance[0]))
    assert found.z_top_distinct.item() == pytest.approx(np.sqrt(5 / variance.mean()))
    assert found.loss_error.item() == pytest.approx(found.loss.item() / np.sqrt(98))
    # With draws, whose relative error is independent of that of the runs.
    theory["loss_std_drawn"] = dims[:2], [[0.3]]
    theory["z_top_common_std_drawn"] = (*dims[:2], "class"), [[[0.1, 0.3]]]
    drawn = figure.ratio(trained, theory)
    for name, error in (("loss", 0.3), ("z_top_common", 0.2), ("entropy", 0.0)):
        relative = np.sqrt(1 / 98 + error**2)
        assert drawn[name + "_error"].item() == pytest.approx(found[name].item() * relative)
    theory["loss"] = dims[:2], [[3.0]]
    mean = runs[..., 0].mean()
    away = figure.distance(trained, {"first": theory})
    assert away["first"].item() == pytest.approx(3 / mean - 1)
    assert away.error.item() == pytest.approx(np.sqrt(variance[0] / 50) / mean)


def test_the_error_of_draws_is_that_of_the_mean_over_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def solve(
        _: object, rule: float, times: list[int], *, key: jax.Array, batch: int, **options: object
    ) -> dynsim.Trajectory:
        asked.append([times, options])
        mean, variance = rule * batch * jax.random.uniform(key, 2)
        status = jnp.int32(batch > 40)
        covariance = variance[None, None, None]
        return dynsim.Trajectory(
            jnp.ones(1), {"loss": mean[None]}, None, status, status, "", covariance
        )

    monkeypatch.setattr(order.spread, "solve", solve)
    options = {"steps": 7, "length": 128, "draws": 17, "record": ["loss"]}
    # Numbers in place of rules.
    rules: Any = {0.1: 2.0, 0.3: 5.0}
    found = order.second_order(rules, [32, 64], **options)
    with jax.enable_x64(True):
        groups = jax.random.split(jax.random.key(0), order.GROUPS)
        mean, variance = np.array([jax.random.uniform(key, 2) for key in groups]).T
    # 17 draws are three in each of eight groups.
    wanted = {"length": 128, "record": ["loss"], "squares": True, "tails": True, "draws": 3}
    assert asked == 4 * [[[7], wanted]]
    size = np.outer([2, 5], [32, 64])
    assert found.loss.dims == ("eta_z", "batch")
    assert (found.eta_z.values.tolist(), found.batch.values.tolist()) == ([0.1, 0.3], [32, 64])
    np.testing.assert_array_equal(found.status, [[0, 1], [0, 1]])
    np.testing.assert_allclose(found.loss, size * mean.mean())
    np.testing.assert_allclose(found.loss_std, np.sqrt(size * variance.mean()))
    error = variance.std(ddof=1) / np.sqrt(8) / variance.mean() / 2
    np.testing.assert_allclose(found.loss_std_drawn, np.full((2, 2), error))
    one = order.second_order({0.1: rules[0.1]}, [32], **options)
    np.testing.assert_allclose(one.loss, found.loss[:1, :1])


def test_errors_are_asked_for_on_both_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def second(*args: Any) -> None:
        asked.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(figure, "computed", lambda _: {})
    monkeypatch.setattr(order, "against_enumeration", lambda *args: asked.append(args))
    monkeypatch.setattr(order, "against_samples", second)
    config = figure.FiniteSize()
    with pytest.raises(KeyboardInterrupt):
        figure.run(config)
    (rule, lengths, steps), (_, other, sampled, more, number) = asked
    assert (rule, other) == (dynsim.sgd(1.0, 1.0), dynsim.sgd(1.0, 0.1))
    assert lengths == tuple(2**k for k in range(3, 11))
    assert sampled == (20, 24, 32, 64, 128, 256)
    assert (steps, more, number, config.draws) == (30, 200, 4000, 512)


def test_lengths_are_named_that_do_not_crowd() -> None:
    """The first, and those more than 1.3 times the one before."""
    errors = order.Errors(*np.ones((3, 5, 2)))
    # Of one length the reference is exact.
    errors.reference[0] = 0
    ax = figure.plot_order((2, 10, 13, 17, 40), errors, plt.figure().subplots())
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "10", "17", "40"]
    assert [each.has_yerr for each in ax.containers] == [True] * 4
    plt.close("all")


@pytest.mark.full(
    "test_ratios_are_pooled_over_classes", "test_errors_are_those_of_descent_on_count_vectors"
)
def test_the_figure_says_what_it_measured(tmp_path: Path) -> None:
    figure.run(figure.FiniteSize(seeds=16, steps=20, samples=50, draws=16, out=tmp_path))
    numbers = json.loads((tmp_path / "finite-size.json").read_text())
    assert numbers["slopes"]["loss"]["finite"] == pytest.approx(-2, abs=0.1)
    for kind in ("ratios", "second order", "means"):
        assert set(numbers[kind]) == {"sgd", "momentum", "adam"}
    # At the smallest rates of SGD, where sixteen draws are enough: at first order 0.5 % off.
    means = numbers["means"]["sgd"]["data_vars"]
    assert abs(means["second"]["data"][0][1]) < 4 * means["error"]["data"][0][1]
