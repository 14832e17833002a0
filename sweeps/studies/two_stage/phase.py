"""Where Q can be learned: noise against r, by the reduced ODE, by training and in closed form."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.decoding import Positive
from dynsim.precision import precision
from odes.two_stage import thresholds
from sweeps import output
from sweeps.output import drawing
from sweeps.output.cells import cell_edges
from sweeps.runner.labels import valid
from sweeps.runner.progress import count
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.options import Several, heat_map
from sweeps.studies.two_stage.claims import settings
from sweeps.systems.experiment import Experiment, experiment

ETA = 0.2
"""The dynamics depends only on eta-time and the noise tau; a large rate needs the fewest steps."""
LEARNED, UNLEARNED = 0.9, 0.6
"""AUC of Q above which, and below which, training counts as having learned it or not."""


@dataclasses.dataclass(frozen=True)
class TwoStagePhase:
    """Whether Q is learned, over the noise tau ~ sqrt(eta) of the weights and the shift r of Q.

    Attributes:
        tau: first and last noise, logarithmic.
        r: first and last shift, logarithmic.
        resolution: number of values on each axis for the reduced ODE.
        points: number of values on each axis for training.
        seeds: number of runs at each point.
        eta_time: eta-time at which runs are evaluated.
        decay: weight decay lambda.
        d: size of each of the two blocks of a token.
        length: tokens L of a prompt, the query included.
        out: folder for the figure, two_stage_phase.npz and .json, and the stored sweeps, from which
            the command resumes.
    """

    tau: tuple[float, float] = (0.06, 0.6)
    r: tuple[float, float] = (0.9, 2.2)
    resolution: Several = 25
    points: Several = 6
    seeds: int = 6
    eta_time: float = 200.0
    decay: Positive = 0.025
    d: int = 32
    length: int = 129
    out: Path = Path("out/two_stage_phase")

    def sweeps(self) -> dict[str, Sweep]:
        """The AUC of Q at the end over tau and r by the reduced ODE, and by training over seeds."""
        for name in ("tau", "r"):
            first, last = getattr(self, name)
            checks.real(name, [first, last], 0, open_minimum=True)
            if first >= last:
                raise ValueError(f"{name} = {first}, {last}: must increase")

        def axes(number: int) -> dict[str, Any]:
            return {name: {"logspace": [*getattr(self, name), number]} for name in ("tau", "r")}

        run, trained = self.training(), axes(self.points) | {"seed": {"range": self.seeds}}
        return {
            "ode": Sweep(run, axes(self.resolution), "ode", ("auc_Q",)),
            "simulation": Sweep(run, trained, "simulation", ("auc_Q", "auc_Q_signal")),
        }

    def training(self) -> Experiment:
        """The run that every point varies: one long stage at one rate."""
        first = 1 / (4 * self.decay)
        checks.real("eta_time", self.eta_time, first, open_minimum=True)
        span = (self.eta_time - first) * self.decay
        given = {name: getattr(self, name) for name in ("decay", "d", "length")}
        return experiment("two_stage", control="forever", eta_1=ETA, stage_2=span, **given)


class Verdict(NamedTuple):
    """Counts of training points: those within a grid cell of the finite-time line, and for the
    others those on each side and how many of them behave as predicted.

    The weights include noise, which reduces the AUC; their signal part shows what was learned.
    """

    near: int
    learned_side: int
    learned: int
    other_side: int
    unlearned: int


def run(config: TwoStagePhase) -> list[Path]:
    """Integrate, train (or resume), draw the plane, and count points that behave as predicted."""
    found = {name: valid(each) for name, each in computed(config).items()}
    theory = found["ode"]["auc_Q"].transpose("tau", "r")
    trained = found["simulation"].mean("seed").transpose("tau", "r")
    simulated, signal = trained["auc_Q"], trained["auc_Q_signal"]
    lines = boundaries(config, np.geomspace(*config.r, 200))
    line = boundaries(config, simulated["r"].values)["finite_time"]
    verdicts = {"weights": judge(simulated, line), "signal": judge(signal, line)}
    for name, v in verdicts.items():
        print(
            f"AUC of Q by the {name}: above {LEARNED} at {v.learned} of {v.learned_side} points on "
            f"the learned side of the finite-time line, below {UNLEARNED} at {v.unlearned} of "
            f"{v.other_side} on the other; {v.near} lie within a grid cell of it"
        )
    sides = {"theory": theory, "simulation": simulated}
    grid = {name: {"tau": auc["tau"], "r": auc["r"], "auc": auc} for name, auc in sides.items()}
    grid["simulation"]["auc_signal"] = signal
    arrays = {**grid, "lines": lines}
    report = {name: verdict._asdict() for name, verdict in verdicts.items()}
    figure = draw(config, theory, simulated, lines)
    return output.write(config.out, "two_stage_phase", figure=figure, arrays=arrays, report=report)


def draw(
    config: TwoStagePhase, theory: xr.DataArray, simulated: xr.DataArray, lines: Mapping[str, Any]
) -> Figure:
    """Draw the AUC of Q over the plane: the reduced ODE as a map, training as dots in the same
    colours, and the lines of theory."""
    figure, ((ax,),) = drawing.panels(1, 1, width=6, height=5.2)
    colours = {"vmin": 0.5, "vmax": 1, "cmap": "viridis"}
    mesh = heat_map(ax, theory, "log", **colours)
    tau, r = np.meshgrid(simulated["tau"], simulated["r"], indexing="ij")
    # A black edge within a white one is visible on all colours.
    for size, edge in ((110, "white"), (70, "black")):
        ax.scatter(tau, r, c=simulated, s=size, edgecolors=edge, linewidths=1.5, **colours)
    ax.set(xscale="log", yscale="log", xlabel=r"noise $\tau \propto \sqrt{\eta}$")
    ax.set_ylabel("shift $r$ of Q")
    limits = {name: cell_edges(theory[name], "log")[[0, -1]] for name in ("tau", "r")}
    for axis, (low, high) in zip((ax.xaxis, ax.yaxis), limits.values(), strict=True):
        ticks = (0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5)
        drawing.ticks(axis, (t for t in ticks if low <= t <= high))
    ax.set(xlim=limits["tau"], ylim=limits["r"])
    figure.colorbar(mesh, ax=ax, label="AUC of Q")
    labels = {
        "infinite_time": ("-", r"$g = 0$: the limit of long times"),
        "finite_time": ("--", rf"$gT = \ln(\sigma / r^2\tau)$, T = {config.eta_time:g}"),
    }
    for name, (dashes, label) in labels.items():
        style = {"color": "black", "lw": 1.6, "ls": dashes}
        ax.plot(lines[name], lines["r"], label=label, path_effects=drawing.cased(), **style)
    training = f"training, {count(config.seeds, 'run')} each"
    mark = drawing.key(training, marker="o", ms=9, mec="black", mfc="none", ls="")
    drawing.below(figure, [*ax.get_legend_handles_labels()[0], mark], 2)
    ax.set_title(rf"AUC of Q at $\eta$-time {config.eta_time:g} by the reduced ODE")
    return figure


def boundaries(config: TwoStagePhase, r: Float[np.ndarray, " R"]) -> dict[str, np.ndarray]:
    """Return the noise tau below which theory learns Q, for each `r`: in the limit of long times,
    and within `config.eta_time`."""
    task = settings(config.training())[0]
    ends = {"infinite_time": math.inf, "finite_time": config.eta_time}
    with precision("float64"):
        of = functools.partial(thresholds.finite_time_boundary, task, config.decay, r=r)
        return {"r": r, **{name: np.asarray(of(end)) for name, end in ends.items()}}


def judge(simulated: xr.DataArray, line: Float[np.ndarray, " R"]) -> Verdict:
    """Count the training points (tau, r) that behave as their side of the `line` predicts."""
    tau, auc = simulated["tau"].values, simulated.values
    cell = np.log(tau[1] / tau[0])
    distance = np.log(tau)[:, None] - np.log(line)
    near: Bool[np.ndarray, "T R"] = np.abs(distance) <= cell
    inside, outside = (distance < 0) & ~near, (distance > 0) & ~near
    right = inside & (auc > LEARNED), outside & (auc < UNLEARNED)
    counted = (near, inside, right[0], outside, right[1])
    return Verdict(*(int(points.sum()) for points in counted))
