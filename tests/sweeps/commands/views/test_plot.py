"""'dynsim plot': lines, maps and what is taken from the sweep."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from dynsim import Status
from sweeps.commands.views import plot
from sweeps.output import drawing


def sweep(axes, *recorded):
    """Zeros of the shape of a sweep's results."""
    coords = {name: np.arange(1.0, size + 1) for name, size in {**axes, "time": 3}.items()}
    values = {name: ((*axes, "time"), np.zeros((*axes.values(), 3))) for name in recorded}
    status = ((*axes,), np.zeros(tuple(axes.values()), int))
    return xr.Dataset({"status": status, **values}, coords)


@pytest.mark.parametrize(
    ("axes", "recorded", "given", "want"),
    [
        ({"num_queries": 2, "eta_z": 4, "seed": 9}, ("loss", "entropy"), {}, ("eta_z", "entropy")),
        ({"eta": 3, "heads": 5}, ("learned", "loss"), {"hue": "heads"}, ("eta", "loss")),
        ({"seed": 9}, ("K1",), {}, ("time", "K1")),
        ({"eta": 3, "heads": 5}, ("loss",), {"x": "time", "observable": "loss"}, ("time", "loss")),
    ],
    ids=["yz", "another system", "seeds alone", "as given"],
)
def test_what_is_not_given_is_taken_from_the_sweep(axes, recorded, given, want):
    dataset = sweep(axes, *recorded)
    config = plot.with_defaults(plot.Plot("runs/some", **given), dataset)
    assert (config.x, config.observable) == want
    assert plot.array_to_draw(dataset, config).name == want[1]


def test_columns_have_the_mean_and_the_deviation_of_the_seeds():
    words, rng = ["sgd", "sign", "adam"], np.random.default_rng(0)
    dataset = sweep({"optimizer": 3, "seed": 4}, "loss").assign_coords(optimizer=words)
    dataset["loss"].values[:] = rng.normal(size=(3, 4, 3))
    dataset["status"].values[1, 2] = Status.DIVERGED
    config = plot.Plot("runs/some", x="optimizer", observable="loss")
    data = plot.array_to_draw(dataset, config)
    theory = data.isel(seed=0) + 1
    (ax,) = plot.draw(config, data, {"runs/theory": theory}).axes
    runs, own = ax.containers
    last = dataset["loss"].values[:, :, -1].astype(float)
    last[1, 2] = np.nan
    mean, spread = np.nanmean(last, axis=1), np.nanstd(last, axis=1, ddof=1)
    for drawn, middle, half, marker, place in (
        (runs, mean, spread, "o", 0),
        # A single run has no deviation.
        (own, last[:, 0] + 1, np.zeros(3), "s", 1),
    ):
        points, caps, (bars,) = drawn
        np.testing.assert_allclose(points.get_ydata(orig=False), middle, rtol=1e-12)
        ends = [[low[1], high[1]] for low, high in bars.get_segments()]
        np.testing.assert_allclose(ends, np.stack([middle - half, middle + half], 1), rtol=1e-12)
        assert len(caps) == 2
        assert (points.get_marker(), points.get_linestyle()) == (marker, "None")
        assert to_hex(points.get_color()) == to_hex(drawing.colour(place))


def test_a_class_axis_is_averaged_unless_it_is_drawn():
    values = np.arange(24.0).reshape(2, 3, 4)
    coords = {"eta": [0.1, 0.2], "time": np.arange(3.0), "class": np.arange(4)}
    status = ("eta", np.zeros(2, int))
    dataset = xr.Dataset({"status": status, "z": (("eta", "time", "class"), values)}, coords)
    config = plot.Plot("runs/some", x="eta", observable="z")
    found = plot.array_to_draw(dataset, config)
    np.testing.assert_array_equal(found, values[:, -1].mean(-1))
    for hue, want in (("class", values[:, -1]), ("time", values.mean(-1))):
        config = plot.Plot("runs/some", x="eta", observable="z", hue=hue)
        np.testing.assert_array_equal(plot.array_to_draw(dataset, config), want)


def drawn(config, runs, *theories):
    config = plot.with_defaults(config, runs)
    others = {f"runs/{i}": plot.array_to_draw(each, config) for i, each in enumerate(theories)}
    return plot.draw(config, plot.array_to_draw(runs, config), others)


def test_cells_have_the_mean_of_the_runs_that_ended_well(runs):
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


def test_a_second_panel_has_the_error_of_the_mean(runs):
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


def test_contours_of_a_theory_lie_where_it_has_their_value(runs, theory):
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
