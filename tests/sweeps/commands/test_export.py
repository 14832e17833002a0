"""`dynsim export` by the ending of the file, and theory minus simulation."""

import importlib.util
import itertools
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import sweeps
from sweeps import Sweep, cli, experiment, output
from sweeps.commands import reading
from sweeps.runner import labels
from sweeps.runner.store.store import Store
from sweeps.systems import registry

RUN = experiment(steps=4, batch=8, length=8)
AXES = {"seed": {"range": 2}, "eta_y": [0.5, 1e3]}
RECORD = ("loss", "z_top_distinct")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "run"
    sweeps.run(Sweep(RUN, AXES, record=RECORD, times=3), out)
    return out


@pytest.mark.more
def test_the_ending_decides_and_values_arrive(stored: Path, tmp_path: Path) -> None:
    made = sweeps.open(stored).load()
    seconds = sum(record.seconds for record in Store.open(stored).chunks.all().values())
    copy = made.assign_attrs(wall_time=f"{seconds:.3g} s, summed over chunks")
    with pytest.raises(ValueError, match="in common"):
        sweeps.difference(made[["status"]], made)
    # Taken by netCDF without a word about its attributes.
    made.to_netcdf(tmp_path / "direct.nc", engine="h5netcdf")
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


@pytest.mark.more
def test_what_a_format_cannot_hold_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = {
        "high": lambda task, s: s.logits.max() > 0,
        "turned": lambda task, s: 1j * s.logits.max(),
    }
    made = sweeps.run(Sweep(RUN, {"eta_y": [0.5, 1.0]}, record=(own,)), "run")
    for ending in ("nc", "zarr", "csv", *["parquet"] * bool(importlib.util.find_spec("pyarrow"))):
        words = ["export", "run", "--out", f"high.{ending}", "--arrays", "high"]
        assert cli.main(words) == 0
    for found in (
        xr.load_dataset("high.nc", engine="h5netcdf"),
        xr.open_zarr("high.zarr", consolidated=False),
    ):
        assert found.high.dtype == bool
        np.testing.assert_array_equal(found.high, made.high)
    capsys.readouterr()

    class OfLibraryError(Exception):
        """Stands for those that each library has of its own."""

    def fail(*_: object) -> Path:
        raise OfLibraryError("no complex numbers")

    monkeypatch.setitem(reading.WRITERS, ".parquet", fail)
    assert cli.main(["export", "run", "--out", "x.parquet", "--arrays", "turned"]) == 2
    why = "x.parquet: cannot hold all of turned of complex64, status of int8 (no complex numbers); "
    assert f"{why}choose another of .nc, .zarr, .csv" in capsys.readouterr().err
    Path("loop").symlink_to("loop")
    assert cli.main(["export", "run", "--out", "loop/x.nc"]) == 2
    assert "out = loop/x.nc: cannot be written (" in capsys.readouterr().err


