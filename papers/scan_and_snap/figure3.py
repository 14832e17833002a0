"""Fig. 3: a dominant distinct token gains more attention at a smaller eta_Y.

The paper draws the growth factor chi from its theory, without C0 and f_nl0. We draw the two bounds
of Theorem 3, exp(2 f_nl0(0)^2 B) and exp(2 B), with B by Theorem 4 in the paper's time. The upper
bound is the curve of a token that has all the attention.
"""

import jax
import numpy as np

import odes
import sweeps
from sweeps import drawing

K, M, ETA_Z, END = 10, 1000, 0.5, 700
RATES = (0.5, 1.0, 2.0, 5.0)
"""Learning rates of Y."""
C0, F = 1.0, 0.5
"""The constant of Theorem 4, and f_nl0(0) of the dominant token, for the lower bound."""


class Figure3(sweeps.Figure):
    """Growth factor chi(t) at fixed eta_Z for several eta_Y, transition times marked."""

    NAME = "fig3"

    def draw(self, data):
        t, rates = np.linspace(0, END, 701), np.array(RATES)
        with jax.enable_x64(True):
            options = {"c0": C0, "convention": "paper"}
            B = odes.growth.bound(t[None], rates[:, None], ETA_Z, K, M, **options)  # Theorem 4
            bounds = odes.growth.growth_factor_bounds(F, B)  # Theorem 3
            stages = odes.decoder.stages(rates, K, M)
        curves = {"lower": np.asarray(bounds.lower), "upper": np.asarray(bounds.upper)}
        times = {"t0_prime": np.asarray(stages.rise_end), "t0": np.asarray(stages.snap)}

        figure, ((ax,),) = drawing.panels(1, 1, width=7, height=3.8)
        for i, (rate, colour) in enumerate(zip(rates, drawing.shades(len(rates)), strict=True)):
            for curve, dashes in zip(curves.values(), ("--", "-"), strict=True):
                ax.plot(t, curve[i], dashes, color=colour)
                for time, mark in zip(times.values(), "os", strict=True):
                    height = np.interp(time[i], t, curve[i])
                    ax.plot(time[i], height, mark, color=colour, mfc="white")
            label = rf"$\eta_Y = {rate:g}$, $t_0 = {times['t0'][i]:.0f}$"
            ax.plot([], [], color=colour, label=label)
        keys = [
            drawing.key("upper bound $e^{2B}$"),
            drawing.key("lower bound $e^{2 f^2 B}$", ls="--"),
            drawing.key("$t_0'$, end of scanning", ls="", marker="o", mfc="white"),
            drawing.key("$t_0$, snapping begins", ls="", marker="s", mfc="white"),
        ]
        handles = [*ax.get_legend_handles_labels()[0], *keys]
        drawing.finished(
            ax,
            {"handles": handles, "loc": "upper left", "bbox_to_anchor": (1.01, 1)},
            xlim=(0, END),
            yscale="log",
            xlabel="optimiser steps $t$",
            ylabel=r"growth factor $\chi$",
            title=rf"$K = {K}$, $M = {M}$, $\eta_Z = {ETA_Z:g}$, "
            rf"$C_0 = {C0:g}$, $f_{{nl_0}}(0) = {F:g}$",
        )
        text = [
            f"eta_Y = {rate:g}: transition at step {t0:.0f}, chi between {low:.3g} and {high:.3g} "
            f"at step {END}"
            for rate, t0, low, high in zip(
                rates, times["t0"], *(curve[:, -1] for curve in curves.values()), strict=True
            )
        ]
        return sweeps.Picture(figure, {"eta_y": rates, "t": t} | curves | times, "\n".join(text))
