"""Bad stores: addresses that cannot be, what is no store of this sweep, and stores of somebody who
wants something: code that is run, memory that is taken, a terminal that is fooled."""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs.zstd import Zstd

import sweeps
from sweeps import StoreError, Sweep, cli, output
from sweeps.commands.views import diagrams, live
from sweeps.commands.views.content import content
from sweeps.commands.views.outlines import outlines
from sweeps.runner import worker
from sweeps.runner.store import manifest, sha
from sweeps.runner.store.arrays import checksum
from sweeps.runner.store.store import Store
from sweeps.systems import budget
from tests.doors import refuses
from tests.sweeps.runner.store.places import SWEEP

SECONDS, MEMORY = 2.0, 200 * 2**20
Json = dict[str, Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("good") / "s"
    sweeps.run(SWEEP, out, chunk=1, tile=1)
    return out


@pytest.fixture
def out(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "s"))


@pytest.mark.parametrize(
    ("address", "named"),
    [
        (3, ("out = 3", "str or os.PathLike")),
        ("ftp://bucket/run", ("ftp://bucket/run", "s3://, gs:// or az://")),
        ("s3://Bucket/run", ("s3://Bucket/run", "lower-case")),
        ("s3://key:secret@bucket/run", ("environment",)),
        ("gs://bucket/", ("gs://bucket/",)),
        ("az://bucket/a/../b", ("az://bucket/a/../b",)),
        ("memory://a?b", ("memory://a?b",)),
        (Path("s3://Bucket/run"), ("s3://Bucket/run",)),
        ("loop", ("loop", "cannot be a folder")),
        ("x" * 300, ("x" * 300, "cannot be a folder")),
        ("a\x1b\0b", ("a", "cannot be a folder")),
        ("link", ("link", "symbolic link", "gone")),
        ("file/x", ("file/x", "file is a file")),
        ("shut/x/y", ("shut/x/y", "permission", "shut")),
        ("folder", ("folder", "something other than a sweep")),
    ],
)
def test_a_place_where_no_sweep_can_be(
    address: Any, named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error before anything is compiled, or written."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("link").symlink_to("gone")
    Path("file").touch()
    Path("folder").mkdir()
    Path("folder/thesis.txt").write_text("mine")
    Path("shut").mkdir()

    opened = tempfile.TemporaryFile

    def refuse(dir: Path) -> Any:  # noqa: A002
        # Permissions would not hold where tests run with all rights.
        if dir.name == "shut":
            raise PermissionError(13, "Permission denied")
        return opened(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(
        "sweeps.runner.program.jobs.Program.start", lambda _: pytest.fail("compiled")
    )
    before = sorted(tmp_path.rglob("*"))
    refuses(lambda: sweeps.run(SWEEP, address), *named)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        sweeps.open(address)
    assert str(error.value).isprintable()
    assert sorted(tmp_path.rglob("*")) == before
    assert Path("folder/thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda out: sweeps.open(out / "no"), ("no such sweep",)),
        (lambda out: sweeps.run(SWEEP, reuse=[out / "no"]), ("reuse = ", "no such sweep")),
        (
            lambda out: sweeps.run(dataclasses.replace(SWEEP, run=SWEEP.run.at({"steps": 7})), out),
            ("run.steps: 2 -> 7",),
        ),
        (
            lambda out: sweeps.run(Sweep(SWEEP.run, {**SWEEP.axes, "seed": [3, 0]}), out),
            ("axes.seed: [0, 3] -> [3, 0]", "record: ['entropy', 'loss'] -> "),
        ),
        (lambda out: sweeps.run(SWEEP, out, chunk=4), ("chunk = 4", "chunks of 1 runs")),
        (lambda out: sweeps.run(SWEEP, out, accept_code="0123"), ("accept_code = 0123",)),
        (lambda out: sweeps.run(SWEEP, out / "n", accept_code="0123"), ("accept_code = '0123'",)),
    ],
)
def test_what_is_no_store_of_this_sweep(
    call: Callable[[Path], object], named: tuple[str, ...], out: Path, tmp_path: Path
) -> None:
    files = lambda: {p: p.read_bytes() for p in tmp_path.rglob("*") if p.suffix != ".lock"
                     and p.is_file()}  # fmt: skip
    before = files()
    refuses(lambda: call(out), *named)
    assert files() == before


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


def shape(cells: list[Any], sizes: list[int]) -> Callable[[Json], None]:
    def change(about: Json) -> None:
        about["shape"] = cells
        about["chunk_grid"]["configuration"]["chunk_shape"] = sizes

    return change


def packed(size: int) -> bytes:
    """A small chunk that becomes large."""
    value = Zstd(level=3).encode(np.zeros(size, "u1"))
    return value + checksum(value)


def instead(path: str, put: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something that is no file of this content: a pipe, a device."""

    def forge(out: Path) -> None:
        (out / path).unlink()
        put(out / path)

    return forge


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


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


def older(attributes: Json) -> None:
    """As of format 3, which had no ids and no records."""
    attributes["format"] = 3
    del attributes["store"]


LONG = 600 * 2**20
FORGED: dict[str, Callable[[Path], object]] = {
    "status of 1e12 runs": array("status", shape([10**6, 10**6], [1, 1])),
    "status of 1e9 chunks": array("status", shape([10**9, 2], [1, 2])),
    "negative shape": array("status", shape([-1, 2], [1, 2])),
    "chunks of nothing": array("status", shape([2, 2], [0, 2])),
    "shape of words": array("status", shape(["a", 2], [1, 2])),
    "more values than its axis has": array("status", shape([7, 2], [1, 2])),
    "shape of another length": array("loss", shape([2, 2, 10**9], [1, 2])),
    "shape that is no list": array("loss", lambda a: a.update(shape=3)),
    "long text": array(
        "eta_y",
        lambda a: a.update(
            data_type={"name": "fixed_length_utf32", "configuration": {"length_bytes": 2**40}}
        ),
    ),
    "pickles": array("loss", lambda a: a["codecs"].insert(0, {"name": "numcodecs.pickle"})),
    "other codecs": array("loss", lambda a: a.update(codecs=[{"name": "sharding_indexed"}])),
    "objects": array("loss", lambda a: a.update(data_type="object")),
    "zarr 2": array("loss", lambda a: a.update(zarr_format=2)),
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
    # Of 8 GB, which take no place.
    "a large chunk": lambda out: os.truncate(out / "loss/c/0/0", 2**33),
    "a large group": lambda out: os.truncate(out / "zarr.json", 2**33),
    "a large record": lambda out: os.truncate(out / Store.open(out).chunks.file(0), 2**33),
    "a group that is a pipe": instead("zarr.json", os.mkfifo),
    "a chunk that is a pipe": instead("loss/c/0/0", os.mkfifo),
    "a chunk that is a device": instead("loss/c/0/0", device),
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
    "an older format": said(older),
    "no digests": lambda out: (out / "zarr.json").write_text('{"attributes": {"format": 5}}'),
}


def looked_at(out: Path, way: str) -> bool:
    """Whether that ends in an error, which is printed."""
    if way != "open":
        return cli.main([way, str(out)]) == 2
    try:
        sweeps.open(out).load()
    except StoreError as error:
        print(error)
        return True
    return False


@pytest.mark.parametrize("how", FORGED)
@pytest.mark.more
def test_a_forged_store_is_an_error_at_once(
    how: str, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    FORGED[how](out)
    failed = 0
    for way in ("info", "check", "open"):
        tracemalloc.start()
        began = time.process_time()
        failed += looked_at(out, way)
        took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (took < SECONDS, peak < MEMORY) == (True, True), (way, took, peak)
    # What no results depend on, such as the time that they took, one of the ways does not read.
    assert failed >= 1
    text = "".join(capfd.readouterr())
    assert is_plain(text)
    if how == "an older format":
        assert "format 3" in text
        assert "format 5" in text


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
        'record = ["entropy", "loss"]\n[axes]\neta_y = [0.5, 1]\nseed = [0, 3]\n'
        "[run]\nproblem = 'yz'\nsteps = 2\nlength = 8\nbatch = 4\n"
    )
    commands = {
        ("info", str(named)): 0,
        ("check", str(named)): 0,
        ("sweep", str(file), "--out", str(named)): 2,
        ("sweep", str(file), "--out", str(tmp_path / "new"), "--reuse", str(named)): 2,
        ("export", str(named), "--out", str(tmp_path / "a\x1b[2Jb.csv")): 0,
        ("plot", str(named), "--observable", "x"): 2,
    }
    for command, code in commands.items():
        assert cli.main([*command]) == code
        out, err = capfd.readouterr()
        assert is_plain(out + err), command
        assert "\nlast" not in out + err


def test_a_worker_imports_nothing_that_a_store_names(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of a configuration is computed from it, whatever the store says that it is."""
    (tmp_path / "evil_module.py").write_text("open('evil', 'w').close()\ndef task(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = Store.open(out)
    job = worker.SweepJob(str(out), store.fingerprint, 2, store=store.id)
    run = {"task": "evil_module:task", "steps": 2, "length": 8, "batch": 4}
    said(lambda a: a["config"].update(run=run))(out)
    found = worker.compute(job, 0)
    assert isinstance(found, worker.Failed)
    assert "contains another sweep here" in found.reason
    assert "evil_module" not in sys.modules
    assert not Path("evil").exists()


def evil(part: str, value: Any) -> Callable[[Json], object]:
    """A configuration with another part of its run."""
    return lambda about: about["config"]["run"].update({part: value})


@pytest.mark.parametrize(
    "change",
    [
        evil("problem", {"kind": "evil_module:task"}),
        evil("problem", {"kind": "yz", "task": "evil_module:task"}),
        evil("problem", {"kind": "evil_package.part:task"}),
        evil("rule", {"kind": "sgd", "eta": "evil_module:task"}),
        evil("rule", {"kind": "optax", "make": "evil_package.part:task"}),
        evil("rule", {"kind": "sgd", "eta": {"kind": "evil_module:task"}}),
        lambda about: about["config"].update(parts={"eta_y": {"a": "evil_module:task"}}),
        lambda about: about["config"].update(theory="evil_module:task"),
        lambda about: about["config"].update(system="evil_module:task"),
    ],
)
def test_opening_a_store_imports_nothing_that_it_names(
    change: Callable[[Json], object], out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the sweep file that a page shows, nor for its theory."""
    evil = "open('evil', 'w').close()\ndef task(): pass\n"
    (tmp_path / "evil_module.py").write_text(evil)
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package/__init__.py").write_text(evil)
    (tmp_path / "evil_package/part.py").write_text(evil)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    said(change)(out)
    found = diagrams.opened([str(out)], print)
    content(found)
    with contextlib.suppress(ValueError):
        live.Theory(found[str(out)]).sliders({})
    assert not {"evil_module", "evil_package"} & {*sys.modules}
    assert not Path("evil").exists()


def many(out: Path) -> None:
    """A store of a megabyte with 2^33 runs, none of them done."""
    sizes = [2**17, 2**16]
    for name in ("entropy", "loss", "first_bad_step", "status"):
        if (out / name).exists():
            array(name, shape(sizes, [2**13, 2**13]))(out)
    for name, size in zip(("eta_y", "seed"), sizes, strict=True):
        array(name, shape([size], [size]))(out)
        (out / name / "c/0").write_bytes(packed(8 * size))
    for each in out.glob("status/.chunks-*/*.json"):
        each.unlink()
    resealed(out)


@pytest.mark.parametrize("command", ["explore", "plot", "export"])
def test_a_small_store_of_many_runs_is_an_error_before_they_are_read(
    command: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "memory", lambda: 2**33)
    many(out)
    tracemalloc.start()
    code = cli.main([command, str(out)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (code, peak < MEMORY) == (2, True), peak
    assert "--where" in capfd.readouterr().err


def bomb(path: Path) -> None:
    """A small file of many zeros."""
    np.savez_compressed(path, x=np.zeros(2**21, "u1"))


@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        device,
        lambda path: path.write_text("[" * 10**5),
        lambda path: path.write_text("[3]"),
        lambda path: (path.touch(), os.truncate(path, 2**33)),
        lambda path: path.mkdir(),
        bomb,
    ],
)
def test_a_file_of_a_diagram_that_is_none_is_an_error(
    put: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MOST_READ", 2**20)
    readers = {
        "phase.json": lambda folder: outlines(folder, ("x", "y")),
        "phase.npz": lambda folder: diagrams._read_map(folder, "simulation"),
        "phase-boundary.nc": lambda folder: outlines(folder, ("x", "y")),
    }
    for name, read in readers.items():
        if put is not bomb or name == "phase.npz":
            (tmp_path / f"of {name}").mkdir()
            put(tmp_path / f"of {name}" / name)
            refuses(lambda read=read, name=name: read(tmp_path / f"of {name}"), name)


def test_links_of_a_folder_to_itself_are_not_followed(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "simulation")
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    assert diagrams._stores(tmp_path) == [tmp_path / "simulation"]
