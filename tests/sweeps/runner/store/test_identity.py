"""Chunks know where they belong, and writers whose store it is: files in wrong places, stores that
are moved under a writer, and puts that come late."""

import contextlib
import dataclasses
import itertools
import random
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import StoreError, Sweep, cli, experiment, output
from sweeps.runner.store import bucket
from sweeps.runner.store.store import Store
from sweeps.runner.work import Work

SWEEP = Sweep(
    experiment(steps=2, length=8, batch=4),
    {"eta_y": [0.5, 1.0], "seed": [0, 3]},
    record=("entropy", "loss"),
)
OTHER = dataclasses.replace(SWEEP, run=SWEEP.run.at({"eta_z": 0.7}))
"""Another sweep of the same shape."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of each, `one` and `other`."""
    folder = tmp_path_factory.mktemp("stores")
    for name, sweep in (("one", SWEEP), ("other", OTHER)):
        sweeps.run(sweep, folder / name, chunk=1, tile=1)
    return folder


@pytest.fixture
def one(stores: Path, tmp_path: Path) -> Path:
    """A copy of the first store."""
    return shutil.copytree(stores / "one", tmp_path / "one")


@pytest.fixture
def other(stores: Path, tmp_path: Path) -> Path:
    """A copy of the second one."""
    return shutil.copytree(stores / "other", tmp_path / "other")


@pytest.fixture(scope="module")
def wholes(stores: Path) -> list[Any]:
    """What both hold."""
    return [sweeps.open(stores / name).load() for name in ("one", "other")]