def test_a_table_of_one_run_has_one_row(stored: Path, tmp_path: Path) -> None:
    where = ["--where", "seed=1", "eta_y=0.5", "time=4"]
    out = tmp_path / "one.csv"
    assert cli.main(["export", str(stored), "--out", str(out), "--arrays", "loss", *where]) == 0
    (loss,) = pd.read_csv(out).loss
    assert loss == pytest.approx(float(sweeps.open(stored).loss.sel(seed=1, eta_y=0.5, time=4)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.xlsx"], "out = x.xlsx: must end in .nc, .zarr, .csv, .parquet"),
        (["--arrays", "xi"], "arrays: 'xi' was not recorded; must be one of first_bad_step, loss"),
    ],
)
def test_what_cannot_be_written_is_refused(
    stored: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["export", str(stored), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_table_is_as_large_as_its_cells(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row for each of 2 seeds, 2 rates and 4 times, which stand beside the loss."""
    made = sweeps.open(stored)[["loss"]]
    rows, columns = 16, 4
    monkeypatch.setattr(reading, "LARGEST_TABLE", 8 * rows * columns)
    assert len(pd.read_csv(reading.WRITERS[".csv"](made, tmp_path / "a.csv"))) == rows
    monkeypatch.setattr(reading, "LARGEST_TABLE", 8 * rows * columns - 1)
    with pytest.raises(
        ValueError, match=f"a table of {rows} rows and {columns} columns would take"
    ):
        reading.WRITERS[".csv"](made, tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("runs/run.v1", "runs/run.v1.nc"),
        ("runs/run", "runs/run.nc"),
        ("s3://bucket/runs/a.b/", "a.b.nc"),
    ],
)
def test_files_beside_stores_have_names_of_their_own(path: str, file: str) -> None:
    assert reading.beside(path) == Path(file)


def test_a_file_that_is_there_stays(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.csv"
    target.write_text("mine")
    command = ["export", str(stored), "--arrays", "loss", "--out", str(target)]
    assert cli.main(command) == 2
    assert "already exists" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert cli.main([*command, "--overwrite"]) == 0
    assert set(pd.read_csv(target)) == {
        "seed",
        "eta_y",
        "time",
        "loss",
        "status",
        "first_bad_step",
    } - {"first_bad_step"}


def test_an_export_that_fails_or_is_killed_leaves_what_was_there(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy.zarr"
    command = ["export", str(stored), "--out", str(target)]
    assert cli.main(command) == 0
    there = xr.open_zarr(target, consolidated=False).load()
    replace, seen = os.replace, []

    def failing(old: Path, new: Path) -> None:
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


def test_theory_minus_simulation_keeps_status_and_units(stored: Path) -> None:
    simulation = sweeps.open(stored).load()
    simulation["status"].loc[{"eta_y": 1e3}] = 1
    # Solved once for all seeds, at one more rate and in another order.
    theory = simulation.isel(seed=0, drop=True).isel(eta_y=[1, 0])
    theory = xr.concat([theory, theory.isel(eta_y=[0]).assign_coords(eta_y=[7.0])], "eta_y")
    theory["loss"] = theory["loss"] + 0.25
    theory["status"] = xr.full_like(theory["status"], 2)
    found = sweeps.difference(theory, simulation)
    assert found.sizes["seed"] == found.sizes["eta_y"] == 2
    np.testing.assert_allclose(found["loss"].sel(seed=0, eta_y=0.5), 0.25, atol=1e-6)
    # The simulation's own end comes first, the theory's where the simulation ended well.
    assert found["status"].sel(eta_y=0.5).values.tolist() == [2, 2]
    assert found["status"].sel(eta_y=1e3).values.tolist() == [1, 1]
    assert found["loss"].attrs["units"] == simulation["loss"].attrs["units"]
    assert "config_hash" in found.attrs["simulation"]
    # A single value in common suffices.
    one = sweeps.difference(theory.sel(eta_y=[0.5, 7.0]), simulation)
    assert one["eta_y"].values.tolist() == [0.5]
    with pytest.raises(ValueError, match=r"^eta_y: theory and simulation have no value in common$"):
        sweeps.difference(theory.sel(eta_y=[7.0]), simulation)


def test_every_axis_and_observable_has_a_name_and_a_unit() -> None:
    for name in registry.names():
        system, problem = registry.system(name), experiment(name).bare
        observables = [e.observables(problem).names() for e in registry.theories(system).values()]
        for each in itertools.chain(*observables):
            assert set(labels.about(system, each)) == {"long_name", "units"}, (name, each)
    assert labels.about(registry.system("two_stage"), "K2_neg")["units"] == "nat"
    # What the annotation and the docstring of a setting say, where the labels are silent.
    axes = Sweep(experiment("linear_icl"), {"steps": [1, 2], "N": [3, 4]}).varied.named
    found = {n: labels.about(registry.system("joma"), n, each) for n, each in axes.items()}
    assert found["steps"]["units"] == "step"
    assert found["N"]["long_name"] == "number of pairs (x, y) in the context"
