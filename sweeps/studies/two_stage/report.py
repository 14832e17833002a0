"""Printing a two-stage comparison, and keeping it: image, report and arrays."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dynsim.trajectory import to_arrays
from sweeps import output
from sweeps.compare.comparison import lines
from sweeps.studies.two_stage import panels
from sweeps.studies.two_stage.outcome import TwoStageComparison


def table(result: TwoStageComparison) -> str:
    """The comparison as text: per observable and theory the error over time and at the end."""
    report, runs = result.report, result.simulation
    theories = report["theories"]
    t_1, t_2 = runs.training.make_optimizer().steps
    about = [f"two_stage: {runs.count} runs of {t_1} + {t_2} steps, {runs.diverged} diverged"]
    shown_lines = lines(report, result.names, about)
    shown_lines.append("")
    for label, name in (("t_P", "learned_P"), ("t_Q", "learned_Q")):
        found = {"runs": report["simulation"][name]} | {n: t[name] for n, t in theories.items()}
        shown = (f"{who} {_times(values)}" for who, values in found.items())
        shown_lines.append(f"{label} in eta-time: " + "; ".join(shown))
    shown_lines += [f"{name}: {value:.4g}" for name, value in report["corollaries"].items()]
    return "\n".join(shown_lines)


def write(result: TwoStageComparison, out: Path) -> list[Path]:
    """Write compare.png, compare.json and compare.npz to the directory `out`."""
    runs = result.simulation
    figure, axes = plt.subplots(2, 2, figsize=(12, 8.5), layout="constrained")
    coupled = runs.training.value("coupling") > 0
    panels.plot_losses(runs, result.predictions, ax=axes[0, 0], joint=coupled)
    panels.plot_accuracies(runs, ax=axes[0, 1])
    panels.plot_traces(runs, result.predictions, ax=axes[1, 0])
    panels.plot_norms(runs, result.predictions, ax=axes[1, 1])
    figure.suptitle(f"{runs.count} runs, mean ± sd; dotted line: end of the first stage")
    named = {f"simulation/{name}": values for name, values in runs.values.items()}
    named |= {"simulation/steps": runs.steps}
    for theory, prediction in result.predictions.items():
        named |= {f"{theory}/{n}": values for n, values in to_arrays(prediction).items()}
    return output.write(out, "compare", figure=figure, arrays=named, report=result.report)


def _times(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    spread = f" ± {np.std(known, ddof=1):.1f}" if len(known) > 1 else ""
    never = (
        f" ({len(values) - len(known)} of {len(values)} never)" if len(known) < len(values) else ""
    )
    return f"{np.mean(known):.1f}{spread}{never}"
