"""`dynsim movie`: a recorded quantity as it changes over training, next to theory."""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

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

Update = Callable[[int], list[Artist]]
"""Shows a frame; returns the artists that change from frame to frame."""
MOVIE_SUFFIXES = (".gif", ".mp4")
MOST_PANELS = 4
"""Largest number of rows of a matrix that have a panel of bars each; a larger one is an image."""
MOST_PATHS = 64
"""Largest number of runs whose paths are drawn in the plane of two observables."""
TAIL_FRAMES = 12
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
    sweeps = {path: open_sweep(path, progress.say) for path in (config.path, *config.more)}
    check_systems(sweeps)
    runs = sweeps[config.path]
    sides = {Path(path).name: aligned_with(runs, sweep) for path, sweep in sweeps.items()}
    names, sides = _frames(sides, config.observable, config.where, config.frames)
    path = _write(names, sides, config.out, config.seconds)
    numbers = {side: {n: data[n].values for n in names} for side, data in sides.items()}
    times = next(iter(sides.values()))["time"].values
    return [path, *output.write(path.parent, path.stem, arrays={**numbers, "times": times})]


def movie(
    data: xr.Dataset | Mapping[str, xr.Dataset],
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
    path = Path(out)
    _check_out(path)
    checks.integer("frames", frames, 2)
    checks.real("seconds", seconds, 0, open_minimum=True)
    sides = {"": data} if isinstance(data, xr.Dataset) else dict(data)
    return _write(*_frames(sides, observables, where, frames), path, seconds)


def _check_out(out: Path) -> None:
    if out.suffix not in MOVIE_SUFFIXES:
        raise ValueError(f"out = {out}: must end in {' or '.join(MOVIE_SUFFIXES)}")
    if out.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError(f"out = {out}: .mp4 needs ffmpeg, which is not installed; .gif does not")


def _frames(
    sides: Mapping[str, xr.Dataset], observables: Sequence[str], where: Sequence[str], frames: int
) -> tuple[tuple[str, ...], dict[str, xr.Dataset]]:
    """Return the names of what is drawn, and its values at the time of each frame, by side: of one
    quantity the mean over seeds, of two every run."""
    first, *others = sides.values()
    changing = [[n for n, array in d.data_vars.items() if "time" in array.dims] for d in others]
    known = [
        str(name)
        for name, array in first.data_vars.items()
        if "time" in array.dims and all(name in names for names in changing)
    ]
    if not known:
        raise ValueError("data: have no quantity over time in common; record several times")
    if len(observables) > 2:
        raise ValueError(f"observable = {tuple(observables)}: must be one quantity, or two")
    vectors = [n for n in known if {*first[n].dims} - {"time", *first["status"].dims}]
    names = tuple(
        checks.choice("observable", name, known) for name in observables or (vectors or known)[:1]
    )

    values = {}
    for side, data in sides.items():
        unread = select(data[[*names, "status"]], where)
        budget.check_read("where", max(array.nbytes for array in unread.data_vars.values()))
        axes = list(unread["status"].dims)
        runs = valid(unread)[[*names]]
        if len(names) == 1:
            mean = runs.mean("seed", keep_attrs=True) if "seed" in runs.dims else runs
            values[side] = mean.transpose("time", ...)
            continue
        runs = runs.stack(run=axes) if axes else runs.expand_dims("run")
        for name in names:
            if inner := [str(dim) for dim in runs[name].dims if dim not in ("run", "time")]:
                raise ValueError(
                    f"observable = {name!r}: has entries along {', '.join(inner)}; choose one of "
                    "them with --where NAME=INDEX"
                )
        if runs.sizes["run"] > MOST_PATHS:
            raise ValueError(
                f"where: would draw {runs.sizes['run']} runs, at most {MOST_PATHS} fit; choose "
                "values with --where NAME=VALUE"
            )
        values[side] = runs.transpose("time", "run")

    times = next(iter(values.values()))["time"].values
    # Evenly among the recorded ones, with both ends.
    times = times[np.unique(np.linspace(0, len(times) - 1, frames).round().astype(int))]
    # A theory may have recorded other times than the runs.
    return names, {s: d.sel(time=times, method="nearest").load() for s, d in values.items()}


def _write(
    names: Sequence[str], sides: Mapping[str, xr.Dataset], path: Path, seconds: float
) -> Path:
    """Draw the frames, and write them atomically."""
    times = next(iter(sides.values()))["time"].values
    figure, update = _draw(names, sides)
    title = figure.suptitle(f"step {times[-1]:g}")
    moving = [*update(len(times) - 1), title]
    # The layout of one frame is that of all: to compute it takes as long as to draw.
    figure.set_dpi(DOTS)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")

    def show(frame: int) -> None:
        update(frame)
        title.set_text(f"step {times[frame]:g}")

    rate = len(times) / seconds
    with tempfile.TemporaryDirectory() as folder:
        # ffmpeg writes to a path, so that the file is copied to its own as a whole.
        new = Path(folder, path.name)
        if path.suffix == ".mp4":
            writer = FFMpegWriter(rate)  # pyright: ignore[reportArgumentType]  (ffmpeg takes floats)
            with writer.saving(figure, str(new), DOTS):
                for frame in range(len(times)):
                    show(frame)
                    writer.grab_frame()
        else:
            # What stands still is drawn only once, which is most of the work. The edges of axes
            # move with their content, as they lie on top of it.
            canvas = FigureCanvasAgg(figure)
            moving += [edge for ax in figure.axes for edge in ax.spines.values()]
            for artist in moving:
                artist.set_animated(True)
            canvas.draw()
            still, images = canvas.copy_from_bbox(figure.bbox), []
            for frame in range(len(times)):
                canvas.restore_region(still)
                show(frame)
                for artist in moving:
                    figure.draw_artist(artist)
                images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
            duration = round(1000 / rate)
            images[0].save(new, save_all=True, append_images=images[1:], duration=duration, loop=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        output.write_whole(path, lambda file: file.write(new.read_bytes()))
    plt.close(figure)
    return path


def _draw(names: Sequence[str], sides: Mapping[str, xr.Dataset]) -> tuple[Figure, Update]:
    """Draw two quantities as paths in their plane, and one by its number of axes: over time, as
    bars or a curve, or as an image."""
    if len(names) == 2:
        return _plane(sides, *names)
    arrays = {side: data[names[0]] for side, data in sides.items()}
    first = next(iter(arrays.values()))
    dims = [str(dim) for dim in first.dims if dim != "time"]
    if len(dims) > 2:
        raise ValueError(
            f"where: {', '.join(dims)} remain, but only two of them fit in a frame; choose values "
            "with --where NAME=VALUE"
        )
    # Axes of the sweep have coordinates; those of a vector or a matrix have none.
    swept = any(dim in first.coords for dim in dims)
    if len(dims) == 2 and (swept or first.sizes[dims[0]] > MOST_PANELS):
        return _images({side: array.transpose("time", *dims) for side, array in arrays.items()})
    # A panel for each row of a matrix, or one for a vector.
    rows = range(first.sizes[dims[0]]) if len(dims) == 2 else [None]
    figure, (axes,) = drawing.panels(1, len(rows), width=3.8 if rows[0] is not None else 5.2)
    updates = []
    for row, ax in zip(rows, axes, strict=True):
        at = {} if row is None else {dims[0]: row}
        updates.append(_curves({side: array.isel(at) for side, array in arrays.items()}, ax))
        ax.set_title("" if row is None else f"{dims[0]} {row}")
    if len(sides) > 1:
        drawing.below(figure, _keys(axes[0], sides), 3)
    return figure, lambda frame: [artist for update in updates for artist in update(frame)]


def _keys(ax: Axes, sides: Iterable[str]) -> list[Artist]:
    """Return entries of the legend in the order of the sides."""
    handles, labels = ax.get_legend_handles_labels()
    return [dict(zip(labels, handles, strict=True))[side] for side in sides]


def _curves(sides: Mapping[str, xr.DataArray], ax: Axes) -> Update:
    """Draw values along their only axis, runs as bars or a thick line and theories as thin lines;
    or, without an axis, over time up to the present step."""
    first = next(iter(sides.values()))
    axis = next((str(dim) for dim in first.dims if dim != "time"), "time")
    has_values = axis in first.coords
    x = first[axis].values if has_values else np.arange(first.sizes[axis])
    low, high, decades = colour_range(np.concatenate([v.values.ravel() for v in sides.values()]))
    margin = 0.05 * (high - low) or 1.0
    # Bars start at zero, which a logarithmic axis does not have.
    bottom = low / 1.5 if decades else min(low, 0) - margin * (low < 0)
    artists = []
    for number, (side, values) in enumerate(sides.items()):
        style: drawing.Keywords = {"color": drawing.colour(number), "label": side}
        if not has_values and not number:
            artists.append(ax.bar(x, values.values[-1], **style, alpha=0.6))
            continue
        style["lw"] = 1.4 if number else 4
        if not has_values:
            # As wide as bars, which share the width of a panel.
            style |= {"marker": "_", "ms": min(14, 180 / len(x)), "mew": 2, "ls": ""}
        # Any numbers would do: `update` replaces them, but autoscaling needs the places of all.
        artists += ax.plot(x, np.full(len(x), high), **style)
    ax.set(
        xscale="log" if axis != "time" and scale_of(x) == "log" else "linear",
        yscale="log" if decades else "linear",
        ylim=(bottom, 1.5 * high if decades else high + margin),
        xlabel=label(first[axis]) if has_values else axis,
        ylabel=label(first),
    )
    moving = [part for a in artists for part in (a if isinstance(a, BarContainer) else [a])]

    def update(frame: int) -> list[Artist]:
        for artist, values in zip(artists, sides.values(), strict=True):
            if axis == "time":
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
        _, x, y = values.dims
        swept = x in values.coords and y in values.coords
        centres = [
            values[dim].values if dim in values.coords else np.arange(values.sizes[dim])
            for dim in (x, y)
        ]
        # Runs that failed are NaN, where the background shows.
        ax.set_facecolor("0.7")
        edges = map(cell_edges, centres)
        meshes.append(ax.pcolormesh(*edges, values.values[-1].T, norm=norm))
        scales = [scale_of(at) if swept else "linear" for at in centres]
        labels = [label(values[dim]) if dim in values.coords else str(dim) for dim in (x, y)]
        ax.set(xscale=scales[0], yscale=scales[1], title=side, xlabel=labels[0], ylabel=labels[1])
    figure.colorbar(meshes[0], ax=axes, label=wrapped(next(iter(sides.values()))))

    def update(frame: int) -> list[Artist]:
        for mesh, values in zip(meshes, sides.values(), strict=True):
            mesh.set_array(values.values[frame].T)
        return meshes

    return figure, update


def _plane(sides: Mapping[str, xr.Dataset], x: str, y: str) -> tuple[Figure, Update]:
    """Draw runs as points that move in the plane of two quantities, over the paths of theories,
    whose arrows are the directions of flow."""
    figure, ((ax,),) = drawing.panels(1, 1, width=5.0, height=4.4)
    (name, runs), *theories = sides.items()
    across, up = runs[x].values, runs[y].values
    for number, (side, theory) in enumerate(theories, start=1):
        path = np.stack([theory[x].values, theory[y].values])
        style = {"color": drawing.colour(number), "alpha": 0.7}
        ax.plot(*path, lw=1, **style)
        some = np.unique(np.linspace(0, path.shape[1] - 2, 12).astype(int))
        step = np.diff(path, axis=1)[:, some]
        # Arrows of one length on the page, whatever the units of the axes.
        length = np.hypot(step[0] / np.ptp(across), step[1] / np.ptp(up))
        step = step / np.where(length > 0, length, 1)
        ax.quiver(*path[:, some], *step, angles="xy", width=0.004, scale=40, **style)
        # One entry of the legend for all paths.
        ax.plot([], [], label=side, **style)
    nowhere = np.full((1, across.shape[1]), np.nan)
    tails = ax.plot(nowhere, nowhere, lw=2, color="C0", alpha=0.5)
    (points,) = ax.plot([], [], "o", color="C0", ms=5, label=name)
    # The runs determine the limits, which a theory may leave.
    limits = []
    for values in (across, up):
        low, high, _ = colour_range(values)
        margin = 0.05 * (high - low) or 1.0
        limits.append((low - margin, high + margin))
    ax.set(xlim=limits[0], ylim=limits[1], xlabel=label(runs[x]), ylabel=label(runs[y]))
    if theories:
        drawing.below(figure, _keys(ax, sides), 3)

    def update(frame: int) -> list[Artist]:
        points.set_data(across[frame], up[frame])
        recent = slice(max(0, frame - TAIL_FRAMES), frame + 1)
        for run, tail in enumerate(tails):
            tail.set_data(across[recent, run], up[recent, run])
        return [*tails, points]

    return figure, update
