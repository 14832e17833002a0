"""`dynsim figure edge`: the sharpness of training at the edge of stability, next to gradient flow
and central flow; and a map of where training is stable, at the edge, catapults or diverges."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from annotated_types import Ge
from jax.tree_util import KeyPath
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure as Drawing
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import uniform_filter1d

import dynsim
from dynsim import Problem, Status, checks
from dynsim.decoding import Positive
from dynsim.problem.sharpness import EDGE
from dynsim.training.recording import PARAMS, PRECONDITIONED
from sweeps.figures import Figure, Picture
from sweeps.output import drawing
from sweeps.runner.spec import Sweep
from sweeps.studies.options import Style, axis
from sweeps.studies.phase.regions import BY_EDGE, Stability, stability_of
from sweeps.systems.experiment import Experiment, experiment

SMOOTH, LONG = 20, 500
"""Steps over which training is averaged, as its oscillations change sign at every step, and over
which losses are, as oscillations of small networks come in bursts."""
CATAPULT = 4.0
"""Preconditioned sharpness at the start from which a two-layer linear network does not recover
(Lewkowycz et al. 2020, arXiv:2003.02218)."""
THEORIES = {"training": "simulation", "flow": "flow", "central": "central"}
LOSS_OF = {"training": "loss", "flow": "loss", "central": "averaged_loss"}
"""The name of the loss averaged over oscillations, for each curve."""


class Begun(Problem):
    """A problem whose runs begin at given weights."""

    problem: Problem
    weights: PyTree

    def init(self, key: PRNGKeyArray) -> PyTree:
        return self.weights

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        return self.problem.population_loss(params)


class Edge(Figure):
    """Follow the sharpness at several learning rates, against the edge of stability: training on
    all of the data, gradient flow and central flow; and map where training oscillates.

    Attributes:
        run: the run, by sgd without momentum; all of its batch is a training set, drawn once.
        rates: learning rates, from below the edge to beyond.
        scales: axis of the map across that of the rates, NAME:FIRST:LAST; best the setting that
            scales the starting weights.
        resolution: number of points on each axis of the map; 0 for none.
        before: number of steps at the smallest rate after which all runs but the map's begin, to
            skip plateaus, which descent with large steps leaves at other times than flows do.
        rtol: relative tolerance of the gradient flow; larger for a loss with kinks.
    """

    NAME = "edge"
    RUN: ClassVar[Mapping[str, Any]] = {"problem": "central-flows"}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Edge.RUN))
    rates: tuple[Positive, ...] = (0.1, 0.3, 0.4, 0.5, 0.6)
    scales: str = "scale:0.3:3"
    resolution: Annotated[int, Ge(0)] = 24
    before: Annotated[int, Ge(0)] = 0
    rtol: Positive | None = None

    @functools.cached_property
    def full_batch(self) -> Experiment:
        """The run on all of its data."""
        run = self.run
        if not math.isinf(run.batch):
            # Not key 0, from which a run of the default seed draws its weights.
            fixed = dynsim.full_batch(run.built[0], jax.random.key(1), int(run.batch))
            run = dataclasses.replace(run, problem=fixed)
        return dataclasses.replace(run, batch=math.inf)

    @functools.cached_property
    def begun(self) -> Experiment:
        """The same run, from the weights after `before` steps at the smallest rate."""
        if not self.before:
            return self.full_batch
        problem, key = self.full_batch.built[0], jax.random.key(self.run.seed)
        options: dict[str, Any] = {"steps": self.before, "times": [self.before], "record": PARAMS}
        run = dynsim.train(problem, dynsim.sgd(min(self.rates)), key, batch=math.inf, **options)
        # A record has the arrays of the weights by name, `init` their tree.
        like = jax.eval_shape(problem.init, key)
        weights = jax.tree.map_with_path(lambda path, _: run[recorded_as(path)][0], like)
        return dataclasses.replace(self.full_batch, problem=Begun(problem, weights))

    def sweeps(self) -> dict[str, Sweep]:
        """Training and both flows at all rates, recorded at every step, and the runs of the map."""
        if (rule := self.run.rule.build().name) != "sgd":
            raise ValueError(f"rule = {rule}: must be sgd without momentum")
        rates, times = sorted(self.rates), range(checks.steps("steps", self.run.steps) + 1)
        runs: dict[str, Sweep] = {}
        for name, loss in LOSS_OF.items():
            theory, rtol = THEORIES[name], self.rtol if name == "flow" else None
            record = tuple(dict.fromkeys(("loss", loss, PRECONDITIONED, PARAMS)))
            runs[name] = Sweep(self.begun, {"eta": rates}, theory, record, tuple(times), rtol=rtol)
        if self.resolution:
            name, values = axis(self.scales, self.resolution, self.run)
            axes = {name: values, "eta": np.geomspace(rates[0], 4 * rates[-1], self.resolution)}
            change = {"run": self.full_batch, "axes": axes, "record": ("loss", PRECONDITIONED)}
            for name in ("training", "flow"):
                runs[f"map-{name}"] = dataclasses.replace(runs[name], **change, times=60)
        return runs

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Draw sharpness above loss, a column per rate, and below them the map if there is one."""
        regions = map_of(data) if self.resolution else None
        styles: dict[str, Style] = {
            "flow": {"label": "gradient flow", "ls": ":", "lw": 1.8, "color": drawing.colour(1)},
            "central": {"label": "central flow", "ls": "--", "lw": 1.4, "color": "k"},
        }
        rates, table = data["training"].eta.values, []
        size = (max(2.1 * len(rates), 6), 5.5 if regions is None else 9.5)
        figure = plt.figure(figsize=size, layout="constrained")
        curves_part: Drawing | SubFigure = figure
        if regions is not None:
            rows = figure.subfigures(2, 1, squeeze=False, height_ratios=(5.5, 4))
            curves_part, map_part = rows[:, 0]
        axes = curves_part.subplots(2, len(rates), sharex=True, sharey="row", squeeze=False)
        for (upper, lower), rate in zip(axes.T, rates, strict=True):
            runs = {name: data[name].sel(eta=rate) for name in LOSS_OF}
            ended = {name: Status(int(run.status)).name for name, run in runs.items()}
            for ax, names in ((upper, dict.fromkeys(LOSS_OF, PRECONDITIONED)), (lower, LOSS_OF)):
                curves = {name: runs[name][names[name]] for name in LOSS_OF}
                times, values = curves["training"].time.values, curves["training"].values
                ax.plot(times, values, color="0.6", lw=0.6, label="training")
                # Means are drawn at the middle of their window.
                mean, blue = averaged(values, SMOOTH), {"color": drawing.colour(0), "lw": 1.6}
                ax.plot(times[SMOOTH // 2 :][: len(mean)], mean, label="its mean", **blue)
                for name, style in styles.items():
                    ax.plot(curves[name].time, curves[name], **style)
            upper.axhline(EDGE, color="0.4", lw=0.8)
            failed = "\ndiverges" * (ended["training"] != "OK")
            drawing.finished(upper, title=rf"$\eta$ = {rate:g}{failed}")
            drawing.finished(lower, yscale="log")
            lower.xaxis.set_major_locator(MaxNLocator(2))
            off = {n: theory_errors(runs["training"], runs[n], LOSS_OF[n]) for n in styles}
            mean = sharpness_of_mean(self.full_batch.built[0], runs["training"])
            table.append({"eta": rate, "ended": ended, "sharpness": mean, **off})
        # Runs that diverge would flatten all other curves.
        axes[0, 0].set_ylim(0, 2 * EDGE)
        drawing.outer(axes, "optimiser steps", "loss")
        axes[0, 0].set_ylabel(r"$\eta \times$ sharpness")
        curves_part.legend(handles=axes[0, 0].get_lines()[:4], loc="outside lower center", ncols=4)
        figure.suptitle(f"{self.run.about}: full-batch descent (grey), {SMOOTH}-step mean (blue)")
        text = pd.json_normalize(table).to_string(index=False, float_format="{:.3f}".format)
        report: dict[str, Any] = {"run": self.run.about, "rates": table}
        arrays = {name: data[name].variables for name in LOSS_OF}
        if regions is not None:
            legend = BY_EDGE.legend.values()
            cmap = ListedColormap([colour for _, colour in legend])
            norm = BoundaryNorm(np.arange(len(legend) + 1) - 0.5, len(legend))
            maps = map_part.subplots(1, 2, sharey=True)
            scale, eta = regions.theory.dims
            across: Style = {"xscale": "log", "xlabel": r"learning rate $\eta$"}
            for ax, name in zip(maps, ("theory", "training"), strict=True):
                ax.pcolormesh(regions[eta], regions[scale], regions[name], cmap=cmap, norm=norm)
                drawing.finished(ax, title=f"by {name}", **across)
                drawing.logarithmic(ax, "y", regions[scale].values)
            maps[0].set_ylabel("scale of the starting weights")
            keys = [drawing.key(n, color=c, marker="s", ls="") for n, c in legend]
            map_part.legend(handles=keys, loc="outside right center")
            report["map"], arrays["map"] = region_shares(regions), regions.variables
            text += "".join(f"\n{name}: {share:.1%}" for name, share in report["map"].items())
        return Picture(figure, arrays, text, report=report)


def recorded_as(path: KeyPath) -> str:
    """Return the name under which a run records the weights at a path of the parameter tree."""
    return ".".join((PARAMS, *(jax.tree_util.keystr((key,), simple=True) for key in path)))


def averaged(values: Float[np.ndarray, "S ..."], window: int) -> Float[np.ndarray, "R ..."]:
    """Moving averages over `window` steps."""
    # Of windows that lie inside of the run: the filter pads the others.
    begin = window // 2
    means = uniform_filter1d(np.asarray(values, np.float64), window, axis=0)
    return means[begin : len(values) - (window - begin) + 1]


def theory_errors(training: xr.Dataset, theory: xr.Dataset, loss: str) -> dict[str, float]:
    """Return the `sharpness` of a theory and the distance `apart` of its weights from those of
    training, averaged over `SMOOTH` steps, both means over the second half of the run; and the
    largest difference of the `loss`, averaged over `LONG` steps, over its start."""
    if int(training.status) != Status.OK:
        return dict.fromkeys(("sharpness", "apart", "loss"), np.nan)
    half = len(training.time) // 2

    def weights(run: xr.Dataset) -> Float[np.ndarray, "S P"]:
        names = (name for name in run.data_vars if str(name).startswith(PARAMS))
        flat = [run[name].values.reshape(len(run.time), -1) for name in names]
        return averaged(np.concatenate(flat, axis=1), SMOOTH)

    # At most half of the run, which bursts of oscillations may outlast.
    window = min(LONG, half)
    losses = averaged(theory[loss].values, window) - averaged(training["loss"].values, window)
    apart = np.linalg.norm(weights(theory) - weights(training), axis=1)
    return {
        "sharpness": float(np.mean(theory[PRECONDITIONED].values[half:])),
        "apart": float(np.mean(apart[half - SMOOTH :])),
        "loss": float(np.abs(losses).max() / training["loss"].values[0]),
    }


def sharpness_of_mean(problem: Problem, training: xr.Dataset, points: int = 10) -> float:
    """Mean preconditioned sharpness at weights averaged over `SMOOTH` steps, at some times in the
    second half of the run. At single steps, on either side of the valley, it is larger."""
    if int(training.status) != Status.OK:
        return np.nan
    half = len(training.time) // 2
    times = np.linspace(half, len(training.time) - SMOOTH, points, dtype=int)

    def mean(path: KeyPath, leaf: Any) -> np.ndarray:
        # Integers, such as labels that a problem keeps among its weights, do not move.
        if not eqx.is_inexact_array(leaf):
            return np.broadcast_to(leaf, (points, *np.shape(leaf)))
        return averaged(training[recorded_as(path)].values, SMOOTH)[times].astype(np.float32)

    means = jax.tree.map_with_path(mean, problem.init(jax.random.key(0)))
    eta = np.full(points, float(training.eta), np.float32)
    # Recorded at step 0, before the only step.
    options = {"steps": 1, "times": [0], "batch": math.inf, "record": PRECONDITIONED}
    train = lambda init, eta: dynsim.train(problem, dynsim.sgd(eta), init=init, **options)  # noqa: E731
    return float(np.mean(jax.jit(jax.vmap(train))(means, eta)[PRECONDITIONED]))


def map_of(data: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Map `Stability` as trained, and as predicted from the sharpness along the gradient flow."""
    trained = stability_of(data["map-training"])
    sharpness = data["map-flow"][PRECONDITIONED].transpose(*trained.dims, ...).values
    start, most = sharpness[..., 0], np.max(sharpness, axis=-1)
    # The first rule that holds: a start beyond 4 does not recover, one beyond 2 catapults, and a
    # flow that sharpens to 2 oscillates there.
    regions = Stability.DIVERGED, Stability.CATAPULT, Stability.EDGE
    beyond = [start >= CATAPULT, start >= EDGE, most >= EDGE]
    theory = trained.copy(data=np.select(beyond, regions, Stability.STABLE))
    return xr.Dataset({"training": trained, "theory": theory})


def region_shares(regions: xr.Dataset) -> dict[str, float]:
    """Shares of the map where theory is right, and of the runs on a side of the predicted edge."""
    training, below = regions.training, regions.theory == Stability.STABLE
    diverged = training == Stability.DIVERGED
    return {
        "predicted region": float((training == regions.theory).mean()),
        "stable below the edge": float((training == Stability.STABLE).where(below).mean()),
        "diverged beyond the edge": float(diverged.where(~below).mean()),
        "diverged below the edge": float(diverged.where(below).mean()),
    }
