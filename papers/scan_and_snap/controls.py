"""Runs that vary eta_Y, eta_Z or both by a factor of 100, with their times in closed form."""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import dynsim
import sweeps
from papers.scan_and_snap import peaks

DENSE = 4
"""Points of a theory line per trained rate."""
CONTROLS = {
    "eta_y": {"eta_y": (0.1, 10), "eta_z": (0.1, 0.1)},
    "eta_z": {"eta_y": (1, 1), "eta_z": (0.02, 2)},
    "both": {"eta_y": (0.1, 10), "eta_z": (0.01, 1)},
}
"""Smallest and largest value of each rate."""
THEORIES = {"simulation": "simulation", "symmetric": "exact flow", "eq10": "Eq. 10"}


def sweep(
    run: sweeps.Experiment, control: str, theory: str, rates: int, seeds: int
) -> sweeps.Sweep:
    """Training at some rates, or a theory at `DENSE` times as many."""
    number = rates if theory == "simulation" else DENSE * (rates - 1) + 1
    ends = CONTROLS[control].items()
    varied = {name: np.geomspace(e[0], e[1], number).tolist() for name, e in ends if e[0] != e[1]}
    return sweeps.Sweep(
        run.at({name: e[0] for name, e in ends if e[0] == e[1]}),
        varied | ({"seed": {"range": seeds}} if theory == "simulation" else {}),
        theory=peaks.exact(run).get(theory, theory),
        record=("entropy", "z_top_distinct", "speed", *["B"] * (theory == "eq10")),
        times=60,
        zip=(tuple(varied),) if len(varied) > 1 else (),
    )


def by_rate(data: xr.Dataset, control: str, task: dynsim.SequenceClasses) -> xr.Dataset:
    """Class means along a dimension `rate`, with both rates, the closed form's t0', peak and t0,
    and the measured peak (optimiser steps)."""
    data = sweeps.valid(data)
    dim = "eta_z" if control == "eta_z" else "eta_y"
    rates = {
        name: data[name].values if name in data.coords else np.full(data.sizes[dim], float(ends[0]))
        for name, ends in CONTROLS[control].items()
    }
    closed = peaks.stages(rates["eta_y"], task)
    extra: dict[str, Any] = {name: (dim, closed[name]) for name in peaks.STAGES}
    extra |= {f"{name}_used": (dim, values) for name, values in rates.items()}
    extra["measured_peak"] = peaks.measured(data)
    return data.mean("class").assign(extra).rename({dim: "rate"})


def final(data: xr.Dataset, name: str) -> xr.Dataset:
    """Mean and standard deviation across seeds at the last step; 0 for theories."""
    last = data[[name]].isel(time=-1)
    return sweeps.moments(last if "seed" in last.dims else last.expand_dims("seed"), name)


def table(data: xr.Dataset, control: str, theory: str) -> pd.DataFrame:
    """Transition times and final values at each trained rate."""
    peak = data.measured_peak
    columns = {"eta_y": data.eta_y_used, "eta_z": data.eta_z_used}
    columns |= {name: data[name] for name in peaks.STAGES}
    columns["measured_peak"] = peak.mean("seed") if "seed" in peak.dims else peak
    for name, word in (("entropy", "entropy"), ("z_top_distinct", "gain")):
        moments = final(data, name)
        columns |= {word: moments["mean"], f"{word}_sd": moments["std"]}
    columns["B"] = final(data, "B")["mean"] if "B" in data else xr.full_like(data.snap, np.nan)
    rows = pd.DataFrame({name: each.values for name, each in columns.items()})
    rows.insert(0, "control", control)
    rows.insert(1, "theory", theory)
    return rows if theory == "simulation" else rows.iloc[::DENSE]  # at the trained rates
