"""The picture of trainability: losses over both rates, and counts of boundary cells."""

import numpy as np
import xarray as xr
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.ticker import NullLocator

import sweeps
from sweeps import drawing

MAPS = {
    "trained": ("viridis", LogNorm(1e-2, 1), "min", 0.0),
    "untrained": ("Reds", LogNorm(1, 1e2), "max", 0.54),
}
EDGE = "magenta"
"""A colour that neither trained nor untrained runs have."""


def losses(ax, refinement, rates):
    """Draw the relative loss in separate colours for trained and untrained runs, and the boundary
    cells of the last level in black."""
    region, values, _ = refinement.infer()
    # Losses that are not finite count as large: the colour scale has no value for them.
    loss = xr.DataArray(np.where(np.isfinite(values), values, np.inf), rates)
    plain = {"ax": ax, "add_colorbar": False, "add_labels": False, "rasterized": True}
    for name, (colours, norm, extend, bottom) in MAPS.items():
        chosen = (region == 1) == (name == "trained")
        if chosen.any():
            shown = loss.clip(norm.vmin, norm.vmax).where(chosen)
            mesh = shown.plot.pcolormesh(
                x="eta_z", xscale="log", yscale="log", cmap=colours, norm=norm, **plain
            )
            bar = ax.inset_axes((1.02, bottom, 0.025, 0.46))
            ax.figure.colorbar(mesh, cax=bar, extend=extend, label=f"relative loss, {name}")
    cells = refinement.levels()[-1].boundary
    inside = np.full(np.subtract(values.shape, 1), np.nan)
    inside[tuple(cells.T)] = 1
    if len(cells):
        black = ListedColormap(["black"])
        ax.pcolormesh(rates["eta_z"], rates["eta_y"], inside, cmap=black, rasterized=True)
    ends = {f"{side}lim": rates[name][[0, -1]] for side, name in (("x", "eta_z"), ("y", "eta_y"))}
    label = r"learning rate $\eta_{} (1/step)"
    ax.set(xlabel=label.format("Z$"), ylabel=label.format("Y$"), **ends)


def lines(ax, edges):
    """Draw the lines of the edge of stability that cross the plane, and return them."""
    drawn, keys = [*filter(sweeps.diagrams.crosses, edges)], []
    for line in drawn:
        dashes = line.style[1]
        for x, y in sweeps.diagrams.contour(line.values):
            ax.plot(x, y, color=EDGE, ls=dashes, lw=1.8, path_effects=drawing.cased(1.8))
        keys.append(drawing.key(line.text, color=EDGE, ls=dashes))
    if keys:
        ax.legend(handles=keys, loc="lower left")
    return drawn


def counts(ax, eps, cells, fit):
    """Draw the number of boundary cells against their side, with the fit and local slopes."""
    ax.set(xlabel=r"side of a cell $\epsilon$ (share of the window)", ylabel=r"boundary cells $N$")
    if not fit:
        ax.set(xticks=[], yticks=[])
        return
    ax.loglog(eps, cells, "o", color="k", label="boundary cells")
    label = f"fit: slope {fit.slope:.2f} ± {fit.stderr:.2f}"
    fitted = np.exp(fit.intercept) * eps[1:] ** -fit.slope
    ax.loglog(eps[1:], fitted, color=drawing.colour(1), label=label)
    near = {"xytext": (6, 6), "textcoords": "offset points", "fontsize": "small"}
    middle = np.sqrt([eps[1:] * eps[:-1], cells[1:] * cells[:-1]]).T
    for slope, place in zip(np.diff(np.log(cells)) / -np.diff(np.log(eps)), middle, strict=True):
        ax.annotate(f"{slope:.2f}", place, **near)
    ax.set_xticks(eps, [f"1/{1 / side:.0f}" for side in eps])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title("numbers: slopes between levels")
    ax.legend(loc="upper right")
    ax.grid(alpha=0.25, which="both")
