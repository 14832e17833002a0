"""Pictures in the user's style and format, from every command that draws."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from cycler import cycler
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import NullFormatter

from sweeps import cli, output
from sweeps.commands.table import COMMANDS
from sweeps.output import drawing

HEADS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", HEADS)
def test_a_picture_is_of_its_kind_and_the_same_again(tmp_path: Path, kind: drawing.Format) -> None:
    contents = []
    for _ in range(2):
        with drawing.style(None, kind):
            figure, _ = drawing.panels(1, 1, 1, 1)
            (path,) = output.write(tmp_path, "picture", figure=figure)
            contents.append(path.read_bytes())
    assert path.name == f"picture.{kind}"
    assert contents[0].startswith(HEADS[kind])
    assert contents[0] == contents[1]


@pytest.mark.more
def test_a_command_takes_both_and_changes_nothing_else(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    options = ["--format", "svg", "--style", "ggplot", "--out", str(tmp_path)]
    assert cli.main(["figure", "9", *options]) == 0
    # The colour of the axes' background in that style.
    assert "fill: #e5e5e5" in (tmp_path / "fig9.svg").read_text()
    assert not (tmp_path / "fig9.png").exists()
    assert dict(mpl.rcParams) == before


def test_a_style_is_a_file_too_and_may_say_the_format(tmp_path: Path) -> None:
    file = tmp_path / "mine.mplstyle"
    file.write_text("savefig.format: svg\naxes.prop_cycle: cycler('color', ['010203'])\n")
    with drawing.style(str(file)):
        assert drawing.colour(3) == "#010203"
        (ax,) = (figure := drawing.panels(1, 1)[0]).axes
        ax.plot([0, 1], color=drawing.colour(0))
        (path,) = output.write(tmp_path, "picture", figure=figure)
    assert path.suffix == ".svg"
    assert "#010203" in path.read_text()
    with drawing.style(str(file), "png"):
        assert mpl.rcParams["savefig.format"] == "png"


def test_the_style_sets_how_fine_a_picture_is(tmp_path: Path) -> None:
    sizes = []
    for dpi in ("figure", 50):
        with mpl.rc_context({"savefig.dpi": dpi}):
            figure, _ = drawing.panels(1, 1, 2, 2)
            (path,) = output.write(tmp_path, "picture", figure=figure)
            sizes.append(mpl.image.imread(path).shape[0])
    assert sizes == [2 * output.DPI, 2 * 50]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--style", "gplot"], "style = 'gplot': did you mean 'ggplot'?"),
        (["--style", "/nowhere"], "style = '/nowhere': must be a Matplotlib style"),
        (["--format", "pdf", "--out", "a/b.svg"], "format = 'pdf': out = a/b.svg"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["figure", "9", *options]) == 2
    assert capsys.readouterr().err.startswith(f"dynsim: {message}")
    assert not list(tmp_path.iterdir())


def test_a_style_with_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mplstyle").write_text("savefig.format: jpg\n")
    with (
        pytest.raises(ValueError, match=r"format = 'jpg': must be png, svg, pdf"),
        drawing.style(str(tmp_path / "a.mplstyle")),
    ):
        pass


def test_commands_that_draw_nothing_have_no_style() -> None:
    silent = {name for name, command in COMMANDS.items() if not command.draws}
    for name in silent & {"info", "explain"}:
        with pytest.raises(SystemExit):
            cli.parse([name, "--style", "ggplot"])


def test_the_palette_differs_to_the_colour_blind() -> None:
    """Under deuteranopia and protanopia, by the matrices of Vienot, Brettel and Mollon (1999) for
    linear RGB, any two colours stay 15 units apart in CIELAB, of which one can be told and ten are
    seen at a glance; matplotlib's own are alike."""
    blind = [
        [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
        [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    ]
    # Of linear sRGB, over the white point.
    to_xyz = np.array(
        [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]]
    )

    def seen(colour: str, by: list[list[float]]) -> np.ndarray:
        x, y, z = np.cbrt(to_xyz @ np.array(by) @ np.array(to_rgb(colour)) ** 2.2)
        return np.array([116 * y, 500 * (x - y), 200 * (y - z)])

    def closest(colours: tuple[str, ...], by: list[list[float]]) -> float:
        found = [seen(colour, by) for colour in colours]
        return min(float(np.linalg.norm(a - b)) for i, a in enumerate(found) for b in found[:i])

    for by in blind:
        assert closest(drawing.PALETTE, by) > 15
        assert closest(tuple(f"C{place}" for place in range(10)), by) < 10


def test_lines_are_seen_on_white() -> None:
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
    for colours, name, last in ((drawing.shades, "inferno", 0.66), (drawing.scale, "viridis", 0.9)):
        ends = [to_hex(plt.get_cmap(name)(value)) for value in (0.0, last / 2, last)]
        assert colours(3) == ends


def test_text_has_ten_points_and_training_is_four_wide() -> None:
    with drawing.style(None):
        assert mpl.rcParams["font.size"] == 10
    assert drawing.TRAINED == {"lw": 4}


def test_the_numbers_of_a_table_are_seen_in_their_cells() -> None:
    figure, ((ax,),) = drawing.panels(1, 1)
    values = np.array([[0.0, 0.5, 1.0, np.nan]])
    drawing.table(ax, values, "{:g}".format, "abcd", "r", cmap="gray", vmin=0, vmax=1)
    assert [text.get_color() for text in ax.texts] == ["white", "black", "black", "black"]
    assert [text.get_text() for text in ax.texts] == ["0", "0.5", "1", "nan"]
    plt.close(figure)


@pytest.mark.parametrize("level", [0.17, 0.19])
def test_letters_are_white_below_the_level_where_both_contrasts_are_equal(level: float) -> None:
    """Of a luminance L, 1.05 / (L + 0.05) to white and (L + 0.05) / 0.05 to black."""
    white, black = 1.05 / (level + 0.05), (level + 0.05) / 0.05
    grey = 1.055 * level ** (1 / 2.4) - 0.055
    figure, ((ax,),) = drawing.panels(1, 1)
    colours = {"cmap": "gray", "vmin": 0, "vmax": 1}
    mesh = drawing.table(ax, np.full((2, 3), grey), "{:.2f}".format, "abc", "xy", **colours)
    # A map of 256 colours.
    assert drawing.luminance(mesh.to_rgba([grey]))[0] == pytest.approx(level, abs=0.004)
    assert {each.get_color() for each in ax.texts} == {"white" if white > black else "black"}
    assert [each.get_position() for each in ax.texts] == [
        (c, r) for r in range(2) for c in range(3)
    ]
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], [-0.5, 0.5, 1.5, 2.5])
    np.testing.assert_allclose(mesh.get_coordinates()[:, 0, 1], [-0.5, 0.5, 1.5])
    assert [each.get_text() for each in ax.get_xticklabels()] == [*"abc"]
    assert [each.get_text() for each in ax.get_yticklabels()] == [*"xy"]
    plt.close(figure)


