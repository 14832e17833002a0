"""What `dynsim plot` draws of a sweep where nothing is said about it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_hex

from dynsim import Status
from sweeps.commands.views import plot
from sweeps.output import drawing


def sweep(axes: dict[str, int], *recorded: str) -> xr.Dataset:
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
def test_what_is_not_given_is_taken_from_the_sweep(
    axes: dict, recorded: tuple[str, ...], given: dict, want: tuple[str, str]
) -> None:
    dataset = sweep(axes, *recorded)
    config = plot.completed(plot.Plot("runs/some", **given), dataset)
    assert (config.x, config.observable) == want
    assert plot.chosen(dataset, config).name == want[1]


def test_of_many_values_the_nearest_are_told() -> None:
    few = r"where: heads = 9: must be one of 1, 2, 3, 4, 5$"
    many = r"where: eta = 7.4: is none of the 40 values from 1 to 40; the nearest are 7, 8$"
    for wanted, message in (("heads=9", few), ("eta=7.4", many)):
        config = plot.Plot("runs/some", "time", "loss", where=(wanted,))
        with pytest.raises(ValueError, match=message):
            plot.chosen(sweep({"eta": 40, "heads": 5}, "loss"), config)


def test_words_are_columns_or_lines() -> None:
    words = ["sgd", "sign", "adam", "momentum"]
    dataset = sweep({"eta": 3, "optimizer": 4, "seed": 2}, "loss").assign_coords(optimizer=words)

    def drawn(**options: Any) -> Axes:
        # The longest axis has words, between which no line can be drawn.
        config = plot.completed(plot.Plot("runs/some", **options), dataset)
        (ax,) = plot.draw(config, plot.chosen(dataset, config)).axes
        return ax

    lines = drawn(hue="optimizer")
    assert [text.get_text() for text in lines.get_legend().get_texts()] == words
    assert [line.get_linestyle() for line in lines.lines] == ["-"] * 4
    columns = drawn(x="optimizer", where=("eta=2",))
    assert [text.get_text() for text in columns.get_xticklabels()] == words
    assert "-" not in [line.get_linestyle() for line in columns.lines]
    panels = plot.Plot("runs/some", "eta", "loss")
    titles = [ax.get_title() for ax in plot.draw(panels, plot.chosen(dataset, panels)).axes]
    assert titles == [f"optimizer = {word}" for word in words]
    one = drawn(where=("optimizer=adam",))
    assert "optimizer = adam" in one.figure.get_suptitle()


def test_a_sweep_in_the_current_folder_is_drawn_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plot.Plot(".").out == Path("out/plot") / f"{tmp_path.name}.png"


def test_columns_have_the_mean_and_the_deviation_of_the_seeds() -> None:
    words, rng = ["sgd", "sign", "adam"], np.random.default_rng(0)
    dataset = sweep({"optimizer": 3, "seed": 4}, "loss").assign_coords(optimizer=words)
    dataset["loss"].values[:] = rng.normal(size=(3, 4, 3))
    dataset["status"].values[1, 2] = Status.DIVERGED
    config = plot.Plot("runs/some", x="optimizer", observable="loss")
    data = plot.chosen(dataset, config)
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


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.5, 1.0, 5.0], "log"),
        ([0.5, 1.0, 4.9], "linear"),
        ([3.0, 4.0, 5.0], "linear"),
        ([0.0, 1.0, 50.0], "linear"),
        ([1.0, 50.0], "linear"),
    ],
)
def test_axes_of_a_decade_are_logarithmic(values: list[float], scale: str) -> None:
    """In lines and in maps."""
    dataset = sweep({"eta": len(values), "heads": 2}, "loss").assign_coords(eta=values)
    dataset["loss"].values[:] = np.arange(dataset["loss"].size).reshape(dataset["loss"].shape)
    lines = plot.Plot("runs/some", x="eta", observable="loss", hue="heads")
    heat = plot.Plot("runs/some", x="eta", y="heads", observable="loss", view="heatmap")
    for config in (lines, heat):
        ax, *_ = plot.draw(config, plot.chosen(dataset, config)).axes
        assert (ax.get_xscale(), ax.get_yscale()) == (scale, "linear")


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0.01, 100.0, True), (0.1, 9.9, False), (0.0, 10.0, False)]
)
def test_colours_of_many_decades_are_logarithmic(low: float, high: float, log: bool) -> None:
    dataset = sweep({"eta": 2, "heads": 3}, "loss")
    spaced = np.geomspace if log else np.linspace
    dataset["loss"].values[:] = spaced(low, high, 6).reshape(2, 3)[..., None]
    config = plot.Plot("runs/some", x="eta", y="heads", observable="loss", view="heatmap")
    data = plot.chosen(dataset, config)
    ax = plot.draw(config, data, {"runs/theory": data}).axes[0]
    norm = ax.collections[0].norm
    assert isinstance(norm, LogNorm) == log
    assert (norm.vmin, norm.vmax) == (low, high)
    # Five contours divide the colours into six.
    (contours,) = (each for each in ax.collections if hasattr(each, "levels"))
    np.testing.assert_allclose(contours.levels, spaced(low, high, 7)[1:-1], rtol=1e-12)


def test_maps_without_runs_and_theories_without_a_plane_are_refused() -> None:
    dataset = sweep({"eta": 2, "heads": 3}, "loss")
    config = plot.Plot("runs/some", x="eta", y="heads", observable="loss", view="heatmap")
    data = plot.chosen(dataset, config)
    with pytest.raises(ValueError, match="a theory needs at least two values of eta and of heads"):
        plot.draw(config, data, {"runs/theory": data.isel(eta=[0])})
    with pytest.raises(ValueError, match="none of these runs ended well"):
        plot.draw(config, data.where(data < 0))


def test_the_title_tells_what_is_selected_and_averaged() -> None:
    dataset = sweep({"eta": 3, "heads": 5, "seed": 4}, "loss")
    at = {"x": "eta", "observable": "loss", "where": ("heads=2",)}
    lines = plot.Plot("runs/some", **at)
    heat = plot.Plot("runs/some", **at | {"where": (), "view": "heatmap", "y": "heads"})
    alone = plot.Plot("runs/some", **at | {"x": "time", "where": ("heads=2", "eta=1.0")})
    for config, words in (
        (lines, "some, heads = 2, step = 3, mean ± sd of 4 seeds"),
        (heat, "some, step = 3, mean of 4 seeds"),
        (alone, "some, heads = 2, eta = 1, mean ± sd of 4 seeds"),
    ):
        data = plot.chosen(dataset, config)
        assert sorted(plot.title(config, data).split(", ")) == sorted(words.split(", "))


@pytest.mark.parametrize(
    ("panels", "view", "error", "width", "size"),
    [
        # Twelve letters an inch: 57 of one panel, of which each letter has a blank.
        (1, "lines", False, 57, (4.8, 3.6)),
        (2, "lines", False, 71, (6, 3.6)),
        (3, "lines", False, 107, (9, 3.6)),
        (1, "heatmap", False, 55, (5.6, 4.2)),
        (1, "heatmap", True, 111, (11.2, 4.2)),
    ],
)
def test_a_long_title_is_as_wide_as_the_figure(
    panels: int, view: str, error: bool, width: int, size: tuple[float, float]
) -> None:
    dataset = sweep({"eta": 3, "heads": panels, "seed": 2}, "loss")
    if panels == 1 and view == "lines":
        dataset = dataset.isel(heads=0, drop=True)
    dataset["loss"].values[:] = np.random.default_rng(0).normal(size=dataset["loss"].shape)
    y = {"y": "heads"} if view == "heatmap" else {}
    name = f"runs/{'a ' * 120}"
    config = plot.Plot(name, x="eta", observable="loss", view=view, error=error, **y)  # pyright: ignore
    figure = plot.draw(config, plot.chosen(dataset, config))
    assert max(map(len, figure.get_suptitle().splitlines())) == width
    np.testing.assert_allclose(figure.get_size_inches(), size)
    if view == "lines":
        first, *others = figure.axes
        assert len(others) == panels - 1
        # One vertical axis for all panels, with one label.
        assert all(first.get_shared_y_axes().joined(first, ax) for ax in others)
        assert [ax.get_ylabel() for ax in figure.axes] == ["loss"] + [""] * (panels - 1)


def test_more_than_one_axis_has_no_place_in_panels() -> None:
    dataset = sweep({"eta": 2, "heads": 2, "width": 2}, "loss")
    config = plot.Plot("runs/some", x="eta", observable="loss")
    with pytest.raises(ValueError, match=r"^where: heads, width remain, but only one of them"):
        plot.draw(config, plot.chosen(dataset, config))


def test_a_class_axis_is_averaged_unless_it_is_drawn() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    coords = {"eta": [0.1, 0.2], "time": np.arange(3.0), "class": np.arange(4)}
    status = ("eta", np.zeros(2, int))
    dataset = xr.Dataset({"status": status, "z": (("eta", "time", "class"), values)}, coords)
    config = plot.Plot("runs/some", x="eta", observable="z")
    found = plot.chosen(dataset, config)
    np.testing.assert_array_equal(found, values[:, -1].mean(-1))
    for hue, want in (("class", values[:, -1]), ("time", values.mean(-1))):
        config = plot.Plot("runs/some", x="eta", observable="z", hue=hue)
        np.testing.assert_array_equal(plot.chosen(dataset, config), want)


def test_a_figure_is_as_large_as_can_be_read() -> None:
    config = plot.Plot("runs/some", x="eta", hue="heads")
    fits = {"eta": 2, "heads": plot.MOST_LINES, "width": plot.MOST_PANELS, "seed": 7}
    plot.check_drawable(fits, config)
    plot.check_drawable({"eta": plot.MOST_POINTS // 2, "heads": 2}, config)
    for name, what in (("heads", "257 lines, at most 256"), ("width", "25 panels, at most 24")):
        with pytest.raises(ValueError, match=f"would draw {what} fit"):
            plot.check_drawable(fits | {name: fits[name] + 1}, config)
    with pytest.raises(ValueError, match="would draw 4194306 points, at most 4194304 fit"):
        plot.check_drawable({"eta": plot.MOST_POINTS // 2 + 1, "heads": 2}, config)


def test_numbers_of_all_sweeps_are_next_to_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A theory without seeds lacks the axis that a value is chosen of."""
    runs = sweep({"eta": 3, "heads": 2, "seed": 2}, "loss")
    runs["loss"].values[:] = np.arange(36).reshape(3, 2, 2, 3)
    theory = sweep({"eta": 3, "heads": 2}, "loss")
    theory["loss"].values[:] = np.arange(18).reshape(3, 2, 3)
    known = {"runs/some": runs, "runs/theory": theory}
    monkeypatch.setattr(plot, "open_sweep", lambda path, report: known[path])
    out = tmp_path / "new" / "some.svg"
    where = ("seed=2", "heads=2")
    config = plot.Plot("runs/some", "eta", "loss", where=where, out=out, more=("runs/theory",))
    numbers, figure = plot.run(config)
    assert (figure, numbers) == (out, out.with_suffix(".npz"))
    assert figure.read_text().startswith("<?xml")
    with np.load(numbers) as file:
        found = dict(file)
    wanted = {
        "loss": runs["loss"].values[:, 1, 1, -1],
        "eta": [1, 2, 3],
        "sweep2/loss": theory["loss"].values[:, 1, -1],
        "sweep2/eta": [1, 2, 3],
    }
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)
    with pytest.raises(ValueError, match=r"some\.jpg: must end in \.png, \.svg, \.pdf$"):
        plot.run(plot.Plot("runs/some", out=tmp_path / "some.jpg"))
