"""Every picture can be read: no text cut off, none on another, letters of a size to print."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from sweeps.commands.table import COMMANDS
from sweeps.output import drawing
from tests.sweeps.pictures.legible import faults
from tests.sweeps.pictures.shown import EXAMPLES

QUICK = ("figure 3", "figure 6, one", "plot, panels", "two_stage_finite")
"""Stand for the others, and take about a second each."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.full, id=n) for n in EXAMPLES],
)
@pytest.mark.more
def test_a_picture_can_be_read(name: str) -> None:
    with drawing.style(None):
        figure = EXAMPLES[name]()
        assert faults(figure) == []
        plt.close(figure)


def test_every_picture_has_an_example() -> None:
    """So that the next figure is looked at too."""
    drawn = {name for name, command in COMMANDS.items() if command.draws}
    shown = {name.split(",")[0] for name in EXAMPLES}
    assert [n for n in drawn if n.removeprefix("figure ") not in shown and n not in shown] == []


def crowded() -> Figure:
    figure, ax = plt.subplots(figsize=(3, 2), dpi=100)
    ax.set_position((0.2, 0.2, 0.6, 0.6))
    ax.plot([0, 1], label="a line")
    return figure


def title_too_long(figure: Figure) -> None:
    figure.axes[0].set_title("a title that is wider than all of the figure is")


def ticks_too_close(figure: Figure) -> None:
    figure.axes[0].set_xticks([0.5, 0.52], ["one", "other"])


def turned_on_each_other(figure: Figure) -> None:
    # Boxes along the axes of these would overlap; those along the letters decide.
    for place, text in ((0.3, "turned"), (0.32, "again")):
        figure.axes[0].text(place, 0.5, text, rotation=45)


def legend_on_a_note(figure: Figure) -> None:
    figure.axes[0].text(0.05, 0.95, "note", va="top")
    figure.axes[0].legend(loc="upper left")


def legend_on_the_panel(figure: Figure) -> None:
    figure.legend(loc="center")


def legend_cut(figure: Figure) -> None:
    figure.legend(loc="upper left", bbox_to_anchor=(0.9, 1))


def letters_too_small(figure: Figure) -> None:
    figure.axes[0].set_xlabel("what the axis is", fontsize=4)


def panel_too_small(figure: Figure) -> None:
    figure.axes[0].set_position((0.2, 0.2, 0.1, 0.6))
    figure.axes[0].set_xticks([])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (title_too_long, "outside of the canvas: 'a title"),
        (ticks_too_close, "overlap: 'one' and 'other'"),
        (turned_on_each_other, "overlap: 'turned' and 'again'"),
        (legend_on_a_note, "legend ['a line'] on 'note'"),
        (legend_on_the_panel, "legend ['a line'] on the panel"),
        (legend_cut, "legend outside of the canvas: ['a line']"),
        (letters_too_small, "letters of 4.0 points at the width of a page: 'what the axis is'"),
        (panel_too_small, "panel '' of 0.30 x 1.20 inches"),
    ],
)
def test_what_cannot_be_read_is_found(spoil: Callable[[Figure], None], said: str) -> None:
    figure = crowded()
    assert faults(figure) == []
    spoil(figure)
    assert any(said in fault for fault in faults(figure))
    plt.close(figure)


def test_lines_of_turned_text_are_apart() -> None:
    """Along a diagonal boxes would overlap that letters do not."""
    figure = crowded()
    for place in (0.2, 0.6):
        figure.axes[0].text(place, 0.2, "a longer text", rotation=45, fontsize=6)
    assert faults(figure) == []
    plt.close(figure)