def test_curves_that_lie_on_each_other_can_be_told_apart() -> None:
    """From the sixth one on they are equally wide; 0.4 points of each show on either side."""
    styles = drawing.nested(8)
    widths = [1.3 + 0.8 * below for below in (5, 5, 5, 4, 3, 2, 1, 0)]
    assert [style["lw"] for style in styles] == pytest.approx(widths)
    dashes = [*drawing.DASHES, *drawing.DASHES][:8]
    assert [style["ls"] for style in styles] == ["-", *dashes[1:]]
    assert [style["color"] for style in styles[:7]] == [each.upper() for each in drawing.PALETTE]
    assert styles[7]["color"] == styles[0]["color"]


def test_guides_of_power_laws_end_in_a_point_and_are_named_in_their_middle() -> None:
    figure, ((ax,),) = drawing.panels(1, 1)
    drawing.power(ax, 2.0, 50.0, 0.3, "K", 3)
    (line,), (name,) = ax.lines, ax.texts
    np.testing.assert_allclose(line.get_xdata(), [2, 50])
    np.testing.assert_allclose(line.get_ydata(), [0.3 * 25**3, 0.3], rtol=1e-12)
    # Over logarithmic axes, ten is in the middle of 2 and 50.
    np.testing.assert_allclose(name.xy, [10, 0.3 * 5**3], rtol=1e-12)
    assert (name.get_text(), name.get_position()) == (r"$\propto K^{-3}$", (3, 2))
    assert (name.get_anncoords(), name.get_color()) == ("offset points", "0.3")
    plt.close(figure)


@pytest.mark.parametrize(("width", "edge"), [(1.5, 3.5), (4.0, 6.0)])
def test_lines_on_maps_have_a_point_of_white_on_either_side(width: float, edge: float) -> None:
    (found,) = drawing.cased(width)
    assert vars(found)["_gc"]["linewidth"] == edge
    assert drawing.cased()[0].__dict__["_gc"]["linewidth"] == 3.5


@pytest.mark.parametrize(
    ("values", "scale", "plain"),
    [
        ([1.0, 29.9, np.nan], "log", True),
        ([1.0, 30.1], "log", False),
        ([2.0, 60.0], "log", False),
        ([np.nan, np.inf], "linear", False),
    ],
)
def test_ticks_of_little_more_than_a_decade_are_plain(
    values: list[float], scale: str, plain: bool
) -> None:
    figure, ((ax,),) = drawing.panels(1, 1)
    drawing.logarithmic(ax, "y", np.array(values))
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", scale)
    ax.set_ylim(1, 30)
    ticks = [each for each in ax.get_yticks() if 1 <= each <= 30]
    if scale == "log":
        np.testing.assert_allclose(ticks, [1, 2, 5, 10, 20] if plain else [1, 10])
    assert isinstance(ax.yaxis.get_minor_formatter(), NullFormatter) == (plain or scale != "log")
    plt.close(figure)


def test_guides_and_panels_have_their_sizes() -> None:
    """3.5 inches by 3 a panel, a grid, and a legend only where it is asked for."""
    figure, axes = drawing.panels(2, 3)
    assert axes.shape == (2, 3)
    np.testing.assert_allclose(figure.get_size_inches(), [10.5, 6])
    drawing.outer(axes, "along", "up")
    assert [[ax.get_xlabel() for ax in row] for row in axes] == [[""] * 3, ["along"] * 3]
    assert [[ax.get_ylabel() for ax in row] for row in axes] == [["up", "", ""]] * 2
    ax = drawing.finished(axes[0, 0], title="a")
    assert (ax.get_title(), ax.get_legend()) == ("a", None)
    assert ax.xaxis.get_gridlines()[0].get_alpha() == 0.25
    ax.plot([0, 1], label="line")
    assert drawing.finished(ax, {"title": "key"}).get_legend().get_title().get_text() == "key"
    drawing.ticks(ax.xaxis, iter([0.5, 20]))
    assert [each.get_text() for each in ax.get_xticklabels()] == ["0.5", "20"]
    assert ax.get_xticks(minor=True).size == 0
    plt.close(figure)


def test_without_colours_of_a_style_they_are_the_palette() -> None:
    with mpl.rc_context({"axes.prop_cycle": cycler(linestyle=["-", "--"])}):
        assert drawing.colour(0) == to_hex(drawing.PALETTE[0]).upper()
