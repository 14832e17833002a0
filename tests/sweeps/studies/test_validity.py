"""The error of a theory over a plane, and its maps."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import dynsim
import sweeps
from papers.scan_and_snap import validity
from sweeps import cli, drawing


def runs(values: np.ndarray, *dims: str) -> xr.Dataset:
    """Of a plane along `eta_z`, that ended well."""
    over = [d for d in dims if d in ("eta_z", "seed")]
    status = np.zeros([values.shape[dims.index(d)] for d in over], int)
    return xr.Dataset({"z": (dims, values), "status": (over, status)})


def test_the_error_is_that_of_the_mean_over_times_and_classes_that_are_there() -> None:
    rng = np.random.default_rng(0)
    trained, solved = rng.normal(1, 1, (2, 3, 4, 2)), rng.normal(1, 1, (2, 4, 2))
    # The second point has one class alone.
    trained[1, ..., 1] = solved[1, :, 1] = np.nan
    dims = ("eta_z", "seed", "time", "class")
    theory = runs(solved, *dims[:1], *dims[2:])
    found = sweeps.relative_error(theory, runs(trained, *dims), "z")
    for place in range(2):
        mean = trained[place].mean(0)[:, : 2 - place]
        apart = solved[place][:, : 2 - place] - mean
        want = np.linalg.norm(apart) / np.linalg.norm(mean)
        assert found.values[place] == pytest.approx(want, rel=1e-12)
    # Of a theory with seeds, the mean over these.
    both = runs(np.stack([solved - 1, solved + 1], 1), *dims)
    np.testing.assert_allclose(sweeps.relative_error(both, runs(trained, *dims), "z"), found)


def test_a_theory_that_failed_has_no_error() -> None:
    ones = np.ones((2, 3, 4, 2))
    dims = ("eta_z", "seed", "time", "class")
    solved = runs(ones[:, 0], "eta_z", "time", "class")
    solved["status"][0] = dynsim.Status.SOLVER_FAILED
    found = sweeps.relative_error(solved, runs(ones, *dims), "z")
    np.testing.assert_array_equal(found, [np.nan, 0])


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [(0.01, 0.1, [0.05]), (0.1, 0.9, [0.2]), (0.01, 0.9, [0.05, 0.2]), (0.01, 0.04, []),
     (0.3, 0.9, [])],
)  # fmt: skip
def test_contours_are_drawn_where_the_error_is_on_both_sides(
    low: float, high: float, levels: list[float]
) -> None:
    rates = np.geomspace(0.1, 10, 5)
    error = xr.DataArray(np.geomspace(low, high, 5)[:, None] * np.ones(4), dims=("ratio", "eta_z"))
    error = error.assign_coords(ratio=rates, eta_z=rates[:4])
    ax = plt.figure().gca()
    mesh = drawing.error_map(ax, error, validity.LEVELS)
    np.testing.assert_allclose(np.ravel(mesh.get_array()), np.ravel(error.values.T))
    paths = [path for lines in ax.collections[1:] for path in lines.get_paths()]
    found = [path.vertices for path in paths if len(path.vertices)]
    # Linear in the error between two rates.
    want = [np.interp(level, error.values[:, 0], rates) for level in levels]
    assert len(found) == len(want)
    for vertices, at in zip(found, want, strict=True):
        np.testing.assert_allclose(vertices[:, 0], at)
    plt.close("all")


@pytest.mark.parametrize(
    ("error", "text"),
    [(np.nan, "-"), (0.004, "0.4"), (0.0949, "9"), (0.0996, "10"), (0.99, "99"), (1.0, ">99")],
)
def test_errors_are_written_in_few_letters(error: float, text: str) -> None:
    assert validity.percent(error) == text


@pytest.mark.more
def test_descent_has_no_error_where_training_is_descent(tmp_path: Path) -> None:
    words = "validity saxe --x eta:0.1:0.4:2 --y u0:0.05:0.1:2 --batch inf --steps 20 --seeds 2"
    theories = ["--theories", "descent", "modes"]
    assert cli.main([*words.split(), *theories, "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "validity.npz") as arrays:
        # Training is in float32, and modes follow a flow.
        assert arrays["descent"].max() < 1e-5 < arrays["modes"].min()
        np.testing.assert_allclose(arrays["u0"], [0.05, 0.1])
    assert (tmp_path / "validity.png").stat().st_size > 10_000
