"""Options of commands, and what they write: best cells, records, exports."""

import importlib.util
import json
import os
import re
import reprlib
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import sweeps
from dynsim import TaskFile
from papers.qkv.figure import FactorFlow
from papers.scan_and_snap.figure6 import Figure6
from sweeps import Sweep, cli, experiment, output
from sweeps.commands import line
from sweeps.commands.record import Record
from sweeps.commands.sweep import best_cell
from sweeps.commands.table import CommandOptions
from sweeps.lines import assignments
from sweeps.runner.store.store import Store


def given(*words, problem=""):
    return line.parse_options(CommandOptions.of("compare", problem), words, [])


def test_values_are_those_behind_their_options():
    found = given(
        *("--steps", "1e3", "--momentum=0.5", "--theories", "plain", "best", "--no-quiet"),
        *("--nesterov", "--batch", "inf", "--task", "my.npz", "--seeds=2e1", "--json"),
        *("--out", "12"),
    )
    assert found == {
        "kind": "command",
        "problem": {"kind": "yz", "task": {"kind": "file", "path": "my.npz"}},
        "rule": {"kind": "sgd", "momentum": 0.5, "nesterov": True},
        "steps": 1000,
        "batch": "inf",
        "seeds": 20,
        "theories": ["plain", "best"],
        "quiet": False,
        "json": True,
        "out": "12",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("inf", float("inf")),
        ("true", True),
        ("sgd", "sgd"),
        (" ./runs/a-b.npz ", "./runs/a-b.npz"),
        ("[sgd, inf, my_package:Rule]", ["sgd", float("inf"), "my_package:Rule"]),
        ("-.5e-3", -5e-4),
        ("[.1, 5.,0.25, 2]", [0.1, 5.0, 0.25, 2]),
        ("'.1, 5.'", ".1, 5."),
        ("data.5", "data.5"),
    ],
)
def test_text_needs_no_quotes_by_itself_or_in_a_list(text, value):
    assert assignments(f"run.rule={text}") == {"run": {"rule": value}}
    with pytest.raises(ValueError, match=re.escape(f"start = {reprlib.repr(value)}: ")):
        given("--start", text)


def test_defaults_of_a_command_are_those_of_its_problem_alone():
    options = CommandOptions.of("figure optimum")
    usual = options.with_defaults([])
    assert options.language.resolve(usual, "scale").value == 0.5
    other = options.with_defaults([("Problem", "qkv")])
    assert options.language.resolve(other, "scale").value == 1.0
    # A system may set its own.
    options = CommandOptions.of("figure optimum", "yz")
    layer = options.with_defaults([("problem", "yz"), ("steps", 7)])
    assert (layer["observable"], layer["steps"]) == ("relative_loss", 7)
    assert layer["problem"]["length"] == 4


def swept(loss, **axes):
    status = np.where(np.isfinite(loss), 0, 1)
    dims = [*axes][: loss.ndim]
    made = xr.Dataset({"status": (dims, status), "loss": (dims, loss)}, axes)
    made["eta"].attrs["units"] = "1/step"
    return made


def test_the_best_cell_is_that_of_the_mean_and_a_diverged_run_has_none():
    loss = np.array([[[1.0, 1.0], [2.0, 0.4]], [[3.0, 3.0], [0.1, np.inf]], [[9.0, 9], [4, 4]]])
    made = swept(loss, eta=[0.1, 1, 10], optimizer=["sgd", "adam"], seed=[0, 1])
    best, end = best_cell(made)
    assert best == "best loss 1 at eta = 0.1, optimizer = sgd, mean of 2 seeds"
    assert "lower end" in end
    assert best_cell(made.isel(optimizer=1, eta=[1, 2, 0]))[0].startswith("best loss 1.2 at eta =")
    named = made.rename(loss="accuracy")
    assert best_cell(named)[0] == "best accuracy 9 at eta = 10, optimizer = sgd, mean of 2 seeds"


def test_other_settings_do_not_write_over_results(tmp_path, capsys, monkeypatch):
    # What a figure computes is not the matter here, and takes a quarter of a minute each time.
    monkeypatch.setattr(FactorFlow, "draw", lambda self, data: sweeps.Picture(plt.figure(), {}))
    out = tmp_path / "compare"
    figure = ["figure", "qkv", "--out", str(out), "--steps"]
    assert cli.main([*figure, "3"]) == 0
    record = json.loads((out / "figure_qkv.run.json").read_text())
    assert record["command"] == "dynsim figure qkv"
    assert record["environment"]["jax"]
    assert record["seconds"] > 0
    before = (out / "qkv.png").stat().st_mtime_ns
    # The same settings may; and so may another command, whose files have other names.
    assert cli.main([*figure, "3"]) == 0
    again = (out / "qkv.png").stat().st_mtime_ns
    assert again > before
    assert cli.main(["figure", "9", "--out", str(out)]) == 0
    capsys.readouterr()
    assert cli.main([*figure, "4"]) == 2
    error = capsys.readouterr().err
    assert not [words for words in (str(out), "steps", "--overwrite") if words not in error]
    assert (out / "qkv.png").stat().st_mtime_ns == again
    assert cli.main([*figure, "4", "--overwrite"]) == 0
    assert (out / "qkv.png").stat().st_mtime_ns > again
    assert cli.main([*figure, "4"]) == 0


