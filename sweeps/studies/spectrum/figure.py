"""`dynsim spectrum`: singular values of the weights in a checkpoint."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogFormatter, MaxNLocator

from dynsim.decoding import Count
from sweeps.figures import Figure, Picture
from sweeps.output import drawing
from sweeps.runner import progress
from sweeps.studies.options import Style
from sweeps.studies.spectrum.singular import MatrixSpectrum, decompose, energy
from sweeps.studies.spectrum.weights import MOST_LISTED, Fused, Tensor, select_tensors, tensors

MOST_LABELLED = 8
"""Largest number of matrices, kinds of matrices or nulls that are drawn differently."""
MARKERS = "os^Dv*Ph"
FLOOR = 1e-7
"""Singular values below this fraction of the largest are rounding errors and not drawn."""


class Spectrum(Figure):
    """Singular values, ranks and traces of the matrices in a .safetensors checkpoint, next to those
    of random matrices of the same shape and norm.

    Attributes:
        checkpoint: a .safetensors file, a .safetensors.index.json, or a folder with one of them.
        pattern: shell patterns of the names of tensors, for instance '*attn*'; case-sensitive.
        split: number of equal blocks that each chosen matrix is cut into, 3 for fused queries, keys
            and values. For (in, 3 out) matrices, as in GPT-2 of Hugging Face, this is enough.
        fused: rows or columns, the axis along which the blocks are joined; by default the axis that
            is `split` times as long as the other one. Another shape needs it.
        heads: number of attention heads, if each head has its part of every block together, as in
            GPT-NeoX and BLOOM; 1 if each block is in one piece, as in nanoGPT and
            torch.nn.MultiheadAttention. Needed if rows are fused, since shapes do not tell.
    """

    NAME = "spectrum"

    checkpoint: Path
    pattern: tuple[str, ...] = ("*",)
    split: Count = 1
    fused: Fused | None = None
    heads: Count | None = None

    def matrices(self) -> tuple[list[Tensor], list[Tensor]]:
        """The chosen matrices, of which no entry is read yet, and the tensors that are left out;
        `ValueError` for options that do not describe the checkpoint."""
        for name in ("fused", "heads"):
            if self.split == 1 and (value := getattr(self, name)) is not None:
                raise ValueError(f"{name} = {value}: describes fused matrices; needs split > 1")
        if not self.pattern:
            raise ValueError("pattern = (): needs at least one pattern")
        every = select_tensors(tensors(self.checkpoint), self.pattern)
        chosen = [tensor for tensor in every if tensor.obstacle is None]
        skipped = [tensor for tensor in every if tensor.obstacle is not None]
        if not chosen:
            reasons = "; ".join(f"{t.name} {t.obstacle}" for t in skipped[:MOST_LISTED])
            raise ValueError(
                f"pattern = {self.pattern}: none of the {len(skipped)} tensors that match can be "
                f"decomposed: {reasons}"
            )
        split = (tensor.blocks(self.split, self.fused, self.heads) for tensor in chosen)
        return [block for blocks in split for block in blocks], skipped

    def draw(self, data: Mapping[str, xr.Dataset]) -> Picture:
        """Decompose the matrices one at a time and draw their singular values."""
        chosen, skipped = self.matrices()
        # One matrix in memory at a time.
        records = [decompose(m) for m in progress.track(chosen, "matrix", lambda m: m.name)]
        rows = [{"shape": _size(r), "status": r.status, **r.numbers} for r in records]
        table = pd.DataFrame(rows, pd.Index([r.name for r in records], name="matrix"))
        numbers = ("edge", "stable_rank", "null_stable_rank", "trace")
        arrays: dict[str, object] = {
            name: np.array([r.numbers.get(name) for r in records], float) for name in numbers
        }
        arrays["names"] = table.index.to_numpy(str)
        for r in records:
            if r.sigma.size:
                values = {"sigma": r.sigma, "null_sigma": r.null_sigma, "energy": energy(r.sigma)}
                arrays[r.name] = values
        text = table.to_string(float_format="{:.4g}".format, na_rep="-")
        text += "\n\nnull: a random Gaussian matrix of that shape and norm, a model and no test\n"
        text += "spikes: singular values above the edge of its bulk"
        for tensor in skipped:
            text += f"\nskipped {tensor.name} {tensor.shape} {tensor.dtype}: {tensor.obstacle}"
        # Numbers that a matrix does not have are left empty.
        cells = table.reset_index().astype(object)
        rows = cells.where(cells.notna(), "").itertuples(index=False)
        return Picture(draw_spectra(records), arrays, text, [["matrix", *table], *rows])


def draw_spectra(records: Sequence[MatrixSpectrum]) -> Drawing:
    """Draw three panels; up to eight matrices are named, more get a colour bar."""
    few = len(records) <= MOST_LABELLED
    colours = dict(zip([r.name for r in records], drawing.shades(len(records)), strict=True))
    kinds = list(dict.fromkeys(_kind(r) for r in records))
    handles = []
    if few:
        handles = [drawing.key(f"{r.name} ({_size(r)})", color=colours[r.name]) for r in records]
    elif 1 < len(kinds) <= MOST_LABELLED:
        style = {"color": "0.3", "ls": "", "ms": 5}
        handles = [drawing.key(name, marker=MARKERS[i], **style) for i, name in enumerate(kinds)]
    # As many columns of the legend as fit the width of three panels.
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    columns = max(1, min(len(handles), 120 // (longest + 8)))
    figure, (axes,) = drawing.panels(1, 3, height=3.8 + 0.2 * -(-len(handles) // columns))
    plot_values(records, colours, axes[0])
    for sigma, _, style in _curves(records, colours):
        share = np.r_[0, energy(sigma)]
        axes[1].plot(np.linspace(0, 1, share.size), share, **style)
    labels = {"xlabel": r"$i \, / \, \min(m, n)$", "xlim": (0, 1), "ylim": (0, 1.03)}
    labels["ylabel"] = r"$\sum_{j \leq i} \sigma_j^2 / |A|_F^2$"
    drawing.finished(axes[1], title="energy in the first $i$ directions", **labels)
    plot_by_matrix(records, colours, kinds, axes[2])
    if handles:
        drawing.below(figure, handles, columns)
    if not few:
        shades = ListedColormap(list(colours.values()))
        scale = ScalarMappable(Normalize(-0.5, len(records) - 0.5), shades)
        bar = figure.colorbar(scale, ax=axes, pad=0.01, aspect=35)
        bar.set_label("matrix, in order of appearance")
        bar.locator = MaxNLocator(8, integer=True)
        bar.update_ticks()
    return figure


def plot_values(records: Sequence[MatrixSpectrum], colours: Mapping[str, str], ax: Axes) -> None:
    """Draw singular values relative to the null's edge against the index i = 1 ... min(m, n)."""
    bottom, keys = 1.0, [drawing.key(r"edge: $\sigma = \sigma_+$", lw=0.8)]
    for sigma, r, style in _curves(records, colours):
        relative = sigma[sigma > FLOOR * sigma[0]] / r.numbers["edge"]
        bottom = min(bottom, relative[-1])
        # Value i is about the quantile (i - 1/2) / r of their distribution.
        ax.plot((np.arange(relative.size) + 0.5) / sigma.size, relative, **style)
        if sigma is r.null_sigma:
            keys.append(drawing.key(f"random, {_size(r)}", **style))
    ax.axhline(1, color="k", lw=0.8, zorder=0)
    labels = {"xlabel": r"$(i - 1/2) \, / \, \min(m, n)$", "ylabel": r"$\sigma_i \, / \, \sigma_+$"}
    labels["title"] = r"singular values over the random edge $\sigma_+$"
    limits = {"yscale": "log", "xlim": (0, 1), "ylim": (bottom / 1.5, None)}
    legend = {"handles": keys, "loc": "lower left", "framealpha": 0.8}
    drawing.finished(ax, legend, **labels, **limits)


