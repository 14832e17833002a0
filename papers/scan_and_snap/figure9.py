"""Fig. 9: the ratio nu = eta_Y / eta_Z alone decides how far attention has grown at the transition.

The bound B(t) on the growth of attention, by Theorem 4 in the paper's time. The paper gives nu, M
and eta_Z, but neither K nor C0. We infer K = 1, for which the latest transitions, at 2.6 and 47
steps, just fit in the published ranges of 5 and 50 steps. C0 shifts and bends the curves.
"""

import jax
import numpy as np

import odes
import sweeps
from sweeps import drawing

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Learning rates of Z."""
RATIOS = {10: (100, 5.0), 1: (10_000, 50.0)}
"""M, and the last time, by nu."""
K, C0 = 1, 1.0
"""The number of classes, and the constant of Theorem 4."""


class Figure9(sweeps.Figure):
    """Growth factor bound B(t) for fixed nu = eta_Y / eta_Z, with t0 and B(t0) marked."""

    NAME = "fig9"

    def draw(self, data):
        arrays, text, options = {}, [], {"c0": C0, "convention": "paper"}
        figure, (axes,) = drawing.panels(1, 2, width=4.2, height=3.6)
        for ax, (nu, (M, end)) in zip(axes, RATIOS.items(), strict=True):
            t, eta_z = np.linspace(0, end, 501), np.array(RATES)
            rates = eta_z[:, None]
            with jax.enable_x64(True):
                B = odes.growth.bound(t[None], nu * rates, rates, K, M, **options)  # Theorem 4
                t0 = odes.decoder.stages(nu * eta_z, K, M).snap
                level = odes.growth.bound_at_snap(K, M, nu, **options)
            curves = {"t": t, "B": B, "t0": t0, "B_at_t0": level}
            arrays[f"nu{nu}"] = curves = {name: np.asarray(v) for name, v in curves.items()}
            shades = drawing.shades(len(RATES))
            for rate, curve, snap, colour in zip(
                eta_z, curves["B"], curves["t0"], shades, strict=True
            ):
                ax.plot(t, curve, color=colour, label=rf"$\eta_Z = {rate:g}$")
                if snap <= end:
                    ax.plot(snap, curves["B_at_t0"], "o", color=colour)
            ax.axhline(float(level), color="grey", ls=":", label="$B(t_0)$")
            title = rf"$\nu = \eta_Y/\eta_Z = {nu}$, M = {M}, K = {K}"
            labels = {"xlabel": "optimiser steps $t$", "ylabel": "growth factor bound $B(t)$"}
            drawing.finished(ax, {}, title=title, xlim=(0, end), **labels)
            text.append(f"nu = {nu}, M = {M}: B = {float(level):.3g} at every transition")
        return sweeps.Picture(figure, arrays, "\n".join(text))
