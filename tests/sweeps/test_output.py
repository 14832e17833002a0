"""Files, figures and scales of results."""

import json
import math
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from sweeps import cli, output
from sweeps.output import cells, drawing
from sweeps.runner import fit


def test_json_has_neither_infinities_nor_arrays():
    given = {"a": np.array([1.5, np.nan, np.inf]), "b": (1, "x", None, True)}
    given |= {"c": np.float32(0.25), "d": {"e": -math.inf, "f": np.int64(3)}}
    want = {"a": [1.5, None, None], "b": [1, "x", None, True], "c": 0.25}
    assert output.as_json(given) == want | {"d": {"e": None, "f": 3}}


@pytest.mark.parametrize(
    ("out", "address", "folder"),
    [
        ("runs/a", None, "runs/a"),
        ("s3://bucket/run", "s3://bucket/run", "out/run"),
        # As a path has it.
        ("gs:/bucket/x/run", "gs://bucket/x/run", "out/run"),
        ("C:/runs/a", None, "C:/runs/a"),
    ],
)
def test_an_address_has_a_folder_of_its_name(out, address, folder):
    assert output.address(out) == address
    assert output.folder(Path(out)) == Path(folder)


@pytest.mark.parametrize(("dpi", "want"), [("figure", 150), (40, 40)])
def test_results_are_written_by_kind(tmp_path, dpi, want):
    figure = Figure(figsize=(2, 1))
    asked = {"report": {"x": math.nan}, "text": {"csv": "a\n", "md": "b\n"}}
    with mpl.rc_context({"savefig.format": "png", "savefig.dpi": dpi}):
        paths = output.write(
            tmp_path / "new", "x", figure=figure, arrays={"a": np.arange(3)}, **asked
        )
    assert [path.name for path in paths] == ["x.npz", "x.json", "x.csv", "x.md", "x.png"]
    assert json.loads(paths[1].read_text()) == {"x": None}
    assert [path.read_text() for path in paths[2:4]] == ["a\n", "b\n"]
    with np.load(paths[0]) as arrays:
        assert arrays["a"].tolist() == [0, 1, 2]
    assert plt.imread(paths[4]).shape[:2] == (want, 2 * want)
    assert sorted(tmp_path.glob("new/.*")) == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file: exists and is not a folder$"):
        output.write(tmp_path / "file", "x")


@pytest.mark.parametrize("size", [1, 2, 7, 16, 1000])
@pytest.mark.parametrize("points", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_a_tile_is_the_least_power_of_two_that_holds_the_grid(seeds, points, size):
    """Points first; of a grid that is too large, the largest one within the size."""
    powers = [2**i for i in range(11)]
    allowed = [each for each in powers if each <= size]
    few = min((each for each in allowed if each >= points), default=allowed[-1])
    left = [each for each in powers if each <= size / few]
    assert fit.tile_shape(seeds, points, size) == (
        min((each for each in left if each >= seeds), default=left[-1]),
        few,
    )


def test_a_command_takes_both_and_changes_nothing_else(tmp_path):
    before = dict(mpl.rcParams)
    options = ["--format", "svg", "--style", "ggplot", "--out", str(tmp_path)]
    assert cli.main(["figure", "9", *options]) == 0
    # The colour of the axes' background in that style.
    assert "fill: #e5e5e5" in (tmp_path / "fig9.svg").read_text()
    assert not (tmp_path / "fig9.png").exists()
    assert dict(mpl.rcParams) == before


def test_lines_are_seen_on_white():
    """WCAG 2 asks for a contrast of 3; viridis, which ends in yellow, has less."""
    assert drawing.luminance(["white", "black", "red", (0, 0, 0, 0)]).tolist() == [
        pytest.approx(each) for each in (1, 0, 0.2126, 1)
    ]
    # Dark levels are linear; the standard changes the formula at 0.04045.
    dark = drawing.luminance([(level,) * 3 for level in (0.04, 0.05)])
    np.testing.assert_allclose(dark, [0.04 / 12.92, (0.105 / 1.055) ** 2.4], rtol=1e-9)
    for colours in (drawing.PALETTE, *(drawing.shades(number) for number in range(1, 10))):
        assert min(1.05 / (drawing.luminance(list(colours)) + 0.05)) >= 3
    assert min(1.05 / (drawing.luminance(drawing.scale(5)) + 0.05)) < 2


@pytest.mark.parametrize(
    ("values", "scale", "edges"),
    [
        ([1, 2, 3], "linear", [0.5, 1.5, 2.5, 3.5]),
        ([1, 2, 4], "linear", [0.5, 1.5, 3, 5]),
        ([1.0, 4.0, 16.0], "log", [0.5, 2, 8, 32]),
        ([0.0, 1.0, 5.0], "linear", [-0.5, 0.5, 3, 7]),
        ([-1.0, 1.0], "linear", [-2, 0, 2]),
        ([1.0, 4.0], "log", [0.5, 2, 8]),
        ([0.1, 0.2, 0.3], "linear", [0.05, 0.15, 0.25, 0.35]),
        ([4.0], "log", [4 * math.exp(-0.5), 4 * math.exp(0.5)]),
        ([0], "linear", [-0.5, 0.5]),
    ],
)
def test_cells_around_values(values, scale, edges):
    assert cells.scale_of(values) == scale
    np.testing.assert_allclose(cells.cell_edges(values), edges, atol=1e-12)
    np.testing.assert_allclose(cells.cell_edges(values, scale), edges, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([2.0, np.inf, np.nan, 5.0], (2, 5, False)),
        ([1.0, 1000.0], (1, 1000, False)),
        ([1.0, 1001.0], (1, 1001, True)),
        # One in thirty that is nearly zero.
        ([1e-12, *[1.0] * 20, *[2.0] * 9], (1e-12, 2, False)),
        ([0.0, 1e9], (0, 1e9, False)),
        ([-1.0, 1e9], (-1, 1e9, False)),
        ([np.nan], (0, 1, False)),
    ],
)
def test_colours_are_logarithmic_beyond_three_decades(values, found):
    assert cells.colour_range(np.array(values)) == found
