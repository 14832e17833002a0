"""`dynsim compare two_stage`: running, printing, and keeping image, report and arrays."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dynsim.trajectory import to_arrays
from sweeps import output
from sweeps.runner import hosts
from sweeps.studies.two_stage import panels
from sweeps.studies.two_stage import theory as two_stage_theory
from sweeps.studies.two_stage.compare import CompareTwoStage, TwoStageComparison, compare


def run(config: CompareTwoStage) -> list[Path] | None:
    """Compare, write, and print the table; or print the report alone, and return no paths."""
    hosts.use_all_cores()
    result = compare(config)
    paths = write(result)
    if config.json:
        print(json.dumps(result.report, indent=2))
        return None
    print(table(result))
    return paths


def table(result: TwoStageComparison) -> str:
    """The comparison as text: per observable and theory the error over time and at the end."""
    report, runs = result.report, result.simulation
    theories = report["theories"]
    t_1, t_2 = runs.training.make_optimizer().steps
    lines = [
        f"two-stage: {runs.count} runs of {t_1} + {t_2} steps, {runs.diverged} diverged",
        "",
        "Relative error in % against the mean of the runs: L2 over eta-time / at the end.",
        "'sampling' is the standard error of that mean: smaller differences mean nothing.",
        "",
        f"{'':<10}" + "".join(f"{name:>18}" for name in ("sampling", *theories)),
    ]
    errors = {"sampling": report["simulation"]["sampling_error"]}
    errors |= {name: theory["relative_error"] for name, theory in theories.items()}
    for name in two_stage_theory.RECORD:
        cells = (
            f"{_percent(e[name]['over_time'])} / {_percent(e[name]['at_end'])}"
            for e in errors.values()
        )
        lines.append(f"{name:<10}" + "".join(f"{cell:>18}" for cell in cells))
    lines.append("")
    for label, name in (("t_P", "learned_P"), ("t_Q", "learned_Q")):
        found = {"runs": report["simulation"][name]} | {n: t[name] for n, t in theories.items()}
        shown = (f"{who} {_times(values)}" for who, values in found.items())
        lines.append(f"{label} in eta-time: " + "; ".join(shown))
    lines += [f"{name}: {value:.4g}" for name, value in report["corollaries"].items()]
    return "\n".join(lines)


def write(result: TwoStageComparison) -> list[Path]:
    """Write compare.png, compare.json and compare.npz to the configured directory."""
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
    out = result.config.out
    return output.write(out, "compare", figure=figure, arrays=named, report=result.report)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _times(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    spread = f" ± {np.std(known, ddof=1):.1f}" if len(known) > 1 else ""
    never = (
        f" ({len(values) - len(known)} of {len(values)} never)" if len(known) < len(values) else ""
    )
    return f"{np.mean(known):.1f}{spread}{never}"
