"""`dynsim validity`: where each theory holds, as its error over a plane of two settings."""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar

import xarray as xr

from dynsim.decoding import Count
from sweeps.figures import Figure, Picture
from sweeps.output import drawing
from sweeps.runner.labels import relative_error, wrapped
from sweeps.runner.spec import Sweep
from sweeps.studies.options import AxisWord, axis, run_title
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment, experiment

CONTOURS = {0.05: "-", 0.2: "--"}
"""Errors of the contours, and their line styles."""
POINTS, TIMES = 9, 16
"""Default number of values of an axis, and number of recorded times."""


class Validity(Figure):
    """Map the relative error of theories, against the mean of trained runs, over two settings.

    Attributes:
        run: the run whose settings each point changes.
        x: the setting across, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear
            with :lin at the end.
        y: the setting upwards, in the same form.
        theories: theories, a panel each; if omitted, all that describe the run and predict the
            observable, without their variants.
        observable: quantity whose error over time is drawn.
        seeds: number of runs at each point; theories start from the same weights.
    """

    NAME = "validity"
    RUN: ClassVar[dict[str, Any]] = {"problem": "linear_icl", "attention": "merged", "steps": 100}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Validity.RUN))
    x: AxisWord = "eta:0.003:0.3"
    y: AxisWord = "batch:4:1024"
    theories: tuple[str, ...] = ()
    observable: str = "loss"
    seeds: Count = 4

    def sweeps(self) -> dict[str, Sweep]:
        """Training and each theory, by name."""
        axes: dict[str, object] = dict(axis(word, POINTS, self.run) for word in (self.x, self.y))
        if len(axes) < 2:
            raise ValueError(f"y = {self.y!r}: is also the axis x")
        axes["seed"] = {"range": self.seeds}
        training = Sweep(self.run, axes, "simulation", (self.observable,), TIMES)
        names = self.theories
        if not names:
            known = registry.applicable(training.first)[0]
            # Without records: not every theory predicts the observable.
            solved = [dataclasses.replace(training, theory=name, record=None) for name in known]
            names = [s.theory_name for s in solved if self.observable in s.observables.names()]
        others = {name: dataclasses.replace(training, theory=name) for name in names}
        return {"simulation": training, **others}

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Draw a panel for each theory, and list the shares of the plane within the contours."""
        training, sweeps = data["simulation"], self.sweeps()
        theories = [name for name in data if name != "simulation"]
        errors = {n: relative_error(data[n], training, self.observable) for n in theories}
        figure, (axes,) = drawing.panels(1, len(errors), 3.2, 3.2, sharex=True, sharey=True)
        for ax, (name, error) in zip(axes, errors.items(), strict=True):
            mesh = drawing.error_map(ax, error, CONTOURS)
            title = textwrap.fill(sweeps[name].method.title or name, 26)
            drawing.finished(ax, title=title, xlabel=wrapped(training[error.dims[0]]))
        axes[0].set_ylabel(wrapped(training[next(iter(errors.values())).dims[1]]))
        quantity = self.observable.replace("_", " ")
        figure.colorbar(mesh, ax=axes, label=f"relative error of the {quantity}", extend="both")
        keys = [drawing.key(f"error {100 * level:g} %", ls=ls) for level, ls in CONTOURS.items()]
        drawing.below(figure, keys, 2)
        about = run_title(self.run, [str(dim) for dim in error.dims])
        figure.suptitle(textwrap.fill(f"{about}, {self.seeds} seeds", 50 * len(errors)))
        lines = []
        for name, error in errors.items():
            shares = {level: 100 * float((error <= level).mean()) for level in CONTOURS}
            parts = (f"within {100 * level:g} % on {n:.0f} %" for level, n in shares.items())
            lines.append(f"{name:<20} {', '.join(parts)} of the plane")
        arrays = {**errors, **{str(dim): training[dim] for dim in error.dims}}
        return Picture(figure, arrays, "\n".join(lines))
