"""Figs. 1, 3 and 4: heads with separate keys and queries learn one component after the other.

Merged attention equals a linear network on cubic features (eq. 7), and learns white inputs along
the sigmoid of eq. 10. The loss of separate heads follows the flow of eq. 14. It rests on the
plateaus of eq. 19, between which one component grows according to eq. 21. Heads of rank R learn R
components at a time.
"""

from typing import Annotated

import annotated_types as at
import xarray as xr
from matplotlib.ticker import NullFormatter

import odes
import sweeps
from papers.linear_icl import escapes
from sweeps import drawing

TIME = r"time in units of $\tau = 1/(2\eta)$ steps"
SCALES, RANKS = (1e-3, 1e-2, 1e-1), (1, 2, 4, 8)
WHITE = {"heads": 8, "spectrum": "white", "eta": 0.005, "steps": 1200, "batch": 256}
MERGED, NETWORK = ({"attention": name, **WHITE} for name in ("merged", "network"))
SEPARATE = {"eta": 0.5, "steps": 16_000, "batch": 256}
RANKED = {"D": 8, "heads": 9, "eta": 1.0, "steps": 60_000, "batch": float("inf")}
MODELS = {
    "merged": (MERGED, ("simulation", "sigmoid"), {"scale": SCALES}),
    "network": (NETWORK, ("simulation",), {"scale": SCALES}),
    "separate": (SEPARATE, ("simulation", "plain", "scalar"), {}),
    "ranks": (RANKED, ("simulation",), {"rank": RANKS}),
}
"""Settings, theories and axis of each kind of model."""


class LinearICL(sweeps.Figure):
    """Losses of merged attention, its equivalent network and separate heads, with theory.

    Attributes:
        seeds: number of runs of separate heads.
    """

    NAME = "linear_icl"

    seeds: Annotated[int, at.Ge(1)] = 6

    def sweeps(self):
        planned = {}
        for name, (settings, theories, axis) in MODELS.items():
            run = sweeps.experiment("linear_icl", **settings)
            axes = {**axis, "seed": {"range": 1 if axis else self.seeds}}
            for theory in theories:
                sweep = sweeps.Sweep(run, axes, theory, ("loss", "learned"), times=200)
                planned[f"{name}/{theory}"] = sweep
        return planned

    def draw(self, data):
        level, runs = {}, {}
        for name, sweep in self.sweeps().items():
            model = name.split("/")[0]
            level[model] = odes.linear_icl.plateaus(sweep.first.built[0])  # eq. 19
            # In units of tau = 1 / (2 eta) steps.
            time = data[name].time * (2 * MODELS[model][0]["eta"])
            runs[name] = data[name].assign_coords(time=time)
        one = {name: each.isel(seed=0) for name, each in runs.items()}
        figure, ((merged, heads), (parts, ranked)) = drawing.panels(2, 2, 5.0, 3.6)
        for i, curve in enumerate(one["network/simulation"].loss):
            label = "network on cubic features" * (i == 0)
            merged.plot(curve.time, curve, "k+", ms=6, markevery=6, label=label, zorder=3)
        names = [f"training, starting scale {scale:g}" for scale in SCALES]
        sigmoid = one["merged/sigmoid"].loss  # eq. 10
        curves(merged, one["merged/simulation"].loss, names, "closed form, eq. 10", sigmoid)
        merged.set_title("merged key and query, white inputs")

        trained, flow = runs["separate/simulation"].loss, runs["separate/plain"].loss
        names = ["training (one colour per seed)", *[""] * (self.seeds - 1)]
        curves(heads, trained, names, "flow, eq. 14", flow, level["separate"])
        heads.set_title("separate rank-one heads")
        learned, scalar = (one[f"separate/{name}"].learned.T for name in ("simulation", "scalar"))
        names = [f"component {d + 1}" for d in range(len(learned))]
        curves(parts, learned, names, "eq. 21", scalar)
        # Room for the legend above the curves.
        parts.set(title="components of the first seed", ylabel="share learned", ylim=(-0.08, 1.75))
        parts.legend(loc="upper center", ncols=3)
        by_rank, names = one["ranks/simulation"].loss, [f"training, rank {rank}" for rank in RANKS]
        curves(ranked, by_rank, names, plateaus=level["ranks"])
        ranked.set_title("nine heads by rank, D = 8, batch infinite")
        for ax, loss in ((heads, trained), (parts, trained), (ranked, by_rank)):
            first = sweeps.crossing(loss, 0.9 * loss.isel(time=0)).min()
            ax.set(xscale="log", xlim=(first / 3, loss.time[-1]))
            ax.xaxis.set_minor_formatter(NullFormatter())

        levels = xr.DataArray(level["separate"], dims="plateau")
        theories = {name: sweeps.valid(runs[f"separate/{name}"]) for name in MODELS["separate"][1]}
        table = xr.Dataset({name: escapes(each.loss, levels) for name, each in theories.items()})
        attention, network = (data[f"{name}/simulation"].loss for name in ("merged", "network"))
        apart = float((abs(attention - network) / attention.isel(time=0)).max())
        text = (
            "Time in tau at which the loss is halfway to the next plateau\n"
            f"{table.to_dataframe().to_string(float_format='%.0f')}\n"
            f"merged attention and the network: losses at most {apart:.1e} of the first apart"
        )
        arrays = {f"{model}/plateaus": level[model] for model in ("merged", "separate", "ranks")}
        return sweeps.Picture(figure, {**data, **arrays}, text, table)


def curves(ax, trained, names, about="", theory=(), plateaus=()):
    """Draw rows of `trained` by name, theory on top of them, and plateaus below."""
    for i, (curve, name) in enumerate(zip(trained, names, strict=True)):
        ax.plot(curve.time, curve, color=drawing.colour(i), lw=4 if about else 2, label=name)
    for i, curve in enumerate(theory):
        ax.plot(curve.time, curve, "k--", lw=1, label=about * (i == 0))
    for i, height in enumerate(plateaus):
        ax.axhline(height, color="0.5", lw=1, ls=":", label="plateaus, eq. 19" * (i == 0), zorder=0)
    drawing.finished(ax, {}, xlabel=TIME, ylabel="mean square error")
