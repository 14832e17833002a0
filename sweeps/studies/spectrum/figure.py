"""Which singular directions carry which component; the same numbers for a real checkpoint."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dynsim.decoding import Count
from dynsim.precision import AnyArray
from dynsim.two_stage.rank_truncation import RankCurves
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.progress import count
from sweeps.studies.computing import begin
from sweeps.studies.spectrum import panels as checkpoint
from sweeps.studies.spectrum.checkpoint import Checkpoint
from sweeps.studies.two_stage import claims
from sweeps.studies.two_stage.experiment import runs
from sweeps.studies.two_stage.panels import BEST, P, Q
from sweeps.studies.two_stage.runs import settings
from sweeps.systems.experiment import Experiment, experiment

LARGEST = 12
"""Number of directions drawn one by one: what comes after is noise."""


@dataclasses.dataclass(frozen=True)
class Spectrum(Checkpoint):
    """Losses and accuracies after keeping or dropping singular directions of the trained weights,
    at the end of either stage; or the singular values of a .safetensors checkpoint.

    Attributes:
        checkpoint: a .safetensors file, a .safetensors.index.json, or a directory with either; if
            left out, two-stage training is examined.
        run: two-stage training.
        seeds: number of runs of it.
        out: directory for the picture, spectrum.npz and .json, and the stored sweep, which resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "two_stage"}

    checkpoint: Path | None = None
    run: Experiment = dataclasses.field(default_factory=lambda: experiment("two_stage"))
    seeds: Count = 6


def run(config: Spectrum) -> list[Path]:
    """Examine the checkpoint, or run (or resume) two-stage training and examine that."""
    if config.checkpoint is not None:
        return checkpoint.run(config)
    begin(config)
    settings(config.run)
    config.run.check()
    # Of the run itself the ends of the stages alone are looked at.
    found = runs(config.run, config.seeds, 2, config.out / "simulation")
    verdicts = claims.spectral(found)
    print(f"{count(found.count, 'run')} of {config.run.about}\n{claims.table(verdicts)}")
    curves = {
        stage: [claims.truncations(found, at, i) for i in range(found.count)]
        for stage, at in {"stage 1": found.switch, "stage 2": -1}.items()
    }
    arrays = {
        stage.replace(" ", "-"): jax.tree.map(lambda *runs: np.stack(runs), *of_stage)
        for stage, of_stage in curves.items()
    }
    report, figure = claims.as_records(verdicts), draw(config.run.about, curves)
    return output.write(config.out, "spectrum", figure=figure, arrays=arrays, report=report)


def draw(about: str, found: Mapping[str, Sequence[RankCurves]]) -> Figure:
    """A row for each stage, with the curves of every run `about` something."""
    figure, axes = drawing.panels(2, 3)
    for row, (stage, curves) in enumerate(found.items()):
        plot_singular_values(curves, ax=axes[row, 0]).set_title(f"end of {stage}")
        plot_without(curves, ax=axes[row, 1])
        plot_alone(curves, ax=axes[row, 2])
    figure.suptitle(
        rf"singular directions of diag($\overline{{W}}$, $\overline{{V}}$), {about}, "
        f"mean ± sd of {count(len(curves), 'run')}"
    )
    return figure


def plot_singular_values(curves: Sequence[RankCurves], ax: Axes) -> Axes:
    """The largest singular values of every run, coloured by the block that they belong to."""
    for i, c in enumerate(curves):
        for block, (name, place) in enumerate({"W": P, "V": Q}.items()):
            ranks = np.flatnonzero(c.block[:LARGEST] == block)
            label = rf"of $\overline{{{name}}}$" if i == 0 else None
            style = {"ms": 4, "color": drawing.colour(place), "alpha": 0.6}
            ax.plot(ranks + 1, c.singular[ranks], "os"[block], label=label, **style)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing.finished(ax, {}, xlabel="rank", ylabel="singular value", yscale="log")


def plot_without(curves: Sequence[RankCurves], ax: Axes) -> Axes:
    """K1 and K2 without the largest directions."""
    for name, label, place in (("K1", "$K^1$", P), ("K2", "$K^2$", Q)):
        _curve(ax, [c.dropped[name] for c in curves], label, place)
    ax.axhline(np.log(2), color="grey", lw=0.8)
    return _finished(ax, "dropped", "logistic loss (nat)")


def plot_alone(curves: Sequence[RankCurves], ax: Axes) -> Axes:
    """Accuracies with the largest directions alone."""
    _curve(ax, [c.kept["accuracy_P"] for c in curves], "P, sign accuracy", P)
    _curve(ax, [c.kept["auc_Q"] for c in curves], "Q, AUC", Q)
    best = [c.kept["best_accuracy_Q"] for c in curves]
    _curve(ax, best, "Q, best threshold", BEST)
    return _finished(ax, "kept", "accuracy, AUC")


def _curve(ax: Axes, values: Sequence[AnyArray], label: str, place: int) -> None:
    shown = np.stack(values)[:, : LARGEST + 1]
    spread = shown.std(0, ddof=1) if len(shown) > 1 else np.zeros(shown.shape[1])
    style = {"fmt": "os^"[place] + "-", "ms": 4, "color": drawing.colour(place)}
    ax.errorbar(np.arange(shown.shape[1]), shown.mean(0), spread, label=label, **style)


def _finished(ax: Axes, what: str, quantity: str) -> Axes:
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing.finished(ax, {}, xlabel=f"number of largest directions {what}", ylabel=quantity)
