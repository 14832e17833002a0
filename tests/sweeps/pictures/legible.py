"""What keeps a figure from being read: text cut off, text on text, legends over other things."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import BboxBase

OUTSIDE = 1.0
"""Pixels by which a text may end outside, which antialiasing leaves white."""
TOUCHING = 0.15
"""Share of its height by which the box of a text is larger than what is printed, as descenders
and accents need room."""
GAP = 2.0
"""Pixels that keep the words of an axis apart, at 100 dots an inch."""
PAGE = 7.0
"""Inches of the width of a page, to which a wider figure is scaled."""
LETTERS = 5.0
"""Points of the smallest letters that can be read there, without indices."""
SMALLEST_PANEL = 0.9
"""Inches of width and height below which a panel shows nothing."""


class Box(NamedTuple):
    """A printed text: what it says, its middle, and half of its sides, turned by an angle."""

    text: str
    middle: np.ndarray
    half: np.ndarray
    angle: float

    def axes(self) -> np.ndarray:
        """(2, 2) unit vectors along the sides."""
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        return np.array([(cos, sin), (-sin, cos)])

    def apart(self, other: "Box") -> bool:
        """Whether some line parallel to a side lies between them, which is so for rectangles that
        do not overlap."""
        for axis in (*self.axes(), *other.axes()):
            reach = sum(float(np.abs(box.axes() @ axis) @ box.half) for box in (self, other))
            if abs(float((self.middle - other.middle) @ axis)) >= reach:
                return True
        return False


def faults(figure: Figure) -> list[str]:
    """What is wrong with the figure, in words; draws it, at 100 dots an inch."""
    figure.set_dpi(100)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found, ticks = [], set[Text]()
    for ax in _all_axes(figure):
        width, height = ax.get_window_extent(renderer).size / 100
        if ax.axison and not _is_bar(ax) and min(width, height) < SMALLEST_PANEL:
            found.append(f"panel {ax.get_title()!r} of {width:.2f} x {height:.2f} inches")
        for axis in (ax.xaxis, ax.yaxis):
            ticks |= _hidden(axis) if ax.axison else set(axis.findobj(Text))
    texts = [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in ticks
    ]
    boxes = {text: _box(text, renderer) for text in texts if _drawn(text, renderer)}
    canvas_box = figure.bbox.padded(OUTSIDE)
    for text in boxes:
        if not _within(text.get_window_extent(renderer), canvas_box):
            found.append(f"outside of the canvas: {_short(text)}")
        size = text.get_fontsize() * min(1, PAGE / figure.get_figwidth())
        if size < LETTERS:
            found.append(f"letters of {size:.1f} points at the width of a page: {_short(text)}")
    for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
        if not a.apart(b):
            found.append(f"overlap: {_short(one)} and {_short(other)}")
    return found + _legends(figure, list(boxes), renderer)


def _legends(figure: Figure, texts: list[Text], renderer: RendererAgg) -> list[str]:
    """Legends that are cut, lie on text that is not theirs, or of the figure on a panel."""
    found = []
    for legend in figure.findobj(Legend):
        assert isinstance(legend, Legend)
        box, own = legend.get_window_extent(renderer), set(legend.findobj(Text))
        if not _within(box, figure.bbox.padded(OUTSIDE)):
            found.append(f"legend outside of the canvas: {_about(legend)}")
        for text in texts:
            if text not in own and _meet(box, text.get_window_extent(renderer)):
                found.append(f"legend {_about(legend)} on {_short(text)}")
        if legend.axes is None:
            for ax in _all_axes(figure):
                if ax.axison and _meet(box, ax.get_window_extent(renderer)):
                    found.append(f"legend {_about(legend)} on the panel {ax.get_title()!r}")
        elif not _within(box, legend.axes.get_window_extent(renderer).padded(OUTSIDE)) and (
            _meet(box, legend.axes.get_window_extent(renderer))
        ):
            found.append(f"legend larger than its panel: {_about(legend)}")
    return found


def _all_axes(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.findobj(Axes) if isinstance(ax, Axes)]


def _is_bar(ax: Axes) -> bool:
    return hasattr(ax, "_colorbar")


def _hidden(axis: Axis) -> set[Text]:
    """Labels of ticks that lie outside of what an axis shows, which are not drawn."""
    low, high = sorted(axis.get_view_interval())
    scale = axis.get_transform()
    ends = scale.transform(np.array([low, high]))
    slack = 1e-6 * abs(ends[1] - ends[0])
    hidden = set[Text]()
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        at = scale.transform(np.array([tick.get_loc()]))[0]
        if not ends[0] - slack <= at <= ends[1] + slack:
            hidden |= {tick.label1, tick.label2}
    return hidden


def _drawn(text: Text, renderer: RendererAgg) -> bool:
    """Whether a text has a place: not one whose artist is hidden, nor an annotation of a point
    that is outside of its panel."""
    hit = getattr(text, "_check_xy", None)
    return hit is None or bool(hit(renderer))


def _box(text: Text, renderer: RendererAgg) -> Box:
    """Its rectangle, which is turned as the text is."""
    extent = text.get_window_extent(renderer)
    middle = (extent.p0 + extent.p1) / 2
    turned = text.get_rotation()
    text.set_rotation(0)
    size = text.get_window_extent(renderer).size
    text.set_rotation(turned)
    width, height = size[0] + GAP, size[1] * (1 - TOUCHING)
    return Box(text.get_text(), middle, np.array([width, height]) / 2, math.radians(turned))


def _within(inner: BboxBase, outer: BboxBase) -> bool:
    return bool(
        inner.x0 >= outer.x0
        and inner.y0 >= outer.y0
        and inner.x1 <= outer.x1
        and inner.y1 <= outer.y1
    )


def _meet(one: BboxBase, other: BboxBase) -> bool:
    return one.padded(-OUTSIDE).overlaps(other.padded(-OUTSIDE))


def _short(text: Text) -> str:
    return repr(text.get_text().replace("\n", " ")[:50])


def _about(legend: Legend) -> str:
    return repr([text.get_text() for text in legend.get_texts()][:2])
