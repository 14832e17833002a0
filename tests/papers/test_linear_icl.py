"""Figures of in-context regression: what is measured on loss curves, and what training shows."""

import numpy as np
import pytest
import xarray as xr

import sweeps
from papers import linear_icl
from papers.linear_icl.figure import LinearICL
from papers.linear_icl.plateaus import Plateaus, summary
from tests.papers import made


def test_escapes_of_stairs_are_halfway_between_plateaus() -> None:
    times = np.geomspace(1, 1000, 400)
    stairs = np.where(times < 10, 1.0, np.where(times < 11, 0.6, 0.3))
    slope = np.interp(np.log(times), [0, np.log(20)], [1.0, 0.2])
    rest = np.ones_like(times)
    loss = xr.DataArray([stairs, slope, rest], {"time": times}, ("run", "time"))
    levels = xr.DataArray([1.0, 0.6, 0.3], dims="plateau")
    escapes = linear_icl.escapes(loss, levels).transpose("run", "plateau")
    want = [[10, 11], 20 ** np.array([0.25, 0.6875]), [np.nan, np.nan]]
    np.testing.assert_allclose(escapes, want, rtol=times[1] / times[0] - 1)


def test_the_last_plateau_is_the_one_that_the_heads_can_reach() -> None:
    """D = 3 with plateaus at 1, 0.6, 0.3 and 0.1: one head can end at 0.6; of four heads, one run
    ends at 0.1 and one a plateau higher. Eq. 21 is right about the plateaus of a half."""
    axes = {"heads": [1, 4], "ratio": [0.5], "seed": [0, 1]}
    number = xr.DataArray([[[2, 2]], [[4, 3]]], axes)
    trained = xr.Dataset({"plateaus": number, "escape": number * 0 + 2.0})
    trained["end"] = trained.plateaus.dims, [[[0.6, 0.6]], [[0.1, 0.3]]]
    trained["level"] = ("ratio", "plateau"), [[1, 0.6, 0.3, 0.1]]
    theory = trained.assign(plateaus=number * 0 + 4, escape=trained.escape * 1.5)
    one, four = (line.split()[1:] for line in summary((trained, theory), "heads").split("\n")[-2:])
    assert one == ["2.00", "0.00", "1.50", "100.00"]
    assert four == ["3.50", "50.00", "1.50", "50.00"]


@pytest.mark.full(
    "odes/linear_icl/test_ladder.py::test_training_rests_on_the_plateaus_at_the_predicted_times"
)
def test_small_starts_of_unequal_eigenvalues_are_learned_one_by_one() -> None:
    planned = Plateaus(resolution=2, seeds=2).sweeps()
    read = {
        name: linear_icl.measured(sweeps.run(planned[name]), planned[name])
        for name in ("simulation", "scalar")
    }
    number = read["simulation"].plateaus.transpose("scale", "ratio", "seed")
    assert (number[0, 0] >= 3).all()
    assert (number[1, 1] < 3).all()
    # From a small start the first escape is predicted, with unequal eigenvalues.
    late = (read["simulation"].escape / read["scalar"].escape).isel(scale=0, ratio=0)
    np.testing.assert_allclose(late, 1, rtol=0.2)


@pytest.mark.parametrize("figure", [LinearICL(seeds=2), Plateaus(resolution=2, seeds=1)])
def test_pictures_have_four_and_six_panels(figure: sweeps.Figure) -> None:
    picture = figure.draw({name: made.falling(each) for name, each in figure.sweeps().items()})
    panels = [ax for ax in picture.figure.axes if ax.get_title()]
    assert len(panels) == {"linear_icl": 4, "linear_icl_plateaus": 6}[figure.NAME]
    assert picture.text
