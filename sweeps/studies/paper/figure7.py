"""Fig. 7 of Scan and Snap: attention over training on text, with one layer and with three."""

import dataclasses
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dynsim import Status, checks
from dynsim.decoding import Count
from dynsim.transformer.model import uniform_entropy
from dynsim.transformer.task import CorpusSource
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.spec import Sweep
from sweeps.studies import computed
from sweeps.studies.paper import CLIPPED, describe, transformer
from sweeps.systems.experiment import Experiment, experiment

RECORD = ("loss", "entropy", "layer_entropy", "layer_top", "layer_change", "attention")
SHARES = (0.0, 0.1, 0.3, 1.0)
"""Shares of the training after which maps are drawn."""
RECORDS = 20
"""Number of equally long intervals between records, so that changes over them are comparable."""
EVERY = 5
"""Interval, in words, at which positions in the prompt are printed."""
SMALLEST = 1e-3
"""Lower end of the colour scale of the maps."""


@dataclasses.dataclass(frozen=True)
class Figure7:
    """Attention maps of the first heads on a held-out prompt over training by SGD; how sparse
    and frozen they get.

    Attributes:
        run: the run with each number of layers.
        layers: numbers of blocks of the transformers.
        seeds: number of runs behind the curves; the maps are those of the first that ended well.
        out: folder for the figure, fig7.npz and .json, and the stored sweeps, from which the
            command resumes.
    """

    RUN: ClassVar[Mapping[str, Any]] = {**CLIPPED, "eta": 5.0, "prompt": 100}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Figure7.RUN))
    layers: tuple[int, ...] = (1, 3)
    seeds: Count = 3
    out: Path = Path("out/fig7")

    def sweeps(self) -> dict[str, Sweep]:
        """The sweeps by number of layers, with records evenly spaced over training."""
        steps = checks.integer("steps", self.run.steps, RECORDS)
        checks.kind("corpus", transformer(self.run).corpus, CorpusSource)
        if not self.layers:
            raise ValueError("layers = (): needs at least one number of layers")
        times = tuple(np.unique(np.linspace(0, steps, RECORDS + 1).astype(int)).tolist())
        axes = {"seed": {"range": self.seeds}}
        return {
            f"layers-{n}": Sweep(self.run.at({"layers": n}), axes, "simulation", RECORD, times)
            for n in self.layers
        }


