"""The study of finite size: quadratures, orders, and its figure at a small size."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

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
    "test_samples_tell_how_well_they_know_the_loss",
    "dynsim/yz/test_finite_length.py::test_losses_gradient_and_slope_are_those_of_the_full_hessian",
)
def test_errors_fall_like_the_first_and_second_power_of_the_length() -> None:
    lengths = (64, 128, 256)
    errors = order.against_enumeration(dynsim.sgd(1.0, 1.0), lengths, 30)
    for place in range(2):
        # The next order in 1/T bends the lines by a few percent at T = 64.
        assert order.slope(lengths, errors.infinite[:, place]) == pytest.approx(-1, abs=0.1)
        assert order.slope(lengths, errors.finite[:, place]) == pytest.approx(-2, abs=0.1)


def test_samples_tell_how_well_they_know_the_loss() -> None:
    task, rule = dynsim.syn_small(), dynsim.sgd(1.0, 0.1)
    errors = order.against_samples(task, rule, (8, 64), 10, number=200)
    assert np.isnan(errors.finite[0]).all()
    assert (errors.reference > 0).all()
    # After ten steps the first order is off by less than T infinite, which is off by 8 % or more.
    assert (errors.finite[1] < errors.infinite[1]).all()


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
    asked = set()

    def solve(*_: object, key: jax.Array, draws: int, **__: object) -> dynsim.Trajectory:
        asked.add(draws)
        mean, variance = jax.random.uniform(key, 2)
        status = jnp.int32(0)
        covariance = variance[None, None, None]
        return dynsim.Trajectory(
            jnp.ones(1), {"loss": mean[None]}, None, status, status, "", covariance
        )

    monkeypatch.setattr(order.spread, "solve", solve)
    options = {"steps": 1, "length": 128, "draws": 17, "record": ["loss"]}
    found = order.second_order({0.1: dynsim.sgd(1.0, 0.1)}, [32], **options)
    with jax.enable_x64(True):
        groups = jax.random.split(jax.random.key(0), order.GROUPS)
        mean, variance = np.array([jax.random.uniform(key, 2) for key in groups]).T
    # 17 draws are three in each of eight groups.
    assert asked == {3}
    assert found.loss.item() == pytest.approx(mean.mean())
    assert found.loss_std.item() == pytest.approx(np.sqrt(variance.mean()))
    error = variance.std(ddof=1) / np.sqrt(8) / variance.mean() / 2
    assert found.loss_std_drawn.item() == pytest.approx(error)


@pytest.mark.full(
    "test_ratios_are_pooled_over_classes", "test_samples_tell_how_well_they_know_the_loss"
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
