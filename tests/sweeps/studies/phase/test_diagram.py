"""Phase diagrams as drawn: agreement with made-up maps, and a plane of single runs."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import dynsim
from odes import symmetric
from sweeps import cli
from sweeps.output.cells import cell_edges, scale_of
from sweeps.studies.phase import figure, panels
from sweeps.studies.phase.regions import BY_STATUS
from sweeps.systems.diagrams import Line, Predictions
from sweeps.systems.layer_diagram import Region

pytestmark = pytest.mark.usefixtures("quick_theory")


def test_agreement_is_that_of_theories_and_of_lines_that_cross_the_plane() -> None:
    places = {"eta_y": [1.0, 2, 4], "eta_z": [0.1, 0.2]}
    over = lambda values: xr.DataArray(values, places, ("eta_y", "eta_z"))
    first = xr.Dataset({"region": over([[0, 0], [1, 0], [1, 1]])})
    other = xr.Dataset({"region": over([[0, 0], [0, 0], [1, 1]])})
    peak = over(np.log([[0.5, 0.5], [2, 0.6], [4, 4]]))
    lines = [Line("peak", "the peak", peak.T), Line("high", "above", peak + 9)]
    noisy = {"flow with noise": ("with noise", first.region)}
    predicted = Predictions([*lines, Line("lost", "", peak.where(peak < 1))], noisy)
    told = figure.compared({"simulation": first, "flow": other}, BY_STATUS, predicted)
    assert [each.name for each in told] == ["flow", "flow with noise", "peak"]
    # At eta_z = 0.2 and eta_y = 2 the peak is below 1, as are both at eta_y = 1.
    assert [each.agreement.right for each in told] == pytest.approx([5 / 6, 1, 1])
    names = (BY_STATUS.legend[code][0] for code in (1, 0))
    assert told[2].text == "{} on one side and {} on the other".format(*names)
    lines = list(figure.reported(told, "simulation", first["region"]))
    assert "(its most common region alone: 50.0 %)" in lines[0]
    assert lines[1].startswith("  flow: 83.3 %")
    assert lines[3].startswith("  line peak: 100.0 %, ")


def test_lines_are_where_their_values_are_zero() -> None:
    x, y = (xr.DataArray(np.geomspace(0.01, 1, 60), dims=name, name=name) for name in "xy")
    x, y = x.assign_coords(x=x.values), y.assign_coords(y=y.values)
    line = Line("product", "", np.log(x * y / 0.01).transpose("y", "x"))
    _, ax = plt.subplots()
    ax.set(xlim=(0.1, 1), ylim=(0.1, 1))
    panels.plot_lines([line], ax=ax)
    (curve,) = ax.get_lines()
    np.testing.assert_allclose(np.prod(curve.get_data(), axis=0), 0.01, rtol=1e-9)
    assert ax.get_xlim() == (0.1, 1)
    plt.close()


@pytest.mark.more
def test_one_theory_is_one_panel(tmp_path: Path) -> None:
    """Of descent, whose plane is that of its single runs."""
    words = ["--theory", "symmetric", "--x", "eta_y:0.1:10:3", "--y", "eta_z:0.1:1:2"]
    assert cli.main(["phase", *words, "--steps", "20", "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "phase.npz") as arrays:
        assert not [name for name in arrays if name.startswith("simulation")]
        entropy, codes = (arrays[f"symmetric-descent/{n}"] for n in ("entropy", "region"))
        axes = arrays["eta_y"], arrays["eta_z"]
    np.testing.assert_allclose(axes[0], [0.1, 1, 10])
    rates = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    alone = symmetric.descend(
        task, dynsim.sgd(*rates.T), steps=20, times=[20], record=["entropy", "loss"]
    )
    # float32 and its rounding of 20 steps.
    np.testing.assert_allclose(entropy.ravel(), alone["entropy"].ravel(), rtol=1e-4)
    # Half of ln 34 is what a task counts as learned from.
    learned = alone["loss"].ravel() < np.log(34) / 2
    np.testing.assert_array_equal(codes.ravel() != Region.NOT_LEARNED, learned)
    assert len(set(learned)) == 2


def test_cells_are_between_values_on_their_scale() -> None:
    assert scale_of([0.0, 0.3, 0.6]) == "linear"
    assert scale_of([0.1, 1.0, 10.0]) == "log"
    assert scale_of(np.array([1, 3, 4, 6])) == "linear"  # evenly spaced but for rounding
    np.testing.assert_allclose(cell_edges([0.0, 1.0, 2.0]), [-0.5, 0.5, 1.5, 2.5])
    np.testing.assert_allclose(cell_edges([1.0, 100.0]), [0.1, 10.0, 1000.0])
