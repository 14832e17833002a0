"""The text that `dynsim compare` prints: tables of errors, summaries and standard deviations."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from dynsim import Status
from sweeps.output import JsonObject, aligned
from sweeps.runner.progress import count
from sweeps.systems.experiment import Experiment

REASONS = {
    Status.DIVERGED.name: "weights or loss are not finite, or the loss is too large",
    Status.MAX_STEPS.name: "the ODE solver used up its steps, as for stiff problems (large rates)",
    Status.SOLVER_FAILED.name: "the ODE solver failed, for instance by a vanishing step size",
    Status.BEYOND_EDGE.name: "the sharpness left the edge of stability",
}


def heading(run: Experiment, runs: int) -> list[str]:
    """Return what is compared, and how many runs there are."""
    numbers = (
        f"{field.name} = {value}"
        for field in dataclasses.fields(run.problem)
        if isinstance(value := getattr(run.problem, field.name), int | float | str)
    )
    steps = f" of {count(run.steps, 'step')}" if run.steps is not None else ""
    return [
        f"{run.about}: {', '.join(numbers)}",
        f"{run.rule}, batch = {run.batch}",
        f"{count(runs, 'run')}{steps}",
    ]


def report_lines(report: JsonObject, names: Sequence[str], about: Sequence[str]) -> list[str]:
    """Format a report as lines: the heading `about`, then the errors with observables down and
    theories across, transposed if there are many."""
    training, theories = report["simulation"], report["theories"]
    errors = {"sampling": training["sampling_error"]}
    errors |= {name: theory["relative_error"] for name, theory in theories.items()}
    cells = {
        side: {name: format_percent(**error) for name, error in row.items()}
        for side, row in errors.items()
    }
    failed = {n: t["status"] for n, t in theories.items() if set(t["status"]) != {Status.OK.name}}
    # Without a run that ended well there are no errors.
    for name, status in failed.items():
        if Status.OK.name not in status:
            cells[name] = dict.fromkeys(cells[name], ", ".join(status))
    text = [*about[:-1], f"{about[-1]}: {status_text(training['status'])}"]
    if not theories:
        text.append("No theory describes this problem; only training is shown.")
    text += [
        "",
        "Relative error in % against the mean of the runs: over time (root mean square over the",
        "recorded times, divided by that of the mean) / at the end.",
        "'sampling' is the standard error of that mean: smaller differences mean nothing.",
    ]
    if any(error["floored"] for row in errors.values() for error in row.values()):
        text.append(
            "* The mean at the end is below its sampling error; the error is relative to that."
        )
    text += ["", *_grid(cells, names)]

    sampling = {
        name: {n: "-" if x is None else f"{x:.3g}" for n, x in theory["sampling_errors"].items()}
        for name, theory in theories.items()
    }
    # A single run has no sampling error.
    if any(cell != "-" for row in sampling.values() for cell in row.values()):
        text += [
            "",
            "The same over time, in sampling errors: differences of about 1 are due to chance.",
        ]
        text += ["", *_grid(sampling, names)]

    sides = {"simulation": training, **theories}
    summaries = {
        name: {n: mean_and_deviation(values) for n, values in side["summary"].items()}
        for name, side in sides.items()
        if side.get("summary")
    }
    if summaries:
        text += ["", *_grid(summaries, [*next(iter(summaries.values()))])]
    for name, theory in theories.items():
        if at_end := theory.get("spread_at_end"):
            text += deviations(at_end, name)
    if theories:
        text += ["", "theories:"]
        for name, theory in theories.items():
            title = theory["title"] + f"; assumes {theory['assumes']}" * bool(theory["assumes"])
            text.append(f"  {name:<18} {textwrap.shorten(title, 140, placeholder=' ...')}")
    text += [""] * bool(failed)
    text += [f"{name}: {status_text(status)}" for name, status in failed.items()]
    statuses = {status for counts in failed.values() for status in counts}
    return [*text, *(f"{name}: {why}." for name, why in REASONS.items() if name in statuses)]


def _grid(cells: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """Format text by side and name as lines: sides across, or down if there are many."""
    rows, columns = list(names), list(cells)
    # More columns than fit in a terminal.
    transposed = len(columns) > 6
    if transposed:
        rows, columns = columns, rows
    body = [[cells[row][c] if transposed else cells[c][row] for c in columns] for row in rows]
    first = max(16, *map(len, rows)) + 1
    other = max(16, *map(len, columns), *(len(entry) for row in body for entry in row)) + 3
    table = [("", *columns), *((row, *entries) for row, entries in zip(rows, body, strict=True))]
    return aligned(table, first, other)


def status_text(status: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in status.items())


def format_percent(over_time: float | None, at_end: float | None, floored: bool = False) -> str:
    """Format two ratios in %, with a star if the second one is relative to the sampling error."""
    ratios = ("-" if value is None else f"{100 * value:.3g}" for value in (over_time, at_end))
    return " / ".join(ratios) + "*" * floored


def mean_and_deviation(values: Sequence[float | None]) -> str:
    """Format a number of each run by mean and standard deviation; None where it is not reached."""
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    spread = f" ± {np.std(known, ddof=1):.2g}" if len(known) > 1 else ""
    missing = len(values) - len(known)
    return f"{np.mean(known):.4g}{spread}" + f" ({missing} of {len(values)} never)" * bool(missing)


def deviations(at_end: Mapping[str, Mapping[str, float | None]], theory: str) -> list[str]:
    """Format standard deviations at the end by observable, as returned by `Scatter.at_end`."""
    rows: list[tuple[str, ...]] = [
        ("", "predicted", "its error", "of the runs", "sampling error", "strained")
    ]
    for name, values in at_end.items():
        *numbers, broken = values.values()
        ratio = "-"
        if broken:
            predicted, _, measured, _ = (float(x or 0) for x in numbers)
            ratio = f"{measured / predicted if predicted else math.inf:.3g} times"
        rows.append((name, *("-" if x is None else format(x, ".3g") for x in numbers), ratio))
    about = f"{theory}: Standard deviation across seeds at the end."
    text = ["", about, "", *aligned(rows, max(16, *map(len, at_end)) + 1, 16)]
    if any(values["strained"] for values in at_end.values()):
        text += [
            "",
            "Strained: runs scatter so many times as far as predicted, more than errors explain.",
            "An assumption of the theory fails, such as that noise is small.",
        ]
    return text
