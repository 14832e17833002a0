"""Fig. 6 of Scan and Snap: entropy of attention against eta_Y / eta_Z, with theory beside it."""

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from sweeps import output
from sweeps.runner import hosts
from sweeps.runner.files import load
from sweeps.runner.run import run as run_sweep
from sweeps.runner.run import valid
from sweeps.runner.spec import Sweep
from sweeps.studies.options import queries

ENGINES = {"simulation": "", "matched": "flow_", "descent": "descent_"}
"""What is run, and how its columns begin: training; the momentum flow and descent with T and
batch infinite, from the same random starts."""
FLOW_RTOL = 1e-5
"""Of the flow. The entropy then has four correct digits, far below its spread over seeds."""
Cells = Mapping[tuple[float, float, float], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Figure6:
    """Entropy of attention on distinct tokens against eta_Y / eta_Z on Syn-Medium.

    Attributes:
        queries: numbers of queries, a panel each: 1,3,5,10.
        seeds: number of runs in each cell.
        theory: also integrate the momentum flow, and descend with T and batch infinite.
        out: directory for fig6.png, fig6.csv and the stored sweeps, which resume.
    """

    queries: tuple[str, ...] = ("1,3,5,10",)
    seeds: int = 10
    theory: bool = True
    out: Path = Path("out/fig6")


def run(config: Figure6) -> list[Path]:
    """Run or resume the sweeps, draw and write the figure and its table."""
    overrides = [
        f"axes.num_queries = {queries(config.queries)}",
        f"axes.seed = {{ range = {config.seeds} }}",
    ]
    sweep = load("fig6", overrides)
    sweep.check()
    output.check_directory(config.out)
    hosts.use_all_cores()
    found = {
        engine: valid(run_sweep(variant(sweep, engine), config.out / engine)).load()
        for engine in (ENGINES if config.theory else ["simulation"])
    }
    known = published()
    panels = list(sweep.fields["num_queries"])
    figure, axes = plt.subplots(
        1, len(panels), figsize=(1.5 + 3.4 * len(panels), 4.6), layout="constrained", squeeze=False
    )
    for ax, number in zip(axes[0], panels, strict=True):
        plot({engine: ds.sel(num_queries=number) for engine, ds in found.items()}, known, ax=ax)
    axes[0, 0].set_ylabel("entropy of attention on distinct tokens (nat)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles += [
        Line2D([], [], color="k", ls=style, marker=marker, mfc="none")
        for style, marker in STYLES.values()
    ]
    figure.legend(handles, [*labels, *STYLES], loc="outside lower center", ncols=len(handles))
    return output.write(
        config.out,
        "fig6",
        figure=figure,
        arrays=arrays(found),
        text={"csv": table(found, known)},
    )


STYLES = {
    "trained (mean, s.d.)": ("-", "o"),
    "momentum flow": ("--", ""),
    "descent, T = inf": (":", ""),
    "published": ("", "s"),
}


def variant(sweep: Sweep, engine: str) -> Sweep:
    """The sweep computed by another engine, which records the entropy alone."""
    if engine == "simulation":
        return sweep
    rtol = FLOW_RTOL if engine == "matched" else None
    return dataclasses.replace(sweep, engine=engine, record=("entropy",), rtol=rtol)


def plot(found: Mapping[str, xr.Dataset], known: Cells, ax: Axes | None = None) -> Axes:
    """One panel: training with its spread over seeds, theory, and published means."""
    ax = ax or plt.gca()
    entropy = found["simulation"].entropy
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, entropy.sizes["eta_z"]))
    ratio = entropy.ratio.values
    for eta_z, colour in zip(entropy.eta_z.values, colours, strict=True):
        line = entropy.sel(eta_z=eta_z)
        spread = line.std("seed", ddof=1) if line.sizes["seed"] > 1 else None
        style = {"color": colour, "capsize": 2, "label": rf"$\eta_Z = {eta_z:g}$"}
        ax.errorbar(ratio, line.mean("seed"), spread, fmt="o-", ms=4, **style)
        for engine, dashes in (("matched", "--"), ("descent", ":")):
            if engine in found:
                theory = found[engine].entropy.sel(eta_z=eta_z).mean("seed")
                ax.plot(ratio, theory, dashes, color=colour, lw=1.2)
        keys = [(float(entropy.num_queries), float(eta_z), float(r)) for r in ratio]
        at = [r for r, key in zip(ratio, keys, strict=True) if key in known]
        means = [known[key][0] for key in keys if key in known]
        ax.plot(at, means, "s", ms=8, mfc="none", color=colour)
    ax.set(title=f"{int(entropy.num_queries)} queries", xlabel=r"$\eta_Y / \eta_Z$", xscale="log")
    ax.set_xticks(ratio, [f"{r:g}" for r in ratio])
    ax.minorticks_off()
    ax.grid(alpha=0.25)
    return ax


def table(found: Mapping[str, xr.Dataset], known: Cells) -> str:
    """The figure's numbers as CSV: means and standard deviations (ddof 1) over valid runs."""
    text = io.StringIO()
    names = [ENGINES[engine] for engine in found]
    columns = ["num_queries", "eta_z", "ratio", "mean", "std", "seeds"]
    columns += [f"{name}{what}" for name in names[1:] for what in ("mean", "std")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "published_mean", "published_std"])
    entropy = found["simulation"].entropy
    for number in entropy.num_queries.values:
        for eta_z in entropy.eta_z.values:
            for ratio in entropy.ratio.values:
                cell = {"num_queries": number, "eta_z": eta_z, "ratio": ratio}
                row: list[object] = [int(number), float(eta_z), float(ratio)]
                for engine, dataset in found.items():
                    values = dataset.entropy.sel(cell).values.astype(np.float64)
                    values = values[np.isfinite(values)]
                    row += [f"{mean(values):.6f}", f"{spread(values):.6f}"]
                    if engine == "simulation":
                        row.append(values.size)
                row += known.get((float(number), float(eta_z), float(ratio)), ("", ""))
                writer.writerow(row)
    return text.getvalue()


def mean(values: np.ndarray) -> float:
    """Mean, NaN of nothing."""
    return float(values.mean()) if values.size else float("nan")


def spread(values: np.ndarray) -> float:
    """Standard deviation (ddof 1), NaN below two values."""
    return float(values.std(ddof=1)) if values.size > 1 else float("nan")


def published() -> dict[tuple[float, float, float], tuple[float, float]]:
    """Published mean and standard deviation over 10 seeds by (num_queries, eta_z, ratio), for the
    cells that are known."""
    with Path(__file__).with_name("published_fig6.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = [{name: float(value) for name, value in row.items()} for row in rows]
    return {(n["num_queries"], n["eta_z"], n["ratio"]): (n["mean"], n["std"]) for n in numbers}


def arrays(found: Mapping[str, xr.Dataset]) -> dict[str, np.ndarray]:
    """Plotted arrays and their axes by name."""
    first = found["simulation"]
    named = {str(dim): first[dim].values for dim in first.entropy.dims}
    return named | {f"{engine}/entropy": ds.entropy.values for engine, ds in found.items()}
