"""The script of the page on standard deviations across seeds, with few seeds and steps."""

import importlib.util
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).parents[2] / "docs" / "howto" / "scatter_ratios.py"


def test_ratios_of_small_runs_are_one():
    about = importlib.util.spec_from_file_location("scatter_ratios", SCRIPT)
    script = importlib.util.module_from_spec(about)
    about.loader.exec_module(script)
    problem, rule, batch, _, name = script.CASES["softmax"]
    script.SEEDS, script.CASES["softmax"] = 40, (problem, rule, batch, [2, 4], name)
    parts = "runs", "linear noise"
    found = script.ratios({part: script.solved("softmax", part)[0] for part in parts})
    ratio, error = found["linear noise"]
    # Within five of their errors, as linear noise is exact to a few percent.
    assert (np.abs(ratio - 1) < 5 * error).all()
    assert (error < 0.5).all()
