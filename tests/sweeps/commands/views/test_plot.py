"""What `dynsim plot` draws of a sweep where nothing is said about it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes

from sweeps.commands.views import plot


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
