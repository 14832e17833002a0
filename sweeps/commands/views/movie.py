"""`dynsim movie`: a recorded quantity as it changes over training, beside theory."""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import annotated_types as at
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.animation import FFMpegWriter
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, Normalize
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from PIL import Image

from dynsim import checks
from sweeps import output
from sweeps.commands.views.content import check_systems
from sweeps.output import drawing
from sweeps.output.cells import cell_edges, colour_range, scale_of
from sweeps.runner import progress
from sweeps.runner.labels import aligned_with, label, select, valid, wrapped
from sweeps.runner.run import open_sweep
from sweeps.systems import budget

Data = xr.Dataset | Mapping[str, xr.Dataset]
Update = Callable[[int], list[Artist]]
"""Shows a frame; returns the artists that change from frame to frame."""
SUFFIXES = (".gif", ".mp4")
MOST_PANELS = 4
"""Largest number of rows of a matrix that have a panel of bars each; a larger one is an image."""
MOST_RUNS = 64
"""Largest number of runs whose paths are drawn in the plane of two observables."""
TAIL = 12
"""Number of frames for which the path behind a run is drawn in full colour."""
DOTS = 80
"""Dots per inch, which keep a hundred frames below two megabytes."""


@dataclasses.dataclass(frozen=True)
class Movie:
    """Show how a recorded quantity changes over training, as a GIF or MP4: bars of a vector or an
    image of a matrix; a map over two axes; or two observables, as the paths of runs in their plane.
    Theories are drawn with the runs.

    Attributes:
        path: folder of the sweep, which recorded several times.
        more: further sweeps of the same system, such as its theories.
        observable: the quantity, or two of them for their plane. By default the first vector or
            matrix that was recorded, else the first quantity.
        where: fixed values of axes, for instance eta_z=1.
        frames: largest number of frames; there are no more than recorded times.
        seconds: duration.
        out: file, which ends in .gif, or in .mp4 where ffmpeg is installed. By default
            out/movie/NAME.gif, with the name of the sweep.
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("path", "more")

    path: str
    more: tuple[str, ...] = ()
    observable: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    frames: Annotated[int, at.Ge(2), at.Le(1000)] = 100
    seconds: Annotated[float, at.Gt(0), at.Le(600)] = 8.0
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.out is None:
            name = Path(self.path).name or Path(self.path).resolve().name
            object.__setattr__(self, "out", Path("out/movie") / f"{name}.gif")


def run(config: Movie) -> list[Path]:
    """Draw the movie of stored sweeps, with the numbers that it shows next to it."""
    assert config.out is not None
    _check_out(config.out)
    opened = {path: open_sweep(path, progress.say) for path in (config.path, *config.more)}
    check_systems(opened)
    data = {Path(path).name: aligned_with(opened[config.path], d) for path, d in opened.items()}
    names, arrays = _frames(data, config.observable, config.where, config.frames)
    path = _write(names, arrays, config.out, config.seconds)
    numbers = {side: {n: each[n].values for n in names} for side, each in arrays.items()}
    times = next(iter(arrays.values()))[names[0]]["time"].values
    return [path, *output.write(path.parent, path.stem, arrays={**numbers, "times": times})]


def movie(
    data: Data,
    /,
    *observables: str,
    out: str | Path,
    where: Sequence[str] = (),
    frames: int = 100,
    seconds: float = 8.0,
) -> Path:
    """Show how a recorded quantity changes over training, as a GIF or MP4.

    Args:
        data: results of a sweep with several recorded times; or several by name, runs first and
            then theories, such as the `sides` of `sweeps.compare`.
        observables: the quantity: a vector or a matrix, drawn as bars or an image, where seeds are
            averaged; or a number, drawn over the one or two axes that remain. Or two numbers: the
            paths of the runs in their plane, over those of theory. By default the first vector or
            matrix that all results have, else the first quantity.
        out: file, which ends in .gif, or in .mp4 where ffmpeg is installed.
        where: fixed values of axes, each "NAME=VALUE".
        frames: largest number of frames; there are no more than recorded times.
        seconds: duration.

    Returns:
        The path of the file.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before anything is drawn.

    Example:
        >>> import tempfile
        >>> runs = sweeps.run(sweeps.Sweep(
        ...     sweeps.experiment("saxe", steps=40), {"seed": [0, 1]}, record=["learned"], times=20
        ... )).load()
        >>> path = sweeps.movie(runs, out=Path(tempfile.mkdtemp(), "modes.gif"))
    """
    path = _check_out(Path(out))
    checks.integer("frames", frames, 2)
    checks.real("seconds", seconds, 0, open_minimum=True)
    sides = {"": data} if isinstance(data, xr.Dataset) else dict(data)
    return _write(*_frames(sides, observables, where, frames), path, seconds)


def _frames(
    sides: Mapping[str, xr.Dataset], wanted: Sequence[str], where: Sequence[str], frames: int
) -> tuple[tuple[str, ...], dict[str, dict[str, xr.DataArray]]]:
    """Return the names of what is drawn, and its values at the time of each frame, by side."""
    names = _observables(sides, wanted)
    arrays = {side: _selected(each, names, where) for side, each in sides.items()}
    times = next(iter(arrays.values()))[names[0]]["time"].values
    times = times[np.unique(np.linspace(0, len(times) - 1, frames).round().astype(int))]
    arrays = {
        side: {n: a.sel(time=times, method="nearest").load() for n, a in each.items()}
        for side, each in arrays.items()
    }
    return names, arrays


def _write(
    names: Sequence[str],
    arrays: Mapping[str, Mapping[str, xr.DataArray]],
    path: Path,
    seconds: float,
) -> Path:
    """Draw the frames, and write them as a whole."""
    times = next(iter(arrays.values()))[names[0]]["time"].values
    figure, update = _plane(arrays) if len(names) == 2 else _single(arrays, names[0])
    title = figure.suptitle(f"step {times[-1]:g}")
    # The layout of one frame is that of all: to compute it takes as long as to draw.
    moving = [*update(len(times) - 1), title]
    figure.set_dpi(DOTS)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")

    def show(frame: int) -> None:
        update(frame)
        title.set_text(f"step {times[frame]:g}")

    rate: Any = len(times) / seconds
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, path.name)
        if path.suffix == ".mp4":
            with (writer := FFMpegWriter(rate)).saving(figure, str(new), DOTS):
                for frame in range(len(times)):
                    show(frame)
                    writer.grab_frame()
        else:
            first, *others = _pictures(figure, moving, show, len(times))
            options: Any = {"duration": round(1000 / rate), "loop": 0}
            first.save(new, save_all=True, append_images=others, **options)
        path.parent.mkdir(parents=True, exist_ok=True)
        output.write_whole(path, lambda file: file.write(new.read_bytes()))
    plt.close(figure)
    return path


def _pictures(
    figure: Figure, moving: Sequence[Artist], show: Callable[[int], None], frames: int
) -> list[Image.Image]:
    """Draw all frames: what does not move only once, which is most of the work."""
    canvas = FigureCanvasAgg(figure)
    # The frames of axes lie on top of what is in them.
    drawn = [*moving, *(edge for ax in figure.axes for edge in ax.spines.values())]
    for artist in drawn:
        artist.set_animated(True)
    canvas.draw()
    still, found = canvas.copy_from_bbox(figure.bbox), []
    for frame in range(frames):
        canvas.restore_region(still)
        show(frame)
        for artist in drawn:
            figure.draw_artist(artist)
        found.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    return found


def _check_out(out: Path) -> Path:
    if out.suffix not in SUFFIXES:
        raise ValueError(f"out = {out}: must end in {' or '.join(SUFFIXES)}")
    if out.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError(f"out = {out}: .mp4 needs ffmpeg, which is not installed; .gif does not")
    return out


def _observables(sides: Mapping[str, xr.Dataset], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the quantities to draw, which all results have over time."""
    changing = [
        [str(name) for name, each in data.data_vars.items() if "time" in each.dims]
        for data in sides.values()
    ]
    known = [name for name in changing[0] if all(name in each for each in changing)]
    if not known:
        raise ValueError("data: have no quantity over time in common; record several times")
    if len(wanted) > 2:
        raise ValueError(f"observable = {tuple(wanted)}: must be one quantity, or two")
    first = next(iter(sides.values()))
    inner = [n for n in known if {*first[n].dims} - {"time", *first["status"].dims}]
    chosen = wanted or (inner or known)[:1]
    return tuple(checks.choice("observable", name, known) for name in chosen)


