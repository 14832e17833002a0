"""The phase diagrams of a system: regions, lines of theory, and defaults."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int

if TYPE_CHECKING:
    import xarray as xr


class Regions(NamedTuple):
    """The regions of a diagram: a classification of runs.

    Attributes:
        record: names of the observables that it reads, over time.
        classify: function that returns the codes of the runs of a dataset with these records, over
            its axes. The settings of the runs are JSON in the dataset's attribute "config".
        legend: name and colour of each code.
        lines: function of the same dataset that returns your own lines: by name in the legend,
            values over the two axes of the plane that are zero on the line. None for no lines.
        failures: whether `classify` has a region for runs that did not end well. If not, they are
            in a region of their own, "diverged", whatever `classify` returns for them.

    Example:
        >>> learned = sweeps.diagrams.Regions(
        ...     record=("loss",),
        ...     classify=lambda dataset: (dataset["loss"].isel(time=-1) < 0.1).astype(int),
        ...     legend={0: ("loss above 0.1", "#f0f0f0"), 1: ("below", "#4c8bbe")},
        ... )
    """

    record: tuple[str, ...]
    classify: Callable[["xr.Dataset"], "xr.DataArray"]
    legend: Mapping[int, tuple[str, str]]
    lines: Callable[["xr.Dataset"], Mapping[str, "xr.DataArray"]] | None = None
    failures: bool = False


class Line(NamedTuple):
    """A line of theory on a diagram.

    Attributes:
        name: its name in the report and in phase.npz.
        text: its label in the legend.
        values: values that are zero on the line, over the axes of the plane or fewer points.
        style: colour, dashes and width.

    Example:
        >>> import xarray as xr
        >>> plane = xr.DataArray([[-1.0, 1.0]] * 2, {"a": [0.1, 1.0], "eta": [1.0, 3.0]})
        >>> edge = sweeps.diagrams.Line("edge", "eta = 2", plane)
    """

    name: str
    text: str
    values: "xr.DataArray"
    style: tuple[str, str, float] = ("k", "-", 1.4)


class Predictions(NamedTuple):
    """What theory predicts over a plane.

    Attributes:
        lines: its lines. Those that do not cross the plane are not drawn.
        regions: by name in the report, a text for the figure and the predicted codes of regions
            over the plane.
        levels: a quantity whose iso-lines are drawn over the observable: its label in the legend, a
            format for the numbers on the lines, and its values over the plane.
        arrays: further arrays for phase.npz, by name.

    Example:
        >>> sweeps.diagrams.Predictions().lines
        ()
    """

    lines: Sequence[Line] = ()
    regions: Mapping[str, tuple[str, "xr.DataArray"]] = MappingProxyType({})
    levels: "tuple[str, str, xr.DataArray] | None" = None
    arrays: Mapping[str, Any] = MappingProxyType({})


class View(NamedTuple):
    """A diagram as `Diagram.predict` sees it.

    Attributes:
        plane: training over the plane, a `sweeps.Sweep` over its two axes alone.
        maps: what is drawn, as `sweeps.diagrams.maps` returns it; empty if nothing was computed.
        regions: the regions.
        noise: whether to predict where noise decides the outcome.
        run: function of a sweep and the name of a folder that returns the results, stored there.
        solve: function of a theory, points of the plane by their indices, and the name of a
            folder, that returns the code of the most common region at each of the points by this
            theory; None if it does not describe the runs.

    Example:
        >>> def predict(view):
        ...     return sweeps.diagrams.Predictions(arrays={"rates": view.plane.fields["eta"]})
    """

    plane: Any
    maps: Mapping[str, "xr.Dataset"]
    regions: Regions
    noise: bool
    run: Callable[[Any, str], "xr.Dataset"]
    solve: Callable[[str, Int[np.ndarray, "P 2"], str], Int[np.ndarray, " P"] | None]


class Diagram(NamedTuple):
    """What a system adds to `dynsim phase`.

    Attributes:
        x, y: default axes; without these, the command needs both.
        observable: default observable.
        regions: default regions; None for the status of the runs.
        titles: titles of theories in the figure, where those of the theories are too long.
        aliases: other words for theories.
        best: function of training over the plane, a `sweeps.Sweep`, that returns the theory to
            draw next to training. None to draw training alone, unless `against` names a theory.
        predict: function of a `View` that returns `Predictions`.
        flow: settings to change in runs that have no flow, to draw their edge of stability.

    Example:
        >>> diagram = sweeps.diagrams.Diagram(x="eta:0.1:10", y="a:0.1:10")
        >>> from sweeps.systems import registry
        >>> system = registry.system("yz")._replace(name="mine", diagram=lambda: diagram)
    """

    x: str = ""
    y: str = ""
    observable: str = "loss"
    regions: Regions | None = None
    titles: Mapping[str, str] = MappingProxyType({})
    aliases: Mapping[str, str] = MappingProxyType({})
    best: Callable[[Any], str] | None = None
    predict: Callable[[View], Predictions] = lambda view: Predictions()
    flow: Mapping[str, Any] = MappingProxyType({})
