"""Figs. 3, 8 and 9 of Scan and Snap, which are closed forms: growth of attention, and the decoder.

The paper draws chi (Fig. 3) from its theory without giving C0 and f_nl0. We draw Theorem 3's two
bounds, exp(2 f_nl0(0)^2 B) and exp(2 B), with Theorem 4's B in the paper's time; C0 and f_nl0 are
parameters. The upper bound is the curve of a token that has all the attention.

For B itself (Fig. 9, Theorem 4 in the paper's time) the paper gives nu = eta_Y / eta_Z, M and
eta_Z, but neither K nor C0. We infer K = 1, for which the latest transitions, at 2.6 and 47 steps,
just fit in the published ranges of 5 and 50 steps. C0, which shifts the curves, is a parameter.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.precision import precision
from odes import decoder, growth
from odes.decoder import h_star
from sweeps import output
from sweeps.output import drawing

DECODERS = {50: (0.1, 0.2, 0.5, 1.0, 2.0), 1000: (0.2, 0.5, 1.0, 2.0, 4.0)}
"""Learning rates of Y of Fig. 8, by M."""
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Learning rates of Z of Fig. 9."""
RATIOS = {10: (100, 5.0), 1: (10_000, 50.0)}
"""M, and the last time drawn in Fig. 9, by nu."""


@dataclasses.dataclass(frozen=True)
class Figure3:
    """Growth factor chi(t) at fixed eta_Z for several eta_Y, transition times marked.

    Attributes:
        out: folder for the figure and fig3.npz.
        eta_y: learning rates of Y.
        eta_z: learning rate of Z.
        K: number of classes.
        M: vocabulary size.
        end: last time, in optimiser steps.
        c0: the constant C0 of Theorem 4.
        f: normalised attention f_nl0(0) of the dominant token at the start, for the lower bound.
    """

    name: ClassVar[str] = "fig3"

    out: Path = Path("out/figures")
    eta_y: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    eta_z: float = 0.5
    K: int = 10
    M: int = 1000
    end: float = 700.0
    c0: float = 1.0
    f: float = 0.5

    def arrays(self) -> dict[str, np.ndarray]:
        """Both bounds over time, and the times t0' and t0 of the transition, for each eta_Y."""
        K = checks.integer("K", self.K, 1)
        M = checks.integer("M", self.M, max(K, 4))
        if not self.eta_y:
            raise ValueError("eta_y: needs at least one learning rate")
        for field in ("eta_y", "eta_z", "end", "c0"):
            checks.real(field, getattr(self, field), 0, open_minimum=True)
        checks.real("f", self.f, 0, 1, open_minimum=True)
        t, rates = np.linspace(0, self.end, 701), np.array(self.eta_y)
        with precision("float64"):
            B = growth.bound(
                t[None], rates[:, None], self.eta_z, K, M, c0=self.c0, convention="paper"
            )
            bounds = growth.growth_factor_bounds(self.f, B)
            stages = decoder.stages(rates, K, M)
        found = {"eta_y": rates, "t": t, "lower": bounds.lower, "upper": bounds.upper}
        found |= {"t0_prime": stages.rise_end, "t0": stages.snap}
        return {name: np.asarray(values) for name, values in found.items()}

    def draw(self, arrays: Mapping[str, np.ndarray]) -> Figure:
        """Draw the upper bound (solid) and lower bound (dashed) of chi, with marks at the times t0'
        (end of growth of gamma) and t0 (start of its decay)."""
        figure, ((ax,),) = drawing.panels(1, 1, width=7, height=3.8)
        t, curves = arrays["t"], (arrays["lower"], arrays["upper"])
        for i, (eta_y, colour) in enumerate(
            zip(self.eta_y, drawing.shades(len(self.eta_y)), strict=True)
        ):
            style = {"color": colour, "mfc": "white"}
            for curve, dashes in zip(curves, ("--", "-"), strict=True):
                ax.plot(t, curve[i], dashes, color=colour)
                for name, mark in (("t0_prime", "o"), ("t0", "s")):
                    at = float(arrays[name][i])
                    ax.plot(at, np.interp(at, t, curve[i]), mark, **style)
            snap = f"$t_0 = {arrays['t0'][i]:.0f}$"
            ax.plot([], [], color=colour, label=rf"$\eta_Y = {eta_y:g}$, {snap}")
        rates, _ = ax.get_legend_handles_labels()
        kinds = [
            drawing.key("upper bound $e^{2B}$"),
            drawing.key("lower bound $e^{2 f^2 B}$", ls="--"),
            drawing.key("$t_0'$, end of scanning", ls="", marker="o", mfc="white"),
            drawing.key("$t_0$, snapping begins", ls="", marker="s", mfc="white"),
        ]
        ax.legend(handles=[*rates, *kinds], loc="upper left", bbox_to_anchor=(1.01, 1))
        drawing.finished(
            ax,
            xlim=(0, t[-1]),
            yscale="log",
            xlabel="optimiser steps $t$",
            ylabel=r"growth factor $\chi$",
            title=rf"$K = {self.K}$, $M = {self.M}$, $\eta_Z = {self.eta_z:g}$, "
            rf"$C_0 = {self.c0:g}$, $f_{{nl_0}}(0) = {self.f:g}$",
        )
        return figure


