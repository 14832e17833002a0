"""Learning rates control the transition time and the final sparsity (Scan and Snap, section 6).

The figure compares three consequences of Theorem 4 for the growth bound B with training and the
exact flow: a larger eta_Y makes the transition earlier; at fixed eta_Z, a smaller eta_Y gives a
larger final B and sparser attention; so does scaling up both rates.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import xarray as xr
from annotated_types import Ge
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import Task
from dynsim.decoding import Count
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.spec import Sweep
from sweeps.studies import computed, on_task
from sweeps.studies.options import Several
from sweeps.studies.transitions.peaks import measured_peak, over_points, predicted_stage
from sweeps.systems.experiment import experiment

DENSE = 4
"""Points of a theory line per trained rate."""
FLOW: dict[str, Any] = {"lw": 1.2, "path_effects": drawing.cased(0.5)}
"""Lines of the flow, with a white edge so that they show on those of training."""
STAGES = ("rise_end", "peak", "snap")


class Control(NamedTuple):
    """Which rates vary, by a factor of 100 in all cases.

    Attributes:
        title: title of its column.
        ends: smallest and largest value of each rate.
        symbol: symbol of the varied rate.
        gain: sign of the slope of the final logit gain according to the paper.
    """

    title: str
    ends: Mapping[str, tuple[float, float]]
    symbol: str
    gain: int


CONTROLS = {
    "eta_y": Control(
        r"$\eta_Y$ at fixed $\eta_Z$", {"eta_y": (0.1, 10), "eta_z": (0.1, 0.1)}, r"\eta_Y", -1
    ),
    "eta_z": Control(
        r"$\eta_Z$ at fixed $\eta_Y$", {"eta_y": (1, 1), "eta_z": (0.02, 2)}, r"\eta_Z", 1
    ),
    "both": Control(
        r"both at $\eta_Y = 10\,\eta_Z$", {"eta_y": (0.1, 10), "eta_z": (0.01, 1)}, r"\eta_Y", 1
    ),
}
THEORIES = {"simulation": "simulation", "symmetric": "exact flow", "eq10": "Eq. 10"}


@dataclasses.dataclass(frozen=True)
class Snap:
    """How eta_Y and eta_Z set the time of the transition and the final sparsity: on Syn-Small or a
    task of your own.

    Attributes:
        rates: number of values of a rate in training.
        seeds: number of runs at each of these values.
        steps: optimiser steps per run.
        task: sequence classes; Syn-Small if omitted.
        out: folder for the figure, snap.csv and the stored sweeps, from which the command resumes.
    """

    rates: Several = 5
    seeds: Count = 4
    steps: Annotated[int, Ge(10)] = 1000
    task: Task | None = None
    out: Path = Path("out/snap")

    def sweeps(self) -> dict[str, Sweep]:
        """All sweeps of the figure, by control and theory."""
        pairs = itertools.product(CONTROLS, THEORIES)
        return {f"{name}-{theory}": variant(self, name, theory) for name, theory in pairs}


def run(config: Snap) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure and its table."""
    stored, wanted = computed(config), config.sweeps()
    found = {
        (name, theory): with_stages(wanted[each], valid(stored[each]))
        for name, theory in itertools.product(CONTROLS, THEORIES)
        for each in [f"{name}-{theory}"]
    }
    text = table(found)
    print(text)
    arrays = {"/".join(key): dataset.variables for key, dataset in found.items()}
    return output.write(config.out, "snap", figure=draw(found), arrays=arrays, text={"csv": text})


def variant(config: Snap, name: str, theory: str) -> Sweep:
    """The sweep of one control; a theory has `DENSE` times as many rates as training."""
    ends = CONTROLS[name].ends
    size = config.rates if theory == "simulation" else DENSE * (config.rates - 1) + 1
    varied = {f: np.geomspace(*e, size).tolist() for f, e in ends.items() if e[0] != e[1]}
    fixed = {field: float(e[0]) for field, e in ends.items() if e[0] == e[1]}
    seeds = {"seed": {"range": config.seeds}} if theory == "simulation" else {}
    sweep = Sweep(
        experiment(steps=config.steps).at(fixed),
        {**varied, **seeds},
        theory=theory,
        record=("entropy", "z_top_distinct", "speed", *(("B",) if theory == "eq10" else ())),
        times=60,
        zip=(tuple(varied),) if len(varied) > 1 else (),
    )
    return on_task(sweep, config.task)


def with_stages(sweep: Sweep, stored: xr.Dataset) -> xr.Dataset:
    """Average over classes along a dimension `rate`, and add the predicted t0', peak and t0, the
    measured peak (optimiser steps) and both rates."""
    extra = {name: over_points(sweep, lambda t, n=name: predicted_stage(t, n)) for name in STAGES}
    extra["measured_peak"] = measured_peak(stored)
    for field in ("eta_y", "eta_z"):
        extra[f"{field}_used"] = over_points(sweep, lambda t, f=field: t.setting(f))
    return stored.mean("class").assign(extra).rename({sweep.dims[0].name: "rate"})


