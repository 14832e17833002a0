"""The same guarantees wherever a sweep is kept: a folder, and a bucket of S3."""

import abc
import dataclasses
import errno
import json
import math
import os
import re
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import Sweep, cli, experiment
from sweeps.runner import run as run_module
from sweeps.runner.store import RECORDS, Variable, bucket
from sweeps.runner.store import store as store_module
from sweeps.runner.store.place import Written, place
from sweeps.runner.store.store import Store, StoreError

TRAINING = experiment(steps=2, length=8, batch=4)
SWEEP = Sweep(
    TRAINING.at({"eta": "ratio"}),
    {"ratio": [1, 2, 5], "seed": [0, 3], "eta_z": [0.5, 2], "momentum": [0.1, 0.9]},
    zip=(("eta_z", "momentum"),),
    record=("entropy", "loss"),
    times=(0, 2),
)
RUNS = 12


class Kept(abc.ABC):
    """A place for a sweep, and what befalls places."""

    out: Any

    @abc.abstractmethod
    def contents(self) -> dict[str, bytes]: ...

    @abc.abstractmethod
    def put(self, key: str, value: bytes | None) -> None: ...

    @abc.abstractmethod
    def forbid_writing(self, monkeypatch: pytest.MonkeyPatch) -> None: ...


class InFolder(Kept):
    def __init__(self, folder: Path) -> None:
        self.out = folder / "s"

    def contents(self) -> dict[str, bytes]:
        files = [p for p in self.out.rglob("*") if p.is_file()]
        return {str(p.relative_to(self.out)): p.read_bytes() for p in files}

    def put(self, key: str, value: bytes | None) -> None:
        path = self.out / key
        if value is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)

    def forbid_writing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)


class InBucket(Kept):
    def __init__(self, server: Any) -> None:
        from obstore.store import S3Store

        self.server = server
        # A name of its own on a server that the tests of a file share.
        folder = f"runs/{uuid.uuid4().hex}/s"
        self.out = f"s3://bucket/{folder}"
        self.objects = S3Store("bucket", prefix=folder)

    def contents(self) -> dict[str, bytes]:
        keys = [meta["path"] for batch in self.objects.list() for meta in batch]
        return {key: bytes(self.objects.get(key).bytes()) for key in keys}

    def put(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.objects.delete(key)
        else:
            self.objects.put(key, value)

    def forbid_writing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server.control(writable=0)


# What is particular to buckets is in `test_bucket.py`.
@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.full)])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "folder":
        return InFolder(tmp_path)
    return InBucket(request.getfixturevalue("s3"))


@pytest.fixture
def stored(kept: Kept) -> Kept:
    """A place with the whole sweep."""
    sweeps.run(SWEEP, kept.out, chunk=2)
    return kept


@pytest.fixture(scope="module")
def whole() -> Any:
    """The sweep in memory."""
    return sweeps.run(SWEEP, chunk=2).load()


