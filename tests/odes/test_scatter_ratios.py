"""The script of the page on standard deviations across seeds, with few seeds and steps."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "howto" / "scatter_ratios.py"


@pytest.fixture
def script() -> ModuleType:
    about = importlib.util.spec_from_file_location("scatter_ratios", SCRIPT)
    assert about is not None
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


def check(script: ModuleType, monkeypatch: pytest.MonkeyPatch, case: str, parts: list[str]) -> None:
    """Ratios within five of their errors of one, as linear noise is exact to a few percent."""
    problem, rule, batch, _, name = script.CASES[case]
    monkeypatch.setattr(script, "SEEDS", 40)
    monkeypatch.setattr(script, "PATHS", 40)
    monkeypatch.setitem(script.CASES, case, (problem, rule, batch, [2, 4], name))
    every = script.ratios({part: script.solved(case, part)[0] for part in parts})
    assert list(every) == [part for part in ("linear noise", "sde") if part in parts]
    for ratio, error in every.values():
        assert ratio.shape == error.shape == (2,)
        assert (np.abs(ratio - 1) < 5 * error).all()
        assert (error < 0.5).all()


@pytest.mark.more
def test_ratios_of_small_runs(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    check(script, monkeypatch, "softmax", ["runs", "linear noise"])


@pytest.mark.full("test_ratios_of_small_runs")
@pytest.mark.parametrize("case", ["saxe", "softmax", "network", "network-sgd", "network-adam"])
def test_ratios_of_all_parts(
    case: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(script, monkeypatch, case, script.parts(case))


def test_errors_of_ratios_add_in_squares(script: ModuleType) -> None:
    ratio, error = script.ratios({"runs": [[2.0, 0.2]], "sde": [[1.0, 0.1]]})["sde"]
    # Ten percent of either, of a half.
    assert ratio == [0.5]
    np.testing.assert_allclose(error, 0.5 * 0.1 * 2**0.5)
