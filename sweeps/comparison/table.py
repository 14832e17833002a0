"""The text that `dynsim compare` prints: tables of errors, summaries and standard deviations."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dynsim import Status
from sweeps.output import aligned
from sweeps.runner.progress import count
from sweeps.systems.experiment import Experiment

WHY = {
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


def lines(report: Mapping[str, Any], names: Sequence[str], about: Sequence[str]) -> list[str]:
    """Format a report as lines: the heading `about`, then the errors with observables down and
    theories across, transposed if there are many."""
    training, theories = report["simulation"], report["theories"]
    errors = {"sampling": training["sampling_error"]}
    errors |= {name: theory["relative_error"] for name, theory in theories.items()}
    cells = {side: {n: cell(**each) for n, each in row.items()} for side, row in errors.items()}
    failed = {n: t["status"] for n, t in theories.items() if set(t["status"]) != {Status.OK.name}}
    for name, status in failed.items():
        if Status.OK.name not in status:
            cells[name] = dict.fromkeys(cells[name], ", ".join(status))
    text = [*about[:-1], f"{about[-1]}: {counted(training['status'])}"]
    if not theories:
        text.append("No theory describes this problem; only training is shown.")
    text += [
        "",
        "Relative error in % against the mean of the runs: over time (root mean square over the",
        "recorded times, divided by that of the mean) / at the end.",
        "'sampling' is the standard error of that mean: smaller differences mean nothing.",
    ]
    if any(each["floored"] for side in errors.values() for each in side.values()):
        text.append(
            "* The mean at the end is below its sampling error; the error is relative to that."
        )
    text += ["", *_grid(cells, names)]
    chance = {
        name: {n: "-" if x is None else f"{x:.3g}" for n, x in theory["sampling_errors"].items()}
        for name, theory in theories.items()
    }
    if any(each != "-" for side in chance.values() for each in side.values()):
        text += [
            "",
            "The same over time, in sampling errors: differences of about 1 are due to chance.",
        ]
        text += ["", *_grid(chance, names)]
    summaries = {name: side.get("summary", {}) for name, side in theories.items()}
    summaries = {"simulation": training.get("summary", {}), **summaries}
    if any(summaries.values()):
        rows = {
            name: {n: when(x) for n, x in each.items()} for name, each in summaries.items() if each
        }
        text += ["", *_grid(rows, [*next(iter(rows.values()))])]
    for name, theory in theories.items():
        if spread := theory.get("spread_at_end"):
            text += deviations(spread, name)
    if theories:
        text += ["", "theories:"]
        for name, theory in theories.items():
            said = theory["title"] + f"; assumes {theory['assumes']}" * bool(theory["assumes"])
            text.append(f"  {name:<18} {textwrap.shorten(said, 140, placeholder=' ...')}")
    text += [""] * bool(failed)
    text += [f"{name}: {counted(status)}" for name, status in failed.items()]
    ended = {status for each in failed.values() for status in each}
    return [*text, *(f"{name}: {why}." for name, why in WHY.items() if name in ended)]


def _grid(cells: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """Format text by side and name as lines: sides across, or down if there are many."""
    rows, columns = list(names), list(cells)
    turned = len(columns) > 6
    if turned:
        rows, columns = columns, rows
    body = [[cells[row][c] if turned else cells[c][row] for c in columns] for row in rows]
    first = max(16, *map(len, rows)) + 1
    other = max(16, *map(len, columns), *(len(entry) for row in body for entry in row)) + 3
    table = [("", *columns), *((row, *entries) for row, entries in zip(rows, body, strict=True))]
    return aligned(table, first, other)


def counted(status: Mapping[str, int]) -> str:
    """Format status counts."""
    return ", ".join(f"{number} {name}" for name, number in status.items())


def cell(over_time: float | None, at_end: float | None, floored: bool = False) -> str:
    """Format two ratios in %, with a star if the second one is relative to the sampling error."""
    shown = ("-" if value is None else f"{100 * value:.3g}" for value in (over_time, at_end))
    return " / ".join(shown) + "*" * floored


def when(values: Sequence[float | None]) -> str:
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
        *numbers, strained = values.values()
        ratio = "-"
        if strained:
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