@pytest.mark.more
def test_a_sweep_that_ended_early_resumes_to_the_same_numbers(
    kept: Kept, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = Store.write, []

    def full(store: Store, region: tuple, arrays: Mapping, *rest: Any) -> None:
        if len(written) in (2, 5):
            written.append(None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(tuple(part.start for part in region))
        write(store, region, arrays, *rest)

    monkeypatch.setattr(Store, "write", full)
    for done in (2, 4):
        with pytest.raises(StoreError, match="No space left on device"):
            sweeps.run(SWEEP, kept.out, chunk=2)
        assert Store.open(kept.out).done().sum() == done
    resumed = sweeps.run(SWEEP, kept.out)
    chunks = [start for start in written if start]
    assert len(chunks) == len(set(chunks)) == RUNS / 2
    for found in (resumed, sweeps.open(kept.out), sweeps.run(SWEEP, kept.out)):
        assert found.equals(whole)
    assert resumed.identical(sweeps.open(kept.out))


@pytest.mark.parametrize(("chunk", "runs"), [(5, 4), (1000, RUNS)])
@pytest.mark.more
def test_a_sweep_resumes_by_the_command_that_began_it(
    chunk: int, runs: int, tmp_path: Path, whole: Any
) -> None:
    """Also where its chunks are smaller than was asked for, because they fill whole axes or all of
    the sweep: two ratios at both pairs of rates."""
    for _ in range(2):
        assert sweeps.run(SWEEP, tmp_path / "s", chunk=chunk).equals(whole)
    assert math.prod(Store.open(tmp_path / "s").layout.chunk) == runs


def test_what_is_read_is_what_zarr_reads(tmp_path: Path) -> None:
    """Whichever part is asked for, and but for chunks without a record."""
    sweeps.run(SWEEP, tmp_path, chunk=2)
    arange = np.arange(2)
    for part in (
        {},
        {"seed": 1, "time": 0},
        {"ratio": [2, 0], "eta_z": slice(1, None), "time": [1, 0]},
        {"ratio": slice(None, None, -2)},
        {"ratio": xr.DataArray(arange, dims="p"), "seed": xr.DataArray(1 - arange, dims="p")},
    ):
        ours, zarrs = sweeps.open(tmp_path), xr.open_zarr(tmp_path, consolidated=False)
        ours, zarrs = (each.isel(part).load() for each in (ours, zarrs))
        xr.testing.assert_identical(ours.drop_attrs(), zarrs.drop_attrs())
        assert all(ours[name].attrs == zarrs[name].attrs for name in zarrs.variables)
    for record in (tmp_path / "status").glob(".chunks-*/[12].json"):
        record.unlink()
    there = np.ones((3, 2, 2), bool)
    there[0, 1] = there[1, 0] = False
    found = sweeps.open(tmp_path)
    for name, empty in (("loss", np.nan), ("entropy", np.nan), ("first_bad_step", -1)):
        values = xr.open_zarr(tmp_path, consolidated=False)[name]
        mask = there.reshape(there.shape + (1,) * (values.ndim - 3))
        np.testing.assert_array_equal(found[name], np.where(mask, values, empty))
    np.testing.assert_array_equal(found.status.values != -1, there)


@pytest.mark.more
def test_truth_values_and_complex_numbers_are_kept(tmp_path: Path) -> None:
    own = {
        "top": lambda task, s: s.logits.max(),
        "high": lambda task, s: s.logits.max() > 0.5,
        "turned": lambda task, s: 1j * s.logits.max(),
    }
    sweep = Sweep(TRAINING, {"eta_y": [0.01, 1, 100]}, record=(own,))
    sweeps.run(sweep, tmp_path, chunk=2)
    for found in (sweeps.open(tmp_path), xr.open_zarr(tmp_path, consolidated=False)):
        np.testing.assert_array_equal(found.turned, 1j * found.top)
        assert found.high.dtype == bool
        assert len(set(found.high.values.tolist())) == 2
        np.testing.assert_array_equal(found.high, found.top > 0.5)


@pytest.mark.parametrize(
    ("dtype", "empty"), [(np.float32, np.nan), (np.complex64, np.nan), (np.int32, 0), (bool, False)]
)
def test_arrays_that_are_shorter_in_some_runs_are_filled_up(dtype: Any, empty: Any) -> None:
    values = np.ones((2, 3, 1), dtype)
    found = Variable((4, 2), ("class", "token"), values.dtype).padded(values)
    want = np.full((2, 4, 2), empty, dtype)
    want[:, :3, :1] = 1
    np.testing.assert_array_equal(found, want, strict=True)
    with pytest.raises(ValueError, match=r"\(3, 1\) does not fit into \(2, 2\)"):
        Variable((2, 2), ("class", "token"), values.dtype).padded(values)


def test_of_two_writers_of_one_file_the_second_is_told(stored: Kept) -> None:
    where = Store.open(stored.out).place
    key = f"{where.records}/first.json"
    assert where.put(key, b"1")
    assert not where.put(key, b"2")
    assert stored.contents()[key] == b"1"


def test_another_configuration_is_refused_with_the_difference(stored: Kept) -> None:
    before = stored.contents()
    other = dataclasses.replace(SWEEP, run=SWEEP.run.at({"steps": 7}))
    with pytest.raises(StoreError, match=re.escape("run.steps: 2 -> 7")):
        sweeps.run(other, stored.out)
    with pytest.raises(StoreError, match="made with chunks of 2 runs"):
        sweeps.run(SWEEP, stored.out, chunk=4)
    assert stored.contents() == before


def test_what_is_no_sweep_is_refused_and_left_alone(kept: Kept) -> None:
    with pytest.raises(StoreError, match="no such sweep"):
        sweeps.open(kept.out)
    kept.put("thesis.txt", b"mine")
    with pytest.raises(StoreError, match="something other than a sweep"):
        sweeps.run(SWEEP, kept.out)
    assert kept.contents() == {"thesis.txt": b"mine"}


def test_a_store_of_another_format_is_refused(stored: Kept) -> None:
    group = stored.contents()["zarr.json"]
    about = json.loads(group)
    about["attributes"]["format"] = 1
    del about["attributes"]["integrity"]
    stored.put("zarr.json", json.dumps(about).encode())
    with pytest.raises(StoreError, match=r"written in format 1 by another .* reads format 5"):
        sweeps.open(stored.out)


def test_a_damaged_chunk_is_named_and_can_be_computed_anew(stored: Kept, whole: Any) -> None:
    good = stored.contents()
    damaged = next(key for key in sorted(good) if key.startswith("loss/c/"))
    stored.put(damaged, good[damaged][:-3])
    with pytest.raises(StoreError, match=re.escape(damaged)) as failure:
        sweeps.run(SWEEP, stored.out)
    assert stored.contents() == good | {damaged: good[damaged][:-3]}
    record = re.search(r"Delete (status/\S+) and", str(failure.value)).group(1)
    stored.put(record, None)
    assert sweeps.run(SWEEP, stored.out).equals(whole)
    found = stored.contents()
    # But for the time that it took.
    del found[record], good[record]
    assert found == good


def test_old_damage_is_found_by_reading_or_by_a_check(
    stored: Kept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a sweep goes on it looks at what was written last, here at one chunk of six."""
    keys = sorted(key for key in stored.contents() if key.startswith("loss/c/"))
    oldest, newest = keys[0], keys[-1]
    where = type(Store.open(stored.out).place)
    files = where.files

    def in_order(place: Any, *folder: str) -> dict[str, Written]:
        number = lambda key: int(re.sub(r"\D", "", key) or 0)
        found = files(place, *folder)
        return {key: each._replace(time=number(key)) for key, each in found.items()}

    monkeypatch.setattr(where, "files", in_order)
    monkeypatch.setattr(store_module, "NEWEST", 1)
    assert cli.main(["check", str(stored.out)]) == 0
    assert f"{len(keys)} of {len(keys)} chunks, all intact" in capsys.readouterr().out
    stored.put(oldest, stored.contents()[oldest][:-3])
    found = sweeps.run(SWEEP, stored.out)
    with pytest.raises(ValueError, match=f"the file {oldest} is damaged"):
        found.loss.load()
    assert cli.main(["check", str(stored.out)]) == 2
    assert f"the file {oldest} is damaged" in capsys.readouterr().err
    stored.put(newest, stored.contents()[newest][:-3])
    with pytest.raises(StoreError, match=re.escape(newest)):
        sweeps.run(SWEEP, stored.out)


def test_a_second_writer_and_a_read_only_store_are_refused(
    stored: Kept, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(stored.out)
    # Who waits for a lease sees it renewed, as it is by a holder that is alive.
    alive: list[bucket.Lease] = []
    take = bucket.Lease.take

    def taken(its: bucket.Lease, *report: Any) -> None:
        take(its, *report)
        alive.append(its)

    monkeypatch.setattr(bucket.Lease, "take", taken)
    monkeypatch.setattr(bucket, "pause", lambda _: [its.renew() for its in alive])
    for others in ((0, 1), (1, 3)):
        held = store.place.lock(*others, None)
        with held, pytest.raises(StoreError, match="another process is writing"):
            sweeps.run(SWEEP, stored.out)
    with store.place.lock(0, 2, None), store.place.lock(1, 2, None):
        pass
    with store.place.lock(0, 1, None):
        pass
    stored.forbid_writing(monkeypatch)
    with pytest.raises(StoreError, match="is read-only"):
        sweeps.run(SWEEP, stored.out)
    assert sweeps.open(stored.out).equals(whole)


def test_chunks_are_written_by_address_alone_while_another_process_has_the_lock(
    stored: Kept, whole: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open(stored.out.name if isinstance(stored.out, Path) else stored.out)
    arrays = {name: whole[name].values for name in store.names}
    for key in stored.contents():
        if key.startswith(RECORDS) and key.endswith(".json"):
            stored.put(key, None)
    assert not store.done().any()
    with store.place.lock(0, 1, None):
        # As in another process: an address knows no current folder.
        monkeypatch.chdir(tmp_path.parent)
        for region in map(store.layout.region, range(store.layout.num_chunks)):
            Store.open(store.address).write(region, {n: a[region] for n, a in arrays.items()})
        np.testing.assert_array_equal(Store.open(stored.out).done(), True)
    assert sweeps.open(stored.out).equals(whole)


def test_a_file_in_memory_is_put_once() -> None:
    memory = place(None)
    assert memory.put("a", b"first")
    assert not memory.put("a", b"second")
    assert memory.read("a") == b"first"


@pytest.mark.more
def test_what_the_chunks_took_is_in_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 102.5, 200.0, 201.0, 300.0, 300.25])
    monkeypatch.setattr(run_module, "perf_counter", lambda: next(clock))
    sweep = Sweep(experiment(steps=2, batch=4, length=8), {"seed": [0, 1, 2], "eta_y": [0.5]})
    out = tmp_path / "run"
    sweeps.run(sweep, out, chunk=1, process=(0, 2))
    found = Store.open(out)
    assert {n: record.seconds for n, record in found.chunks.all().items()} == {0: 2.5, 2: 1.0}
    sweeps.run(sweep, out, process=(1, 2))
    assert {n: record.status for n, record in found.chunks.all().items()} == {
        n: {"0": 1} for n in range(3)
    }
    assert cli.main(["info", str(out)]) == 0
    assert "wall time 3.75 s, summed over chunks" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["loop", "loop/x", "x" * 300, "a\0b", "a\x1b\0b"])
def test_a_path_that_can_be_no_folder_is_an_error_of_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for use in (lambda: sweeps.run(SWEEP, name), lambda: sweeps.run(SWEEP, reuse=[name])):
        with pytest.raises(StoreError, match="cannot be a folder") as failure:
            use()
        assert str(failure.value).isprintable()
    with pytest.raises(StoreError, match=r"cannot be a folder|no such sweep"):
        sweeps.open(name)
    Path("s.toml").write_text('record = ["loss"]\nrun.problem = "yz"\naxes.eta_y = [0.5, 1]\n')
    assert cli.main(["sweep", "s.toml", "--out", name]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.strip().isprintable()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("link", "link: is a symbolic link to .*gone, which does not exist"),
        ("file/x", "file/x: cannot be created, because .*file is a file"),
        (
            "shut/x/y",
            "shut/x/y: cannot be written: this process has no permission to write to .*shut",
        ),
    ],
)
def test_what_cannot_be_written_is_an_error_before_anything_is_compiled(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "file").touch()
    (tmp_path / "shut").mkdir()
    opened = tempfile.TemporaryFile

    def refuse(dir: Path):  # noqa: A002
        # Permissions would not hold where tests run with all rights.
        if dir.name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(run_module, "Work", None)
    with pytest.raises(StoreError, match=why):
        sweeps.run(SWEEP, tmp_path / path)
    assert sorted(tmp_path.rglob("*")) == sorted(tmp_path / n for n in ("file", "link", "shut"))
    with pytest.raises(StoreError, match=r"^reuse = nosuch: no such sweep"):
        sweeps.run(SWEEP, reuse=["nosuch"])
    with pytest.raises(StoreError, match=r"^reuse = nosuch: no such sweep"):
        sweeps.run(SWEEP, reuse="nosuch")