@dataclasses.dataclass(frozen=True)
class Figure8:
    """Decoder h* by discrete steps and h by the flow, with Lemma 7's bound on the difference.

    Attributes:
        out: folder for the figure and fig8.npz.
        steps: number of visits to the class, for M = 50 and for M = 1000.
    """

    name: ClassVar[str] = "fig8"

    out: Path = Path("out/figures")
    steps: tuple[int, int] = (80, 70)

    def arrays(self) -> dict[str, np.ndarray]:
        """h and h* over the number of visits, by M."""
        for steps in self.steps:
            checks.steps("steps", steps)
        found: dict[str, np.ndarray] = {}
        for (M, rates), steps in zip(DECODERS.items(), self.steps, strict=True):
            s = np.arange(steps + 1)
            with precision("float64"):
                flow = np.asarray(decoder.h(s[None], np.array(rates)[:, None], M))
                discrete = np.asarray(h_star(np.array(rates), M, steps)).T
            data = {"eta_y": np.array(rates), "s": s, "h": flow, "h_star": discrete}
            found |= {f"M{M}/{name}": values for name, values in data.items()}
        return found

    def draw(self, arrays: Mapping[str, np.ndarray]) -> Figure:
        """Draw h (lines) and h* (dots) over the number of visits for each vocabulary, and their
        difference over Lemma 7's bound 2 eta_Y / M, which lies in [0, 1] and tends to 0."""
        figure, axes = drawing.panels(2, 2, width=4, sharex="col")
        for (above, below), (M, rates) in zip(axes.T, DECODERS.items(), strict=True):
            s, *curves = (arrays[f"M{M}/{name}"] for name in ("s", "h", "h_star"))
            shades = drawing.shades(len(rates))
            for eta, colour, flow, discrete in zip(rates, shades, *curves, strict=True):
                style = {"color": colour, "label": rf"$\eta_Y = {eta:g}$"}
                above.plot(s, M * flow, **style)
                above.plot(s, M * discrete, ".", ms=4, color=colour)
                below.plot(s, (discrete - flow) * M / (2 * eta), **style)
            below.axhline(0, color="grey", lw=0.8)
            quantity = "$M h$ (line), $M h^*$ (dots)"
            drawing.finished(above, {}, ylabel=quantity, title=f"M = {M}")
            quantity = r"$(h^* - h)\,/\,(2\eta_Y/M)$"
            drawing.finished(below, xlabel="visits to the class $s$", ylabel=quantity)
        return figure


@dataclasses.dataclass(frozen=True)
class Figure9:
    """Growth factor bound B(t) for fixed nu = eta_Y / eta_Z, with t0 and B(t0) marked.

    Attributes:
        out: folder for the figure and fig9.npz.
        K: number of classes.
        c0: the constant C0 of Theorem 4.
        printed: draw the printed form 1/4 ln(C0 + ...), which is not 0 at t = 0 unless C0 = 1.
    """

    name: ClassVar[str] = "fig9"

    out: Path = Path("out/figures")
    K: int = 1
    c0: float = 1.0
    printed: bool = False

    def arrays(self) -> dict[str, np.ndarray]:
        """B over time for each eta_Z, and the transitions, by nu."""
        K = checks.integer("K", self.K, 1)
        checks.real("c0", self.c0, 0, open_minimum=True)
        options = {"c0": self.c0, "convention": "paper", "printed": self.printed}
        found: dict[str, np.ndarray] = {}
        for nu, (M, end) in RATIOS.items():
            t, eta_z = np.linspace(0, end, 501), np.array(RATES)[:, None]
            with precision("float64"):
                curves = growth.bound(t[None], nu * eta_z, eta_z, K, M, **options)
                snaps = decoder.stages(nu * eta_z[:, 0], K, M).snap
                level = growth.bound_at_snap(K, M, nu, **options)
            data = {"t": t, "B": curves, "t0": snaps, "B_at_t0": level}
            found |= {f"nu{nu}/{name}": np.asarray(values) for name, values in data.items()}
        return found

    def draw(self, arrays: Mapping[str, np.ndarray]) -> Figure:
        """Draw a panel for each ratio of rates: B(t) for each eta_Z, with a dot at the transition,
        whose height is the same for all of them."""
        figure, (axes,) = drawing.panels(1, 2, width=4.2, height=3.6)
        for ax, (nu, (M, _)) in zip(axes, RATIOS.items(), strict=True):
            t, B, t0, level = (arrays[f"nu{nu}/{name}"] for name in ("t", "B", "t0", "B_at_t0"))
            shades = drawing.shades(len(RATES))
            for eta_z, curve, snap, colour in zip(RATES, B, t0, shades, strict=True):
                ax.plot(t, curve, color=colour, label=rf"$\eta_Z = {eta_z:g}$")
                if snap <= t[-1]:
                    ax.plot(snap, level, "o", color=colour)
            ax.axhline(float(level), color="grey", ls=":", label="$B(t_0)$")
            title = rf"$\nu = \eta_Y/\eta_Z = {nu}$, M = {M}, K = {self.K}"
            labels = {"xlabel": "optimiser steps $t$", "ylabel": "growth factor bound $B(t)$"}
            drawing.finished(ax, {}, title=title, xlim=(0, t[-1]), **labels)
        return figure


def run(config: Figure3 | Figure8 | Figure9) -> list[Path]:
    """Compute, draw and write a figure."""
    arrays = config.arrays()
    return output.write(config.out, config.name, figure=config.draw(arrays), arrays=arrays)
