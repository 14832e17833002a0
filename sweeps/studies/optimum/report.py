"""Best rates in words: a table of them, what they follow, and the best cell of a sweep."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.runner.labels import shown, valid, worded
from sweeps.studies.optimum.best import FEWEST, Place
from sweeps.studies.optimum.runs import at_end, direction, recorded, single
from sweeps.studies.optimum.transfer import transfer

MOST = 2**24
"""Numbers of a sweep up to which its best cell is looked for at its end."""
PER_STEP = "1/step"
"""Unit of learning rates."""
BOUNDS = {Place.LOWER_END: ("<", "lower"), Place.UPPER_END: (">", "upper")}
"""What is known of a best value at an end of its axis."""


def table(trained: xr.Dataset, predicted: Mapping[str, xr.Dataset], along: str) -> list[str]:
    """The best rate of each rule at each value of an axis, and what is known of it."""
    over, near = trained.attrs["over"], f"within {100 * trained.attrs['within']:g} %"
    rows = [("rule", along, f"best {over}", "error", near, "edge", "theory", "reached")]
    for rule in trained["rule"].values.tolist():
        for value in trained[along].values:
            point = trained.sel({"rule": rule, along: value})
            theory = predicted[rule].sel(rule=rule) if rule in predicted else None
            if theory is not None and along in theory.dims:
                theory = theory.sel({along: value})
            rows.append(
                (
                    rule,
                    shown(value),
                    _rate(point),
                    f"{100 * float(point.error):.3g} %" if np.isfinite(point.error) else "-",
                    f"{float(point.lower):.3g} to {float(point.upper):.3g}",
                    "none"
                    if float(point.edge) == trained.attrs["ends"][1]
                    else f"{float(point.edge):.3g}",
                    "-" if theory is None else _rate(theory),
                    f"{float(point.value):.4g}",
                )
            )
    return output.aligned(rows, 10, 12, 14, 8, 22, 10)


def _rate(point: xr.Dataset) -> str:
    sign, _ = BOUNDS.get(Place(int(point.place)), ("", ""))
    return f"{sign}{float(point.best):.3g}"


def verdicts(
    trained: xr.Dataset, predicted: Mapping[str, xr.Dataset], laws: xr.Dataset, along: str
) -> list[str]:
    """What the best rate of each rule follows, in training and by theory, and where only a bound of
    it is known."""
    lines = []
    for rule in trained["rule"].values.tolist():
        law, sides = laws.sel(rule=rule), {rule: trained.sel(rule=rule)}
        off = f" (points up to {100 * float(law.off):.0f} % off)" if law.points else ""
        lines.append(f"{rule}: {law.verdict.item()}{off}")
        if rule in predicted:
            theory = sides[f"{rule}, theory"] = predicted[rule].sel(rule=rule)
            if along in theory.dims:
                lines.append(f"{rule}, theory: {transfer(theory, along).verdict.item()}")
        coarse = int((2 * trained.sel(rule=rule)["shape"] ** 2 > sides[rule]["error"] ** 2).sum())
        if coarse:
            over = trained.attrs["over"]
            lines.append(
                f"{rule}: at {coarse} of {trained.sizes[along]} values of {along}, most of the "
                f"error is that of the shape: try more values of {over}"
            )
        for name, side in sides.items():
            for code, (_, end) in BOUNDS.items():
                number, of = int((side["place"] == code).sum()), side["place"].size
                where = f" at {number} of {of} values of {along}" if of > 1 else ""
                if number:
                    over = trained.attrs["over"]
                    lines.append(
                        f"{name}: the best {over} lies at the {end} end of its axis{where}"
                    )
    return lines


def best_cell(dataset: xr.Dataset) -> list[str]:
    """The cell of a sweep whose mean over the seeds is best, in a line, and a line for each axis of
    learning rates at whose end it lies.

    Nothing for a sweep without an axis of numbers, or without a loss or an accuracy, or for more
    than `MOST` numbers.
    """
    runs = dataset["status"].dims
    axes = [str(dim) for dim in runs if dim != "seed" and dataset.sizes[dim] > 1]
    names = [n for n in recorded(dataset) if direction(n) and single(dataset, n)]
    name = "loss" if "loss" in names else next(iter(names), None)
    if name is None or all(worded(dataset, axis) for axis in axes) or dataset[name].size > MOST:
        return []
    values = at_end(valid(dataset[[name, "status"]]), name)
    seeds = dataset.sizes.get("seed", 1)
    if "seed" in values.dims:
        values = values.mean("seed", skipna=False)
    if not values.notnull().any():
        return []
    pick = values.argmin if direction(name) == "lowest" else values.argmax
    at = {str(dim): int(i) for dim, i in pick([*values.dims]).items()}
    cell = values.isel(at)
    along = {str(n): c for n, c in dataset.coords.items() if c.dims and {*c.dims} <= {*axes}}
    where = ", ".join(f"{n} = {shown(cell[n].item())}" for n in along if n != "time")
    mean = f", mean of {seeds} seeds" if seeds > 1 else ""
    lines = [f"best {name} {float(cell):.4g} at {where}{mean}"]
    for axis in axes:
        number = dataset.sizes[axis]
        if dataset[axis].attrs.get("units") != PER_STEP or number < FEWEST:
            continue
        order = np.argsort(dataset[axis].values)
        ends = {order[0]: ("lower", "smaller"), order[-1]: ("upper", "larger")}
        if at[axis] in ends:
            end, other = ends[at[axis]]
            value = shown(cell[axis].item())
            lines.append(
                f"the best {axis} lies at the {end} end of its axis ({value}); try {other} ones"
            )
    return lines
