"""Figures of JoMA: what is read off training, on runs that are known."""

import math
import re
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Status, Trajectory
from sweeps.studies.joma import figure, invariant
from sweeps.studies.joma.figure import FigureJoMA, run


def runs(loss: list[list[float]], **arrays: tuple[tuple[str, ...], np.ndarray]) -> xr.Dataset:
    """Two seeds with these losses over time, and further arrays."""
    return xr.Dataset(
        {
            "loss": (("seed", "time"), np.array(loss)),
            "status": (("seed",), np.full(2, Status.OK)),
            **arrays,
        },
        {"time": [0.0, 1.0, 2.0], "seed": [0, 1], "temperature": 0.5},
    )


@pytest.mark.more
def test_the_toy_course_is_the_recursion_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """v += 0.02 (mu - v) o softmax(v^2 / 3) from 0.05, which ends at mu, and its limit of small
    steps, on which the entropy falls first."""
    # Ten values of v at the end, between 1 and 4.
    np.testing.assert_allclose(figure.MU, np.sort(np.random.default_rng(0).uniform(1, 4, 10)))
    monkeypatch.setattr(figure, "TOY_STEPS", 1000)
    course, v = figure.toy_course(), np.full(figure.MU.size, 0.05)
    assert course["time"].shape == course["entropy"].shape
    for k in (0, 1, 2):
        assert course["time"][k] == pytest.approx(0.02 * k)
        share = np.exp(v**2 / 3) / np.exp(v**2 / 3).sum()
        assert course["entropy"][k] == pytest.approx(-(share * np.log(share)).sum(), rel=1e-12)
        v += 0.02 * (figure.MU - v) * share
    assert course["time"][-1] == pytest.approx(20)
    end = np.exp(figure.MU**2 / 3) / np.exp(figure.MU**2 / 3).sum()
    assert course["end"] == pytest.approx(-(end * np.log(end)).sum(), rel=1e-12)
    assert course["closed/time"][0] == 0
    # Up to the last of its times, which are 2 apart, within those of the recursion.
    assert 18 < course["closed/time"][-1] <= 20
    at = np.interp(course["closed/time"], course["time"], course["entropy"])
    # Half a step of 0.02 times the slope of up to 0.4.
    np.testing.assert_allclose(course["closed/entropy"], at, atol=0.01)


def test_errors_are_read_where_the_loss_is_half() -> None:
    """The first seed is there at time 1, the second never: z has moved by 4 in T z, and what should
    be conserved by 1, on each of three tokens."""
    z = np.array([1.0, 9.0, 50.0])[None, :, None, None] * np.ones((2, 3, 1, 3))
    drift = np.array([2.0, 3.0, 70.0])[None, :, None] * np.ones((2, 3, 3))
    dataset = runs(
        [[2.0, 0.9, 0.1], [2.0, 1.5, 1.2]],
        logits=(("seed", "time", "query", "token"), z),
        conserved=(("seed", "time", "token"), drift),
    )
    assert float(invariant.map_errors(dataset)) == pytest.approx(1 / 4)
    assert np.isnan(invariant.map_errors(dataset.isel(seed=[1])))


def test_the_sum_over_queries_is_told_from_a_query_by_itself() -> None:
    """V^2/2 grows by 3 and two queries move by 1 and 2: their sum says so, neither does alone."""
    z = np.zeros((2, 3, 2, 1))
    z[:, 2, :, 0] = [1.0, 2.0]
    weight = np.sqrt(np.array([0.0, 1.0, 6.0]))[None, :, None] * np.ones((2, 3, 1))
    dataset = runs(
        [[1.0, 1.0, 1.0]] * 2,
        logits=(("seed", "time", "query", "token"), z),
        weight=(("seed", "time", "token"), weight),
        conserved=(("seed", "time", "token"), z.sum(2) - weight**2 / 2 * [[[0], [1], [1]]]),
    )
    errors = invariant.query_errors(dataset)
    assert float(errors["sum"]) == pytest.approx(0, abs=1e-12)
    # (1 - 3)^2 + (2 - 3)^2 over 1 + 4.
    assert float(errors["own"]) == pytest.approx(1.0)


