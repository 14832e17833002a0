"""Movies, decoded: what a frame shows is what the runs had recorded at its time."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from PIL import Image, ImageSequence

import sweeps
from sweeps import cli
from sweeps.commands.views import movie
from tests.doors import refuses

TIMES = np.array([0.0, 1, 2, 4, 8, 16])


def runs(name="v", inner=3, **axes):
    """A quantity that is entry + seed at the start, and grows with the time."""
    shape = (*map(len, axes.values()), len(TIMES), *((inner,) if inner else ()))
    dims = (*axes, "time", *(("entry",) if inner else ()))
    values = xr.DataArray(np.zeros(shape), {**axes, "time": TIMES}, dims)
    values = values + values.time + sum(values[dim] for dim in axes)
    if inner:
        values = values + xr.DataArray(np.arange(inner), dims="entry")
    status = xr.DataArray(np.zeros(shape[: len(axes)], int), {**axes}, tuple(axes))
    return xr.Dataset({name: values, "status": status})


def frames(path):
    with Image.open(path) as image:
        return [np.asarray(f.convert("RGB"), int) for f in ImageSequence.Iterator(image)]


def drawn(data, *names, **options):
    """The figure, and the function that shows a frame."""
    chosen, arrays = movie._frames(
        data, names, options.get("where", ()), options.get("frames", 100)
    )
    return movie._draw(chosen, arrays)


def test_bars_are_the_mean_of_the_runs_at_the_time_of_the_frame():
    data = {"training": runs(seed=[0, 1]), "theory": runs(seed=[0])}
    figure, update = drawn(data)
    (ax,) = figure.axes
    for frame, time in enumerate(TIMES):
        update(frame)
        assert [bar.get_height() for bar in ax.patches] == [time + 0.5 + i for i in range(3)]
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), time + np.arange(3))


def test_a_number_over_two_axes_is_a_map_and_failed_runs_have_no_colour():
    data = runs("x", inner=0, a=[1.0, 2.0, 4.0], b=[10.0, 30.0])
    data["status"][0, 0] = 1
    figure, update = drawn({"": data})
    (mesh,) = figure.axes[0].collections
    update(3)
    shown = np.ma.filled(np.ma.masked_invalid(mesh.get_array()), -1.0)
    np.testing.assert_array_equal(shown, [[-1.0, 16, 18], [35, 36, 38]])


def test_a_number_over_one_axis_is_a_curve_over_it():
    figure, update = drawn({"": runs("x", inner=0, a=[1.0, 2.0, 4.0, 8.0], seed=[0, 1])})
    update(4)
    (line,) = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xydata(), [[a, 8.5 + a] for a in (1, 2, 4, 8)])
    low, high = figure.axes[0].get_xlim()
    assert 0.5 < low < 1
    assert 8 < high < 10


def test_two_numbers_are_points_in_their_plane():
    data = runs("x", inner=0, seed=[0, 1]).assign(y=lambda d: 2 * d.x)
    figure, update = drawn({"runs": data}, "x", "y")
    update(2)
    points = figure.axes[0].lines[-1].get_xydata()
    np.testing.assert_array_equal(points, [[2, 4], [3, 6]])


@pytest.mark.parametrize(("most", "places"), [(100, range(6)), (3, (0, 2, 5)), (2, (0, 5))])
def test_a_file_has_a_frame_for_each_time_up_to_the_largest_number(tmp_path, most, places):
    path = sweeps.movie(runs(seed=[0]), out=tmp_path / "new" / "a.gif", frames=most, seconds=3.0)
    found = frames(path)
    # The most common colour after white has as many pixels as the bars are high.
    colours, counts = np.unique(found[-1].reshape(-1, 3), axis=0, return_counts=True)
    blue = colours[np.argsort(counts)[-2]]
    pixels = np.array([(np.abs(frame - blue).max(-1) < 16).sum() for frame in found])
    heights = 3 * TIMES[list(places)] + 3
    np.testing.assert_allclose(pixels / pixels[-1], heights / heights[-1], atol=0.02)
    with Image.open(path) as image:
        assert image.info["duration"] == pytest.approx(3000 / len(places), abs=10)


def test_the_command_draws_stores_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = sweeps.experiment("saxe", steps=4, eta=0.1)
    for folder, seeds in (("training", [0, 1]), ("again", [1])):
        sweep = sweeps.Sweep(run, {"seed": seeds}, record=["learned"], times=4)
        sweeps.run(sweep, folder, progress=False)
    assert cli.main(["movie", "training", "again", "--out", "m.gif"]) == 0
    with np.load("m.npz") as arrays:
        stored = sweeps.open("training").learned.mean("seed")
        np.testing.assert_allclose(arrays["training/learned"], stored, rtol=1e-6)
        assert len(frames(Path("m.gif"))) == arrays["times"].size == 5


@pytest.mark.parametrize(
    ("data", "names", "options", "said"),
    [
        (runs(seed=[0]), ["w"], {}, ("observable", "'w'", "v")),
        (runs(seed=[0]), ["v", "v", "v"], {}, ("observable", "two")),
        (runs(seed=[0]), [], {"out": "a.png"}, ("out", "a.png", ".gif", ".mp4")),
        (runs(seed=[0]), [], {"frames": 1}, ("frames = 1", ">= 2")),
        (runs(seed=[0]), [], {"seconds": 0.0}, ("seconds", "0.0")),
        (runs(seed=[0], a=[1.0, 2.0], b=[1.0, 2.0]), [], {}, ("where", "a, b, entry")),
        (runs(seed=range(65)).assign(w=lambda d: d.v), ["v", "w"], {}, ("entry", "--where")),
        (runs(inner=0, seed=range(65)), ["v", "v"], {}, ("65 runs", "64")),
        (runs(seed=[0]).isel(time=0, drop=True), [], {}, ("data", "times")),
    ],
)
def test_what_cannot_be_drawn_is_named(tmp_path, data, names, options, said):
    options = {"out": tmp_path / "a.gif"} | options
    refuses(lambda: sweeps.movie(data, *names, **options), *said)
    assert not (tmp_path / "a.gif").exists()


def test_mp4_needs_ffmpeg(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    refuses(lambda: sweeps.movie(runs(seed=[0]), out=tmp_path / "a.mp4"), "a.mp4", "ffmpeg", ".gif")
