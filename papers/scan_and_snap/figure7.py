"""Fig. 7: attention on text becomes sparse over training, with one layer and with three.

Maps of the first heads on a held-out prompt and, for each layer, how sparse attention on held-out
text is and how much of it still moves. SGD at the paper's rate of 5, on a text of your choice.
"""

import textwrap
from typing import Annotated

import annotated_types as at
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import sweeps
from papers.scan_and_snap import text
from sweeps import drawing

RECORD = ("loss", "entropy", "layer_entropy", "layer_top", "layer_change", "attention")
SHARES = (0.0, 0.1, 0.3, 1.0)
"""Shares of the training after which maps are drawn."""
SMALLEST = 1e-3
"""Lower end of the colour scale of the maps."""
CURVES = {
    "layer_entropy": ("entropy (nat)", None),
    "layer_top": ("largest attention of a row", 1),
    "layer_change": ("change of attention in {} steps", None),
}
"""Title and upper end of the panel of each quantity."""


class Figure7(sweeps.Figure):
    """Attention on a held-out prompt over training by SGD; how sparse and frozen it gets.

    Attributes:
        run: the run with each number of layers.
        layers: numbers of blocks of the transformers.
        seeds: number of runs behind the curves; the maps are those of the first that ended well.
    """

    NAME = "fig7"
    RUN = {**text.RUN, "eta": 5.0, "prompt": 100}

    run: sweeps.Experiment = sweeps.experiment(**RUN)
    layers: tuple[Annotated[int, at.Ge(1)], ...] = (1, 3)
    seeds: Annotated[int, at.Ge(1)] = 3

    def sweeps(self):
        runs = {n: self.run.at({"layers": n}) for n in self.layers}
        seed = {"seed": {"range": self.seeds}}
        return {f"layers-{n}": text.training(run, seed, RECORD) for n, run in runs.items()}

    def draw(self, data):
        model, steps = text.model_of(self.run), self.run.steps or 0
        tokens, prompt = text.prompt(model)
        runs = {n: text.ended_well(data[f"layers-{n}"], self.run, n) for n in self.layers}
        rows = [(n, layer) for n in runs for layer in range(n)]
        height = 1.75 * len(rows)
        figure = plt.figure(figsize=(7.6, height + 4), layout="constrained")
        (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[height + 1, 3])
        axes = above.subplots(len(rows), len(SHARES), squeeze=False, sharex=True, sharey=True)
        for row, (n, layer) in zip(axes, rows, strict=True):
            maps = runs[n].attention.isel(seed=0, prompt=0, head=0, layer=layer)
            for ax, share in zip(row, SHARES, strict=True):
                mesh = heat_map(ax, maps.isel(time=round(share * text.INTERVALS)))
            row[0].set_ylabel(f"layer {layer + 1} of {n}\nquery")
        axes[0, 0].invert_yaxis()
        for ax, share in zip(axes[0], SHARES, strict=True):
            ax.set_title(f"step {float(maps.time[round(share * text.INTERVALS)]):g}")
        for ax in axes[-1]:
            ax.set_xlabel("key")
        label = "attention (axes: positions in the prompt)"
        above.colorbar(mesh, ax=axes, label=label, extend="min", aspect=40)
        above.supxlabel(prompt, fontsize="small")

        curves = below.subplots(1, 3)
        for ax, (name, (title, top)) in zip(curves, CURVES.items(), strict=True):
            for place, (n, layer) in enumerate(rows):
                # The first record has no interval before it.
                one = runs[n][name].isel(layer=layer, time=slice(int("change" in name), None))
                dashes = drawing.DASHES[self.layers.index(n) % len(drawing.DASHES)]
                style = {"ls": dashes, "color": drawing.colour(place)}
                drawing.band(ax, one.time, one, {"label": f"layer {layer + 1} of {n}", **style})
            title = title.format(steps // text.INTERVALS)
            drawing.finished(ax, title=title, ylim=(0, top), xlabel="optimiser step")
        style = {"color": "black", "lw": 0.8, "ls": ":", "label": "uniform attention"}
        curves[0].axhline(model.uniform_entropy, **style)
        drawing.below(below, curves[0].get_legend_handles_labels()[0], ncols=3)
        title = rf"{text.describe(self.run)}, $\eta$ = {self.run.setting('eta')}"
        figure.suptitle("\n".join(textwrap.fill(line, 90) for line in title.splitlines()))

        arrays = {str(n): {k: each[k] for k in (*RECORD, "time")} for n, each in runs.items()}
        report = {str(n): text.measures(each, model.uniform_entropy) for n, each in runs.items()}
        lines = [
            f"{n} layer(s), layer {layer + 1}: "
            + ", ".join(f"{name} {value:.3g}" for name, value in report[str(n)][layer].items())
            for n, layer in rows
        ]
        return sweeps.Picture(figure, {"prompt": tokens} | arrays, "\n".join(lines), report=report)


def heat_map(ax, attention):
    """Draw attention (query, key) by position in the prompt, on a logarithmic scale, white above
    the diagonal."""
    values = attention.transpose("query", "key").values
    shown = np.where(np.tril(np.ones(values.shape, bool)), np.maximum(values, SMALLEST), np.nan)
    mesh = ax.pcolormesh(shown, norm=LogNorm(SMALLEST, 1), cmap="viridis", rasterized=True)
    places = np.arange(0, len(values), 10)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(places + 0.5, [str(place) for place in places])
    ax.set_aspect("equal")
    return mesh
