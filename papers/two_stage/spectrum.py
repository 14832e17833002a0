"""After stage 1 the largest singular direction of the weights carries P, and Q after stage 2.

The singular directions of the signal, diag(Wbar, Vbar), are ranked by their singular values. We
measure the losses and accuracies of both components with the largest directions dropped, and with
these alone, at the end of each stage. The claims of the spectral corollary, as reconstructed in
`odes.two_stage.claims`, are printed with what we measure.
"""

from typing import Annotated, Any

import annotated_types as at
import jax
import numpy as np
from matplotlib.ticker import MaxNLocator

import sweeps
from papers import two_stage
from sweeps import drawing

LARGEST = 12
"""Number of directions drawn; the others are noise."""
P, Q, BEST = range(3)
"""Indices of colours and markers: of the components, and of another measure of Q."""
LOSSES = {"K1": ("$K^1$", P), "K2": ("$K^2$", Q)}
ACCURACIES = {
    "accuracy_P": ("P, sign accuracy", P),
    "auc_Q": ("Q, AUC", Q),
    "best_accuracy_Q": ("Q, best threshold", BEST),
}


class Spectrum(sweeps.Figure):
    """What each singular direction of the weights after two-stage training contributes.

    Attributes:
        run: the two-stage training to examine.
        seeds: number of these runs.
    """

    NAME = "spectrum"
    RUN = {"problem": "two_stage"}

    run: sweeps.Experiment = sweeps.experiment(**RUN)
    seeds: Annotated[int, at.Ge(1)] = 6

    def sweeps(self):
        axes, record = {"seed": {"range": self.seeds}}, ("W_signal", "V_signal")
        # Of two times, the first ends stage 1.
        return {"simulation": sweeps.Sweep(self.run, axes, "simulation", record, 2)}

    def draw(self, data):
        runs: Any = two_stage.ended(data["simulation"], self.run)
        prompts: Any = self.run.problem
        curves = {
            f"stage {i + 1}": two_stage.claims.truncations(prompts, runs, i) for i in range(2)
        }
        verdicts = two_stage.claims.directions(*curves.values())
        number = f"{runs.sizes['seed']} run{'s' * (runs.sizes['seed'] != 1)}"
        text = f"{number} of {self.run.about}\n{two_stage.claims.table(verdicts)}"
        stacked = {
            stage: jax.tree.map(lambda *each: np.stack(each), *of_runs)
            for stage, of_runs in curves.items()
        }
        figure, axes = drawing.panels(2, 3)
        for panels, (stage, of_runs) in zip(axes, stacked.items(), strict=True):
            draw_stage(panels, stage, of_runs)
        figure.suptitle(
            rf"singular directions of diag($\overline{{W}}$, $\overline{{V}}$), {self.run.about}, "
            f"mean ± sd of {number}"
        )
        report = [claim.as_record() for claim in verdicts]
        arrays = {stage.replace(" ", "-"): each for stage, each in stacked.items()}
        return sweeps.Picture(figure, arrays, text, report=report)


def draw_stage(axes, stage, curves):
    """Singular values by block, losses without the largest directions, accuracies with these."""
    left, middle, right = axes
    ranks, top = np.arange(1, LARGEST + 1), slice(LARGEST)
    for i, (values, blocks) in enumerate(zip(curves.singular, curves.block, strict=True)):
        for block, (name, place) in enumerate({"W": P, "V": Q}.items()):
            here = np.flatnonzero(blocks[top] == block)
            label = rf"of $\overline{{{name}}}$" if i == 0 else None
            style = {"ms": 4, "color": drawing.colour(place), "alpha": 0.6}
            left.plot(ranks[here], values[top][here], "os"[block], label=label, **style)
    labels = {"xlabel": "rank", "ylabel": "singular value", "yscale": "log"}
    drawing.finished(left, {}, title=f"end of {stage}", **labels)
    sides = (middle, LOSSES, curves.dropped), (right, ACCURACIES, curves.kept)
    for ax, shown, values in sides:
        for name, (label, place) in shown.items():
            each = values[name][:, : LARGEST + 1]
            spread = each.std(0, ddof=min(1, len(each) - 1))
            style = {"fmt": "os^"[place] + "-", "ms": 4, "color": drawing.colour(place)}
            ax.errorbar(np.arange(each.shape[1]), each.mean(0), spread, label=label, **style)
    middle.axhline(np.log(2), color="grey", lw=0.8)
    number = "number of largest directions {}".format
    drawing.finished(middle, {}, xlabel=number("dropped"), ylabel="logistic loss (nat)")
    drawing.finished(right, {}, xlabel=number("kept"), ylabel="accuracy, AUC")
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