def _selected(
    data: xr.Dataset, names: Sequence[str], where: Sequence[str]
) -> dict[str, xr.DataArray]:
    """Return the quantities at selected values of axes: their mean over seeds, or for two of them
    each run."""
    unread = select(data[[*names, "status"]], where)
    budget.check_read("where", max(each.nbytes for each in unread.data_vars.values()))
    runs = valid(unread)
    if len(names) == 1:
        found = runs[names[0]].transpose("time", ...)
        return {names[0]: found.mean("seed", keep_attrs=True) if "seed" in found.dims else found}
    axes = list(runs["status"].dims)
    each = runs[[*names]].stack(run=axes) if axes else runs[[*names]].expand_dims("run")
    for name in names:
        if left := [str(dim) for dim in each[name].dims if dim not in ("run", "time")]:
            raise ValueError(
                f"observable = {name!r}: has entries along {', '.join(left)}; choose one of them "
                "with --where NAME=INDEX"
            )
    if each.sizes["run"] > MOST_RUNS:
        raise ValueError(
            f"where: would draw {each.sizes['run']} runs, at most {MOST_RUNS} fit; choose values "
            "with --where NAME=VALUE"
        )
    return {name: each[name].transpose("time", "run") for name in names}


def _single(arrays: Mapping[str, Mapping[str, xr.DataArray]], name: str) -> tuple[Figure, Update]:
    """Draw one quantity by its number of axes: over time, as bars or a curve, or as an image."""
    sides = {side: each[name] for side, each in arrays.items()}
    first = next(iter(sides.values()))
    dims = [str(dim) for dim in first.dims if dim != "time"]
    if len(dims) > 2:
        raise ValueError(
            f"where: {', '.join(dims)} remain, but only two of them fit in a frame; choose values "
            "with --where NAME=VALUE"
        )
    swept = [dim in first.coords for dim in dims]
    if len(dims) == 2 and (any(swept) or first.sizes[dims[0]] > MOST_PANELS):
        return _images({side: each.transpose("time", *dims) for side, each in sides.items()})
    # A row of a matrix, or the only vector, in each panel.
    rows = range(first.sizes[dims[0]]) if len(dims) == 2 else [None]
    figure, (axes,) = drawing.panels(1, len(rows), width=3.8 if rows[0] is not None else 5.2)
    updates = []
    for row, ax in zip(rows, axes, strict=True):
        each = {s: v if row is None else v.isel({dims[0]: row}) for s, v in sides.items()}
        updates.append(_curves(each, ax))
        ax.set_title("" if row is None else f"{dims[0]} {row}")
    if len(sides) > 1:
        drawing.below(figure, _keys(axes[0], sides), 3)

    def update(frame: int) -> list[Artist]:
        return [artist for each in updates for artist in each(frame)]

    return figure, update


