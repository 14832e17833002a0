"""`dynsim compare`: running a comparison, printing it, and keeping image, report and arrays."""

import json
from pathlib import Path

import numpy as np

from dynsim.trajectory import Trajectory, to_arrays
from dynsim.yz.observables import DEFAULT_RECORD
from sweeps import output
from sweeps.compare import panels as figure
from sweeps.compare.compare import Comparison, compare
from sweeps.systems.yz.settings import Compare


def run(config: Compare) -> list[Path] | None:
    """Compare, write, and print the table; or print the report alone, and return no paths."""
    result = compare(config)
    paths = write(result)
    if config.json:
        print(json.dumps(result.report, indent=2))
        return None
    print(table(result))
    return paths


def table(result: Comparison) -> str:
    """The comparison as text: per observable and theory the error over time and at the end."""
    report = result.report
    theories = report["theories"]
    config = result.config
    status = _counts(report["simulation"]["status"])
    lines = [
        f"{config.task}: K = {result.task.K}, M = {result.task.M}, "
        f"{result.config.make_optimizer()}, T = {config.length}, batch = {config.batch}",
        f"{config.seeds} runs of {config.steps} steps: {status}",
        "",
        "Relative error in % against the mean of the runs: over time / at the end.",
        "'sampling' is the standard error of that mean: smaller differences mean nothing.",
        "",
    ]
    sampling = report["simulation"]["sampling_error"]
    errors = {"sampling": sampling, **{n: t["relative_error"] for n, t in theories.items()}}
    lines += _grid(errors)
    failed = {n: t["status"] for n, t in theories.items() if set(t["status"]) != {"OK"}}
    lines += [f"{name}: {_counts(counts)}" for name, counts in failed.items()]
    peak = report["simulation"]["peak_of_speed"]
    if result.stages and peak["time"] is not None:
        predicted = result.stages
        low, high = peak["between"]
        lines += [
            "",
            f"speed coefficient f.g peaks at t = {peak['time']:g} (between {low:g} and {high:g}), "
            f"value {peak['value']:.3f}",
            f"closed form: t0' = {np.mean(predicted.rise_end):.2f}, peak at t = "
            f"{np.mean(predicted.peak):.2f}, value {np.mean(predicted.peak_gamma):.3f}, "
            f"t0 = {np.mean(predicted.snap):.2f}",
        ]
    return "\n".join(lines)


def arrays(result: Comparison) -> dict[str, np.ndarray]:
    """Every plotted array by name, for instance `simulation/loss` (seeds, S)."""
    named: dict[str, Trajectory] = {"simulation": result.simulation, **result.predictions}
    return {
        f"{source}/{name}": values
        for source, trajectory in named.items()
        for name, values in to_arrays(trajectory).items()
    }


def write(result: Comparison) -> list[Path]:
    """Write compare.png, compare.json and compare.npz to the configured directory."""
    drawing = figure.draw(result)
    named = arrays(result)
    return output.write(
        result.config.out, "compare", figure=drawing, arrays=named, report=result.report
    )


def _grid(errors: dict[str, dict[str, dict[str, float | None]]]) -> list[str]:
    """Lines of the table: observables down and theories across, or turned if there are many."""
    rows, columns = list(DEFAULT_RECORD), list(errors)
    turned = len(columns) > 6
    if turned:
        rows, columns = columns, rows
    lines = [f"{'':<17}" + "".join(f"{name:>19}" for name in columns)]
    for row in rows:
        pairs = (errors[row][c] if turned else errors[c][row] for c in columns)
        lines.append(f"{row:<17}" + "".join(_cell(e["over_time"], e["at_end"]) for e in pairs))
    return lines


def _cell(over_time: float | None, at_end: float | None) -> str:
    shown = ("-" if value is None else f"{100 * value:.3g}" for value in (over_time, at_end))
    return f"{' / '.join(shown):>19}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
