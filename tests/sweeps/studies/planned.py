"""What every figure computes without options, a line for each sweep.

`python -m tests.sweeps.studies.planned` records it in planned.json, after a change on purpose.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sweeps import Figure
from sweeps.commands.table import COMMANDS
from sweeps.figures import Figure
from sweeps.runner.spec import Sweep
from sweeps.studies.options import described

RECORD = Path(__file__).with_suffix(".json")
FIGURES = [
    name
    for name, command in COMMANDS.items()
    if name.startswith("figure ")
    and getattr(command.load()[0], "sweeps", Figure.sweeps) is not Figure.sweeps
]


def sweeps_of(figure: str) -> list[Sweep]:
    """All sweeps of a figure without options."""
    settings, _ = COMMANDS[figure].load()
    return jax.tree.leaves(list(settings().sweeps().values()))


def lines(figure: str) -> list[str]:
    """The run, theory, record, times and axes of each sweep."""
    return [_line(sweep) for sweep in sweeps_of(figure)]


def _line(sweep: Sweep) -> str:
    axes = [f"{name} = {_values(list(each))}" for name, each in sweep.fields.items()]
    times = sweep.times if isinstance(sweep.times, str) else _values(np.ravel(sweep.times))
    words = [described(sweep.first, list(sweep.fields)), sweep.theory, *sweep.names, f"at {times}"]
    return ", ".join([*words, *axes, sweep.title])


def _values(values: Any) -> str:
    """Values of an axis; of many the number, the ends and the sum."""
    shown = [f"{v:.6g}" if isinstance(v, int | float | np.number) else str(v) for v in values]
    if len(shown) <= 8:
        return " ".join(shown)
    return f"{len(shown)} from {shown[0]} to {shown[-1]}, sum {np.sum(values):.6g}"


if __name__ == "__main__":
    found = {figure: lines(figure) for figure in FIGURES}
    RECORD.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
