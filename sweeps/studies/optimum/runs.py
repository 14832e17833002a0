"""What the runs of a sweep reached at their end, and its average over the seeds."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from dynsim import Status, checks
from sweeps.runner.store.arrays import MISSING
from sweeps.studies.optimum.valley import valley
from sweeps.studies.options import student

Pick = Literal["lowest", "highest"]


def direction(name: str) -> Pick | None:
    """Which values of an observable are good ones, by its name; None where that does not say it."""
    if name == "loss" or name.endswith("_loss"):
        return "lowest"
    return "highest" if name == "accuracy" or name.endswith("_accuracy") else None


def single(dataset: xr.Dataset, name: str) -> bool:
    """Whether an observable is one number of each run and recorded time."""
    runs = {*dataset["status"].dims, "time", "record"}
    return set(dataset[name].dims) <= runs and dataset[name].dtype.kind == "f"


def recorded(dataset: xr.Dataset) -> list[str]:
    """Names of the observables of a sweep."""
    return [str(name) for name in dataset.data_vars if name not in ("status", "first_bad_step")]


def chosen(dataset: xr.Dataset, observable: str | None) -> str:
    """The observable that is asked for, or one with a `direction`, the loss first; `ValueError`
    where there is none, or none that is one number."""
    names = recorded(dataset)
    if observable is None:
        known = [name for name in names if direction(name) and single(dataset, name)]
        if not known:
            raise ValueError(
                f"observable: of {', '.join(names) or 'nothing recorded'}, none is called a loss "
                "or an accuracy; choose one"
            )
        return "loss" if "loss" in known else known[0]
    checks.choice("observable", observable, names)
    if not single(dataset, observable):
        own = [str(dim) for dim in dataset[observable].dims if dim not in dataset["status"].dims]
        of = ", ".join(dim for dim in own if dim not in ("time", "record"))
        raise ValueError(
            f"observable = {observable!r}: must be one number of each run, has an axis {of}"
        )
    return observable


def at_end(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """An observable at the last time that each run recorded."""
    values = dataset[name]
    if "time" in values.dims:
        return values.isel(time=-1)
    if "record" not in values.dims:
        return values
    # Runs of fewer steps recorded fewer times.
    last = dataset["time"].notnull().sum("record") - 1
    return values.isel(record=last.clip(min=0))


class Averaged(NamedTuple):
    """C curves of P values, as S seeds have them.

    Attributes:
        values: of each run, 0 where it has none.
        fine: whether a run ended well, with a value.
        failed: whether a run ended otherwise.
        known: whether a curve has a mean there: runs that ended well, and no others.
    """

    values: Float[np.ndarray, "C P S"]
    fine: Bool[np.ndarray, "C P S"]
    failed: Bool[np.ndarray, "C P S"]
    known: Bool[np.ndarray, "C P"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "C P S"], status: Int[np.ndarray, "C P S"]) -> "Averaged":
        """Of what runs recorded and how they ended."""
        failed = (status != Status.OK) & (status != MISSING)
        fine = (status == Status.OK) & np.isfinite(values)
        lost = (status != MISSING) & ~fine
        values = np.where(fine, values, 0).astype(float)
        return cls(values, fine, failed, fine.any(-1) & ~lost.any(-1))

    def mean(self, weights: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
        """(C, P) means over the seeds by their weights, NaN where there is none."""
        weights = np.ones(self.values.shape[-1]) if weights is None else np.asarray(weights)
        number = self.fine @ weights
        means = (self.values @ weights) / np.where(number > 0, number, 1)
        return np.where(self.known & (number > 0), means, np.nan)

    def resampled(self, x: np.ndarray, sign: int, draws: int) -> Float[np.ndarray, "D C"]:
        """Best places of the means over seeds that are drawn with replacement, the same ones for
        all curves, scaled so that twice their standard deviation covers 95 %. None for one
        seed."""
        seeds = self.values.shape[-1]
        if seeds < 2:
            return np.empty((0, len(self.values)))
        weights = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        found = np.stack([valley(x, self.mean(each), sign).at for each in weights])
        middle = found.mean(0)
        scale = student(seeds - 1) * np.sqrt(seeds / (seeds - 1))
        return middle + scale * (found - middle)

    def edges(
        self, axis: np.ndarray, over: str, unit: str
    ) -> dict[str, tuple[np.ndarray, str, str]]:
        """Where divergence begins, by name: values, what they are, and their unit."""
        none = np.logical_not(self.failed.any(-1))
        half = 2 * self.failed.sum(-1) <= self.failed.shape[-1]

        def up_to(well: np.ndarray) -> np.ndarray:
            number = np.logical_and.accumulate(well, -1).sum(-1)
            return np.where(number > 0, axis[number - 1], np.nan)

        first = np.where(none.all(-1), np.nan, axis[np.argmin(none, -1)])
        return {
            "stable": (up_to(none), f"largest {over} up to which no run diverged", unit),
            "edge": (up_to(half), f"largest {over} up to which at most half diverged", unit),
            "diverged": (first, f"smallest {over} at which a run diverged", unit),
        }
