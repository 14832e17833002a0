"""Fig. 8 of Scan and Snap: the discrete decoder h* against the flow h (Lemmas 5 to 7)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsim import checks
from dynsim.precision import precision
from odes.formulas import decoder
from odes.formulas.discrete_decoder import h_star
from sweeps import output
from sweeps.output import drawing


@dataclasses.dataclass(frozen=True)
class Figure8:
    """Decoder h* by discrete steps and h by the flow, with Lemma 7's bound on the difference.

    Attributes:
        out: directory for the picture and fig8.npz.
        steps: number of visits to the class, for M = 50 and for M = 1000.
    """

    out: Path = Path("out/figures")
    steps: tuple[int, int] = (80, 70)


PANELS = {50: (0.1, 0.2, 0.5, 1.0, 2.0), 1000: (0.2, 0.5, 1.0, 2.0, 4.0)}


def run(config: Figure8) -> list[Path]:
    """Compute, draw and write the figure."""
    for steps in config.steps:
        checks.steps("steps", steps)
    arrays: dict[str, np.ndarray] = {}
    for (M, rates), steps in zip(PANELS.items(), config.steps, strict=True):
        s = np.arange(steps + 1)
        with precision("float64"):
            flow = np.asarray(decoder.h(s[None], np.array(rates)[:, None], M))
            discrete = np.asarray(h_star(np.array(rates), M, steps)).T
        data = {"eta_y": np.array(rates), "s": s, "h": flow, "h_star": discrete}
        arrays |= {f"M{M}/{name}": values for name, values in data.items()}
    return output.write(config.out, "fig8", figure=draw(arrays), arrays=arrays)


def draw(arrays: Mapping[str, np.ndarray]) -> Figure:
    """A column for each vocabulary; `arrays` as they are written."""
    figure, axes = drawing.panels(2, 2, width=4, sharex="col")
    for column, (M, rates) in zip(axes.T, PANELS.items(), strict=True):
        s, flow, discrete = (arrays[f"M{M}/{name}"] for name in ("s", "h", "h_star"))
        plot(s, rates, flow, discrete, M, ax=column[0])
        plot_difference(s, rates, discrete - flow, M, ax=column[1])
    return figure


def plot(
    s: np.ndarray,
    rates: tuple[float, ...],
    flow: np.ndarray,
    discrete: np.ndarray,
    M: int,
    ax: Axes,
) -> Axes:
    """h (lines) and h* (dots) over the number of visits."""
    shades = drawing.shades(len(rates))
    for eta, curve, dots, colour in zip(rates, flow, discrete, shades, strict=True):
        ax.plot(s, M * curve, color=colour, label=rf"$\eta_Y = {eta:g}$")
        ax.plot(s, M * dots, ".", ms=4, color=colour)
    return drawing.finished(ax, {}, ylabel="$M h$ (line), $M h^*$ (dots)", title=f"M = {M}")


def plot_difference(
    s: np.ndarray, rates: tuple[float, ...], difference: np.ndarray, M: int, ax: Axes
) -> Axes:
    """h* - h over Lemma 7's bound 2 eta_Y / M: between 0 and 1, and going to 0."""
    for eta, curve, colour in zip(rates, difference, drawing.shades(len(rates)), strict=True):
        ax.plot(s, curve * M / (2 * eta), color=colour, label=rf"$\eta_Y = {eta:g}$")
    ax.axhline(0, color="grey", lw=0.8)
    quantity = r"$(h^* - h)\,/\,(2\eta_Y/M)$"
    return drawing.finished(ax, xlabel="visits to the class $s$", ylabel=quantity)