def plot_by_matrix(
    records: Sequence[MatrixSpectrum], colours: Mapping[str, str], kinds: Sequence[str], ax: Axes
) -> None:
    """Draw traces if there are square matrices, with two standard deviations of the null about 0;
    otherwise stable ranks, with those of the null. Each kind of matrix has its marker."""
    traces = any("trace" in r.numbers for r in records)
    name = "trace" if traces else "stable_rank"
    drawn = {i: r for i, r in enumerate(records) if name in r.numbers}
    size = 6 if len(records) <= 30 else 4
    for number, kind in enumerate(kinds):
        members = {i: r for i, r in drawn.items() if _kind(r) == kind}
        y = [r.numbers[name] for r in members.values()]
        if len(records) > MOST_LABELLED:
            ax.plot([*members], y, color="0.8", lw=0.8, zorder=1)
        marker = MARKERS[number] if len(kinds) <= MOST_LABELLED else "o"
        shades = [colours[r.name] for r in members.values()]
        ax.scatter([*members], y, size**2, shades, marker=marker)
    if traces:
        # The trace of n independent entries of variance s^2 has the variance n s^2 = |A|_F^2 / n.
        spread = [2 * r.numbers["frobenius"] / np.sqrt(r.shape[0]) for r in drawn.values()]
        ax.vlines([*drawn], np.negative(spread), spread, color="0.88", lw=size / 2, zorder=0)
        ax.axhline(0, color="k", lw=0.8, zorder=0)
    else:
        null = [r.numbers["null_stable_rank"] for r in drawn.values()]
        ax.plot([*drawn], null, "_", color="0.45", ms=size)
        if drawn:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    labels = {"xlabel": "matrix, in order of appearance", "xlim": (-0.6, len(records) - 0.4)}
    labels["ylabel"] = r"tr $A$" if traces else r"$|A|_F^2 \, / \, \sigma_1^2$"
    title = "trace, square ones (grey: random, 2 sd)" if traces else "stable rank (grey: random)"
    drawing.finished(ax, title=title, **labels)


def _curves(
    records: Sequence[MatrixSpectrum], colours: Mapping[str, str]
) -> Iterator[tuple[np.ndarray, MatrixSpectrum, Style]]:
    """Yield singular values, matrix and line style: of each nonzero matrix, and of the null for
    each shape unless there are too many."""
    drawn = [r for r in records if r.status == "ok"]
    width = 1.5 if len(records) <= MOST_LABELLED else 0.7
    for r in drawn:
        # Few values need markers to be seen.
        marker = "." if r.sigma.size <= 20 else None
        yield r.sigma, r, {"color": colours[r.name], "lw": width, "marker": marker}
    # The first matrix of each shape stands for all of them.
    shapes = {r.shape: r for r in reversed(drawn)}
    if len(shapes) <= MOST_LABELLED // 2:
        for r, dashes in zip(shapes.values(), drawing.DASHES[1:], strict=False):
            yield r.null_sigma, r, {"color": "0.45", "lw": 1.2, "ls": dashes}


def _kind(r: MatrixSpectrum) -> str:
    """Replace every number in a matrix's name, such as its layer, by *, except a block's."""
    return re.sub(r"\d+(?![\d\]])", "*", r.name)


def _size(r: MatrixSpectrum) -> str:
    return f"{r.shape[0]} x {r.shape[1]}"
