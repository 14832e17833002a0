"""Singular directions of trained weights and the components they carry; or of a checkpoint."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from dynsim import Status
from dynsim.decoding import Count
from dynsim.precision import AnyArray
from dynsim.two_stage.observables import RankCurves
from odes.two_stage import claims
from sweeps import output
from sweeps.output import drawing
from sweeps.runner.progress import count
from sweeps.runner.run import run as run_sweep
from sweeps.runner.spec import Sweep
from sweeps.studies.options import begin
from sweeps.studies.spectrum import checkpoint
from sweeps.studies.spectrum.checkpoint import Decomposed, Record
from sweeps.studies.spectrum.weights import Fused
from sweeps.systems.experiment import Experiment, experiment

P, Q, BEST = range(3)
"""Indices of colours: of components, and of another measure of Q."""
LARGEST = 12
"""Number of directions drawn; the others are noise."""
NAMED = 8
"""Largest number of matrices, kinds of matrices or nulls that are drawn differently."""
MARKERS = "os^Dv*Ph"
FLOOR = 1e-7
"""Singular values below this fraction of the largest are rounding errors and not drawn."""


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Contributions of singular directions of trained weights: losses and accuracies after keeping
    or dropping them, at the end of each stage; or the singular values of a .safetensors checkpoint.

    Attributes:
        checkpoint: a .safetensors file, a .safetensors.index.json, or a folder with one of them; if
            omitted, two-stage training is examined.
        pattern: shell patterns of the names of tensors, for instance '*attn*'; case-sensitive.
        products: pairs to multiply, for instance 'h.*.q.weight.T @ h.*.k.weight', which determines
            attention scores if weights are (out, in) as in PyTorch; * must stand for the same on
            both sides, [i] means block i of a split matrix, and .T transposes.
        split: number of equal blocks that each chosen matrix is cut into, 3 for fused queries, keys
            and values. For (in, 3 out) matrices, as in GPT-2 of Hugging Face, this is enough.
        fused: rows or columns, the axis along which the blocks are joined; by default the axis that
            is `split` times as long as the other one. Another shape needs it.
        heads: number of attention heads, if each head has its part of every block together, as in
            GPT-NeoX and BLOOM; 1 if each block is in one piece, as in nanoGPT and
            torch.nn.MultiheadAttention. Needed if rows are fused, since shapes do not tell.
        out: folder for the figure, spectrum.npz and .json, and the stored sweep, from which the
            command resumes.
        run: the two-stage training to examine.
        seeds: number of these runs.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "two_stage"}

    checkpoint: Path | None = None
    pattern: tuple[str, ...] = ("*",)
    products: tuple[str, ...] = ()
    split: int = 1
    fused: Fused | None = None
    heads: Count | None = None
    out: Path = Path("out/spectrum")
    run: Experiment = dataclasses.field(default_factory=lambda: experiment("two_stage"))
    seeds: Count = 6


def run(config: Spectrum) -> list[Path]:
    """Examine the checkpoint, or run (or resume) two-stage training and examine that."""
    if config.checkpoint is not None:
        output.check_directory(config.out)
        asked = {
            name: getattr(config, name)
            for name in ("pattern", "products", "split", "fused", "heads")
        }
        found = checkpoint.report(config.checkpoint, *asked.values())
        print(checkpoint.table(found))
        return output.write(
            config.out,
            "spectrum",
            figure=draw_checkpoint(found.records),
            arrays=checkpoint.arrays(found),
            report={"checkpoint": str(config.checkpoint), **asked, **checkpoint.summary(found)},
        )
    begin(config)
    config.run.check()
    # Only the end of each stage is analysed.
    record = ("W_signal", "V_signal")
    sweep = Sweep(config.run, {"seed": {"range": config.seeds}}, "simulation", record, 2)
    found = run_sweep(sweep, config.out / "simulation").load()
    found = found.isel(seed=found.status.values == Status.OK)
    problem: Any = config.run.problem
    curves = {f"stage {i + 1}": claims.truncations(problem, found, i) for i in range(2)}
    verdicts = claims.directions(*curves.values())
    number = count(found.sizes["seed"], "run")
    print(f"{number} of {config.run.about}\n{claims.table(verdicts)}")
    arrays = {
        stage.replace(" ", "-"): jax.tree.map(lambda *runs: np.stack(runs), *of_stage)
        for stage, of_stage in curves.items()
    }
    report, figure = [claim.as_record() for claim in verdicts], draw(config.run.about, curves)
    return output.write(config.out, "spectrum", figure=figure, arrays=arrays, report=report)


def draw(about: str, found: Mapping[str, Sequence[RankCurves]]) -> Figure:
    """Draw a row for each stage: the largest singular values, coloured by block; K1 and K2 without
    the largest directions; accuracies with these alone. `about` describes the runs."""
    figure, axes = drawing.panels(2, 3)
    for (left, middle, right), (stage, curves) in zip(axes, found.items(), strict=True):
        for i, c in enumerate(curves):
            for block, (name, place) in enumerate({"W": P, "V": Q}.items()):
                ranks = np.flatnonzero(c.block[:LARGEST] == block)
                label = rf"of $\overline{{{name}}}$" if i == 0 else None
                style = {"ms": 4, "color": drawing.colour(place), "alpha": 0.6}
                left.plot(ranks + 1, c.singular[ranks], "os"[block], label=label, **style)
        labels = {"xlabel": "rank", "ylabel": "singular value", "yscale": "log"}
        drawing.finished(left, {}, **labels).set_title(f"end of {stage}")
        for name, label, place in (("K1", "$K^1$", P), ("K2", "$K^2$", Q)):
            _plot_curve(middle, [c.dropped[name] for c in curves], label, place)
        middle.axhline(np.log(2), color="grey", lw=0.8)
        xlabel = "number of largest directions {}".format
        drawing.finished(middle, {}, xlabel=xlabel("dropped"), ylabel="logistic loss (nat)")
        accuracies = {
            "accuracy_P": ("P, sign accuracy", P),
            "auc_Q": ("Q, AUC", Q),
            "best_accuracy_Q": ("Q, best threshold", BEST),
        }
        for name, (label, place) in accuracies.items():
            _plot_curve(right, [c.kept[name] for c in curves], label, place)
        drawing.finished(right, {}, xlabel=xlabel("kept"), ylabel="accuracy, AUC")
    for ax in axes.flat:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(
        rf"singular directions of diag($\overline{{W}}$, $\overline{{V}}$), {about}, "
        f"mean ± sd of {count(len(curves), 'run')}"
    )
    return figure


def _plot_curve(ax: Axes, values: Sequence[AnyArray], label: str, place: int) -> None:
    shown = np.stack(values)[:, : LARGEST + 1]
    spread = shown.std(0, ddof=1) if len(shown) > 1 else np.zeros(shown.shape[1])
    style = {"fmt": "os^"[place] + "-", "ms": 4, "color": drawing.colour(place)}
    ax.errorbar(np.arange(shown.shape[1]), shown.mean(0), spread, label=label, **style)


def draw_checkpoint(records: Sequence[Record]) -> Figure:
    """Draw three panels; up to eight matrices are named, more get a colour bar."""
    few = len(records) <= NAMED
    colours = dict(zip([r.name for r in records], drawing.shades(len(records)), strict=True))
    handles = []
    if few:
        handles = [drawing.key(f"{r.name} ({_law(r)})", color=colours[r.name]) for r in records]
    elif 1 < len(kinds := _kinds(records)) <= NAMED:
        style = {"color": "0.3", "ls": "", "ms": 5}
        handles = [drawing.key(name, marker=MARKERS[i], **style) for i, name in enumerate(kinds)]
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    columns = max(1, min(len(handles), 120 // (longest + 8)))
    rows = -(-len(handles) // columns)
    figure, (axes,) = drawing.panels(1, 3, height=3.8 + 0.2 * rows)
    plot_values(records, colours, ax=axes[0])
    plot_energy(records, colours, ax=axes[1])
    plot_by_matrix(records, colours, ax=axes[2])
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


def plot_values(records: Sequence[Record], colours: Mapping[str, str], ax: Axes) -> Axes:
    """Draw singular values relative to the null's edge against the index i = 1 ... min(m, n)."""
    bottom, keys = 1.0, [drawing.key(r"edge: $\sigma = \sigma_+$", lw=0.8)]
    for sigma, r, style in _curves(records, colours):
        shown = sigma[sigma > FLOOR * sigma[0]] / r.edge
        bottom = min(bottom, shown[-1])
        ax.plot((np.arange(shown.size) + 0.5) / sigma.size, shown, **style)
        if sigma is r.null_sigma:
            keys.append(drawing.key(f"random, {_law(r)}", **style))
    ax.axhline(1, color="k", lw=0.8, zorder=0)
    ax.set(yscale="log", xlim=(0, 1), ylim=(bottom / 1.5, None))
    return drawing.finished(
        ax,
        {"handles": keys, "loc": "lower left", "framealpha": 0.8},
        title=r"singular values over the random edge $\sigma_+$",
        xlabel=r"$(i - 1/2) \, / \, \min(m, n)$",
        ylabel=r"$\sigma_i \, / \, \sigma_+$",
    )


