"""The files that docs/howto/extending.md shows whole: each is short, and its class is used by name
on the command line, in a sweep file and as an axis."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import cli
from tests.test_docs import FILE, ROOT

FILES = dict(FILE.findall((ROOT / "docs" / "howto" / "extending.md").read_text()))
Sweep = Callable[[str], xr.Dataset]


@pytest.fixture(autouse=True)
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files lie in the current folder, which an installed command does not search by itself."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    yield
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """What `dynsim sweep` stores for a file with these lines."""

    def run(lines: str) -> xr.Dataset:
        Path("mine.toml").write_text(lines)
        monkeypatch.setattr(sys, "argv", ["dynsim", "sweep", "mine.toml", "--out", "store"])
        assert cli.main() == 0
        return sweeps.open("store").load()

    return run


@pytest.mark.parametrize(("name", "most"), [("pair", 20), ("normalised", 40), ("harmonic", 15)])
def test_a_file_is_short(name: str, most: int) -> None:
    assert len(FILES[f"{name}.py"].splitlines()) <= most


def test_a_task_has_a_setting_that_is_an_axis(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = sweep(
        """
        record = ["entropy"]
        [run]
        problem = { kind = "yz", task = "pair:Pair", length = "inf" }
        steps = 1
        batch = "inf"
        eta = 0.0
        [axes]
        share = [0.2, 0.8]
        """
    )
    # Even attention on what is distinct, which is one token here.
    np.testing.assert_allclose(found.entropy, 0, atol=1e-6)
    assert found.share.values.tolist() == [0.2, 0.8]
    monkeypatch.setattr(sys, "argv", ["dynsim", "compare", "--task", "pair:Pair", "--share", "2"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "problem.task.share = 2: must be a number in [0, 1]" in capsys.readouterr().err


def test_a_rule_is_a_value_of_an_axis(sweep: Sweep) -> None:
    found = sweep(
        """
        record = ["update_norm"]
        [run]
        problem = { kind = "linear_icl", D = 2, N = 4 }
        steps = 3
        [axes]
        rule = ["sgd", "normalised:Normalised"]
        eta = [0.01, 0.1]
        """
    )
    own = found.sel(rule="normalised:Normalised")
    np.testing.assert_allclose(own.update_norm / own.eta, 1, rtol=1e-5)


@pytest.mark.usefixtures("quick_theory")
def test_a_rule_is_compared_with_its_flow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No theory of the problem describes it, and its stability is not known."""
    words = "compare linear_icl --rule normalised:Normalised --eta 1e-3 --D 2 --N 4 --batch inf"
    few = "--steps 50 --seeds 2 --times 4 --dtype float64 --json"
    monkeypatch.setattr(sys, "argv", ["dynsim", *words.split(), *few.split()])
    assert cli.main() == 0
    report = json.loads(capsys.readouterr().out)
    assert [*report["theories"]] == ["flow"]
    assert "sharpness" not in report["theories"]["flow"]["relative_error"]
    # Both go the same way, one in steps of 1e-3.
    assert report["theories"]["flow"]["relative_error"]["loss"]["over_time"] < 1e-3


def test_a_schedule_has_a_setting_that_is_an_axis(sweep: Sweep) -> None:
    found = sweep(
        """
        record = ["eta_time"]
        [run]
        problem = { kind = "linear_icl", D = 2, N = 4 }
        eta = { kind = "harmonic:Harmonic", peak = 0.1 }
        steps = 3
        [axes]
        eta_scale = [10, 20]
        """
    )
    rates = 0.1 / (1 + xr.DataArray([0, 1, 2], dims="k") / found.eta_scale)
    # The sum of the rates as an integral, up to eta''/24 a step.
    np.testing.assert_allclose(found.eta_time, rates.sum("k"), rtol=1e-3)
