"""What is written next to results, and how."""

import json
import math
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from sweeps import output
from sweeps.output import drawing
from sweeps.runner import tiles


class Pair(NamedTuple):
    first: np.ndarray
    second: dict[str, Any]


def test_json_has_neither_infinities_nor_arrays() -> None:
    found = output.as_json(
        {
            "a": np.array([[1.5, np.nan], [np.inf, 2.0]]),
            "b": (1, "x", None, True),
            "c": np.float32(0.25),
            "d": {"e": -math.inf, "f": np.int64(3)},
        }
    )
    assert found == {
        "a": [[1.5, None], [None, 2.0]],
        "b": [1, "x", None, True],
        "c": 0.25,
        "d": {"e": None, "f": 3},
    }


def test_tables_are_lines() -> None:
    assert output.as_csv([("a", "b,c"), (1, 2.5)]) == 'a,"b,c"\n1,2.5\n'
    rows = [("loss", "1", "2", "3"), ("entropy", "10", "20", "30")]
    assert output.aligned(rows, 8, 3, 5) == ["loss      1    2    3", "entropy  10   20   30"]


@pytest.mark.parametrize(
    ("out", "address", "folder"),
    [
        ("runs/a", None, "runs/a"),
        ("s3://bucket/run", "s3://bucket/run", "out/run"),
        # As a path has it.
        ("gs:/bucket/x/run", "gs://bucket/x/run", "out/run"),
        ("C:/runs/a", None, "C:/runs/a"),
    ],
)
def test_an_address_has_a_folder_of_its_name(out: str, address: str | None, folder: str) -> None:
    assert output.address(out) == address
    assert output.folder(Path(out)) == Path(folder)


def test_arrays_are_named_by_their_place() -> None:
    found = output.named({"x": Pair(np.arange(2), {"y": 3.0}), "z": {}})
    assert list(found) == ["x/first", "x/second/y"]
    assert (found["x/first"].tolist(), found["x/second/y"].item()) == ([0, 1], 3)


@pytest.mark.parametrize(("dpi", "want"), [("figure", 150), (40, 40)])
def test_results_are_written_by_kind(tmp_path: Path, dpi: str | int, want: int) -> None:
    figure = Figure(figsize=(2, 1))
    asked = {"report": {"x": math.nan}, "text": {"csv": "a\n", "md": "b\n"}}
    with mpl.rc_context({"savefig.format": "png", "savefig.dpi": dpi}):
        paths = output.write(
            tmp_path / "new", "x", figure=figure, arrays={"a": np.arange(3)}, **asked
        )
    assert [path.name for path in paths] == ["x.npz", "x.json", "x.csv", "x.md", "x.png"]
    assert json.loads(paths[1].read_text()) == {"x": None}
    assert [path.read_text() for path in paths[2:4]] == ["a\n", "b\n"]
    with np.load(paths[0]) as arrays:
        assert arrays["a"].tolist() == [0, 1, 2]
    assert plt.imread(paths[4]).shape[:2] == (want, 2 * want)
    assert sorted(tmp_path.glob("new/.*")) == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file: exists and is not a folder$"):
        output.write(tmp_path / "file", "x")


@pytest.mark.parametrize("kind", drawing.FORMATS[1:])
def test_equal_figures_are_equal_files_without_a_date(tmp_path: Path, kind: str) -> None:
    with drawing.style(None), mpl.rc_context({"savefig.format": kind}):
        (path,) = output.write(tmp_path, "x", figure=Figure())
    assert b"Date" not in path.read_bytes().replace(b"dc:date", b"Date")


def test_the_environment_names_the_code_and_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(command: list[str], text: bool, check: bool, **_: Any) -> Any:
        assert not check
        assert command[-2:] == ["--dirty", "--abbrev=12"]
        return SimpleNamespace(stdout="0123-dirty\n" if text else b"0123-dirty\n")

    monkeypatch.setattr(subprocess, "run", described)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    output._commit.cache_clear()
    try:
        found = output.environment()
        assert found["commit"] == "0123-dirty"
        assert found["device"] == "cpu: cpu"
        assert "device of float64" not in found
        tpu = SimpleNamespace(platform="tpu", device_kind="TPU v9")
        monkeypatch.setattr(jax, "devices", lambda: [tpu])
        found = output.environment("scipy")
        assert found["device"] == "tpu: TPU v9"
        assert found["device of float64"] == "cpu: the tpu has no float64"
        assert "scipy" in found
    finally:
        output._commit.cache_clear()


@pytest.mark.parametrize("size", [1, 2, 7, 16, 1000])
@pytest.mark.parametrize("points", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_a_tile_is_the_least_power_of_two_that_holds_the_grid(
    seeds: int, points: int, size: int
) -> None:
    """Points first; of a grid that is too large, the largest one within the size."""
    powers = [2**i for i in range(11)]
    allowed = [each for each in powers if each <= size]
    few = min((each for each in allowed if each >= points), default=allowed[-1])
    left = [each for each in powers if each <= size / few]
    assert tiles.tile_shape(seeds, points, size) == (
        min((each for each in left if each >= seeds), default=left[-1]),
        few,
    )
