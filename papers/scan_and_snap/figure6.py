"""Fig. 6: attention is sparser at a larger eta_Z, and at a smaller ratio eta_Y / eta_Z.

The entropy of attention on the distinct tokens of Syn-Medium, after 100 steps of SGD with momentum.
We add three theories from the same starts: mean and spread at finite T and batch, and the momentum
flow and descent with both infinite. Published means and deviations are over 10 seeds.
"""

import dataclasses
from typing import Annotated

import annotated_types as at
import numpy as np
import pandas as pd
import xarray as xr

import dynsim
import sweeps
from papers import scan_and_snap
from sweeps import drawing

STYLES = {
    "simulation": ("trained (mean, s.d.)", "-", "o"),
    "spread": ("theory at finite T (mean, band of s.d.)", "--", ""),
    "matched": ("momentum flow, T = ∞", "-.", ""),
    "descent": ("descent, T = ∞", ":", ""),
    "published": ("published means", "", "s"),
}


class Figure6(sweeps.Figure):
    """Entropy of attention on distinct tokens against eta_Y / eta_Z.

    Attributes:
        num_queries: numbers of queries, a panel each; 1,3,5,10 on Syn-Medium if omitted.
        seeds: number of runs in each cell; theories use the same random starts.
        training: also train; otherwise only theory at finite T and batch is drawn.
        theory: also solve the theories.
        task: sequence classes; Syn-Medium at `num_queries` if omitted.
    """

    NAME = "fig6"

    num_queries: tuple[Annotated[int, at.Ge(1)], ...] = ()
    seeds: Annotated[int, at.Ge(1)] = 10
    training: bool = True
    theory: bool = True
    task: dynsim.Task | None = None

    def sweeps(self):
        if not (self.training or self.theory):
            raise ValueError("training, theory = False, False: leaves nothing to draw")
        runs = scan_and_snap.figure6_runs(self.num_queries, (1, 3, 5, 10), self.seeds, self.task)
        entropy = dataclasses.replace(runs, record=("entropy",))
        noise = dataclasses.replace(runs, record=("entropy", "entropy_std", "entropy_drift"))
        all_sweeps = {
            "simulation": runs,
            "spread": dataclasses.replace(noise, theory="spread"),
            # The flow's error at this tolerance is far below the spread across seeds.
            "matched": dataclasses.replace(entropy, theory="matched", rtol=1e-5),
            "descent": dataclasses.replace(entropy, theory="descent"),
        }
        left = [*all_sweeps] if self.theory else ["simulation"]
        return {name: all_sweeps[name] for name in (left if self.training else ["spread"])}

    def draw(self, data):
        data = {name: scan_and_snap.by_queries(each, self.task) for name, each in data.items()}
        drawn = {n: sweeps.moments(each, "entropy").drop_vars("time") for n, each in data.items()}
        first = next(iter(drawn.values()))[["mean", "std"]]
        known = scan_and_snap.published().reindex_like(first)
        drawn["published"] = known if self.task is None else known * np.nan
        columns, rates = first.sizes["num_queries"], first.eta_z.values
        width = max(7.0, 2.6 * columns)
        figure, (axes,) = drawing.panels(1, columns, width / columns, 4.4, sharey=True)
        for ax, number in zip(axes, first.num_queries.values, strict=True):
            for eta_z, colour in zip(rates, drawing.shades(len(rates)), strict=True):
                ax.plot([], [], "o", color=colour, label=rf"$\eta_Z = {eta_z:g}$")
                for name, each in drawn.items():
                    one = each.sel(num_queries=number, eta_z=eta_z)
                    mean, std = one["mean"], one["std"]
                    _, ls, marker = STYLES[name]
                    style = {"color": colour, "ls": ls, "marker": marker, "lw": 1.2}
                    if name == "simulation":
                        ax.errorbar(one.ratio, mean, std, ms=4, capsize=2, **style)
                    else:
                        ax.plot(one.ratio, mean, ms=8, mfc="none", **style)
                    if name == "spread":
                        band = {"color": colour, "alpha": 0.12, "lw": 0}
                        ax.fill_between(one.ratio, mean - std, mean + std, **band)
            ax.set_xscale("log")
            drawing.ticks(ax.xaxis, first.ratio.values)
            drawing.finished(ax, title=scan_and_snap.queries(number), xlabel=r"$\eta_Y / \eta_Z$")
        axes[0].set_ylabel("entropy on distinct tokens (nat)")
        styles = [STYLES[name] for name in (*data, *["published"] * (self.task is None))]
        keys = [drawing.key(text, ls=ls, marker=m, mfc="none") for text, ls, m in styles]
        drawing.below(figure, [*axes[0].get_legend_handles_labels()[0], *keys], int(width // 3.2))
        entropy = next(iter(data.values())).entropy
        arrays = {name: entropy[name] for name in entropy.dims}
        arrays |= {name: {"entropy": each.entropy} for name, each in data.items()}
        source = pd.Index(drawn, name="source")
        table = xr.concat([each[["mean", "std"]] for each in drawn.values()], source)
        return sweeps.Picture(figure, arrays, "\n".join(report(drawn)), table)


def report(drawn):
    """Distances of theory from training with the same starts, and from the published means."""
    for name in ("spread", "matched", "descent") if "matched" in drawn else ():
        apart = abs((drawn[name]["runs"] - drawn["simulation"]["runs"]).mean("seed"))
        yield (
            f"{STYLES[name][0].split(' (')[0]} against training from the same starts: median "
            f"deviation {apart.median():.4f} nat, largest {apart.max():.4f}"
        )
    known, theory = drawn["published"], drawn.get("spread")
    if theory is not None and (cells := int(known["mean"].count())):
        allowed = np.maximum(3 * known["std"] / 10**0.5, 0.02 * known["mean"])  # 10 seeds
        close = f"{int((abs(theory['mean'] - known['mean']) <= allowed).sum())} of {cells}"
        yield f"theory: within 3 standard errors or 2 % of the published mean in {close} cells"