@pytest.mark.parametrize("action", ["moved", "removed", "removed with its lock"])
@pytest.mark.more
def test_a_writer_whose_store_is_taken_away_ends_within_a_chunk(
    action: str, wholes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And harms nothing that takes its place; who is refused meanwhile leaves nothing behind."""
    out, computed = tmp_path / "x", []
    compute = Work.compute

    def taken_away(self: Work, region: Any, *options: Any) -> Any:
        computed.append(region)
        if len(computed) == 2:
            monkeypatch.setattr(Work, "compute", compute)
            if action == "moved":
                out.rename(tmp_path / "old")
            else:
                shutil.rmtree(out)
            if action == "removed with its lock":
                for lock in tmp_path.glob(".x.*.lock"):
                    lock.unlink()
                sweeps.run(OTHER, out, chunk=1, tile=1)
            else:
                with pytest.raises(StoreError, match="another process is writing here"):
                    sweeps.run(OTHER, out, chunk=1, tile=1)
                assert not out.exists()
        return compute(self, region, *options)

    monkeypatch.setattr(Work, "compute", taken_away)
    with pytest.raises(StoreError, match="has been moved or removed while this process wrote to"):
        sweeps.run(SWEEP, out, chunk=1, tile=1)
    if action == "removed with its lock":
        assert sweeps.open(out).equals(wholes[1])
    else:
        assert not out.exists()
        sweeps.run(OTHER, out, chunk=1, tile=1)
        assert sweeps.run(OTHER, out).equals(wholes[1])
    if action == "moved":
        assert Store.open(tmp_path / "old").done().sum() == 1
        assert sweeps.run(SWEEP, tmp_path / "old", tile=1).equals(wholes[0])


def test_a_late_worker_writes_to_no_store_but_its_own(wholes: list[Any], tmp_path: Path) -> None:
    """That of a driver that has died, after which somebody else has begun at the same place."""
    sweeps.run(SWEEP, tmp_path / "x", chunk=1, tile=1)
    late = Store.open(tmp_path / "x")
    shutil.rmtree(tmp_path / "x")
    sweeps.run(OTHER, tmp_path / "x", chunk=1, tile=1)
    region = late.layout.region(0)
    with pytest.raises(StoreError, match="has been moved or removed"):
        late.write(region, {name: wholes[0][name].values[region] for name in late.names})
    assert cli.main(["check", str(tmp_path / "x")]) == 0
    assert sweeps.open(tmp_path / "x").equals(wholes[1])


def record(out: Path, chunk: int) -> str:
    """Name of the record of a chunk, by the layout of the files alone."""
    folders = list((out / "status").glob(".chunks-*"))
    return (
        f"status/{folders[0].name}/{chunk}.json"
        if folders
        else f"status/c/{chunk // 2}/{chunk % 2}"
    )


def exchanged(one: Path, other: Path) -> None:
    good = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(good)


def chunk(out: Path, number: int, array: str) -> Path:
    return out / f"{array}/c/{number // 2}/{number % 2}"


def rolled_back(out: Path, *keys: str) -> None:
    """Chunk 0 is computed anew, to other numbers, and then some of its files are those before."""
    before = {key: (out / key).read_bytes() for key in keys}
    store = Store.open(out)
    store.place.remove(store.chunks.file(0))
    store.write(
        store.layout.region(0),
        {name: np.zeros((1, 1), variable.dtype) for name, variable in store.variables.items()},
    )
    for key, value in before.items():
        (out / key).write_bytes(value)


MISPLACED: dict[str, Callable[[Path, Path], object]] = {
    "swapped": lambda a, b: exchanged(chunk(a, 0, "loss"), chunk(a, 3, "loss")),
    "swapped with all files and records": lambda a, b: [
        exchanged(a / one, a / two)
        for one, two in [
            *((f"{n}/c/0/0", f"{n}/c/1/1") for n in ("loss", "entropy", "status")),
            (record(a, 0), record(a, 3)),
        ]
    ],
    "of another array": lambda a, b: shutil.copy(chunk(a, 0, "entropy"), chunk(a, 0, "loss")),
    "twice": lambda a, b: shutil.copy(chunk(a, 0, "loss"), chunk(a, 1, "loss")),
    "twice with its record": lambda a, b: [
        shutil.copy(chunk(a, 0, "loss"), chunk(a, 1, "loss")),
        shutil.copy(a / record(a, 0), a / record(a, 1)),
    ],
    "of another sweep": lambda a, b: shutil.copy(chunk(b, 0, "loss"), chunk(a, 0, "loss")),
    "of another sweep with its record": lambda a, b: [
        *(shutil.copy(chunk(b, 0, n), chunk(a, 0, n)) for n in Store.open(a).names),
        shutil.copy(b / record(b, 0), a / record(a, 0)),
    ],
    "a file of an earlier state": lambda a, b: rolled_back(a, "loss/c/0/0"),
    "a record of an earlier state": lambda a, b: rolled_back(a, record(a, 0)),
    "settings of another sweep": lambda a, b: shutil.copy(b / "zarr.json", a / "zarr.json"),
}


@pytest.mark.parametrize("how", MISPLACED)
@pytest.mark.more
def test_what_lies_in_a_wrong_place_is_never_a_result(
    how: str, one: Path, other: Path, tmp_path: Path
) -> None:
    MISPLACED[how](one, other)
    more = dataclasses.replace(SWEEP, axes={**SWEEP.axes, "seed": [0, 3, 4]})
    ways: dict[str, Callable[[], Any]] = {
        "open": lambda: sweeps.open(one).load(),
        "resume": lambda: sweeps.run(SWEEP, one).load(),
        "check": lambda: Store.open(one).verify(),
        "reuse": lambda: sweeps.run(more, tmp_path / "more", reuse=[one]),
    }
    for use in ways.values():
        with pytest.raises(StoreError, match=r"one: .*(damaged|belongs to another store)"):
            use()


def test_of_two_files_that_are_exchanged_none_is_read_as_the_other(one: Path) -> None:
    # But for environments and programs, which are read when the sweep is run again.
    files = [p for p in one.rglob("*") if p.is_file() and p.stat().st_size]
    files = [p for p in files if p.parent.name not in (".made", ".programs")]
    pairs = list(itertools.combinations(sorted(files), 2))
    for first, second in random.Random(0).sample(pairs, 50):
        if first.read_bytes() == second.read_bytes():
            continue
        exchanged(first, second)
        names = "|".join(re.escape(str(each.relative_to(one))) for each in (first, second))
        with pytest.raises(StoreError, match=names):
            sweeps.open(one).load()
        exchanged(first, second)


def test_chunks_of_another_store_are_ignored_with_a_line(
    one: Path, other: Path, wholes: list[Any]
) -> None:
    """As a copy over another store leaves them."""
    shutil.copytree(one, other, dirs_exist_ok=True)
    lines: list[str] = []
    assert sweeps.open(other, lines.append).equals(wholes[0])
    assert any("ignores status/.chunks-" in line for line in lines)
    assert sweeps.run(SWEEP, other, report=lines.append).equals(wholes[0])


def test_versions_are_those_of_the_chunk_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, real = tmp_path / "s", output.environment()
    compute, done = Work.compute, []

    def one_at_a_time(self: Work, *options: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(None)
        return compute(self, *options)

    monkeypatch.setattr(Work, "compute", one_at_a_time)
    for version, clock in (("1", 3000), ("2", 2000), ("3", 1000), ("4", 4000)):
        monkeypatch.setattr(output, "environment", lambda *_, v=version: real | {"jax": v})
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        done.clear()
        with pytest.raises(KeyboardInterrupt) if version != "4" else contextlib.nullcontext():
            sweeps.run(SWEEP, out, chunk=1, tile=1)
    assert cli.main(["info", str(out)]) == 0
    told = capsys.readouterr().out
    # Those of one seed come first.
    for number, version in zip((2, 1, 3), "234", strict=True):
        assert f"chunks {number} to {number}: jax 1 -> {version}" in told


# The first and the last put, of a file and of a record, and one between.
SHOWN = {(1, False), (3, False), (5, False), (1, True), (6, True), (9, True)}


@pytest.mark.parametrize(
    ("at", "left"),
    [
        pytest.param(at, left, marks=() if (at, left) in SHOWN else pytest.mark.full)
        for left, last in ((False, 5), (True, 9))
        for at in range(1, last + 1)
    ],
)
@pytest.mark.more
def test_a_put_that_comes_after_the_lease_has_ended_changes_nothing(
    at: int, left: bool, wholes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two writers of a chunk, the put number `at` of the first one arrives when the second one
    has waited for its lease and has written other values."""
    obstore = pytest.importorskip("obstore", reason="needs obstore of the extra `test`")
    now, count = [0.0], itertools.count(1)
    monkeypatch.setattr(bucket, "clock", lambda: now[0])
    monkeypatch.setattr(bucket, "pause", lambda seconds: now.append(now.pop() + seconds))
    address, put = f"memory://runs/{uuid.uuid4().hex}/s", obstore.put
    sweeps.run(SWEEP, address, chunk=1, tile=1)
    first, second = Store.open(address), Store.open(address)
    # Puts at the same time would renew the lease while the late one stands still.
    monkeypatch.setattr(type(first.place), "streams", 1)
    for key in [*first.chunks.keys(0).values(), first.chunks.file(0)]:
        first.place.remove(key)
        if left and key.endswith("/0/0"):
            # Of a third writer, without a record: put over, where it has not changed since.
            put(first.place.bucket, f"{first.place.path}/{key}", b"left")
    region = first.layout.region(0)
    right = {name: wholes[0][name].values[region] for name in first.names}
    wrong = {name: values + (name != "status") for name, values in right.items()}

    def late(bucket: Any, key: str, value: bytes, **options: Any) -> Any:
        if ".writers" not in key and ".made" not in key and next(count) == at:
            with second.place.lock(0, 1, lambda line: None) as second.held:
                second.write(region, right)
        return put(bucket, key, value, **options)

    with first.place.lock(0, 1, None) as first.held:
        monkeypatch.setattr(obstore, "put", late)
        with contextlib.suppress(StoreError):
            first.write(region, wrong)
    assert next(count) > at
    assert sweeps.open(address).equals(wholes[0])
    Store.open(address).verify()
