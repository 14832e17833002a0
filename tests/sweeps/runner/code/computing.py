"""A process of its own for test_identity.py: runs the sweep of each package in a folder, and prints
for each its name, and its mean loss or the error, as a line of JSON."""

import importlib
import json
import sys
from pathlib import Path

import sweeps

AXES = {"eta": [0.1, 0.2], "seed": [0, 1]}


def run(module: str, out: Path) -> float | str:
    """The mean loss at the end of all runs, or the error."""
    made = importlib.import_module(module)
    options = {"record": ["batch_loss"], **getattr(made, "OPTIONS", {})}
    try:
        sweep = sweeps.Sweep(
            sweeps.Experiment(made.PROBLEM, made.RULE, 2, 4), **{"axes": AXES, **options}
        )
        found = sweeps.run(sweep, out, chunk=2, tile=2, progress=False)
        return float(found[sweep.names[0]].mean())
    except ValueError as error:
        return str(error)


if __name__ == "__main__":
    folder, stores = Path(sys.argv[1]), Path(sys.argv[2])
    for row in sorted(folder.iterdir()):
        sys.path[:0] = [str(row), str(row / "zipped.zip")]
        print(json.dumps([row.name, run(f"{row.name}_main", stores / row.name)]), flush=True)
        del sys.path[:2]