def test_tokens_that_a_shorter_vocabulary_lacks_are_left_out() -> None:
    """Where fewer queries share a task there are fewer tokens, and their places hold NaN: the mean
    is over the tokens that are there, of which each sum of two queries misses 1 of 3."""
    z = np.full((2, 3, 2, 4), np.nan)
    z[..., :2] = np.array([0.0, 0.0, 1.5])[None, :, None, None]
    drift = np.full((2, 3, 4), np.nan)
    drift[..., :2] = np.array([0.0, 0.0, 1.0])[None, :, None]
    weight = np.where(np.isnan(drift), np.nan, 0.0)
    dataset = runs(
        [[1.0, 1.0, 1.0]] * 2,
        logits=(("seed", "time", "query", "token"), z),
        weight=(("seed", "time", "token"), weight),
        conserved=(("seed", "time", "token"), drift),
    )
    assert float(invariant.query_errors(dataset)["sum"]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("module", "config", "message"),
    [
        (run, FigureJoMA(steps=0), "steps = 0: must be an integer from 1"),
        (run, FigureJoMA(dense_seeds=0), "dense_seeds = 0: must be an integer from 1"),
        (invariant.run, invariant.JoMAInvariant(seeds=0), "seeds = 0: must be an integer from 1"),
        (invariant.run, invariant.JoMAInvariant(temperatures=(0.0,)), "temperature = 0.0: must be"),
        (invariant.run, invariant.JoMAInvariant(classes=(0,)), "classes_per_query = 0: must be"),
    ],
)
def test_bad_input_is_named(module, config, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        module(config)


def test_the_invariant_is_held_against_how_the_tokens_have_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At T = 1/2, z is half of the logits, and what it should be is z less what the conserved
    quantity has drifted since the start; compared token by token at each time."""
    task, rng, asked = dynsim.SynSmall().build(), np.random.default_rng(0), {}
    logits, conserved = rng.normal(size=(4, 1, 5)), rng.normal(size=(4, 5))

    def train(problem: Any, rule: Any, key: Any, **options: Any) -> Trajectory:
        seed = jax.random.key_data(key).tolist()
        asked.update(options, temperature=problem.temperature, rule=rule, seed=seed)
        values = {"logits": logits, "conserved": conserved}
        return Trajectory(np.arange(4), values, None, np.array(0), np.array(-1), "")

    monkeypatch.setattr(figure.dynsim, "train", train)
    times, found = figure.invariance(task, 90)
    np.testing.assert_array_equal(times, range(4))
    for i, value in enumerate(found):
        z = logits[i, 0] / 2
        wanted = [a - (b - c) for a, b, c in zip(z, conserved[i], conserved[0], strict=True)]
        a, b = z - z.mean(), np.array(wanted) - np.mean(wanted)
        assert value == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)))
    assert found[0] == pytest.approx(1)
    assert (float(asked["temperature"]), asked["steps"], asked["batch"]) == (0.5, 90, math.inf)
    assert (asked["rule"], asked["seed"]) == (dynsim.sgd(0.1), [0, 0])
    np.testing.assert_array_equal(asked["times"], dynsim.log_times(90, 300))


def test_the_law_of_a_query_by_itself_is_that_of_how_the_weights_have_grown() -> None:
    """From V = 2 to 4: V^2 / 2 grows by 6, of which z has moved by 5."""
    z, weight = np.array([1.0, 3.0, 6.0]), np.array([2.0, 3.0, 4.0])
    over = ("seed", "time", "query", "token")
    dataset = runs(
        [[1.0, 1.0, 1.0]] * 2,
        logits=(over, z[None, :, None, None] * np.ones((2, 3, 1, 1))),
        weight=(("seed", "time", "token"), weight[None, :, None] * np.ones((2, 3, 1))),
        conserved=(("seed", "time", "token"), 7 + z[None, :, None] / 10 * np.ones((2, 3, 1))),
    )
    errors = invariant.query_errors(dataset)
    assert float(errors["own"]) == pytest.approx(1 / 5)
    assert float(errors["sum"]) == pytest.approx(1 / 10)
    common = xr.DataArray([0.0, 0, 0], {"num_common": [1, 10, 40]}, "num_common")
    np.testing.assert_allclose(invariant.overlaps(common), [1 / 11, 1 / 2, 4 / 5])


def test_growth_is_shown_of_every_third_token_by_its_last_weight() -> None:
    last = np.random.default_rng(0).permutation(12).astype(float)
    weight = np.stack([np.ones(12), last[::-1], last])
    one = xr.Dataset({"weight": (("seed", "time", "token"), weight[None])}, {"time": [0, 1, 2]})
    found = {"growth/simulation": one, "growth/erf": one + 1}
    ax = figure.plot_growth(found, plt.figure().subplots())
    tokens = [last.tolist().index(value) for value in (11, 8, 5, 2)]
    for line, theory, token in zip(ax.lines[:4], ax.lines[4:8], tokens, strict=True):
        assert line.get_label() == f"training, token {token}"
        np.testing.assert_array_equal(line.get_ydata(), weight[:, token])
        np.testing.assert_array_equal(theory.get_ydata(), weight[:, token] + 1)
    plt.close("all")


def test_errors_below_ten_percent_have_a_digit_more() -> None:
    errors = xr.DataArray(
        [[0.1, 0.0994], [math.nan, 0.996]], {"temperature": [0.5, 1.0], "num_common": [1, 40]}
    )
    ax = plt.figure().subplots()
    invariant.plot_map(errors, ax)
    assert [text.get_text() for text in ax.texts] == ["10 %", "never", "9.9 %", "100 %"]
    plt.close("all")


def test_a_loss_of_exactly_half_is_half_and_seeds_are_a_root_mean_square() -> None:
    drift = np.array([[0.0, 3, 9], [0, 9, 4]])
    z = np.array([[0.0, 10, 20], [0, 20, 10]])
    dataset = runs(
        [[2.0, 1.0, 0.1], [2.0, 1.5, 1.0]],
        logits=(("seed", "time", "query", "token"), z[..., None, None]),
        conserved=(("seed", "time", "token"), drift[..., None]),
    )
    # At T = 1/2, and at times 1 and 2.
    wanted = np.sqrt((3**2 + 4**2) / (5**2 + 5**2))
    assert float(invariant.map_errors(dataset)) == pytest.approx(wanted)
