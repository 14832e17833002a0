"""`dynsim explore`: stored sweeps as an interactive page, in a file or a notebook."""

import dataclasses
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

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
LARGEST = 20.0
"""Default maximum size of a page, in megabytes."""
HEIGHT = 900
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

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz"}
    POSITIONAL: ClassVar[tuple[str, ...]] = ("paths",)

    paths: tuple[str, ...] = ()
    out: Path = Path("explore.html")
    observables: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    where: tuple[str, ...] = ()
    max_megabytes: float = LARGEST
    overwrite: bool = False
    serve: bool = False
    port: int = 0
    run: Experiment = dataclasses.field(default_factory=experiment)


def run(config: Explore) -> list[Path]:
    """Run `dynsim explore`; returns the path of the page."""
    page.check_plotly()
    if config.paths or not config.serve:
        _check_unread(config)
    if config.serve:
        # Imported on demand: it imports theories, which takes seconds.
        from sweeps.commands.views import serve

        serve.run(config)
        return []
    if not config.paths:
        raise ValueError("paths: must name a stored sweep, or --serve shows theory alone")
    if config.out.suffix != SUFFIX:
        raise ValueError(f"out = {config.out}: must end in {SUFFIX}")
    output.check_directory(config.out.parent)
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"out = {config.out}: already exists; --overwrite replaces it")
    sweeps = diagrams.opened(config.paths, progress.say)
    found = content(sweeps, config.observables, config.times, config.where)
    found = page.fitted(found, config.max_megabytes)
    text = page.page(found)
    for note in found.about["notes"]:
        progress.say(note)
    config.out.parent.mkdir(parents=True, exist_ok=True)
    return [output.write_whole(config.out, lambda file: file.write(text.encode()))]


def _check_unread(config: Explore) -> None:
    """Raise `ValueError` for settings of a run if there are sweeps, which have their own."""
    given, usual = (
        dict(flattened("run", encode(language(), run))) for run in (config.run, experiment())
    )
    for name, value in given.items():
        if value != usual.get(name):
            shown = value["kind"] if is_branch(value) else value
            raise ValueError(f"{name} = {shown!r}: is for --serve without a sweep; leave it out")


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the explorer that a notebook can display."""

    html: str

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'allow="clipboard-write" title="Explorer of sweeps" width="100%" height="{HEIGHT}" '
            'style="border:0"></iframe>'
        )

    def write(self, path: str | Path) -> Path:
        """Write the page as an HTML file, atomically."""
        return output.write_whole(Path(path), lambda file: file.write(self.html.encode()))


def explore(dataset: xr.Dataset, *more: xr.Dataset, max_megabytes: float = LARGEST) -> Page:
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
    given = {_name(each, number): each for number, each in enumerate((dataset, *more), start=1)}
    return Page(page.page(page.fitted(content(given), max_megabytes)))


def _name(dataset: xr.Dataset, number: int) -> str:
    title = dataset.attrs.get("title", "") if isinstance(dataset, xr.Dataset) else ""
    return f"{number}: {title}" if title else f"sweep {number}"
