"""`dynsim explore`: stored sweeps as an interactive page, in a file or a notebook."""

import dataclasses
import html
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import xarray as xr

from sweeps import output
from sweeps.commands.views import diagrams, page
from sweeps.commands.views.content import content
from sweeps.language.fields import is_branch
from sweeps.language.grammar import flattened
from sweeps.language.tree import encode
from sweeps.runner import progress
from sweeps.systems.experiment import Experiment, experiment
from sweeps.systems.kinds import language

SUFFIX = ".html"
MAX_MEGABYTES = 20.0
"""Default maximum size of a page."""
FRAME_HEIGHT = 900
"""Height of a page in a notebook, in pixels."""


@dataclasses.dataclass(frozen=True)
class Explore:
    """Write stored sweeps as one HTML page that needs no network: a map over two axes with sliders
    for the others, and the trajectories of each cell. Name the sweeps of theories, too, to see
    them next to the runs and their difference. With --serve, a local server reads sweeps of any
    size when the page needs them, and theory follows sliders; without a sweep, theory alone.

    Attributes:
        paths: folders of sweeps or of phase diagrams, or addresses of sweeps in a bucket.
        out: HTML file to write.
        observables: recorded quantities to include; by default all.
        times: recorded steps to include; by default all.
        where: fixed values of axes, for instance eta_z=1 or rule=adam; by default all.
        max_megabytes: largest size of the page; times and seeds are left out to keep to it.
        overwrite: replace an existing file.
        serve: open a local server instead of writing a file, until Ctrl-C.
        port: port on which the server listens on this machine; 0 chooses a free one.
        run: for a server without a sweep, the run at which the sliders start.
    """

    RUN: ClassVar[Mapping[str, str]] = {"problem": "yz"}
    POSITIONAL: ClassVar[tuple[str, ...]] = ("paths",)

    paths: tuple[str, ...] = ()
    out: Path = Path("explore.html")
    observables: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    where: tuple[str, ...] = ()
    max_megabytes: float = MAX_MEGABYTES
    overwrite: bool = False
    serve: bool = False
    port: int = 0
    run: Experiment = dataclasses.field(default_factory=experiment)


def run(config: Explore) -> list[Path]:
    """Run `dynsim explore`; returns the path of the page."""
    page.check_plotly()
    if config.paths or not config.serve:
        # Sweeps have settings of their own.
        run, default = (
            dict(flattened("run", encode(language(), run))) for run in (config.run, experiment())
        )
        for name, value in run.items():
            if value != default.get(name):
                text = value["kind"] if is_branch(value) else value
                raise ValueError(f"{name} = {text!r}: is for --serve without a sweep; leave it out")
    if config.serve:
        # Imported on demand: it imports theories, which takes seconds.
        from sweeps.commands.views import serve

        options = {name: getattr(config, name) for name in ("observables", "times", "where")}
        serve.run(config.paths, config.run, config.port, **options)
        return []
    if not config.paths:
        raise ValueError("paths: must name a stored sweep, or --serve shows theory alone")
    # Before the sweeps are opened, which may take long.
    if config.out.suffix != SUFFIX:
        raise ValueError(f"out = {config.out}: must end in {SUFFIX}")
    output.check_directory(config.out.parent)
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"out = {config.out}: already exists; --overwrite replaces it")
    sweeps = diagrams.opened(config.paths, progress.say)
    shown = content(sweeps, config.observables, config.times, config.where)
    shown = page.fit(shown, config.max_megabytes)
    text = page.page(shown)
    for note in shown.about["notes"]:
        progress.say(note)
    config.out.parent.mkdir(parents=True, exist_ok=True)
    return [output.write_whole(config.out, lambda file: file.write(text.encode()))]


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the explorer that a notebook can display."""

    html: str

    def _repr_html_(self) -> str:
        # In a sandbox, the scripts of the page cannot reach the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'allow="clipboard-write" title="Explorer of sweeps" width="100%" '
            f'height="{FRAME_HEIGHT}" style="border:0"></iframe>'
        )

    def write(self, path: str | Path) -> Path:
        """Write the page as an HTML file, atomically."""
        return output.write_whole(Path(path), lambda file: file.write(self.html.encode()))


def explore(dataset: xr.Dataset, *more: xr.Dataset, max_megabytes: float = MAX_MEGABYTES) -> Page:
    """Explore the results of sweeps in a notebook: a map over two axes, sliders for the others, and
    the trajectories of each cell.

    Args:
        dataset: a result of `sweeps.run` or `sweeps.open`.
        *more: further sweeps of the same system, such as its theories.
        max_megabytes: largest size of the page; times and seeds are left out to keep to it, and
            the page says so.

    Returns:
        A page that is displayed at the end of a cell; its `write` saves it to a file.

    Raises:
        ValueError: if Plotly is not installed, for objects that are not datasets of sweeps, for
            sweeps of different systems, or if the page would be too large.

    Example:
        >>> rates = {"eta_y": [0.5, 1], "eta_z": [0.1, 1]}
        >>> runs = sweeps.run(sweeps.Sweep(sweeps.experiment("yz", steps=5), rates), progress=False)
        >>> page = sweeps.explore(runs)
    """
    page.check_plotly()
    sweeps = {}
    for number, sweep in enumerate((dataset, *more), start=1):
        # `content` raises an error, with this name, for anything that is not a dataset.
        title = sweep.attrs.get("title", "") if isinstance(sweep, xr.Dataset) else ""
        sweeps[f"{number}: {title}" if title else f"sweep {number}"] = sweep
    return Page(page.page(page.fit(content(sweeps), max_megabytes)))
