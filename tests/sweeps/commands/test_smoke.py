"""Every command once, tiny: it ends well and writes what it should. `compare`, `phase`, `validity`,
`spectrum` and figures of papers run where their numbers are tested."""

import json

import pytest

import sweeps
from sweeps import cli

ROWS = [
    ("explain --steps 6 --length 8 --batch 4", ""),
    ("sweep FILE --out OUT", "zarr.json"),
    ("sweep FILE --out OUT --dry-run", ""),
    ("info", ""),
    ("info STORE", ""),
    ("check STORE", ""),
    ("plot STORE --out OUT.png", ".png npz"),
    ("explore STORE --out OUT.html", ".html"),
    ("export STORE --out OUT.csv", ".csv"),
    ("list", ""),
    ("list saxe", ""),
    ("movie STORE --out OUT.gif", ".gif npz"),
    ("schema --out OUT.json", ".json"),
    ("figure 3 --out OUT", "fig3.npz png"),
    ("figure 8 --out OUT --format svg", "fig8.npz svg"),
    ("figure 9 --out OUT --format pdf", "fig9.npz pdf"),
]
HEADS = {
    "png": b"\x89PNG",
    "gif": b"GIF89a",
    "svg": b"<?xml",
    "pdf": b"%PDF",
    "html": b"<!doctype html>",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    out = tmp_path_factory.mktemp("smoke") / "store"
    sweeps.run(sweeps.load(file(out.with_suffix(".toml"))), out, chunk=2)
    return out


def file(path):
    text = 'record = ["loss"]\ntimes = 3\n[run]\nproblem = "saxe"\nsteps = 4\nbatch = inf\n'
    path.write_text(f"{text}[axes]\neta = [0.1, 0.2, 0.3]\nseed = {{range = 2}}\n")
    return path


@pytest.mark.parametrize(("line", "written"), ROWS, ids=[line for line, _ in ROWS])
@pytest.mark.usefixtures("quick_theory")
@pytest.mark.more
def test_command_writes_its_files(line, written, store, tmp_path, capsys):
    if "explore" in line:
        pytest.importorskip("plotly", reason="needs plotly of the extra `test`")
    out = tmp_path / "out"
    line = line.replace("STORE", str(store)).replace("OUT", str(out))
    assert cli.main(line.replace("FILE", str(file(tmp_path / "f.toml"))).split()) == 0
    said = capsys.readouterr().out
    assert said
    assert ("best loss " in said) == (written == "zarr.json")
    name, *others = written.split() or [""]
    stem, _, first = name.rpartition(".")
    for ending in [first, *others] if written else []:
        path = out / f"{stem}.{ending}" if stem else out.with_suffix(f".{ending}")
        assert path.read_bytes().startswith(HEADS.get(ending, b""))
    assert written or not out.exists()


def test_a_list_has_names_units_and_reasons(capsys):
    assert cli.main(["list"]) == 0
    assert {"yz", "two_stage", "saxe"} <= {line.split()[0] for line in _lines(capsys)}
    assert cli.main(["list", "yz"]) == 0
    rows = {line.split()[0]: line for line in _lines(capsys)}
    assert "[nat]" in rows["entropy"]
    assert {"eq10", "theorem4", "plain-finite-t"} <= set(rows)
    # Adam's flow does not describe SGD, which is the default.
    assert "adam" not in rows
    assert rows["groups"].split()[-2:] == ["Y,", "Z"]


def _lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_store_is_described_by_its_records(store, capsys):
    """Six runs in chunks of two; all ends well."""
    assert cli.main(["info", str(store), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["dimensions"] == {"eta": 3, "seed": 2}
    assert (about["chunks_done"], about["chunks"]) == (4, 4)
    assert (about["runs_done"], about["runs"], about["status"]) == (6, 6, {"OK": 6})
    assert about["axes"]["eta"] == [0.1, 0.2, 0.3]
    assert [each["chunks"] for each in about["made"]] == [[[0, 3]]]
