"""Figures of in-context regression: what is read off curves, and what the arrays must satisfy."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from sweeps.studies import linear_icl
from sweeps.studies.linear_icl import figure, plateaus
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")


def test_rests_and_escapes_of_stairs_are_found() -> None:
    times = np.geomspace(1, 1000, 400)
    level = np.array([1.0, 0.6, 0.3])
    stairs = np.where(times < 10, 1.0, np.where(times < 11, 0.6, 0.3))
    slope = np.interp(np.log(times), [0, np.log(20)], [1.0, 0.2])
    both, levels = np.stack([stairs, slope]), np.stack([level, level])
    # The second step lasts for 10 % only, and the slope rests nowhere.
    np.testing.assert_array_equal(linear_icl.count_plateaus(times, both, levels), [2, 0])
    found = linear_icl.escapes(times, both, levels)
    gap = times[1] / times[0] - 1
    np.testing.assert_allclose(found[0], [10, 11], rtol=gap)
    np.testing.assert_allclose(found[1], 20 ** np.array([0.25, 0.6875]), rtol=gap)
    assert np.isnan(linear_icl.escapes(times, stairs[None] * 0 + 1, level[None])).all()


def test_a_rest_is_within_two_percent_of_the_first_plateau_for_a_quarter_longer() -> None:
    """Within 0.06 of plateaus at 3 and 1, up to 1.25 times the time at which it begins."""
    times = np.array([8.0, 10, 11, 12.5, 100])
    losses = {
        (2.941, 3.059, 2, 2, 2): 1,
        (2.939, 3, 3, 2, 2): 0,
        (2, 3, 3, 3, 2): 1,
        (2, 3, 2, 3, 2): 0,
        (2, 2, 2, 1, 1.059): 1,
        (2, 2, 2, 1, 1.061): 0,
        (3, 3, 2, 1.05, 0.95): 2,
    }
    # As runs over two axes.
    level = np.broadcast_to([3.0, 1.0], (len(losses), 1, 2))
    found = linear_icl.count_plateaus(times, np.array([*losses], float)[:, None], level)
    assert found[:, 0].tolist() == [*losses.values()]


def test_a_step_is_twice_the_learning_rate_in_units_of_tau() -> None:
    assert linear_icl.rate(experiment("linear_icl", eta=0.3)) == pytest.approx(0.6)


def test_the_table_of_escapes_has_a_dash_where_a_plateau_is_never_left() -> None:
    """Times of both seeds in units of tau, two in each step: the second rests on from step 40."""
    loss = np.interp(np.arange(101.0), [0, 40, 60, 100], [1.0, 0.6, 0.2, 0.0])
    rests_on = np.interp(np.arange(101.0), [0, 40], [1.0, 0.6])
    coords = {"time": np.arange(101.0), "seed": [0, 1]}
    runs = xr.Dataset({"loss": (("seed", "time"), [loss, rests_on])}, coords)
    runs["status"] = "seed", [0, 0]
    found = {f"separate/{theory}": runs for theory in ("simulation", "plain", "scalar")}
    *_, first, second = figure.escape_table(found, 2.0, np.array([1.0, 0.6, 0.2]))
    assert re.split(r"\s{2,}", first.strip()) == ["0", "40 / 40 / 40", "100 / 100 / 100"]
    assert re.split(r"\s{2,}", second.strip()) == ["1", "40 / 40 / 40", "- / - / -"]


def test_fewer_heads_are_held_against_the_plateau_that_they_can_reach() -> None:
    """D = 2 with plateaus at 1, 0.6 and 0.3: one head ends at 0.6, which is all that it can; three
    heads end at 0.3 and at 0.6, of which the last is a plateau too high."""
    ends = xr.DataArray([[[0.6, 0.6]], [[0.3, 0.6]]], dims=("heads", "ratio", "seed"))
    level = xr.DataArray([[1.0, 0.6, 0.3]], dims=("ratio", "plateau"))
    read = xr.Dataset({"end": ends, "level": level}, {"heads": [1, 3], "ratio": [0.5]})
    over = plateaus.excess(read, 2).transpose("heads", "ratio", "seed")
    np.testing.assert_allclose(over, [[[0, 0]], [[0, 0.3]]], atol=1e-12)


@pytest.mark.full(
    "test_rests_and_escapes_of_stairs_are_found",
    "odes/linear_icl/test_ladder.py::test_training_rests_on_the_plateaus_at_the_predicted_times",
)
def test_small_starts_of_unequal_eigenvalues_are_learned_one_by_one(tmp_path: Path) -> None:
    config = plateaus.LinearICLPlateaus(
        scale=(0.05, 1.0), ratio=(0.4, 1.0), resolution=2, seeds=2, steps=3000, out=tmp_path
    )
    plateaus.run(config)
    with np.load(tmp_path / "linear_icl_plateaus.npz") as arrays:
        seen = arrays["simulation/plateaus"]
        late = arrays["simulation/escape"] / arrays["scalar/escape"]
    # (scale, ratio, seed)
    assert (seen[0, 0] >= 3).all()
    assert (seen[1, 1] < 3).all()
    # From a small start the first escape is predicted, with unequal eigenvalues.
    np.testing.assert_allclose(late[0, 0], 1, rtol=0.2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (figure.FigureLinearICL(seeds=0), "seeds = 0: must be an integer from 1"),
        (figure.FigureLinearICL(batch=0.5), "batch = 0.5: must be an integer from 1 to"),
        (
            plateaus.LinearICLPlateaus(resolution=1),
            "resolution = 1: must be an integer from 2 to 2147483647",
        ),
        (plateaus.LinearICLPlateaus(ratio=(0.5, 2.0)), "ratio = 2.0: must be a number in (0, 1]"),
        (plateaus.LinearICLPlateaus(heads=0), "heads = 0: must be an integer from 1"),
    ],
)
def test_bad_input_is_named(config, message: str) -> None:
    module = figure if isinstance(config, figure.FigureLinearICL) else plateaus
    with pytest.raises(ValueError, match=re.escape(message)):
        module.run(config)


def test_theory_has_a_name_next_to_one_seed_or_component() -> None:
    time = np.array([0.0, 2, 5, 9])
    loss, learned = (("seed", "time"), [[1.0, 0.8, 0.3, 0.2]]), ("seed", "time", "component")
    runs = xr.Dataset({"loss": loss, "learned": (learned, np.ones((1, 4, 1)))}, {"time": time})
    found = {f"separate/{theory}": runs for theory in ("simulation", "plain", "scalar")}
    both = plt.figure().subplots(2)
    figure.plot_separate(found, 0.5, np.array([1.0, 0.2]), ax=both[0])
    figure.plot_components(found, 0.5, ax=both[1])
    named = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in both]
    assert named == [
        ["training (one colour per seed)", "flow, eq. 14", "plateaus, eq. 19"],
        ["component 1", "eq. 21"],
    ]
    plt.close("all")


@pytest.mark.parametrize(("number", "every"), [(5, 1), (11, 1), (13, 2), (24, 4)])
def test_a_table_has_about_six_lines_of_each_axis(number: int, every: int) -> None:
    axes = {"scale": np.arange(number) / 1000, "ratio": [0.5, 1.0], "seed": [0]}
    same = xr.DataArray(np.ones((number, 2, 1), bool), axes)
    _, *lines = plateaus.table(same, same * 1.0)
    scales = [f"scale {at:.3f}: 100 %" for at in axes["scale"][::every]]
    want = [*scales, "ratio 0.500: 100 %", "ratio 1.000: 100 %"]
    assert lines == [f"{at}, first escape off by a factor 2.00" for at in want]


def test_time_begins_shortly_before_the_first_loss_falls() -> None:
    """At record 3 of the second run, 0.89 of its start; times are in units of half a step."""
    loss = np.array([[2.0, 2, 1.9, 1.85, 0.1], [3, 3, 2.73, 2.67, 2.4]])
    made = xr.Dataset({"loss": (("seed", "time"), loss)}, {"time": [0.0, 2, 4, 30, 80]})
    ax = plt.figure().subplots()
    figure._logarithmic(ax, made, 2.0)
    assert ax.get_xlim() == pytest.approx((60 / 3, 160))
    level = made.assign(loss=made.loss * 0 + 1)
    figure._logarithmic(ax, level, 2.0)
    # Never: from the first time that a logarithm has.
    assert ax.get_xlim() == pytest.approx((4 / 3, 160))
    plt.close("all")


def test_losses_of_attention_and_its_network_are_compared_with_their_start() -> None:
    loss = np.array([[4.0, 2, 1], [8, 4, 2]])
    one = xr.Dataset({"loss": (("scale", "time"), loss)})
    other = one.assign(loss=one.loss + np.array([[0, -0.2, 0], [0, 0, 0.3]]))
    said = figure.same_line({"merged/simulation": one, "network/simulation": other})
    assert "at most 5.0e-02 of the first" in said
