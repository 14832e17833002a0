"""`dynsim plot --view heatmap`, several sweeps in one plot, and colour bars of many lines."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sweeps import cli
from sweeps.commands.views import plot


def drawn(config: plot.Plot, runs: xr.Dataset, *theories: xr.Dataset):
    config = plot.completed(config, runs)
    others = {f"runs/{i}": plot.chosen(each, config) for i, each in enumerate(theories)}
    return plot.draw(config, plot.chosen(runs, config), others)


def test_cells_have_the_mean_of_the_runs_that_ended_well(runs: xr.Dataset) -> None:
    config = plot.Plot("runs/some", observable="loss", view="heatmap")
    figure = drawn(config, runs)
    colours, failed = figure.axes[0].collections
    last = runs["loss"].isel(time=-1).transpose("eta_y", "eta_z", "seed").values
    wanted = last.mean(axis=-1)
    # One of the two seeds of this cell has diverged, and both of the other.
    wanted[0, 1], wanted[1, 2] = last[0, 1, 0], np.nan
    # Means in float32 may round in another order.
    np.testing.assert_allclose(np.ma.filled(colours.get_array(), np.nan), wanted, rtol=1e-6)
    hatched = ~np.ma.getmaskarray(failed.get_array())
    assert np.argwhere(hatched).tolist() == [[0, 1], [1, 2]]
    assert failed.get_hatch()


def test_a_second_panel_has_the_error_of_the_mean(runs: xr.Dataset) -> None:
    config = plot.Plot("runs/some", observable="loss", view="heatmap", error=True)
    figure = drawn(config, runs)
    (_, panel, *bars) = figure.axes
    assert [bar.get_ylabel() for bar in bars] == [
        "population cross entropy (nat)",
        "standard error of the mean (nat)",
    ]
    colours = panel.collections[0]
    last = runs["loss"].isel(time=-1).transpose("eta_y", "eta_z", "seed").values.astype(float)
    # Two cells have fewer than two runs that ended well; of two the error is half their distance.
    last[0, 1] = last[1, 2] = np.nan
    wanted = abs(last[..., 0] - last[..., 1]) / 2
    np.testing.assert_allclose(np.ma.filled(colours.get_array(), np.nan), wanted, rtol=1e-4)


def test_a_single_run_has_no_error_of_the_mean(theory: xr.Dataset) -> None:
    config = plot.Plot("runs/some", observable="loss", view="heatmap", error=True)
    with pytest.raises(ValueError, match="error = True: no cell has two runs that ended well"):
        drawn(config, theory)


def test_contours_of_a_theory_lie_where_it_has_their_value(
    runs: xr.Dataset, theory: xr.Dataset
) -> None:
    # A plane in the logarithms: its contours are straight lines over logarithmic axes.
    slope = np.log10(theory.eta_y * theory.eta_z)
    theory["loss"].values[:] = slope.broadcast_like(theory["loss"]).transpose(*theory["loss"].dims)
    runs["loss"].values[:] = np.linspace(-1, 1, runs["loss"].size).reshape(runs["loss"].shape)
    config = plot.Plot("runs/some", observable="loss", view="heatmap")
    ax = drawn(config, runs, theory).axes[0]
    (contours,) = (each for each in ax.collections if hasattr(each, "levels"))
    found = dict(zip(contours.levels, contours.get_paths(), strict=True))
    z, y = found[min(found, key=abs)].vertices[0]
    at = {"eta_y": y, "eta_z": z}
    value = float(theory["loss"].isel(time=-1).interp(at))
    assert value == pytest.approx(min(found, key=abs), abs=1e-6)


def test_several_sweeps_are_drawn_together(runs: xr.Dataset, theory: xr.Dataset) -> None:
    config = plot.Plot("runs/some", x="time", observable="loss", where=("eta_y=5", "eta_z=0.1"))
    figure = drawn(config, runs, theory)
    line, own = figure.axes[0].lines
    at = {"eta_y": 5.0, "eta_z": 0.1}
    np.testing.assert_allclose(line.get_ydata(), runs["loss"].sel(at).mean("seed"), rtol=1e-6)
    np.testing.assert_array_equal(own.get_ydata(), theory["loss"].sel(at))
    assert line.get_linestyle() != own.get_linestyle()
    assert [text.get_text() for text in figure.legends[0].texts] == ["some", "0"]


@pytest.mark.parametrize("lines", [10, 11])
def test_more_than_ten_entries_become_a_colour_bar(lines: int) -> None:
    values = np.zeros((lines, 4), np.float32)
    coords = {"eta": np.geomspace(0.1, 9, lines), "time": np.arange(4.0)}
    status = ("eta", np.zeros(lines, np.int8))
    runs = xr.Dataset({"status": status, "loss": (("eta", "time"), values)}, coords)
    figure = drawn(plot.Plot("runs/some", x="time", hue="eta"), runs)
    assert (figure.axes[0].get_legend() is None) == (lines > 10) == (len(figure.axes) == 2)
    if lines > 10:
        written = [text.get_text() for text in figure.axes[1].get_yticklabels()]
        assert (written[0], written[-1]) == ("0.1", "9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--view", "lines", "--error"], "error = True: lines show bands"),
        (["--x", "eta_z", "--y", "eta_z"], "y = 'eta_z': must differ from x"),
        (["--y", "eta"], "y = 'eta': "),
        (["--x", "time", "--y", "eta_z"], "where: eta_y have no place in a heat map"),
    ],
)
def test_maps_that_cannot_be_are_refused(
    stored: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    view = [] if "--view" in options else ["--view", "heatmap"]
    assert cli.main(["plot", str(stored), *view, *options]) == 2
    assert message in capsys.readouterr().err
