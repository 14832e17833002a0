"""Printing a two-stage comparison, and keeping it: image, report and arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sweeps.compare.comparison import cell, lines
from sweeps.output import drawing
from sweeps.runner.progress import count
from sweeps.studies.two_stage import panels
from sweeps.studies.two_stage.outcome import TwoStageComparison
from sweeps.studies.two_stage.runs import settings


def table(result: TwoStageComparison) -> str:
    """The comparison as text: per observable and theory the error over time and at the end."""
    report, runs = result.report, result.simulation
    theories = report["theories"]
    t_1, t_2 = runs.stages.steps
    about = [
        f"two_stage: {count(runs.count, 'run')} of {t_1} + {t_2} steps, {runs.diverged} diverged"
    ]
    shown_lines = lines(report, result.names, about)
    if report["over_seeds"]:
        shown_lines += ["", *spread_lines(report["over_seeds"], runs.count)]
    shown_lines.append("")
    for label, name in (("t_P", "learned_P"), ("t_Q", "learned_Q")):
        found = {"runs": report["simulation"][name]} | {n: t[name] for n, t in theories.items()}
        shown = (f"{who} {_times(values)}" for who, values in found.items())
        shown_lines.append(f"{label} in eta-time: " + "; ".join(shown))
    shown_lines += report["not_learned"]
    shown_lines += [f"{name}: {value:.4g}" for name, value in report["corollaries"].items()]
    return "\n".join(shown_lines)


def spread_lines(found: Mapping[str, Mapping[str, Any]], count: int) -> list[str]:
    """Predicted and measured scatter over seeds, and the error of a mean of `count` of them."""
    columns = {
        "predicted": "sd predicted",
        "measured": "sd of the runs",
        "mean": f"mean of {count}, rms",
        "most": f"mean of {count}, 95 %",
        "shift": "ode against seeds",
    }
    columns = {
        key: title for key, title in columns.items() if all(key in f for f in found.values())
    }
    about = [
        "Scatter over seeds in % of the mean, predicted by 'seeds': over time / at the end.",
        "",
        f"{'':<17}" + "".join(f"{title:>19}" for title in columns.values()),
    ]
    rows = (
        f"{name:<17}" + "".join(f"{cell(**values[key]):>19}" for key in columns)
        for name, values in found.items()
    )
    return [*about, *rows]


def draw(result: TwoStageComparison) -> Figure:
    """Losses, accuracies, traces and norms."""
    runs = result.simulation
    figure, axes = drawing.panels(2, 2, width=4.6, height=3.9)
    panels.key(figure, tuple(result.predictions))
    coupled = settings(runs.training)[0].coupling > 0
    panels.plot_losses(runs, result.predictions, ax=axes[0, 0], joint=coupled)
    panels.plot_accuracies(runs, ax=axes[0, 1])
    panels.plot_traces(runs, result.predictions, ax=axes[1, 0])
    panels.plot_norms(runs, result.predictions, ax=axes[1, 1])
    figure.suptitle(
        f"{count(runs.count, 'run')}: mean (wide lines) ± sd\n{panels.about(runs.training)}",
        fontsize="medium",
    )
    return figure


def _times(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    spread = f" ± {np.std(known, ddof=1):.1f}" if len(known) > 1 else ""
    never = (
        f" ({len(values) - len(known)} of {len(values)} never)" if len(known) < len(values) else ""
    )
    return f"{np.mean(known):.1f}{spread}{never}"
