"""What pictures show, as numbers: the parts of each panel, where they are and how they look; and
what is printed.

`python -m tests.sweeps.pictures.shown` records it in shown.json, for pictures that were changed on
purpose. The difference in git says which parts of which panels these are.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, PathCollection, QuadMesh
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator, MaxNLocator

from sweeps.output import drawing
from tests.sweeps.pictures import of_layer, of_others, of_papers, of_systems, printed

EXAMPLES = {
    **of_layer.EXAMPLES,
    **of_others.EXAMPLES,
    **of_papers.EXAMPLES,
    **of_systems.EXAMPLES,
}
ALIKE = {"compare, all", "optimum, many", "figure 6, two", "figure 7, one"}
"""Show more or fewer panels of what others show too."""
RECORDED = [name for name in EXAMPLES if name not in ALIKE]
RECORD = Path(__file__).with_suffix(".json")
Panel = list[Any]


def of(figure: Figure) -> list[Panel]:
    """Each panel with its words, scales and limits, and its parts, of which each is a list of
    words and numbers. The first one is the figure."""
    parts = (figure, *figure.subfigs)
    words = [text.get_text() for part in parts for text in part.texts]
    legends = [word for part in parts for legend in part.legends for word in _legend(legend)]
    ratios = [_grid(part) for part in figure.subfigs]
    title = figure.get_suptitle()
    inside = [child for ax in figure.axes for child in ax.child_axes]
    return [
        [title, *words, *legends, *map(_short, figure.get_size_inches()), *ratios],
        *(_panel(ax) for ax in (*figure.axes, *inside)),
    ]


def _legend(legend: Legend) -> list[Any]:
    """What a legend says, and how it and its keys look."""
    words = [text.get_text() for text in legend.get_texts()]
    place = getattr(legend, "_loc", 0)
    look = [[legend.get_frame_on(), legend._ncols], [place] if np.ndim(place) == 0 else place]
    look += [[legend.columnspacing, legend.handlelength, legend.handletextpad]]
    look += [[legend.get_frame().get_alpha() or 1.0]]
    if legend._bbox_to_anchor is not None:
        parent = legend.figure.transSubfigure if legend.axes is None else legend.axes.transAxes
        # Layout moves the parent, and rounding what is relative to it.
        anchor = legend.get_bbox_to_anchor().transformed(parent.inverted()).bounds
        look += [np.round(anchor, 3)]
    keys = [_look(each) for each in legend.legend_handles]
    return [legend.get_title().get_text(), *words, number(*look), *keys]


def _panel(ax: Axes) -> Panel:
    named = _legend(ax.get_legend()) if ax.get_legend() else []
    words = [ax.get_title(), ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale(), ax.get_yscale()]
    ticks = [number for axis in (ax.xaxis, ax.yaxis) for number in _ticks(axis)]
    parts = [_part(each) for each in (*ax.lines, *ax.collections, *ax.patches, *ax.images)]
    written = [_part(each) for each in ax.texts]
    limits = [number(each) for each in (ax.get_xlim(), ax.get_ylim())]
    return [*words, *named, *limits, *ticks, *_place(ax), *parts, *written]


def _place(ax: Axes) -> list[Any]:
    """Whether it has axes, and where it is in a grid or in another panel."""
    grid, locator = ax.get_subplotspec(), ax.get_axes_locator()
    # A colour bar has its own around that of the panel that it fills.
    inside = getattr(getattr(locator, "_orig_locator", locator), "_bounds", None)
    if inside is not None:
        return [bool(ax.axison), number(inside)]
    if grid is None:
        return [bool(ax.axison)]
    return [bool(ax.axison), _grid(ax)]


def _grid(part: Any) -> float:
    """Where a panel, or a part of a figure, is in its grid, and the ratios of that."""
    # A part of a figure has no method for it.
    grid: Any = part.get_subplotspec() if isinstance(part, Axes) else part._subplotspec
    of = grid.get_gridspec()
    return number(grid.get_geometry(), of.get_width_ratios(), of.get_height_ratios())


def _ticks(axis: Axis) -> list[Any]:
    """Ticks that were chosen, with their words, and those at whole numbers."""
    locator = axis.get_major_locator()
    if isinstance(locator, MaxNLocator) and getattr(locator, "_integer", False):
        return [number(locator())]
    if not isinstance(locator, FixedLocator):
        return []
    return [number(locator()), *(label.get_text() for label in axis.get_majorticklabels())]


def _part(artist: Artist) -> list[Any]:
    """Words of a part of a panel, where it is, and how it looks."""
    words: list[Any] = []
    match artist:
        case Line2D():
            places = [artist.get_xydata()]
        case Collection():
            # Paths of a mesh are its coordinates.
            mesh = isinstance(artist, QuadMesh)
            paths = [artist.get_coordinates()] if mesh else [p.vertices for p in artist.get_paths()]
            words, places = ["collection"], [*paths, artist.get_offsets()]
            if (values := artist.get_array()) is not None:
                places += [values, artist.get_clim()]
        case Patch():
            places = [artist.get_patch_transform().transform(artist.get_path().vertices)]
        case AxesImage():
            places = [artist.get_array(), artist.get_extent(), artist.get_clim()]
        case Text():
            words, places = [artist.get_text()], [artist.get_position()]
            places += [artist.xy] if isinstance(artist, Annotation) else []
            words += [f"{artist.get_horizontalalignment()} {artist.get_verticalalignment()}"]
        case _:
            raise TypeError(f"{artist}: what it shows is not known")
    return [*words, number(*places), *_look(artist)]


def _look(artist: Any) -> list[Any]:
    """How a part of a panel or a key of a legend looks, wherever it is."""
    words: list[Any] = []
    effects = [getattr(each, "_gc", {}) for each in artist.get_path_effects() or ()]
    looks: list[Any] = [[artist.get_zorder(), artist.get_visible()]]
    looks += [[each.get("linewidth", 0.0) for each in effects]]
    match artist:
        case Line2D():
            words = [f"{artist.get_linestyle()} {artist.get_marker()}"]
            looks += [[artist.get_linewidth(), artist.get_markersize()]]
            looks += [[artist.get_markeredgewidth(), artist.get_alpha() or 1.0]]
            looks += map(to_rgba_array, (artist.get_color(), artist.get_markerfacecolor()))
            looks += [to_rgba_array(artist.get_markeredgecolor())]
            offset, dashes = getattr(artist, "_unscaled_dash_pattern", (0, None))
            looks += [[offset, *(dashes or ())]]
        case Collection():
            looks += [artist.get_sizes()] if isinstance(artist, PathCollection) else []
            looks += [artist.get_facecolor(), artist.get_edgecolor(), artist.get_linewidth()]
            looks += [[offset, *(dashes or ())] for offset, dashes in artist.get_linestyle()]
            words = [artist.get_hatch()] if artist.get_hatch() else []
        case Patch():
            words = [artist.get_hatch()] if artist.get_hatch() else []
            looks += [artist.get_facecolor(), artist.get_edgecolor(), [artist.get_linewidth()]]
        case Text():
            looks += [to_rgba_array(artist.get_color())]
            looks += [[artist.get_fontsize(), artist.get_rotation()]]
        case _:
            pass
    return [*words, number(*looks)]


def number(*arrays: Any) -> float:
    """A number that changes with every one of many, of any size: a mean of what is about their
    logarithm, of weights that tell their order. None of them may be a number."""
    flat = [np.ma.filled(np.ma.asarray(each, float), np.nan).ravel() for each in arrays]
    values = np.concatenate([*flat, [0.0]])
    sized = np.arcsinh(1e3 * np.nan_to_num(values, nan=-1.0, posinf=1e30, neginf=-1e30))
    return _short(float(sized @ (1.5 + np.cos(np.arange(values.size)))) / values.size)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def differences(found: Any, recorded: Any, place: str) -> list[str]:
    """Where two records differ by more than rounding, in words."""
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        return [
            line
            for i, pair in enumerate(zip(found, recorded, strict=True))
            for line in differences(*pair, f"{place}, {i}" if isinstance(pair[0], list) else place)
        ]
    if isinstance(found, float) and isinstance(recorded, float | int):
        # Six digits are kept.
        same = abs(found - recorded) <= 1e-5 * max(abs(recorded), 1)
    else:
        same = found == recorded
    return [] if same else [f"{place}: {found} is not {recorded}"]


def drawn(name: str) -> list[Panel]:
    """What the picture of that name shows."""
    with drawing.style(None):
        figure = EXAMPLES[name]()
        found = of(figure)
        plt.close(figure)
    return found


def main() -> None:
    """Record all pictures."""
    lines = []
    for name in RECORDED:
        panels = ",\n".join(f"  {json.dumps(p, ensure_ascii=False)}" for p in drawn(name))
        lines.append(f"{json.dumps(name)}: [\n{panels}\n]")
    for name, lines_of in printed.EXAMPLES.items():
        text = json.dumps(lines_of(), ensure_ascii=False, indent=1)
        lines.append(f"{json.dumps(f'{name}, printed')}: {text}")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
