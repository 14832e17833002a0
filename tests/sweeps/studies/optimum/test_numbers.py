"""Errors of power laws and pictures of best values, by hand."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy.stats import linregress, norm, t

from sweeps.studies.optimum import figure
from sweeps.studies.optimum.best import Place, transfer

BATCH = np.array([1.0, 2, 4, 8])


def found(draws: np.ndarray, shape: np.ndarray, best: np.ndarray) -> xr.Dataset:
    """What `sweeps.best` returns, of values that differ by more than what is near the best."""
    return xr.Dataset(
        {
            "best": ("batch", best),
            "lower": ("batch", best / 1.01),
            "upper": ("batch", best * 1.01),
            "shape": ("batch", shape),
            "place": ("batch", np.full(4, Place.INSIDE)),
            "resampled": (("draw", "batch"), draws),
        },
        {"batch": BATCH},
        {"over": "eta", "within": 0.01},
    )


def test_the_error_of_an_exponent_is_of_draws_and_shape_or_of_residuals() -> None:
    best = 0.1 * BATCH**0.5
    draws = 0.1 * BATCH ** np.array([[0.4], [0.5], [0.7]])
    shape = np.array([0.1, 0.2, 0.2, 0.3])
    law = transfer(found(draws, shape, best), "batch")
    x = np.log(BATCH) - np.log(BATCH).mean()
    # The slope is the sum of x y over that of x^2, and errors of the shape are independent.
    own = np.sqrt((x**2 * shape**2).sum()) / (x**2).sum()
    spread = np.std([0.4, 0.5, 0.7], ddof=1)
    assert float(law["error"]) == pytest.approx(np.hypot(own, spread))
    assert (int(law["points"]), float(law["exponent"])) == pytest.approx((4, 0.5))
    rough = best * np.exp([0.3, -0.3, -0.3, 0.3])
    law = transfer(found(np.tile(rough, (2, 1)), 0 * shape, rough), "batch")
    line = linregress(np.log(BATCH), np.log(rough))
    factor = t.isf(norm.sf(2), 2) / 2
    assert float(law["error"]) == pytest.approx(line.stderr * factor)
    assert float(law["off"]) == pytest.approx(np.exp(0.3) - 1)


@pytest.mark.parametrize(
    ("exponent", "error", "verdict"),
    # Over a factor of 8, an exponent of 1/3 is one of 2.
    [
        (0.05, 0.14, "transfers"),
        (0.05, 0.145, "undecided"),
        (-0.4, 0.19, "falls"),
        (0.3, 0.16, "undecided"),
    ],
)
def test_a_verdict_excludes_a_factor_of_two(exponent: float, error: float, verdict: str) -> None:
    draws = 0.1 * BATCH ** (exponent + error * np.array([[1], [-1]]) / 2**0.5)
    law = transfer(found(draws, np.zeros(4), 0.1 * BATCH**exponent), "batch")
    assert float(law["error"]) == pytest.approx(error)
    assert law["verdict"].item().split()[0].rstrip(":") == verdict


def points() -> xr.Dataset:
    columns = {
        "best": [1.0, 0.1, 2.0],
        "error": [0.5, np.nan, 0.1],
        "lower": [0.8, 0.1, 1.5],
        "upper": [1.2, 0.2, 2.5],
        "edge": [4.0, 10.0, np.nan],
        "value": [0.5, 0.4, 0.3],
        "place": [Place.INSIDE, Place.LOWER_END, Place.INSIDE],
    }
    about = {"ends": np.array([0.1, 10.0]), "over": "eta", "observable": "loss", "pick": "lowest"}
    made = {name: ("batch", np.array(each)) for name, each in columns.items()}
    return xr.Dataset(made, {"batch": BATCH[:3]}, about | {"within": 0.01})


def test_best_rates_are_drawn_with_their_errors_and_where_runs_diverge() -> None:
    made = points()
    ax = figure.plot_best(made, made["batch"], "C0", plt.figure().subplots())
    diverged, near, error = (each.get_paths()[0].vertices for each in ax.collections)
    ends = lambda vertices, x: np.unique(vertices[vertices[:, 0] == x, 1])
    # A rate that is stable to the end of the axis diverges nowhere; an unknown one, everywhere.
    np.testing.assert_allclose(ends(diverged, 1), [4, 13])
    assert ends(error, 2) == pytest.approx([0.1])
    np.testing.assert_allclose(ends(error, 1), [np.exp(-0.5), np.exp(0.5)])
    np.testing.assert_allclose(ends(near, 4), [1.5, 2.5])
    np.testing.assert_allclose(ax.get_ylim(), [0.1 / 1.3, 13])
    np.testing.assert_allclose(ax.lines[1].get_xydata(), [[2, 0.1]])
    plt.close("all")


@pytest.mark.parametrize(("number", "every"), [(6, 1), (7, 2), (9, 3)])
def test_six_values_or_four_of_more_have_a_tick(number: int, every: int) -> None:
    batch = 2.0 ** np.arange(number)
    made = points().isel(batch=np.zeros(number, int)).assign_coords(batch=batch)
    ax = figure.plot_best(made, made["batch"], "C0", plt.figure().subplots())
    np.testing.assert_array_equal(ax.get_xticks(), batch[::every])
    plt.close("all")


def test_curves_are_means_over_seeds_up_to_the_loss_of_the_smallest_rate() -> None:
    rates = np.array([10.0, 0.1, 1])
    loss = np.array([[8.0, 4, 1], [80, 2, 1], [8, 4, 2]])
    both = loss[..., None] * np.array([0.5, 1.5])
    dims = ("batch", "eta", "seed")
    arrays = {"loss": (dims, both), "status": (dims, np.zeros(both.shape, int))}
    dataset = xr.Dataset(arrays, {"batch": BATCH[:3], "eta": rates})
    ax = figure.plot_curves(dataset, points(), "batch", plt.figure().subplots())
    for i in range(3):
        np.testing.assert_allclose(ax.lines[2 * i].get_xdata(), [0.1, 1, 10])
        np.testing.assert_allclose(ax.lines[2 * i].get_ydata(), loss[i, [1, 2, 0]])
    np.testing.assert_allclose(ax.lines[3].get_xydata(), [[0.1, 0.4]])
    # A tenth of the four from 1 to 4, and a twentieth of the hundred from 0.1 to 10.
    np.testing.assert_allclose(ax.get_ylim(), [4**-0.1, 4**1.1])
    np.testing.assert_allclose(ax.get_xlim(), [0.1 / 100**0.05, 10 * 100**0.05])
    assert ax.get_yscale() == "log"
    plt.close("all")
