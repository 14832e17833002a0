"""Where Q can be learned: noise against r, by the reduced ODE, by training and in closed form."""

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.decoding import Positive
from dynsim.precision import precision
from odes.two_stage import thresholds
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.labels import valid
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import begin
from sweeps.studies.options import Several, cell_edges
from sweeps.studies.two_stage.runs import settings
from sweeps.systems.experiment import Experiment, experiment

ETA = 0.2
"""The dynamics depends on eta-time and on the noise tau, so that a large rate shows it soonest."""
LEARNED, UNLEARNED = 0.9, 0.6
"""AUC of Q above which, and below which, training counts as having learned it or not."""


@dataclasses.dataclass(frozen=True)
class TwoStagePhase:
    """Is Q learned, over the noise tau ~ sqrt(eta) of the weights and the shift r of Q.

    Attributes:
        tau: first and last noise, logarithmic.
        r: first and last shift, logarithmic.
        resolution: number of values of either, for the reduced ODE.
        points: number of values of either, for training.
        seeds: number of runs at each point.
        eta_time: eta-time after which is looked.
        decay: weight decay lambda.
        d: size of a block of a token.
        length: tokens L of a prompt, the query included.
        out: directory for the picture, two_stage_phase.npz and .json, and the stored sweeps,
            which resume.
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

    def training(self) -> Experiment:
        """The run of which every point is a variation: one long stage at one rate."""
        first = 1 / (4 * self.decay)
        checks.real("eta_time", self.eta_time, first, open_minimum=True)
        return experiment(
            "two_stage",
            control="forever",
            eta_1=ETA,
            decay=self.decay,
            stage_2=(self.eta_time - first) * self.decay,
            d=self.d,
            length=self.length,
        )


class Plane(NamedTuple):
    """AUC of Q at the end, (tau, r), as NaN where no run ended well."""

    tau: Float[np.ndarray, " T"]
    r: Float[np.ndarray, " R"]
    auc: Float[np.ndarray, "T R"]


class Lines(NamedTuple):
    """Noise tau below which Q is learned by theory, over r: in the limit of long times, and within
    the horizon."""

    r: Float[np.ndarray, " F"]
    infinite: Float[np.ndarray, " F"]
    finite: Float[np.ndarray, " F"]


class Verdict(NamedTuple):
    """Points of training against the finite-time line: how many lie within a grid cell of it,
    and of the others how many there are on either side and how many behave as it says.

    By the weights, what the noise leaves of Q is asked; by their signal part, what was learned.
    """

    near: int
    learned_side: int
    learned: int
    other_side: int
    unlearned: int


def run(config: TwoStagePhase) -> list[Path]:
    """Integrate, train (or resume), draw the plane, and count the points on their side."""
    begin(config)
    for name in ("tau", "r"):
        first, last = getattr(config, name)
        checks.real(name, [first, last], 0, open_minimum=True)
        if first >= last:
            raise ValueError(f"{name} = {first}, {last}: must increase")
    config.training().check()
    theory = plane(compute(config, "ode", config.resolution), "auc_Q")
    trained = compute(config, "simulation", config.points)
    simulated, signal = (plane(trained, name) for name in ("auc_Q", "auc_Q_signal"))
    fine = np.geomspace(*config.r, 200)
    infinite, finite = boundaries(config, fine)
    line = boundaries(config, simulated.r)[1]
    verdicts = {"weights": judge(simulated, line), "signal": judge(signal, line)}
    for name, v in verdicts.items():
        print(
            f"AUC of Q by the {name}: above {LEARNED} at {v.learned} of {v.learned_side} points on "
            f"the learned side of the finite-time line, below {UNLEARNED} at {v.unlearned} of "
            f"{v.other_side} on the other; {v.near} lie within a grid cell of it"
        )
    arrays = {"theory": theory, "simulation": {**simulated._asdict(), "auc_signal": signal.auc}}
    arrays["lines"] = {"r": fine, "infinite_time": infinite, "finite_time": finite}
    report = {name: verdict._asdict() for name, verdict in verdicts.items()}
    figure = draw(config, theory, simulated, Lines(fine, infinite, finite))
    return output.write(config.out, "two_stage_phase", figure=figure, arrays=arrays, report=report)


def draw(config: TwoStagePhase, theory: Plane, simulated: Plane, lines: Lines) -> Figure:
    """The plane, with the lines of theory on it."""
    figure, ((ax,),) = drawing.panels(1, 1, width=6, height=4.8)
    plot(theory, simulated, ax=ax)
    ax.plot(lines.infinite, lines.r, color="white", lw=2, label=r"$g = 0$: the limit of long times")
    ax.plot(
        lines.finite, lines.r, color="white", lw=2, ls="--",
        label=rf"$gT = \ln(\sigma / r^2\tau)$, T = {config.eta_time:g}",
    )  # fmt: skip
    runs = count(config.seeds, "run")
    ax.set_title(rf"Q at $\eta$-time {config.eta_time:g}: reduced ODE, dots: {runs}")
    ax.legend(loc="lower right", facecolor="grey", labelcolor="white")
    return figure


def compute(config: TwoStagePhase, engine: str, number: int) -> xr.Dataset:
    """What an engine says of `number` by `number` points, NaN where a run did not end well."""
    axes: dict[str, dict[str, Any]] = {
        "tau": {"logspace": [*config.tau, number]},
        "r": {"logspace": [*config.r, number]},
    }
    record = ("auc_Q",)
    if engine == "simulation":
        axes["seed"] = {"range": config.seeds}
        record = ("auc_Q", "auc_Q_signal")
    sweep = Sweep(config.training(), axes, engine, record)
    return valid(run_sweep(sweep, config.out / engine)).load()


def plane(data: xr.Dataset, observable: str) -> Plane:
    """An AUC of Q over the points of `data`; of training the mean over seeds."""
    found = data[observable]
    if "seed" in found.dims:
        found = found.mean("seed")
    values = found.transpose("tau", "r").values
    return Plane(found["tau"].values, found["r"].values, values)


def boundaries(
    config: TwoStagePhase, r: Float[np.ndarray, " R"]
) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Noise tau below which Q is learned, for every r: in the limit of long times, and within
    the end."""
    task = settings(config.training())[0]
    with precision("float64"):
        infinite, finite = (
            np.asarray(thresholds.finite_time_boundary(task, config.decay, eta_time, r))
            for eta_time in (math.inf, config.eta_time)
        )
    return infinite, finite


