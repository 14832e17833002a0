"""What a sweep is: one training as a starting point, and axes along which it varies."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dynsim import checks
from sweeps.runner import axes
from sweeps.systems.base import Engine, Run, Times
from sweeps.systems.registry import ENGINES, engine
from sweeps.systems.yz.settings import Training


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Many trainings, or many solves of a theory, over named axes.

    Attributes:
        axes: values by field (see `sweeps.runner.axes.values`), in the order of the dimensions.
            `seed` chooses starting weights and data, so runs of one seed see the same batches
            whatever their learning rates.
        run: the training of which each run is a variation; what is an axis is ignored here.
        engine: one that computes runs like `run`, of trainings "simulation"; "descent" (T and
            batch infinite); or a theory of the ladder.
        record: names of observables.
        times: "end"; the number of logarithmically spaced steps at which to record; or the steps
            themselves.
        zip: groups of axes that vary together instead of forming a grid.
        rtol: relative tolerance of an adaptive solver; by default that of the theory.
        root: root of the random keys; a run uses fold_in(key(root), seed).
        title: one line for people.
    """

    axes: Mapping[str, Any]
    run: Run = dataclasses.field(default_factory=Training)
    engine: str = "simulation"
    record: tuple[str, ...] = ("loss", "accuracy", "entropy")
    times: Times = "end"
    zip: tuple[tuple[str, ...], ...] = ()
    rtol: float | None = None
    root: int = 0
    title: str = ""

    @functools.cached_property
    def dims(self) -> tuple[axes.Dimension, ...]:
        """The dimensions of the array of runs."""
        return axes.dimensions(self.axes, self.zip, self.run.AXES)

    @functools.cached_property
    def rules(self) -> Engine:
        """How the runs are computed."""
        return engine(self.engine)

    @property
    def fields(self) -> dict[str, tuple[float, ...]]:
        """Values by axis."""
        return {name: values for dim in self.dims for name, values in dim.axes.items()}

    @property
    def dtype(self) -> str:
        """Precision of the runs."""
        return self.run.dtype if self.rules.trains else "float64"

    def training(self, chosen: Mapping[str, float]) -> Run:
        """The run with the `chosen` values of static axes, whatever the traced ones are."""
        static = {name: value for name, value in chosen.items() if name in self.run.AXES.static}
        return self.run.at(static, self.fields)

    def point(self, chosen: Mapping[str, Any]) -> Run:
        """The run at the `chosen` values of axes, numbers or arrays that broadcast."""
        given = {name: value for name, value in chosen.items() if name != "seed"}
        return self.run.at(given, self.fields)

    def trainings(self) -> Iterator[Run]:
        """The run of every combination of static values."""
        static = [dim for dim in self.dims if dim.static]
        for index in np.ndindex(*(dim.size for dim in static)):
            yield self.training(
                {
                    name: values[i]
                    for dim, i in zip(static, index, strict=True)
                    for name, values in dim.axes.items()
                }
            )

    def check(self) -> None:
        """Raise `ValueError`, naming the field, the value and what is allowed."""
        names = self.fields
        checks.integer("root", self.root, 0)
        self._check_engine()
        self.run.check_axes(names)
        for value in names.get("seed", ()):
            checks.integer("axes.seed", value, 0)
        for name in self.run.AXES.traced:
            # Each axis alone, because the bounds of one do not depend on the others.
            if name in names:
                self.point({name: np.asarray(names[name], np.float64)}).numbers()
        if not self.record:
            raise ValueError("record = []: needs at least one observable")
        self.rules.observables.resolve(self.record)
        for training in self.trainings():
            training.check()
            training.steps_recorded(self.times)
            self.rules.check(training, training.make_task(), training.make_optimizer())

    def _check_engine(self) -> None:
        kind = type(self.run)
        if kind is not self.rules.system:
            allowed = ", ".join(name for name, rules in ENGINES.items() if rules.system is kind)
            raise ValueError(
                f"engine = {self.engine!r}: does not compute task {self.run.task!r}; "
                f"must be one of {allowed}"
            )
        if self.rtol is not None:
            if not self.rules.adaptive:
                raise ValueError(f"rtol = {self.rtol}: engine {self.engine!r} does not read it")
            checks.real("rtol", self.rtol, 1e-13, 1, open_maximum=True)

    def as_json(self) -> dict[str, Any]:
        """Everything that decides the numbers, as JSON values, and the title."""
        return {
            "title": self.title,
            "engine": self.engine,
            "record": list(self.record),
            "times": list(self.times) if isinstance(self.times, tuple) else self.times,
            "root": self.root,
            "rtol": self.rtol,
            "zip": [list(group) for group in self.zip],
            "axes": {
                name: ["inf" if v == float("inf") else v for v in values]
                for name, values in self.fields.items()
            },
            "run": {
                name: value
                for name, value in self.run.as_json().items()
                if name not in self.fields and self.run.reads(name, self.fields)
            },
        }


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash of a sweep's `as_json`, of all that decides the numbers: not the title."""
    decisive = {name: value for name, value in config.items() if name != "title"}
    decisive["axes"] = list(decisive["axes"].items())
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines "field: old -> new" for what differs between two configurations."""
    lines = []
    for name in sorted({*old, *new} - {"title"}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if name == "axes" and list(a) != list(b) and set(a) == set(b):
                lines.append(f"order of the axes: {', '.join(a)} -> {', '.join(b)}")
            lines += [f"{name}.{line}" for line in differences(a, b)]
        elif a != b:
            lines.append(f"{name}: {a!r} -> {b!r}")
    return lines