def plot_energy(records: Sequence[Record], colours: Mapping[str, str], ax: Axes) -> Axes:
    """Draw the share of the squared Frobenius norm in the first i directions."""
    for sigma, _, style in _curves(records, colours):
        share = np.r_[0, checkpoint.energy(sigma)]
        ax.plot(np.linspace(0, 1, share.size), share, **style)
    return drawing.finished(
        ax,
        title="energy in the first $i$ directions",
        xlabel=r"$i \, / \, \min(m, n)$",
        ylabel=r"$\sum_{j \leq i} \sigma_j^2 / |A|_F^2$",
        xlim=(0, 1),
        ylim=(0, 1.03),
    )


def plot_by_matrix(records: Sequence[Record], colours: Mapping[str, str], ax: Axes) -> Axes:
    """Draw traces if there are square matrices, with two standard deviations of the null about 0;
    otherwise stable ranks, with those of the null. Each kind of matrix has its marker."""
    traces = any(r.trace is not None for r in records)
    shown = [
        (i, r, r.trace if traces else r.numbers.stable_rank)
        for i, r in enumerate(records)
        if isinstance(r, Decomposed) and (r.trace is not None if traces else r.status == "ok")
    ]
    kinds, size = _kinds(records), 6 if len(records) <= 30 else 4
    for number, name in enumerate(kinds):
        members = [each for each in shown if _kind(each[1].name) == name]
        x, y = [i for i, _, _ in members], np.array([value for _, _, value in members], float)
        if len(records) > NAMED:
            ax.plot(x, y, color="0.8", lw=0.8, zorder=1)
        marker = MARKERS[number] if len(kinds) <= NAMED else "o"
        shades = [colours[r.name] for _, r, _ in members]
        ax.scatter(x, y, size**2, shades, label=name, marker=marker)
    x = [i for i, _, _ in shown]
    if traces:
        spread = np.array([2 * r.numbers.frobenius / np.sqrt(r.shape[0]) for _, r, _ in shown])
        ax.vlines(x, -spread, spread, color="0.88", lw=size / 2, zorder=0)
        ax.axhline(0, color="k", lw=0.8, zorder=0)
    else:
        ax.plot(x, [r.null.stable_rank for _, r, _ in shown], "_", color="0.45", ms=size)
        if shown:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    return drawing.finished(
        ax,
        title="trace, square ones (grey: random, 2 sd)" if traces else "stable rank (grey: random)",
        xlabel="matrix, in order of appearance",
        ylabel=r"tr $A$" if traces else r"$|A|_F^2 \, / \, \sigma_1^2$",
        xlim=(-0.6, len(records) - 0.4),
    )


