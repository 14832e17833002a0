"""Figures of Scan and Snap (Tian et al., arXiv:2305.16380)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import xarray as xr

import dynsim
import sweeps


def figure6_runs(
    numbers: Sequence[int], usual: Sequence[int], seeds: int, task: dynsim.Task | None
) -> sweeps.Sweep:
    """The runs of Figs. 6, 11 and 12: entropy, recall and loss over eta_Z and eta_Y / eta_Z.

    With a `task`, its own number of queries, unless `numbers` are given.
    """
    sweep = sweeps.load("fig6", [f"axes.seed = {{ range = {seeds} }}"])
    chosen = numbers or (usual if task is None else ())
    axes = {name: values for name, values in sweep.axes.items() if name != "num_queries"}
    axes = ({"num_queries": chosen} if chosen else {}) | axes
    run = sweep.run if task is None else sweep.first.at({"task": task})
    return dataclasses.replace(sweep, run=run, axes=axes)


def by_queries(data: xr.Dataset, task: dynsim.Task | None) -> xr.Dataset:
    """Mask failed runs, and add the axis of the number of queries where the task fixes it."""
    data = sweeps.valid(data)
    if task is None or "num_queries" in data.dims:
        return data
    return data.expand_dims(num_queries=[task.build().num_queries])


def published() -> xr.Dataset:
    """Published mean and standard deviation of Fig. 6 over 10 seeds; NaN for unknown cells."""
    file = Path(__file__).with_name("published_fig6.csv")
    return pd.read_csv(file, index_col=[0, 1, 2]).to_xarray()


def queries(number: int) -> str:
    """The number of queries, for titles."""
    return f"{number} {'query' if number == 1 else 'queries'}"