def test_the_record_knows_what_a_task_file_holds(tmp_path):
    task, held = tmp_path / "mine.csv", []
    for share in (0.5, 0.25):
        task.write_text(f"query,a,b,c\n0,{share},{1 - share},0\n1,0.5,0,0.5\n")
        config = Figure6(task=TaskFile(str(task)), out=tmp_path)
        settings = Record.of("figure 6", config).settings
        assert settings["task.path"] == str(task)
        held.append(settings["task_holds"])
    assert held[0] != held[1]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "run"
    run = experiment(steps=4, batch=8, length=8)
    axes = {"seed": {"range": 2}, "eta_y": [0.5, 1e3]}
    sweeps.run(Sweep(run, axes, record=("loss", "z_top_distinct"), times=3), out)
    return out


@pytest.mark.more
def test_the_ending_decides_and_values_arrive(stored, tmp_path):
    made = sweeps.open(stored).load()
    seconds = sum(record.seconds for record in Store.open(stored).chunks.all().values())
    copy = made.assign_attrs(wall_time=f"{seconds:.3g} s, summed over chunks")
    for ending in ("nc", "zarr", "csv", "parquet"):
        if ending == "parquet" and importlib.util.find_spec("pyarrow") is None:
            pytest.skip("needs pyarrow of the extra `parquet`")
        target = tmp_path / f"copy.{ending}"
        assert cli.main(["export", str(stored), "--out", str(target)]) == 0
        if ending == "nc":
            xr.testing.assert_identical(xr.load_dataset(target, engine="h5netcdf"), copy)
        elif ending == "zarr":
            xr.testing.assert_identical(xr.open_zarr(target, consolidated=False).load(), copy)
        else:
            table = pd.read_csv(target) if ending == "csv" else pd.read_parquet(target)
            row = table[(table.seed == 1) & (table.eta_y == 0.5) & (table.time == 4)]
            # Both classes of the task have a row; CSV keeps all digits of a float32.
            expected = made["loss"].sel(seed=1, eta_y=0.5, time=4)
            np.testing.assert_allclose(row.loss, float(expected), rtol=1e-7)
            expected = made["z_top_distinct"].sel(seed=1, eta_y=0.5, time=4)
            np.testing.assert_allclose(row.z_top_distinct, expected, rtol=1e-7)
            assert set(row.status) == {0}
            assert len(table) == made["z_top_distinct"].size


def test_a_file_that_is_there_stays(stored, tmp_path, capsys):
    target = tmp_path / "mine.csv"
    target.write_text("mine")
    command = ["export", str(stored), "--arrays", "loss", "--out", str(target)]
    assert cli.main(command) == 2
    assert "already exists" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert cli.main([*command, "--overwrite"]) == 0
    assert {*pd.read_csv(target)} == {"seed", "eta_y", "time", "loss", "status"}


def test_an_export_that_fails_or_is_killed_leaves_what_was_there(stored, tmp_path, monkeypatch):
    target = tmp_path / "copy.zarr"
    command = ["export", str(stored), "--out", str(target)]
    assert cli.main(command) == 0
    there = xr.open_zarr(target, consolidated=False).load()
    replace, seen = os.replace, []

    def failing(old, new):
        if new == target and not seen:
            seen.append(old)
            raise OSError("no luck")
        replace(old, new)

    with monkeypatch.context() as during:
        during.setattr(os, "replace", failing)
        assert cli.main([*command, "--overwrite"]) == 2
    assert seen
    xr.testing.assert_identical(xr.open_zarr(target, consolidated=False).load(), there)
    assert os.listdir(tmp_path) == ["copy.zarr"]
    # A killed one leaves a file, which the next one removes; that of a living one stays.
    with subprocess.Popen(["true"]) as ended:
        pass
    with output.appearing(tmp_path / "file.txt") as begun:
        begun.write_text("half")
        left = begun.with_name(begun.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
        left.write_text("half")
        output.write_whole(tmp_path / "file.txt", lambda file: file.write(b"whole"))
        assert begun.exists()
        assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"copy.zarr", "file.txt"}
