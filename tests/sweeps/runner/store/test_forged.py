"""Stores of somebody else, who wants something: code that is run, memory that is taken, a terminal
that is fooled. They end in an error at once, and nothing of theirs reaches the terminal."""

import json
import os
import re
import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs.zstd import Zstd

import sweeps
from sweeps import Sweep, cli, experiment
from sweeps.runner import driver
from sweeps.runner.store import manifest, sha
from sweeps.runner.store.arrays import checksum, unpacked
from sweeps.runner.store.records import Record
from sweeps.runner.store.store import Store
from tests.extension import packages

SWEEP = Sweep(
    experiment(steps=2, length=8, batch=4), {"eta_y": [0.5, 1.0], "seed": [0, 3]}, record=("loss",)
)
SECONDS, MEMORY = 2.0, 200 * 2**20
WAYS = ("info", "check", "open")
Json = dict[str, Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("good") / "s"
    sweeps.run(SWEEP, out, chunk=2)
    return out


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65_791, 65_792, 100_000])
def test_chunks_have_the_size_that_they_say(size: int) -> None:
    """Zstandard writes it in one, two or four bytes."""
    assert unpacked(Zstd().encode(np.zeros(size, np.uint8))) == size


def resealed(out: Path) -> None:
    """Digests as somebody would make them who wants to be believed."""
    group = json.loads((out / "zarr.json").read_text())
    sealed = group["attributes"][manifest.SEAL]
    for key in sealed["files"]:
        if (out / key).is_file():
            sealed["files"][key] = sha((out / key).read_bytes())
    sealed["digest"] = manifest._digest(group)
    (out / "zarr.json").write_text(json.dumps(group))


def said(change: Callable[[Json], object]) -> Callable[[Path], None]:
    """A forgery of the attributes of the group."""

    def forge(out: Path) -> None:
        group = json.loads((out / "zarr.json").read_text())
        change(group["attributes"])
        (out / "zarr.json").write_text(json.dumps(group))
        resealed(out)

    return forge


def array(name: str, change: Callable[[Json], object]) -> Callable[[Path], None]:
    """A forgery of the metadata of an array."""

    def forge(out: Path) -> None:
        about = json.loads((out / name / "zarr.json").read_text())
        change(about)
        (out / name / "zarr.json").write_text(json.dumps(about))
        resealed(out)

    return forge


def committed(change: Callable[[Json], object]) -> Callable[[Path], None]:
    """A forgery of the first record, with the digest of what it says."""

    def forge(out: Path) -> None:
        path = out / Store.open(out).chunks.file(0)
        about = json.loads(path.read_text())["record"]
        change(about)
        said = json.dumps(about).encode()
        path.write_bytes(b'{"digest": "%s", "record": %s}' % (sha(said).encode(), said))

    return forge


