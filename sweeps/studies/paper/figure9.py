"""Fig. 9 of Scan and Snap: the growth factor bound B(t) at a fixed ratio of learning rates.

Theorem 4 by the paper's clock. The paper gives nu = eta_Y / eta_Z, M and eta_Z, but neither K nor
C0. K = 1 is inferred: with it the latest transition, at 2.6 and at 47 steps, just fits the
published ranges of 5 and 50 steps. C0 shifts the curves and is left as a parameter.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.precision import precision
from odes.formulas import decoder, growth
from sweeps import output
from sweeps.output import drawing

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
PANELS = {10: (100, 5.0), 1: (10_000, 50.0)}
"""M, and the last time drawn, by nu."""


@dataclasses.dataclass(frozen=True)
class Figure9:
    """Growth factor bound B(t) for fixed nu = eta_Y / eta_Z, with t0 and B(t0) marked.

    Attributes:
        out: directory for the picture and fig9.npz.
        K: number of classes.
        c0: the constant C0 of Theorem 4.
        printed: draw the printed form 1/4 ln(C0 + ...), which is not 0 at t = 0 unless C0 = 1.
    """

    out: Path = Path("out/figures")
    K: int = 1
    c0: float = 1.0
    printed: bool = False


def run(config: Figure9) -> list[Path]:
    """Compute, draw and write the figure."""
    checks.integer("K", config.K, 1)
    checks.real("c0", config.c0, 0, open_minimum=True)
    arrays: dict[str, np.ndarray] = {}
    for nu, (M, end) in PANELS.items():
        t = np.linspace(0, end, 501)
        K, options = config.K, {"c0": config.c0, "clock": "paper", "printed": config.printed}
        with precision("float64"):
            eta_z = np.array(RATES)[:, None]
            curves = growth.bound(t[None], nu * eta_z, eta_z, K, M, **options)
            snaps = decoder.stages(nu * eta_z[:, 0], K, M).snap
            level = growth.bound_at_snap(K, M, nu, **options)
        data = {"t": t, "B": curves, "t0": snaps, "B_at_t0": level}
        arrays |= {f"nu{nu}/{name}": np.asarray(values) for name, values in data.items()}
    return output.write(config.out, "fig9", figure=draw(config, arrays), arrays=arrays)


def draw(config: Figure9, arrays: Mapping[str, np.ndarray]) -> Figure:
    """A panel for each ratio of rates; `arrays` as they are written."""
    figure, (axes,) = drawing.panels(1, 2, width=4.2, height=3.6)
    for ax, (nu, (M, _)) in zip(axes, PANELS.items(), strict=True):
        data = {name: arrays[f"nu{nu}/{name}"] for name in ("t", "B", "t0", "B_at_t0")}
        title = rf"$\nu = \eta_Y/\eta_Z = {nu}$, M = {M}, K = {config.K}"
        plot(**data, ax=ax).set_title(title, fontsize="medium")
    return figure


def plot(t: np.ndarray, B: np.ndarray, t0: np.ndarray, B_at_t0: np.ndarray, ax: Axes) -> Axes:
    """B(t) for each eta_Z; a dot at the transition, which is at one height for all of them."""
    for eta_z, curve, snap, colour in zip(RATES, B, t0, drawing.shades(len(RATES)), strict=True):
        ax.plot(t, curve, color=colour, label=rf"$\eta_Z = {eta_z:g}$")
        if snap <= t[-1]:
            ax.plot(snap, B_at_t0, "o", color=colour)
    ax.axhline(float(B_at_t0), color="grey", ls=":", label="$B(t_0)$")
    labels = {"xlabel": "optimiser steps $t$", "ylabel": "growth factor bound $B(t)$"}
    return drawing.finished(ax, {}, xlim=(0, t[-1]), **labels)