def _curves(
    records: Sequence[Record], colours: Mapping[str, str]
) -> Iterator[tuple[np.ndarray, Decomposed, dict[str, Any]]]:
    """Yield singular values, matrix and line style: of each nonzero matrix, and of the null for
    each law unless there are too many."""
    drawn = [r for r in records if isinstance(r, Decomposed) and r.status == "ok"]
    width = 1.5 if len(records) <= NAMED else 0.7
    for r in drawn:
        # Few values need markers to be seen.
        marker = "." if r.sigma.size <= 20 else None
        yield r.sigma, r, {"color": colours[r.name], "lw": width, "marker": marker}
    laws = {(r.shape, r.inner): r for r in reversed(drawn)}
    if len(laws) <= NAMED // 2:
        for r, dashes in zip(laws.values(), drawing.DASHES[1:], strict=False):
            yield r.null_sigma, r, {"color": "0.45", "lw": 1.2, "ls": dashes}


def _kinds(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(_kind(r.name) for r in records))


def _kind(name: str) -> str:
    """Replace every number in a matrix's name, such as its layer, by *, except a block's."""
    return re.sub(r"\d+(?![\d\]])", "*", name)


def _law(r: Record) -> str:
    """Format the shape of a matrix, or the shapes of its factors."""
    m, n = r.shape
    return f"{m} x {n}" if r.inner is None else f"{m} x {r.inner} @ {r.inner} x {n}"
