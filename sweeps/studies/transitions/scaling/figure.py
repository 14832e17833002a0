"""`dynsim figure scaling`: transition or crossover, by the step of an observable."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from dynsim import Status, checks
from sweeps import output
from sweeps.runner.files import from_table
from sweeps.runner.run import valid
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed, settings
from sweeps.studies.optimum.runs import at_end
from sweeps.studies.options import Several
from sweeps.studies.phase.plane import axis, axis_name, is_linear
from sweeps.studies.transitions.scaling import report
from sweeps.studies.transitions.scaling.analysis import FEWEST_SIZES, scaling
from sweeps.studies.transitions.scaling.panels import draw
from sweeps.studies.transitions.scaling.steps import FEWEST
from sweeps.systems import registry
from sweeps.systems.base import Fields

POINTS, SIZES = 41, 5
"""Values of the axes, unless they say how many."""
DIVERGED = "diverged"
"""Observable that every system has: 1 for a run that diverged, else 0."""


class Usual(NamedTuple):
    """What is drawn of a system unless asked otherwise.

    Attributes:
        rate: the axis across.
        size: sizes.
        settings: of every run.
        observable: the order parameter.
    """

    rate: str = "eta:0.1:100"
    size: str = "batch:4:64"
    settings: Mapping[str, Any] = {}
    observable: str = DIVERGED


USUAL = {
    "linear_icl": Usual("eta:1:12", "N:4:64", {"steps": 50, "D": 4}),
    "yz": Usual("eta_z:30:80", "length:32:128:4", {"steps": 100, "eta_y": 1.0}, "entropy"),
}


@dataclasses.dataclass(frozen=True)
class ScalingFigure:
    """Decide whether an observable changes by a transition or a crossover along an axis: its step
    for several sizes, susceptibility, Binder cumulant, widths and a scaling collapse.

    Attributes:
        system: linear_icl, yz, or any other.
        rate: the axis across the step, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or
            linear with :lin at the end.
        size: what counts as size, NAME:V1,V2,... or in the form of the rate; K, M, length, batch or
            any other setting.
        observable: order parameter, at the last step, averaged over classes; or diverged, which is
            1 for a run that diverged, else 0. By default diverged; for yz the entropy of attention.
        origin: its value in the phase without order.
        set: other settings of the runs, such as steps=300 D=8.
        engine: simulation, or a theory that starts from the weights of a seed.
        seeds: number of runs at each point.
        out: folder for the figure, scaling.npz and .json, and the stored sweep, from which the
            command resumes.
    """

    system: str = "linear_icl"
    rate: str = ""
    size: str = ""
    observable: str = ""
    origin: float = 0.0
    set: tuple[str, ...] = ()
    engine: str = "simulation"
    seeds: Several = 128
    out: Path = Path("out/scaling")

    @property
    def usual(self) -> Usual:
        """What was not asked for."""
        return USUAL.get(self.system, Usual())

    @property
    def measured(self) -> str:
        """The order parameter."""
        return self.observable or self.usual.observable

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the size and of the rate, increasing, by name; `ValueError` for bad ones."""
        fields = registry.system(self.system).run.AXES
        size, rate = self.size or self.usual.size, self.rate or self.usual.rate
        found: dict[str, tuple[float, ...]] = {}
        for option, word, read, fewest in (
            ("size", size, sizes(size, fields), FEWEST_SIZES),
            ("rate", rate, axis(rate, POINTS, fields), FEWEST),
        ):
            name, values = read
            if len(set(values)) < max(fewest, len(values)):
                raise ValueError(f"{option} = {word!r}: needs {fewest} or more different values")
            if name in found:
                raise ValueError(f"rate = {rate!r}: is the axis of the size as well")
            found[name] = tuple(sorted(values))
        return found

    def settings(self) -> dict[str, Any]:
        """Of every run, without what is an axis; `ValueError` for what cannot be read."""
        return settings(self.usual.settings, self.set, self.axes())

    def sweeps(self) -> dict[str, Sweep]:
        """The runs; `ValueError` for settings that describe none."""
        if not math.isfinite(self.origin):
            raise ValueError(f"origin = {self.origin}: must be finite")
        system = registry.system(self.system)
        engine = checks.choice("engine", self.engine, tuple(registry.engines(system)))
        table = {
            "system": self.system,
            "engine": engine,
            "run": self.settings(),
            "axes": {**self.axes(), "seed": {"range": self.seeds}},
        }
        asked = {} if self.measured == DIVERGED else {"record": [self.measured]}
        return {"runs": from_table(table | asked)}


def sizes(word: str, fields: Fields) -> tuple[str, tuple[float, ...]]:
    """Name and values of "K:2,4,8" or "K:2:8:3"; `ValueError` for what cannot be read."""
    name, _, listed = word.partition(":")
    if "," not in listed:
        return axis(word, SIZES, fields)
    axis_name(word, fields)
    try:
        values = [float(each) for each in listed.split(",")]
    except ValueError:
        raise ValueError(f"size = {word!r}: must be NAME:V1,V2,... or NAME:FIRST:LAST") from None
    checks.real(f"size {name}", values, 0, open_minimum=True)
    whole = fields.is_whole(name) or name in fields.counts
    # A value that is not whole is one for the check of the sweep.
    return name, tuple(int(v) if whole and v == int(v) else v for v in values)


def order_parameter(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """An observable of each run at its end, averaged over classes and the like."""
    if name == DIVERGED:
        label = {"long_name": "share of runs that diverge", "units": "1"}
        return (dataset["status"] != Status.OK).astype(float).assign_attrs(label)
    values = at_end(valid(dataset[[name, "status"]]), name)
    own = [dim for dim in values.dims if dim not in dataset["status"].dims]
    return values.mean(own, skipna=False).assign_attrs(dataset[name].attrs)


def run(config: ScalingFigure) -> list[Path]:
    """Compute or resume, print the verdict and what it rests on, draw and write."""
    dataset = computed(config)["runs"]
    size, rate = config.axes()
    values = order_parameter(dataset, config.measured).transpose(size, rate, "seed")
    linear = is_linear(config.rate or config.usual.rate)
    x = values[rate].values if linear else np.log(values[rate].values)
    found = scaling(x, values[size].values, values.values, origin=config.origin)
    lines = report.lines(found, values, linear)
    print("\n".join(lines))
    words = ", ".join(f"{name} = {value}" for name, value in config.settings().items())
    title = f"{config.system}: {words}{', ' * bool(words)}{config.seeds} seeds. "
    figure = draw(found, values, linear, title + str(found.verdict).capitalize())
    kept = report.plain(found)
    arrays = {"x": x, size: values[size].values, rate: values[rate].values, "values": values.values}
    arrays |= {"moments": found.moments, "errors": found.errors}
    return output.write(
        config.out, "scaling", figure=figure, arrays=arrays, report={**kept, "lines": lines}
    )