def _keys(ax: Axes, sides: Iterable[str]) -> list[Any]:
    """Return entries of the legend in the order of the sides."""
    handles, names = ax.get_legend_handles_labels()
    return [dict(zip(names, handles, strict=True))[side] for side in sides]


def _curves(sides: Mapping[str, xr.DataArray], ax: Axes) -> Update:
    """Draw values along their only axis, runs as bars or a thick line and theories as thin lines;
    or, without an axis, over time up to the present step."""
    first, artists = next(iter(sides.values())), []
    inner = [str(dim) for dim in first.dims if dim != "time"]
    place = inner[0] if inner else "time"
    x = first[place].values if place in first.coords else np.arange(first.sizes[place])
    bars = bool(inner) and place not in first.coords
    low, high, decades = colour_range(np.concatenate([v.values.ravel() for v in sides.values()]))
    room = 0.05 * (high - low) or 1.0
    for number, (side, values) in enumerate(sides.items()):
        style: dict[str, Any] = {"color": drawing.colour(number), "label": side}
        if bars and not number:
            artists.append(ax.bar(x, values.values[-1], **style, alpha=0.6))
        else:
            # As wide as bars, which share the width of a panel.
            wide = {"marker": "_", "ms": min(14, 180 / len(x)), "mew": 2, "ls": ""}
            width = {"lw": 1.4 if number else 4}
            # Any values that are numbers: the axis spans their places.
            artists += ax.plot(x, np.full(len(x), high), **style, **width, **(wide if bars else {}))
    ax.set(
        xscale="log" if inner and scale_of(x) == "log" else "linear",
        yscale="log" if decades else "linear",
        ylim=(low / 1.5, 1.5 * high) if decades else (min(low, 0) - room * (low < 0), high + room),
        xlabel=label(first[place]) if place in first.coords else place,
        ylabel=label(first),
    )

    moving = [each for a in artists for each in (a if isinstance(a, BarContainer) else [a])]

    def update(frame: int) -> list[Artist]:
        for artist, values in zip(artists, sides.values(), strict=True):
            if not inner:
                artist.set_data(x[: frame + 1], values.values[: frame + 1])
            elif isinstance(artist, BarContainer):
                for bar, height in zip(artist, values.values[frame], strict=True):
                    bar.set_height(height)
            else:
                artist.set_ydata(values.values[frame])
        return moving

    return update