def run(config: Figure7) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure."""
    stored, model = computed(config), transformer(config.run)
    assert isinstance(model.corpus, CorpusSource)
    corpus = model.corpus.read()
    found = {n: ended_well(config, stored[f"layers-{n}"], n) for n in config.layers}
    report = {str(layers): measures(data, model.length) for layers, data in found.items()}
    tokens = corpus.held_out[model.prompt :][: model.length]
    words = corpus.words(tokens)
    for layers, rows in report.items():
        for layer, row in enumerate(rows):
            shown = ", ".join(f"{name} {value:.3g}" for name, value in row.items())
            print(f"{layers} layer(s), layer {layer + 1}: {shown}")
    arrays = {"prompt": tokens}
    arrays |= {f"{n}/{name}": data[name] for n, data in found.items() for name in (*RECORD, "time")}
    figure = draw(config, found, words)
    return output.write(config.out, "fig7", figure=figure, arrays=arrays, report=report)


def draw(config: Figure7, found: Mapping[int, xr.Dataset], words: Sequence[str]) -> Figure:
    """Draw maps of every layer by number of layers, and below them quantities over training."""
    rows = sum(found)
    figure = plt.figure(figsize=(7.6, 1.75 * rows + 4.0), layout="constrained")
    (above,), (below,) = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.75 * rows + 1, 3])
    axes = above.subplots(rows, len(SHARES), squeeze=False, sharex=True, sharey=True)
    row = 0
    for layers, data in found.items():
        for layer in range(layers):
            maps = data["attention"].isel(seed=0, prompt=0, head=0, layer=layer)
            for ax, share in zip(axes[row], SHARES, strict=True):
                at = round(share * (maps.sizes["time"] - 1))
                mesh = plot_map(maps.isel(time=at), ax=ax)
                step = float(maps["time"][at])
                ax.set_title(f"step {step:g}" if row == 0 else "")
            axes[row, 0].set_ylabel(f"layer {layer + 1} of {layers}\nquery")
            row += 1
    for ax in axes[-1]:
        ax.set_xlabel("key")
    above.colorbar(
        mesh, ax=axes, label="attention (axes: positions in the prompt)", extend="min", aspect=40
    )
    above.supxlabel(prompt(words), fontsize="small")
    curves = below.subplots(1, 3)
    plot_curves(found, "layer_entropy", ax=curves[0])
    bound = uniform_entropy(transformer(config.run).length)
    curves[0].axhline(bound, color="black", lw=0.8, ls=":", label="uniform attention")
    curves[0].set(title="entropy (nat)", ylim=(0, None))
    plot_curves(found, "layer_top", ax=curves[1])
    curves[1].set(title="largest attention of a row", ylim=(0, 1))
    plot_curves(found, "layer_change", ax=curves[2])
    moved = f"change of attention in {(config.run.steps or 0) // RECORDS} steps"
    curves[2].set(title=moved, ylim=(0, None))
    for ax in curves:
        ax.set_xlabel("optimiser step")
    handles, labels = curves[0].get_legend_handles_labels()
    below.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    rate = config.run.setting("eta")
    title = rf"{describe(config.run)}, $\eta$ = {rate}"
    figure.suptitle("\n".join(textwrap.fill(line, 90) for line in title.splitlines()))
    return figure


def ended_well(config: Figure7, data: xr.Dataset, layers: int) -> xr.Dataset:
    """Select the seeds that ended well; `ValueError` if there are none."""
    run, fine = config.run, data.isel(seed=np.flatnonzero(data["status"] == Status.OK))
    if not fine.sizes["seed"]:
        raise ValueError(
            f"eta = {run.setting('eta')}, clip = {run.setting('clip')}: every run with {layers} "
            f"layer(s) diverged, from step {int(data['first_bad_step'].min())} on; clip the "
            "gradient, or lower eta"
        )
    return fine


def measures(data: xr.Dataset, length: int) -> list[dict[str, float]]:
    """Measure how sparse and how frozen each layer is at the end, as means over the seeds.

    `entropy_share` is the entropy at the end over that of uniform attention, `keys` its
    exponential, the effective number of keys; `change` the attention that moved over the last
    interval between records, `change_share` the same over the largest of all intervals: near 0 if
    attention is frozen, near 1 if it moves as fast as ever.
    """
    mean = data.mean("seed")
    found = []
    for layer in range(mean.sizes["layer"]):
        one = mean.isel(layer=layer)
        entropy, change = float(one["layer_entropy"][-1]), one["layer_change"].values[1:]
        found.append(
            {
                "entropy_start": float(one["layer_entropy"][0]),
                "entropy": entropy,
                "entropy_share": entropy / uniform_entropy(length),
                "keys": float(np.exp(entropy)),
                "top": float(one["layer_top"][-1]),
                "change": float(change[-1]),
                "change_share": float(change[-1] / change.max()),
            }
        )
    return found


def prompt(words: Sequence[str]) -> str:
    """Wrap the prompt into lines, with the position printed before every `EVERY`-th word."""
    safe = [word.replace("$", r"\$") for word in words]
    told = [f"[{i}] {word}" if i % EVERY == 0 else word for i, word in enumerate(safe)]
    return textwrap.fill("prompt: " + " ".join(told), 100)


def plot_map(attention: xr.DataArray, ax: Axes):
    """Draw a heat map (query, key) by position in the prompt, on a logarithmic scale and white
    above the diagonal. Returns the mesh, for a colour bar."""
    values = attention.transpose("query", "key").values
    shown = np.where(np.tril(np.ones(values.shape, bool)), np.maximum(values, SMALLEST), np.nan)
    mesh = ax.pcolormesh(shown, norm=LogNorm(SMALLEST, 1), cmap="viridis", rasterized=True)
    places = np.arange(0, len(values), 2 * EVERY)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(places + 0.5, [str(place) for place in places])
    ax.set_aspect("equal")
    if not ax.yaxis_inverted():
        ax.invert_yaxis()
    return mesh


def plot_curves(found: Mapping[int, xr.Dataset], name: str, ax: Axes) -> Axes:
    """Draw a quantity of each layer over training: mean ± standard deviation over seeds."""
    places = itertools.count()
    for style, (layers, data) in zip(itertools.cycle(drawing.DASHES), found.items(), strict=False):
        for layer in range(layers):
            one = data[name].isel(layer=layer)
            # The first record has no interval before it.
            one = one.isel(time=slice(1, None)) if name == "layer_change" else one
            how = {"ls": style, "color": drawing.colour(next(places))}
            how["label"] = f"layer {layer + 1} of {layers}"
            drawing.band(ax, one["time"], one, how)
    return drawing.finished(ax)