def final(dataset: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(R,) mean and standard deviation of the value at the last step (ddof 1; 0 without seeds)."""
    values = dataset[name].isel(time=-1)
    if "seed" not in values.dims:
        values = values.expand_dims("seed")
    spread = values.std("seed", ddof=min(1, values.sizes["seed"] - 1))
    return values.mean("seed").values, spread.values


def slope(rates: np.ndarray, values: np.ndarray) -> float:
    """Exponent p of values ~ rates^p, both (R,) and positive, by least squares of logarithms."""
    return float(np.polyfit(np.log(rates), np.log(values), 1)[0])


def table(found: Mapping[tuple[str, str], xr.Dataset]) -> str:
    """CSV with one line per control, theory and trained rate: transition times and final values."""
    columns = ["control", "theory", "eta_y", "eta_z", *STAGES, "measured_peak"]
    lines = [[*columns, "entropy", "entropy_sd", "gain", "gain_sd", "B"]]
    for (name, theory), ds in found.items():
        every = 1 if theory == "simulation" else DENSE
        peak = ds.measured_peak
        peak = peak.mean("seed") if "seed" in peak.dims else peak
        numbers = [ds.eta_y_used, ds.eta_z_used, *(ds[stage] for stage in STAGES), peak]
        values = [*final(ds, "entropy"), *final(ds, "z_top_distinct")]
        values.append(final(ds, "B")[0] if "B" in ds else np.full(ds.sizes["rate"], np.nan))
        rows = np.stack([*(n.values for n in numbers), *values], axis=1)[::every]
        lines += [[name, theory, *(f"{value:.5g}" for value in row)] for row in rows]
    return output.as_csv(lines)


def draw(found: Mapping[tuple[str, str], xr.Dataset]) -> Figure:
    """Draw a column for each control: entropy over time, and final logit gain against the rate."""
    figure, axes = drawing.panels(2, 3, height=3.6, sharey="row")
    for column, name in zip(axes.T, CONTROLS, strict=True):
        data = {theory: found[name, theory] for theory in THEORIES}
        plot_curves(data, CONTROLS[name], ax=column[0])
        plot_final(data, CONTROLS[name], ax=column[1])
    # Room for the legends below the curves.
    axes[1, 0].set_ylim(bottom=axes[1, 0].get_ylim()[0] / 6)
    axes[0, 0].set_ylabel("entropy on distinct tokens (nat)")
    axes[1, 0].set_ylabel("final gain of the top distinct logit")
    marks = [
        drawing.key("simulation (mean), s.d. as band", lw=2.5),
        drawing.key("exact flow", ls="--", **FLOW),
        drawing.key("$t_0'$ to $t_0$ in closed form", marker="|"),
        drawing.key("peak of $\\gamma$ in closed form", marker="o", ls=""),
    ]
    drawing.below(figure, marks, 4)
    return figure


def plot_curves(data: Mapping[str, xr.Dataset], control: Control, ax: Axes) -> Axes:
    """Draw entropy over time, with a colour and a bar from t0' to t0 for each trained rate."""
    trained, flow = data["simulation"], data["symmetric"].isel(rate=slice(None, None, DENSE))
    colours = drawing.shades(trained.sizes["rate"])
    for i, colour in enumerate(colours):
        one = trained.isel(rate=i, time=slice(1, None))
        label = f"${control.symbol}$ = {float(one.rate):.3g}"
        style = {"color": colour, "lw": 2.5, "label": label}
        drawing.band(ax, one.time, one.entropy, style)
        ax.plot(flow.time[1:], flow.entropy.isel(rate=i)[1:], "--", color=colour, **FLOW)
        height = 0.04 + 0.03 * i
        across = ax.get_xaxis_transform()
        ends = [float(one.rise_end), float(one.snap)]
        ax.plot(ends, [height] * 2, "-|", color=colour, transform=across)
        ax.plot(float(one.peak), height, "o", ms=4, color=colour, transform=across)
    ax.set(xscale="log", xlim=(0.2, float(trained.time[-1])))
    place = {"loc": "center left"}
    return drawing.finished(ax, place, xlabel="optimiser steps", title=control.title)


def plot_final(data: Mapping[str, xr.Dataset], control: Control, ax: Axes) -> Axes:
    """Draw the final logit gain of the top distinct token against the rate: simulation, exact flow,
    and Eq. 10 with its growth bound B, an upper bound of the gain (Theorem 3). Slopes are
    exponents."""
    styles = {"simulation": "o", "symmetric": "--", "eq10": ":"}
    colours = ("k", drawing.colour(0), drawing.colour(1))
    for (theory, title), colour in zip(THEORIES.items(), colours, strict=True):
        rate = data[theory].rate.values
        mean, spread = final(data[theory], "z_top_distinct")
        label = f"{title}: slope ${slope(rate, mean):+.2f}$"
        how = {"fmt": styles[theory], "color": colour, "capsize": 2, "label": label}
        ax.errorbar(rate, mean, spread if spread.any() else None, **how)
    B = final(data["eq10"], "B")[0]
    label = f"bound B, Eq. 10: slope ${slope(rate, B):+.2f}$"
    ax.plot(rate, B, "-", color=colours[-1], lw=1, label=label)
    word = "rises" if control.gain > 0 else "falls"
    ax.set(xscale="log", yscale="log", xlabel=f"${control.symbol}$", title=f"paper: final B {word}")
    return drawing.finished(ax, {})