def judge(simulated: Plane, line: Float[np.ndarray, " R"]) -> Verdict:
    """Count the points of training that behave as their side of the `line` says."""
    cell = np.log(simulated.tau[1] / simulated.tau[0])
    distance = np.log(simulated.tau)[:, None] - np.log(line)
    near: Bool[np.ndarray, "T R"] = np.abs(distance) <= cell
    inside, outside = (distance < 0) & ~near, (distance > 0) & ~near
    return Verdict(
        int(near.sum()),
        int(inside.sum()),
        int((inside & (simulated.auc > LEARNED)).sum()),
        int(outside.sum()),
        int((outside & (simulated.auc < UNLEARNED)).sum()),
    )


def plot(theory: Plane, simulated: Plane, ax: Axes) -> Axes:
    """AUC of Q: the reduced ODE as a map, training as dots in the same colours."""
    edges = cell_edges(theory.tau, "log"), cell_edges(theory.r, "log")
    mesh = ax.pcolormesh(*edges, theory.auc.T, vmin=0.5, vmax=1, cmap="viridis", rasterized=True)
    tau, r = np.meshgrid(simulated.tau, simulated.r, indexing="ij")
    ax.scatter(tau, r, c=simulated.auc, vmin=0.5, vmax=1, cmap="viridis", s=70, edgecolors="white")
    ax.set(xscale="log", yscale="log", xlabel=r"noise $\tau \propto \sqrt{\eta}$")
    ax.set_ylabel("shift $r$ of Q")
    for axis, ends in ((ax.xaxis, edges[0]), (ax.yaxis, edges[1])):
        ticks = (0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5)
        drawing.ticks(axis, (t for t in ticks if ends[0] <= t <= ends[-1]))
    ax.set_xlim(edges[0][0], edges[0][-1])
    ax.set_ylim(edges[1][0], edges[1][-1])
    ax.figure.colorbar(mesh, ax=ax, label="AUC of Q")
    return ax
