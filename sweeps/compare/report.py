"""`dynsim compare` of the attention layer: the table that it prints."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sweeps.compare import panels
from sweeps.compare.comparison import counted, deliver, lines
from sweeps.compare.layer import Comparison, compare
from sweeps.compare.settings import CompareOptions
from sweeps.output import aligned
from sweeps.runner.progress import count


def run(config: CompareOptions) -> list[Path] | None:
    """Compare, write, and print the table; or print the report alone, and return no paths."""
    result = compare(config)
    return deliver(result, panels.draw(result), table(result))


def table(result: Comparison) -> str:
    """The comparison as text: per observable and theory the error over time and at the end."""
    report, config, run = result.report, result.config, result.config.run
    about = [
        f"{run.about}: K = {result.task.K}, M = {result.task.M}, {run.rule.build()}, "
        f"T = {result.task.length}, batch = {run.batch}",
        f"{count(config.seeds, 'run')} of {count(run.steps or 0, 'step')}: "
        f"{counted(report['simulation']['status'])}",
    ]
    found = lines(report, result.names, about)
    if report["left_out"]:
        found += ["", f"Theories of finite T are left out. {report['left_out']}"]
    if report["spread_at_end"]:
        found += ["", *spread_lines(report["spread_at_end"])]
    peak = report["simulation"]["peak_of_speed"]
    if result.stages and peak["time"] is not None:
        predicted = result.stages
        low, high = peak["between"]
        still = peak["time"] == high
        where = (
            f"still rises at the end, t = {high:g}"
            if still
            else f"peaks at t = {peak['time']:g} (between {low:g} and {high:g})"
        )
        found += [
            "",
            f"speed coefficient f.g {where}, value {peak['value']:.3f}",
            f"closed form: t0' = {np.mean(predicted.rise_end):.2f}, peak at t = "
            f"{np.mean(predicted.peak):.2f}, value {np.mean(predicted.peak_gamma):.3f}, "
            f"t0 = {np.mean(predicted.snap):.2f}",
        ]
    return "\n".join(found)


def spread_lines(spread: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Standard deviations over seeds at the end as lines of text."""
    columns = {"predicted": "predicted", "measured": "of the runs", "error": "sampling error"}
    rows = [("", *columns.values())]
    for name, values in spread.items():
        shown = (values[column] for column in columns)
        rows.append((name, *("-" if x is None else format(x, ".3g") for x in shown)))
    return ["Standard deviation over seeds at the end.", "", *aligned(rows, 17, 16)]