def chunk(value: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A forgery of a chunk of the loss, and of its record."""

    def forge(out: Path) -> None:
        path = out / "loss/c/0/0"
        path.write_bytes(value(path.read_bytes()))
        digest = sha(path.read_bytes())
        committed(lambda about: about["files"].update({"loss/c/0/0": digest}))(out)

    return forge


def shape(cells: list[int], sizes: list[int]) -> Callable[[Json], None]:
    def change(about: Json) -> None:
        about["shape"] = cells
        about["chunk_grid"]["configuration"]["chunk_shape"] = sizes

    return change


def packed(size: int) -> bytes:
    """A small chunk that becomes large."""
    value = Zstd(level=3).encode(np.zeros(size, "u1"))
    return value + checksum(value)


def sparse(path: str) -> Callable[[Path], None]:
    """A file of 8 GB that takes no place."""
    return lambda out: os.truncate(out / path, 2**33)


def pipe(path: str) -> Callable[[Path], None]:
    """A file that nobody can read to its end."""

    def forge(out: Path) -> None:
        (out / path).unlink()
        os.mkfifo(out / path)

    return forge


def device(path: str) -> Callable[[Path], None]:
    def forge(out: Path) -> None:
        (out / path).unlink()
        (out / path).symlink_to("/dev/zero")

    return forge


def deep(attributes: Json) -> None:
    found: list[Any] = []
    for _ in range(900):
        found = [found]
    attributes["config"]["run"] = found


def coordinate(size: int) -> Callable[[Path], None]:
    def forge(out: Path) -> None:
        (out / "eta_y/c/0").write_bytes(packed(size))
        resealed(out)

    return forge


def large_axis(out: Path) -> None:
    """As many values as no axis has, which all arrays speak of."""
    number = 2**25
    for name in ("loss", "first_bad_step", "status"):
        array(name, shape([number, 2], [number, 2]))(out)
    array("eta_y", shape([number], [number]))(out)
    coordinate(8 * number)(out)


LONG = 600 * 2**20
FORGED: dict[str, Callable[[Path], object]] = {
    "status of 1e12 runs": array("status", shape([10**6, 10**6], [1, 1])),
    "status of 1e12 runs in one chunk": array("status", shape([10**6, 10**6], [10**6, 10**6])),
    "status of 1e30 runs": array("status", shape([10**15, 10**15], [10**15, 10**15])),
    "status of 1e9 chunks": array("status", shape([10**9, 2], [1, 2])),
    "negative shape": array("status", shape([-1, 2], [1, 2])),
    "chunks of nothing": array("status", shape([2, 2], [0, 2])),
    "shape of words": array("status", shape(["a", 2], [1, 2])),  # type: ignore[list-item]
    "more values than its axis has": array("status", shape([7, 2], [1, 2])),
    "shape of another length": array("loss", shape([2, 2, 10**9], [1, 2])),
    "shape that is no list": array("loss", lambda a: a.update(shape=3)),
    "large chunks": array("loss", shape([2, 2], [1, 10**10])),
    "long text": array(
        "eta_y",
        lambda a: a.update(
            data_type={"name": "fixed_length_utf32", "configuration": {"length_bytes": 2**40}}
        ),
    ),
    "pickles": array("loss", lambda a: a["codecs"].insert(0, {"name": "numcodecs.pickle"})),
    "objects": array("loss", lambda a: a.update(data_type="object")),
    "a codec that is no object": array("loss", lambda a: a.update(codecs=[3])),
    "a transformer": array("loss", lambda a: a.update(storage_transformers=[{"name": "x"}])),
    "strange names": array("loss", lambda a: a.update(dimension_names=["a\x1b[2J", "b"])),
    "a loss that nobody knows": array("loss", lambda a: a.update(fill_value={"a": 1})),
    "a coordinate that becomes large": coordinate(LONG),
    "a coordinate that becomes small": coordinate(1),
    "a coordinate that is as large as it says": large_axis,
    "a chunk that becomes large": chunk(lambda _: packed(LONG)),
    "a chunk that becomes small": chunk(lambda _: packed(1)),
    "a chunk of two frames": chunk(lambda value: value[:-4] + packed(LONG)),
    "a chunk of nothing": chunk(lambda _: b""),
    "a chunk of noise": chunk(lambda _: os.urandom(100)),
    "a large chunk": sparse("loss/c/0/0"),
    "a large group": sparse("zarr.json"),
    "a large coordinate": sparse("eta_y/c/0"),
    "a large record": lambda out: sparse(Store.open(out).chunks.file(0))(out),
    "a group that is a pipe": pipe("zarr.json"),
    "a coordinate that is a pipe": pipe("eta_y/c/0"),
    "a chunk that is a pipe": pipe("loss/c/0/0"),
    "a chunk that is a device": device("loss/c/0/0"),
    "a group that is a device": device("zarr.json"),
    "a record of words": committed(lambda r: r.update(seconds="a")),
    "a record of another chunk": committed(lambda r: r.update(chunk=1)),
    "a record of no chunk": committed(lambda r: r.update(chunk=10**300)),
    "a record without files": committed(lambda r: r.update(files={})),
    "a record of a strange environment": committed(lambda r: r.update(environment="../../x")),
    "a record of many statuses": committed(lambda r: r.update(status={"a": 10**12})),
    "a record that is a list": lambda out: (out / Store.open(out).chunks.file(0)).write_text("[3]"),
    "another id": said(lambda a: a.update(store="../" * 10)),
    "no id": said(lambda a: a.pop("store")),
    "no axes": said(lambda a: a["config"].update(axes=[])),
    "axes that are not there": said(lambda a: a["config"].update(axes=["x", "y"])),
    "arrays that are not there": said(lambda a: a.update(variables=["status", "x"])),
    "arrays by numbers": said(lambda a: a.update(variables=3)),
    "a run that is a list": said(lambda a: a["config"].update(run=[])),
    "a title that is a number": said(lambda a: a.update(title=3)),
    "an environment of lists": said(lambda a: a.update(environment={"jax": []})),
    "a configuration without an end": said(deep),
    "files elsewhere": said(lambda a: a["integrity"]["files"].update({"../x/c/0": "0" * 64})),
    "files without number": said(
        lambda a: a["integrity"]["files"].update({f"loss/c/{n}": "0" * 64 for n in range(10**5)})
    ),
    "a format of another kind": said(lambda a: a.update(format="4\x1b[2J\n16 of 16 runs done")),
}


def looked_at(out: Path, way: str) -> bool:
    """Whether that ends in an error, which is printed."""
    if way != "open":
        return cli.main([way, str(out)]) == 2
    try:
        sweeps.open(out).load()
    except sweeps.StoreError as error:
        print(error)
        return True
    return False


@pytest.mark.parametrize("how", FORGED)
@pytest.mark.more
def test_a_forged_store_is_an_error_at_once(
    how: str, good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(good, tmp_path / "s")
    FORGED[how](out)
    failed = 0
    for way in WAYS:
        tracemalloc.start()
        began = time.process_time()
        failed += looked_at(out, way)
        took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (took < SECONDS, peak < MEMORY) == (True, True), (way, took, peak)
    # What no results depend on, such as the time that they took, one of the ways does not read.
    assert failed >= 1
    assert is_plain("".join(capfd.readouterr()))


def is_plain(text: str) -> bool:
    """Whether a terminal would show it all, line by line."""
    return all(line.isprintable() for line in text.split("\n"))


BAD = "x\x1b[2J\r16 of 16 runs done\u202e\x07\nlast"


def test_what_a_store_says_does_not_reach_the_terminal_as_it_is(
    good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named = shutil.copytree(good, tmp_path / "a\x1b[2J\u202eb")

    def change(attributes: Json) -> None:
        attributes["title"] = attributes["config"]["title"] = BAD
        attributes["config"]["theory"] = BAD
        attributes["config"]["run"][BAD] = BAD
        attributes["environment"][BAD] = BAD

    said(change)(named)
    file = tmp_path / "s.toml"
    file.write_text(
        'record = ["loss"]\n[axes]\neta_y = [0.5, 1]\nseed = [0, 3]\n'
        "[run]\nproblem = 'yz'\nsteps = 2\nlength = 8\nbatch = 4\n"
    )
    commands = [
        ["info", str(named)],
        ["check", str(named)],
        ["sweep", str(file), "--out", str(named)],
        ["sweep", str(file), "--out", str(tmp_path / "new"), "--reuse", str(named)],
        ["export", str(named), "--out", str(tmp_path / "a\x1b[2Jb.csv")],
        ["plot", str(named), "--observable", "x"],
    ]
    codes = []
    for command in commands:
        codes.append(cli.main(command))
        out, err = capfd.readouterr()
        assert is_plain(out), command
        assert is_plain(err), command
        assert "\nlast" not in out + err
    assert codes == [0, 0, 2, 2, 0, 2]


def test_a_worker_imports_nothing_that_a_store_names(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of a configuration is computed from it, whatever the store says that it is."""
    out = shutil.copytree(good, tmp_path / "s")
    (tmp_path / "evil_module.py").write_text("open('evil', 'w').close()\ndef task(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = Store.open(out)
    job = driver.Job(str(out), store.fingerprint, 2, store=store.id)
    run = {"task": "evil_module:task", "steps": 2, "length": 8, "batch": 4}
    said(lambda a: a["config"].update(run=run))(out)
    found = driver.compute(job, 0)
    assert isinstance(found, driver.Failed)
    assert "contains another sweep here" in found.reason
    assert "evil_module" not in sys.modules
    assert not Path("evil").exists()


def test_a_plug_in_that_wishes_to_end_the_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)\n")
    observables = {"dynsim.observables": {"yz.leave": "leaving:leave"}}
    packages.write(tmp_path, "leaving", entries=observables)
    monkeypatch.syspath_prepend(str(tmp_path))
    packages.forget()
    try:
        with pytest.raises(ValueError, match=r"leaving: cannot be loaded \(SystemExit"):
            Sweep(SWEEP.run, SWEEP.axes, record=("leave",)).check()
    finally:
        packages.forget()
    file = tmp_path / "s.toml"
    file.write_text('run.problem = "leaving:Problem"\nrecord = ["loss"]\naxes.eta = [0.1]\n')
    with pytest.raises(SystemExit):
        cli.main(["sweep", str(file)])
    assert re.search("SystemExit", capsys.readouterr().err)


def test_records_are_as_small_as_they_look() -> None:
    """A digest, and of what: JSON that anybody can read."""
    record = Record("0" * 32, 3, {"loss/c/3": "1" * 64}, "2" * 64, 0.5, {"0": 2}, "3" * 64, b"")
    about = json.loads(record.sealed())
    assert about["record"]["chunk"] == 3
    assert about["digest"] == sha(json.dumps(about["record"]).encode())
