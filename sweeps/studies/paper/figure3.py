"""Fig. 3 of Scan and Snap: the growth factor chi(t) with the phase transition marked.

The paper draws chi from its theory without giving C0 and f_nl0. Drawn here are Theorem 3's two
bounds, exp(2 f_nl0(0)^2 B) and exp(2 B), with Theorem 4's B by the paper's clock; C0 and f_nl0 are
parameters. The upper bound is the curve of a token that has all the attention.
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


@dataclasses.dataclass(frozen=True)
class Figure3:
    """Growth factor chi(t) at fixed eta_Z for several eta_Y, transition times marked.

    Attributes:
        out: directory for the picture and fig3.npz.
        eta_y: learning rates of Y.
        eta_z: learning rate of Z.
        K: number of classes.
        M: vocabulary size.
        end: last time, in optimiser steps.
        c0: the constant C0 of Theorem 4.
        f: normalised attention f_nl0(0) of the dominant token at the start, for the lower bound.
    """

    out: Path = Path("out/figures")
    eta_y: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    eta_z: float = 0.5
    K: int = 10
    M: int = 1000
    end: float = 700.0
    c0: float = 1.0
    f: float = 0.5


def run(config: Figure3) -> list[Path]:
    """Compute, draw and write the figure."""
    K = checks.integer("K", config.K, 1)
    M = checks.integer("M", config.M, max(K, 4))
    if not config.eta_y:
        raise ValueError("eta_y: needs at least one learning rate")
    for field in ("eta_y", "eta_z", "end", "c0"):
        checks.real(field, getattr(config, field), 0, open_minimum=True)
    checks.real("f", config.f, 0, 1, open_minimum=True)
    t, rates = np.linspace(0, config.end, 701), np.array(config.eta_y)
    with precision("float64"):
        B = growth.bound(t[None], rates[:, None], config.eta_z, K, M, c0=config.c0, clock="paper")
        bounds = growth.growth_factor_bounds(config.f, B)
        snaps = decoder.stages(rates, K, M).snap
    data = {"t": t, "lower": bounds.lower, "upper": bounds.upper, "t0": snaps}
    data = {name: np.asarray(values) for name, values in data.items()}
    arrays = {"eta_y": rates, **data}
    return output.write(config.out, "fig3", figure=draw(config, data), arrays=arrays)


def draw(config: Figure3, data: Mapping[str, np.ndarray]) -> Figure:
    """The bounds of all rates in one panel; `data` as `plot` takes them."""
    figure, ((ax,),) = drawing.panels(1, 1, width=7, height=3.8)
    plot(config.eta_y, **data, ax=ax)
    ax.set_title(
        rf"$K = {config.K}$, $M = {config.M}$, $\eta_Z = {config.eta_z:g}$, "
        rf"$C_0 = {config.c0:g}$, $f_{{nl_0}}(0) = {config.f:g}$"
    )
    return figure


def plot(
    rates: tuple[float, ...],
    t: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    t0: np.ndarray,
    ax: Axes,
) -> Axes:
    """Upper bound (solid) and lower bound (dashed) of chi; dotted lines at the transitions."""
    curves = zip(rates, lower, upper, t0, drawing.shades(len(rates)), strict=True)
    for eta_y, low, high, snap, colour in curves:
        ax.plot(t, high, color=colour, label=rf"$\eta_Y = {eta_y:g}$, $t_0 = {snap:.0f}$")
        ax.plot(t, low, "--", color=colour)
        ax.axvline(snap, color=colour, ls=":")
    ax.set(xlim=(0, t[-1]), yscale="log")
    rates_drawn, _ = ax.get_legend_handles_labels()
    kinds = [
        drawing.key("upper bound $e^{2B}$"),
        drawing.key("lower bound $e^{2 f^2 B}$", ls="--"),
        drawing.key("transition $t_0$", ls=":"),
    ]
    ax.legend(handles=[*rates_drawn, *kinds], loc="upper left", bbox_to_anchor=(1.01, 1))
    return drawing.finished(ax, xlabel="optimiser steps $t$", ylabel=r"growth factor $\chi$")
