"""Results are kept from those of other settings, and say what they are of."""

import json
from pathlib import Path

import pytest

from dynsim import TaskFile
from papers.scan_and_snap.figure6 import Figure6
from sweeps import cli
from sweeps.commands.record import Record
from sweeps.output import drawing
from sweeps.runner import cluster
from sweeps.studies.phase.plane import Phase
from sweeps.systems.experiment import experiment


def dynsim(*words: str) -> int:
    return cli.main(list(words))


@pytest.mark.more
def test_other_settings_do_not_write_over_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compare"
    figure = ["figure", "3", "--out", str(out)]
    assert dynsim(*figure) == 0
    record = json.loads((out / "figure_3.run.json").read_text())
    assert record["command"] == "dynsim figure 3"
    assert record["environment"]["jax"]
    assert record["seconds"] > 0
    before = (out / "fig3.png").stat().st_mtime_ns
    # The same settings may; and so may another command, whose files have other names.
    assert dynsim(*figure) == 0
    again = (out / "fig3.png").stat().st_mtime_ns
    assert again > before
    assert dynsim("figure", "9", "--out", str(out)) == 0
    capsys.readouterr()
    assert dynsim(*figure, "--eta-y", "3") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"out = {out}: contains results of dynsim figure 3 with eta_y = " in error
    assert "--overwrite" in error
    assert (out / "fig3.png").stat().st_mtime_ns == again
    assert dynsim(*figure, "--eta-y", "3", "--overwrite") == 0
    assert (out / "fig3.png").stat().st_mtime_ns > again
    assert dynsim(*figure, "--eta-y", "3") == 0


def test_a_folder_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    for name in ("run.v1", "run.v2", "eta_0.1", "a.toml"):
        out = tmp_path / name
        settings = cli.parse(["figure", "3", "--out", str(out)])
        assert Record.of("figure 3", settings).path == out / "figure_3.run.json"
    for suffix in drawing.FORMATS:
        settings = cli.parse(["plot", "runs/a", "--out", str(tmp_path / f"run.v1.{suffix}")])
        assert Record.of("plot", settings).path == tmp_path / "run.v1.run.json"


def test_records_that_cannot_be_read_are_not_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "figure_3.run.json").write_text("{")
    assert dynsim("figure", "3", "--out", str(tmp_path)) == 2
    assert "figure_3.run.json cannot be read" in capsys.readouterr().err


def test_each_command_has_a_folder_of_its_own() -> None:
    plane = ["phase", "qkv", "--x", "eta:1:2", "--y", "length:8:16"]
    outs = [
        cli.parse(words).out
        for words in (["compare"], ["compare", "two_stage"], ["compare", "qkv"], plane)
    ]
    assert [str(out) for out in outs] == [
        "out/compare",
        "out/compare_two_stage",
        "out/compare_qkv",
        "out/phase_qkv",
    ]
    plots = {cli.parse(["plot", path]).out for path in ("runs/a", "runs/b")}
    assert plots == {Path("out/plot/a.png"), Path("out/plot/b.png")}


def test_all_cores_are_asked_for_before_the_run_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its arrays start JAX, which then keeps the number of its devices."""
    asked: list[bool] = []
    run = experiment()
    monkeypatch.setattr(cluster, "use_all_cores", lambda: asked.append("built" in vars(run)))
    Record.of("phase", Phase(run, out=tmp_path))
    assert asked == [False]
    assert "built" in vars(run)


def test_the_record_knows_what_a_task_file_holds(tmp_path: Path) -> None:
    task, held = tmp_path / "mine.csv", []
    for share in (0.5, 0.25):
        task.write_text(f"query,a,b,c\n0,{share},{1 - share},0\n1,0.5,0,0.5\n")
        config = Figure6(task=TaskFile(str(task)), out=tmp_path)
        settings = Record.of("figure 6", config).settings
        assert settings["task.path"] == str(task)
        held.append(settings["task_holds"])
    assert held[0] != held[1]