def _images(sides: Mapping[str, xr.DataArray]) -> tuple[Figure, Update]:
    """Draw values over two axes as colours, a panel for runs and each theory."""
    low, high, decades = colour_range(np.concatenate([v.values.ravel() for v in sides.values()]))
    norm = (LogNorm if decades else Normalize)(low, high)
    figure, (axes,) = drawing.panels(1, len(sides), width=4.2, height=3.6)
    meshes = []
    for (side, values), ax in zip(sides.items(), axes, strict=True):
        _, across, up = values.dims
        swept = across in values.coords and up in values.coords
        places = [
            values[dim].values if dim in values.coords else np.arange(values.sizes[dim])
            for dim in (across, up)
        ]
        edges = (cell_edges(each) for each in places)
        ax.set_facecolor("0.7")
        meshes.append(ax.pcolormesh(*edges, values.values[-1].T, norm=norm))
        scales = [scale_of(each) if swept else "linear" for each in places]
        words = [label(values[dim]) if dim in values.coords else str(dim) for dim in (across, up)]
        ax.set(xscale=scales[0], yscale=scales[1], title=side, xlabel=words[0], ylabel=words[1])
    figure.colorbar(meshes[0], ax=axes, label=wrapped(next(iter(sides.values()))))

    def update(frame: int) -> list[Artist]:
        for mesh, values in zip(meshes, sides.values(), strict=True):
            mesh.set_array(values.values[frame].T)
        return meshes

    return figure, update


def _plane(arrays: Mapping[str, Mapping[str, xr.DataArray]]) -> tuple[Figure, Update]:
    """Draw runs as points that move in the plane of two quantities, over the paths of theories,
    whose arrows are the directions of flow."""
    figure, ((ax,),) = drawing.panels(1, 1, width=5.0, height=4.4)
    (runs, first), *theories = arrays.items()
    x, y = first.values()
    for number, (side, each) in enumerate(theories, 1):
        across, up = (values.values for values in each.values())
        style = {"color": drawing.colour(number), "alpha": 0.7}
        ax.plot(across, up, lw=1, **style)
        some = np.unique(np.linspace(0, len(across) - 2, 12).astype(int))
        dx, dy = np.diff(across, axis=0)[some], np.diff(up, axis=0)[some]
        length = np.hypot(dx / np.ptp(x.values), dy / np.ptp(y.values))
        arrows = (each / np.where(length > 0, length, 1) for each in (dx, dy))
        ax.quiver(across[some], up[some], *arrows, angles="xy", width=0.004, scale=40, **style)
        ax.plot([], [], label=side, **style)
    nowhere = np.full((1, x.shape[1]), np.nan)
    tails = ax.plot(nowhere, nowhere, lw=2, color="C0", alpha=0.5)
    (points,) = ax.plot([], [], "o", color="C0", ms=5, label=runs)
    for values, name in ((x, "x"), (y, "y")):
        low, high, _ = colour_range(values.values)
        room = 0.05 * (high - low) or 1.0
        ax.set(**{f"{name}lim": (low - room, high + room), f"{name}label": label(values)})
    if theories:
        drawing.below(figure, _keys(ax, arrays), 3)

    def update(frame: int) -> list[Artist]:
        points.set_data(x.values[frame], y.values[frame])
        behind = slice(max(0, frame - TAIL), frame + 1)
        for run, tail in enumerate(tails):
            tail.set_data(x.values[behind, run], y.values[behind, run])
        return [*tails, points]

    return figure, update
