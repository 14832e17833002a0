"""`dynsim spectrum`: singular values of weights in a checkpoint, beside those of random ones."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator

from sweeps import output
from sweeps.output import drawing
from sweeps.studies.spectrum import singular
from sweeps.studies.spectrum.checkpoint import (
    Checkpoint,
    Decomposed,
    Record,
    arrays,
    report,
    summary,
    table,
)

NAMED = 8
"""Number of entries up to which matrices, kinds of matrices or nulls are told apart."""
MARKERS = "os^Dv*Ph"
RANDOM = tuple({"color": "0.45", "lw": 1.2, "ls": dashes} for dashes in drawing.DASHES[1:])
"""Lines of random matrices, one for each shape."""
FLOOR = 1e-7
"""Singular values below this part of the largest one are roundings and not drawn."""


def run(config: Checkpoint) -> list[Path]:
    """Compute, print the table, and write spectrum.png, .json and .npz."""
    found = report(config)
    print(table(found))
    return output.write(
        config.out,
        "spectrum",
        figure=draw(found.records),
        arrays=arrays(found),
        report=summary(config, found),
    )


def draw(records: Sequence[Record]) -> Figure:
    """Three panels; up to eight matrices are named, more have a colour bar."""
    few = len(records) <= NAMED
    colours = palette(records)
    if few:
        names = {r.name: f"{r.name} ({_law(r)})" for r in records}
        handles = [Line2D([], [], color=colours[r.name], label=names[r.name]) for r in records]
    else:
        kinds = _kinds(records)
        handles = [
            Line2D([], [], color="0.3", marker=MARKERS[i], ls="", ms=5, label=name)
            for i, name in enumerate(kinds if 1 < len(kinds) <= NAMED else [])
        ]
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    columns = max(1, min(len(handles), 120 // (longest + 8)))
    rows = -(-len(handles) // columns)
    figure, (axes,) = drawing.panels(1, 3, height=3.8 + 0.2 * rows)
    plot_values(records, colours, ax=axes[0])
    plot_energy(records, colours, ax=axes[1])
    plot_by_matrix(records, colours, ax=axes[2])
    if handles:
        style = {"frameon": False, "fontsize": "small"}
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, **style)
    if not few:
        shades = ListedColormap([colours[r.name] for r in records])
        scale = ScalarMappable(Normalize(-0.5, len(records) - 0.5), shades)
        bar = figure.colorbar(scale, ax=axes, pad=0.01, aspect=35)
        bar.set_label("matrix, in order of appearance")
        bar.locator = MaxNLocator(8, integer=True)
        bar.update_ticks()
    return figure


def palette(records: Sequence[Record]) -> dict[str, str]:
    """Colours by name of the matrix, from first to last."""
    return {r.name: shade for r, shade in zip(records, drawing.shades(len(records)), strict=True)}


def plot_values(records: Sequence[Record], colours: Mapping[str, str], ax: Axes) -> Axes:
    """Singular values over the edge of the null, against the index i = 1 ... min(m, n)."""
    bottom = 1.0
    for r in _nonzero(records):
        shown = r.sigma[r.sigma > FLOOR * r.sigma[0]] / r.edge
        bottom = min(bottom, shown[-1])
        ax.plot(_place(r.sigma)[: shown.size], shown, color=colours[r.name], **_style(r, records))
    for r, style in zip(_nulls(records), RANDOM, strict=False):
        shown = r.null_sigma[r.null_sigma > FLOOR * r.edge] / r.edge
        bottom = min(bottom, shown[-1])
        ax.plot(_place(r.null_sigma)[: shown.size], shown, **style)
    ax.axhline(1, color="k", lw=0.8, zorder=0)
    ax.set(yscale="log", xlim=(0, 1), ylim=(bottom / 1.5, None))
    return drawing.finished(
        ax,
        {"handles": _key(records), "loc": "lower left", "framealpha": 0.8},
        r"singular values over the random edge $\sigma_+$",
        xlabel=r"$(i - 1/2) \, / \, \min(m, n)$",
        ylabel=r"$\sigma_i \, / \, \sigma_+$",
    )


def plot_energy(records: Sequence[Record], colours: Mapping[str, str], ax: Axes) -> Axes:
    """Share of the squared Frobenius norm in the first i directions."""
    for r in _nonzero(records):
        share = np.r_[0, singular.energy(r.sigma)]
        ax.plot(np.linspace(0, 1, share.size), share, color=colours[r.name], **_style(r, records))
    for r, style in zip(_nulls(records), RANDOM, strict=False):
        share = np.r_[0, singular.energy(r.null_sigma)]
        ax.plot(np.linspace(0, 1, share.size), share, **style)
    return drawing.finished(
        ax,
        heading="energy in the first $i$ directions",
        xlabel=r"$i \, / \, \min(m, n)$",
        ylabel=r"$\sum_{j \leq i} \sigma_j^2 / |A|_F^2$",
        xlim=(0, 1),
        ylim=(0, 1.03),
    )


def plot_by_matrix(records: Sequence[Record], colours: Mapping[str, str], ax: Axes) -> Axes:
    """Traces where there are square matrices, with two standard deviations of the null about 0;
    otherwise stable ranks, with those of the null. A marker for each kind of matrix."""
    traces = any(r.trace is not None for r in records)
    shown = [
        (i, r)
        for i, r in enumerate(records)
        if isinstance(r, Decomposed) and (r.trace is not None if traces else r.status == "ok")
    ]
    kinds = _kinds(records)
    size = 6 if len(records) <= 30 else 4
    for number, name in enumerate(kinds):
        members = [(i, r) for i, r in shown if kind(r.name) == name]
        x = [i for i, _ in members]
        y = np.array([r.trace if traces else r.numbers.stable_rank for _, r in members], float)
        marker = MARKERS[number] if len(kinds) <= NAMED else "o"
        if len(records) > NAMED:
            ax.plot(x, y, color="0.8", lw=0.8, zorder=1)
        ax.scatter(x, y, size**2, [colours[r.name] for _, r in members], label=name, marker=marker)
    x = np.array([i for i, _ in shown])
    if traces:
        spread = [2 * r.numbers.frobenius / np.sqrt(r.shape[0]) for _, r in shown]
        ax.vlines(x, -np.array(spread), spread, color="0.88", lw=size / 2, zorder=0)
        ax.axhline(0, color="k", lw=0.8, zorder=0)
        ax.set(ylabel=r"tr $A$")
        title = r"trace, square ones (grey: random, 2 sd)"
    else:
        ax.plot(x, [r.null.stable_rank for _, r in shown], "_", color="0.45", ms=size)
        if shown:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        ax.set(ylabel=r"$|A|_F^2 \, / \, \sigma_1^2$")
        title = "stable rank (grey: random)"
    ax.set_title(title, fontsize="medium")
    ax.set(xlabel="matrix, in order of appearance", xlim=(-0.6, len(records) - 0.4))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    ax.grid(alpha=0.25)
    return ax


def kind(name: str) -> str:
    """Name of a matrix without its layer: * for every number but that of a block."""
    return re.sub(r"\d+(?![\d\]])", "*", name)


def _kinds(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(kind(r.name) for r in records))


def _nonzero(records: Sequence[Record]) -> list[Decomposed]:
    return [r for r in records if isinstance(r, Decomposed) and r.status == "ok"]


def _nulls(records: Sequence[Record]) -> list[Decomposed]:
    """One matrix for each law of the null; none if that would be a thicket."""
    laws = {(r.shape, r.inner): r for r in reversed(_nonzero(records))}
    return list(laws.values()) if len(laws) <= NAMED // 2 else []


def _key(records: Sequence[Record]) -> list[Line2D]:
    edge = Line2D([], [], color="k", lw=0.8, label=r"edge: $\sigma = \sigma_+$")
    random = [
        Line2D([], [], label=f"random, {_law(r)}", **style)
        for r, style in zip(_nulls(records), RANDOM, strict=False)
    ]
    return [edge, *random]


def _law(r: Record) -> str:
    """Of which shape a matrix is, or of which shapes its factors are."""
    m, n = r.shape
    return f"{m} x {n}" if r.inner is None else f"{m} x {r.inner} @ {r.inner} x {n}"


def _place(sigma: np.ndarray) -> np.ndarray:
    return (np.arange(sigma.size) + 0.5) / sigma.size


def _style(r: Record, records: Sequence[Record]) -> dict[str, Any]:
    """Thin lines where there are many, and points where a line would have few."""
    few = r.sigma.size <= 20
    return {"lw": 1.5 if len(records) <= NAMED else 0.7, "marker": "." if few else None}
