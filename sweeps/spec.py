"""What a sweep is: one training as a starting point, and axes along which it varies."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

import dynsim
from dynsim import checks
from dynsim.run_checks import check_step_times
from sweeps import axes
from sweeps.config import TASKS, Training
from sweeps.engines import Engine, engine

OPTIMIZER_AXES = {"momentum": "sgd", "b1": "adam", "b2": "adam", "eps": "adam"}
Times = Literal["end"] | int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Many trainings, or many solves of a theory, over named axes.

    Attributes:
        axes: values by field (see `sweeps.axes.values`), in the order of the dimensions. `seed`
            chooses starting weights and data, so runs of one seed see the same batches
            whatever their learning rates.
        run: the training of which each run is a variation; what is an axis is ignored here.
        engine: "simulation"; "descent" (T and batch infinite); or a theory of the ladder.
        record: names of observables.
        times: "end"; the number of logarithmically spaced steps at which to record; or the steps
            themselves.
        zip: groups of axes that vary together instead of forming a grid.
        rtol: relative tolerance of an adaptive solver; by default that of the theory.
        root: root of the random keys; a run uses fold_in(key(root), seed).
        title: one line for people.
    """

    axes: Mapping[str, Any]
    run: Training = dataclasses.field(default_factory=Training)
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
        return axes.dimensions(self.axes, self.zip)

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

    def training(self, chosen: Mapping[str, float]) -> Training:
        """The training with the `chosen` values of static axes."""
        static = {name: value for name, value in chosen.items() if name not in axes.TRACED}
        training = dataclasses.replace(self.run, **static)
        if "momentum" in self.fields:
            # Any value but 0: the rule then carries a velocity, and the axis says its decay.
            training = dataclasses.replace(training, momentum=0.5)
        return training

    def point(self, chosen: Mapping[str, Any]) -> Training:
        """The training at the `chosen` values of axes, numbers or arrays. An axis eta_y stands
        for itself, whatever `run.ratio` says."""
        given = {name: value for name, value in chosen.items() if name != "seed"}
        if "eta_y" in self.fields:
            given["ratio"] = None
        return dataclasses.replace(self.run, **given)

    def steps_recorded(self, training: Training) -> tuple[int, ...]:
        """The optimiser steps at which a run records."""
        if self.times == "end":
            return (training.steps,)
        if isinstance(self.times, int):
            return tuple(dynsim.log_times(training.steps, self.times).tolist())
        return self.times

    def check(self) -> None:
        """Raise `ValueError`, naming the field, the value and what is allowed."""
        names = self.fields
        checks.integer("root", self.root, 0)
        if self.rtol is not None:
            if not self.rules.adaptive:
                raise ValueError(f"rtol = {self.rtol}: engine {self.engine!r} does not read it")
            checks.real("rtol", self.rtol, 1e-13, 1, open_maximum=True)
        self._check_fields_are_read(names)
        for name in axes.TRACED:
            # Each axis alone, because the bounds of one do not depend on the others.
            if name == "seed":
                for value in names.get(name, ()):
                    checks.integer("axes.seed", value, 0)
            elif name in names:
                array = np.asarray(names[name], np.float64)
                dataclasses.replace(self.run, **{name: array}).make_optimizer()
        if not self.record:
            raise ValueError("record = []: needs at least one observable")
        for name in self.record:
            checks.choice("record", name, self.rules.observables)
        for training in self.trainings():
            training.check()
            task, optimizer = training.make_task(), training.make_optimizer()
            steps = self.steps_recorded(training)
            check_step_times(steps, training.steps)
            self.rules.check(task, optimizer, training.init == "zero")

    def trainings(self) -> Iterable[Training]:
        """The training of every combination of static values."""
        static = [dim for dim in self.dims if dim.static]
        for index in np.ndindex(*(dim.size for dim in static)):
            yield self.training(
                {
                    name: values[i]
                    for dim, i in zip(static, index, strict=True)
                    for name, values in dim.axes.items()
                }
            )

    def _reads(self, name: str) -> bool:
        """Whether the runs depend on this field of `run`."""
        ratio = "ratio" in self.fields or (
            "eta_y" not in self.fields and self.run.ratio is not None
        )
        return not (
            name in self.fields
            or (name == "eta_y" and ratio)
            or (name == "ratio" and not ratio)
            or (name in axes.TASK_AXES and name not in self._task_fields)
            or OPTIMIZER_AXES.get(name, self.run.optimizer) != self.run.optimizer
        )

    @property
    def _task_fields(self) -> tuple[str, ...]:
        return TASKS[self.run.task][1] if self.run.task in TASKS else ()

    def _check_fields_are_read(self, names: Mapping[str, Any]) -> None:
        for name in names:
            if name in axes.TASK_AXES and name not in self._task_fields:
                allowed = ", ".join(self._task_fields) or "none"
                raise ValueError(
                    f"axes.{name}: task {self.run.task!r} does not read it; it reads {allowed}"
                )
            if OPTIMIZER_AXES.get(name, self.run.optimizer) != self.run.optimizer:
                raise ValueError(
                    f"axes.{name}: optimizer = {self.run.optimizer!r} does not read it; "
                    f"it belongs to {OPTIMIZER_AXES[name]!r}"
                )
        if "K" in names and "num_queries" in names:
            raise ValueError("axes: K = num_queries * classes_per_query; leave one of them out")

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
            "run": {n: value for n, value in self.run.as_json().items() if self._reads(n)},
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
