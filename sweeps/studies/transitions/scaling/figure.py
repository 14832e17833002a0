"""`dynsim figure scaling`: transition or crossover, by the step of an observable."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import xarray as xr
from annotated_types import Gt, Lt

from dynsim import Status, checks
from sweeps import output
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies.axes import AxisWord, SizesWord, axis, described, is_linear, is_whole
from sweeps.studies.computing import computed
from sweeps.studies.optimum.best import at_end
from sweeps.studies.options import Several
from sweeps.studies.transitions.scaling import report
from sweeps.studies.transitions.scaling.analysis import FEWEST_SIZES, LEVEL, scaling
from sweeps.studies.transitions.scaling.panels import draw
from sweeps.studies.transitions.scaling.steps import FEWEST
from sweeps.systems.experiment import Experiment, experiment

POINTS, SIZES = 41, 5
"""Values of the axes, unless they say how many."""
Level = Annotated[float, Gt(0), Lt(0.5)]
"""Of significance."""
DIVERGED = "diverged"
"""Observable that every system has: 1 for a run that diverged, else 0."""


@dataclasses.dataclass(frozen=True)
class ScalingFigure:
    """Decide whether an observable changes by a transition or a crossover along an axis: its step
    for several sizes, susceptibility, Binder cumulant, widths and a scaling collapse.

    Attributes:
        run: the run that every point varies.
        rate: the axis across the step, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or
            linear with :lin at the end.
        size: the setting that counts as size, NAME:V1,V2,... or in the form of the rate; any
            setting with numeric values.
        observable: order parameter, at the last step, averaged over its entries; or diverged, which
            is 1 for a run that diverged, else 0.
        origin: value of the observable in the disordered phase.
        level: largest probability of each false verdict: a transition where the width stays the
            same, at least among the larger sizes, a crossover where it falls as size^(-1/4). A
            smaller one leaves more undecided, as do few seeds.
        engine: simulation, or a theory that starts from the weights of a seed.
        seeds: number of runs at each point.
        out: folder for the figure, scaling.npz and .json, and the stored sweep, from which the
            command resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "linear_icl", "steps": 50, "D": 4}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**ScalingFigure.RUN))
    rate: AxisWord = "eta:1:12"
    size: SizesWord = "N:4:64"
    observable: str = DIVERGED
    origin: float = 0.0
    level: Level = LEVEL
    engine: str = "simulation"
    seeds: Several = 128
    out: Path = Path("out/scaling")

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the size and of the rate, increasing, by name; `ValueError` for bad ones."""
        found: dict[str, tuple[float, ...]] = {}
        for option, word, read, fewest in (
            ("size", self.size, sizes(self.size, self.run), FEWEST_SIZES),
            ("rate", self.rate, axis(self.rate, POINTS, self.run), FEWEST),
        ):
            name, values = read
            if len(set(values)) < max(fewest, len(values)):
                raise ValueError(f"{option} = {word!r}: needs {fewest} or more different values")
            if name in found:
                raise ValueError(f"rate = {self.rate!r}: is also the axis of the size")
            found[name] = tuple(sorted(values))
        return found

    def sweeps(self) -> dict[str, Sweep]:
        """The runs; `ValueError` for settings that describe none."""
        if not math.isfinite(self.origin):
            raise ValueError(f"origin = {self.origin}: must be finite")
        asked: dict[str, Any] = {}
        if self.observable != DIVERGED:
            asked["record"] = (self.observable,)
        axes = {**self.axes(), "seed": {"range": self.seeds}}
        return {"runs": Sweep(self.run, axes, self.engine, **asked)}


@dataclasses.dataclass(frozen=True)
class ScalingOfLayer(ScalingFigure):
    """Decide whether the attention of the layer in Y and Z snaps by a transition or a crossover,
    from its entropy at several sequence lengths."""

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz", "steps": 100}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**ScalingOfLayer.RUN))
    rate: AxisWord = "eta_z:30:80"
    size: SizesWord = "length:32:128:4"
    observable: str = "entropy"


def sizes(word: str, run: Experiment) -> tuple[str, tuple[float, ...]]:
    """Name and values of "K:2,4,8" or "K:2:8:3"; `ValueError` for what cannot be read."""
    name, _, listed = word.partition(":")
    if "," not in listed:
        return axis(word, SIZES, run)
    whole = is_whole(word, run)
    try:
        values = [float(each) for each in listed.split(",")]
    except ValueError:
        raise ValueError(f"size = {word!r}: must be NAME:V1,V2,... or NAME:FIRST:LAST") from None
    checks.real(f"size {name}", values, 0, open_minimum=True)
    # A value that is not whole is one for the check of the sweep.
    return name, tuple(int(v) if whole and v == int(v) else v for v in values)


def order_parameter(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """An observable of each run at its end, averaged over its entries."""
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
    values = order_parameter(dataset, config.observable).transpose(size, rate, "seed")
    linear = is_linear(config.rate)
    x = values[rate].values if linear else np.log(values[rate].values)
    found = scaling(x, values[size].values, values.values, origin=config.origin, level=config.level)
    lines = report.lines(found, values, linear)
    print("\n".join(lines))
    title = f"{described(config.run, (size, rate))}, {config.seeds} seeds. "
    figure = draw(found, values, linear, title + str(found.verdict).capitalize())
    kept = report.plain(found)
    arrays = {"x": x, size: values[size].values, rate: values[rate].values, "values": values.values}
    arrays |= {"moments": found.moments, "errors": found.errors}
    return output.write(
        config.out, "scaling", figure=figure, arrays=arrays, report={**kept, "lines": lines}
    )
