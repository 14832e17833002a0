"""Figure of the emergence of sparse attention (Zucchet et al., arXiv:2505.17863)."""

import numpy as np
import pandas as pd
import xarray as xr

import dynsim
import odes
import sweeps

FALLEN = 0.8
"""Share of the starting loss at which the plateau is over."""
LENGTHS, SIZES, COPIES = (256, 512, 1024, 2048, 4096), (16, 64), (1, 2, 4, 8)
THEORIES = ("simulation", "plain", "printed")
RULES = {
    "sgd": (dynsim.sgd(1.0), 1500, "plain", 12_000),
    "momentum": (dynsim.sgd(0.1, momentum=0.9), 1500, "matched", 12_000),
    "adam": (dynsim.adam(0.005), 400, "matched-adam", 400),
}
"""Rule and steps of runs at T = d = 64, the flow of each rule, and its number of steps."""
LADDER = ((64, 64), (128, 64), (256, 64), (64, 128), (64, 256))
"""(T, d) at which the exponents of T and d are measured."""
BATCH = 32


def closed_form(length: int, d: int, B: int = 1) -> float:
    """Length of the plateau at a learning rate of 1."""
    return float(odes.sparse_attention.escape_time(dynsim.Retrieval(length, d, B)))


def lengths(losses: dict[str, xr.DataArray]) -> dict[str, xr.DataArray]:
    """Steps until each loss is `FALLEN` of its start."""
    starts = {name: loss.isel(time=0) for name, loss in losses.items()}
    return {name: sweeps.crossing(losses[name], FALLEN * start) for name, start in starts.items()}


def flows(steps: dict[str, xr.DataArray]) -> dict[int, xr.DataArray]:
    """Length of the plateau by the flow, over T, by d."""
    return {d: steps["length/plain"].sel(d=d) for d in SIZES} | {256: steps["wide/plain"]}


def law(lengths: dict[int, xr.DataArray]) -> tuple[float, float]:
    """Slope over sqrt(d) T through the origin, and R^2, of the lengths by d that are known."""
    x = np.concatenate([d**0.5 * each.length for d, each in lengths.items()])
    y = np.concatenate([*lengths.values()])
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    slope = x @ y / (x @ x)  # least squares through the origin
    left = ((y - slope * x) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return float(slope), float(1 - left)  # R^2


def exponent(steps: dict[str, xr.DataArray], name: str, axis: int) -> float:
    """Exponent of T (axis 0) or d (axis 1) in the plateau of the flow of a rule."""
    sizes = [size for size in LADDER if size[1 - axis] == 64]
    plateau = [float(steps[f"{name}/{T}-{d}"][0]) for T, d in sizes]
    return float(np.polyfit(np.log([size[axis] for size in sizes]), np.log(plateau), 1)[0])


def with_noise() -> float:
    """Length of the plateau of Adam at T = d = 64 by the theory at a finite batch."""
    rule, last, *_ = RULES["adam"]
    solve = odes.sparse_attention.finite_batch.solve
    run = solve(dynsim.Retrieval(), rule, range(last + 1), batch=BATCH)
    return float(run.crossing_time("loss", FALLEN * float(run["loss"][0])))


def tables(steps: dict[str, xr.DataArray]) -> list[pd.DataFrame]:
    """Length of the plateau over T, at d = 64; over B, at T = 256, d = 64; and by rule, at T = d =
    64."""
    by_length = xr.Dataset({"descent": steps["length/simulation"], "flow": flows(steps)[64]})
    by_length = by_length.drop_vars("d").to_dataframe()
    by_length["closed form"] = [closed_form(T, 64) for T in LENGTHS]
    by_copies = xr.Dataset({n: steps[f"copies/{n}"] for n in THEORIES}).to_dataframe()
    by_copies["closed form"] = [closed_form(256, 64, B) for B in COPIES]
    rules = {
        name: {
            "training": float(steps[f"{name}/simulation"].mean()),
            "sd": float(steps[f"{name}/simulation"].std(ddof=1)),
            "flow": float(steps[f"{name}/64-64"][0]),
            "exponent of T": exponent(steps, name, 0),
            "of d": exponent(steps, name, 1),
        }
        for name in RULES
    }
    by_rule = pd.DataFrame(rules).T.rename_axis("rule")
    by_rule.loc["adam", "finite batch"] = with_noise()
    return [by_length, by_copies, by_rule]
