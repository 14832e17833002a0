"""A store against its model, a dictionary of chunks in which the first write of each counts: random
sequences of what befalls stores, and a kill at each write, in a folder and in a bucket."""

import contextlib
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sweeps
from sweeps import StoreError
from sweeps.runner.config import create
from sweeps.runner.store import Layout, Variable, bucket
from sweeps.runner.store.store import Store
from tests.sweeps.runner.store.places import (
    EMPTY,
    LAYOUT,
    UNKNOWN,
    VARIABLES,
    Folder,
    InBucket,
    Killed,
    at,
    filled,
    values,
)

CHUNKS = range(6)


# S3 answers as the bucket in memory does; what else a server may answer is in `test_bucket.py`.
@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.full)])
def kept(request: pytest.FixtureRequest) -> Folder | InBucket:
    if request.param == "folder":
        return Folder(request.getfixturevalue("tmp_path"))
    pytest.importorskip("obstore", reason="needs obstore of the extra `test`")
    if request.param == "memory":
        return InBucket()
    request.getfixturevalue("s3")
    return InBucket("s3://bucket/runs")


def wanted(model: dict[int, int]) -> dict[str, np.ndarray]:
    """Results with the version of each chunk of a model, and others where there is none."""
    found = {name: np.full_like(array, UNKNOWN[name]) for name, array in values(0).items()}
    for number, version in model.items():
        for name, array in at(LAYOUT.region(number), version).items():
            found[name][LAYOUT.region(number)] = array
    return found


def assert_holds(kept: Folder | InBucket, model: dict[int, int]) -> None:
    store, found = Store.open(kept.out), sweeps.open(kept.out)
    assert np.flatnonzero(store.done()).tolist() == sorted(model)
    assert store.layout.runs_in(store.done()) == (found.status != -1).sum()
    for name, array in wanted(model).items():
        np.testing.assert_array_equal(found[name].values, array, name, strict=True)
    store.verify()
    records = store.chunks.all()
    counts = sum((np.array([r.status.get(s, 0) for s in "01"]) for r in records.values()), 0)
    assert np.array_equal(counts, [(found.status == s).sum() for s in (0, 1)] if model else 0)


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """From now on a file is written only before number `at`; the returned function tells how many
    were. A file of a folder appears by its renaming, that of a bucket by a put."""
    written = [0]

    def counted(act: Callable) -> Callable:
        def call(*given: Any, **options: Any) -> Any:
            if ".writers" in str(given[1]):
                return act(*given, **options)
            if written[0] >= at - 1:
                raise Killed
            # One whose folder is not there yet fails, and is done again.
            answer = act(*given, **options)
            written[0] += 1
            return answer

        return call

    monkeypatch.setattr(os, "replace", counted(os.replace))
    obstore = pytest.importorskip("obstore", reason="needs obstore of the extra `test`")
    monkeypatch.setattr(obstore, "put", counted(obstore.put))
    # Otherwise a kill falls between files that are put at once.
    monkeypatch.setattr(bucket.Bucket, "streams", 1)
    return lambda: written[0]


FILES = len(VARIABLES) + 2
"""That a first chunk writes: its environment, its arrays and its record."""


@pytest.mark.parametrize("number", range(1, FILES + 2))
def test_a_kill_at_each_write_leaves_the_chunk_before_and_nothing_of_this_one(
    number: int, kept: Folder | InBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(kept.out, 1)
    first, second = Store.open(kept.out), Store.open(kept.out)
    for store in (first, second):
        store.set_environment({"jax": "another"}, strict=False)
    region = LAYOUT.region(4)
    with monkeypatch.context() as during:
        written = killing(during, number)
        if number <= FILES:
            with pytest.raises(Killed):
                first.write(region, at(region, 1))
        else:
            first.write(region, at(region, 1))
        assert written() == number - 1
    # A reader, and the next writer, of other numbers.
    assert_holds(kept, {1: 0} if number <= FILES else {1: 0, 4: 1})
    second.write(region, at(region, 2))
    assert_holds(kept, {1: 0, 4: 2 if number <= FILES else 1})


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_random_sequences_of_writes_kills_losses_and_damage(
    seed: int, kept: Folder | InBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, model, most = random.Random(seed), {}, 0
    handles = [filled(kept.out), Store.open(kept.out)]
    for step in range(40):
        number, version = chance.choice(CHUNKS), 1 + step
        region, writer = LAYOUT.region(number), chance.choice(handles)
        match chance.choice((*4 * ["write"], "kill", "lose", "damage", "open")):
            case "write":
                writer.write(region, at(region, version))
                model.setdefault(number, version)
            case "kill" if number not in model:
                with monkeypatch.context() as during:
                    killing(during, chance.randrange(1, FILES))
                    with contextlib.suppress(Killed):
                        writer.write(region, at(region, version))
                        # What a killed writer has left may be what this one writes.
                        model[number] = version
            case "lose" if model:
                lost = chance.choice(sorted(model))
                kept.put(writer.chunks.file(lost), None)
                del model[lost]
                handles[:] = [Store.open(kept.out) for _ in handles]
            case "damage" if model:
                hurt = chance.choice(sorted(model))
                key = chance.choice([*writer.chunks.keys(hurt).values(), writer.chunks.file(hurt)])
                whole = kept.files()[key]
                bit = chance.randrange(8 * len(whole))
                bad = bytearray(whole)
                bad[bit // 8] ^= 1 << bit % 8
                kept.put(key, chance.choice((bytes(bad), whole[:-3], b"", None)))
                if key in kept.files() or not key.endswith(".json"):
                    with pytest.raises(StoreError, match=re.escape(key)) as error:
                        Store.open(kept.out).verify()
                    assert writer.chunks.file(hurt) in str(error.value)
                kept.put(key, whole)
            case "open":
                handles[chance.randrange(2)] = Store.open(kept.out)
        assert_holds(kept, model)
        most = max(most, len(model))
    assert most > 2


def test_what_is_read_is_what_zarr_reads(tmp_path: Path) -> None:
    """Whichever part is asked for; but zarr sees chunks without a record, too."""
    kept = Folder(tmp_path)
    filled(kept.out, *CHUNKS)
    two = np.arange(2)
    for part in (
        {},
        {"seed": 1, "time": 0},
        {"eta_y": [4, 0, 2], "seed": slice(1, None), "time": [1, 0]},
        {"eta_y": slice(None, None, -2)},
        {"eta_y": xr.DataArray(two, dims="p"), "seed": xr.DataArray(1 - two, dims="p")},
    ):
        ours, zarrs = sweeps.open(kept.out), xr.open_zarr(kept.out, consolidated=False)
        ours, zarrs = (each.isel(part).load() for each in (ours, zarrs))
        xr.testing.assert_identical(ours.drop_attrs(), zarrs.drop_attrs())
        assert all(ours[name].attrs == zarrs[name].attrs for name in zarrs.variables)
    np.testing.assert_array_equal(ours.time, [0, 2])
    for number in (1, 4):
        (record,) = (kept.out / "status").glob(f".chunks-*/{number}.json")
        record.unlink()
    whole = xr.open_zarr(kept.out, consolidated=False)
    np.testing.assert_array_equal(whole.loss, values(0)["loss"])
    assert_holds(kept, dict.fromkeys((0, 2, 3, 5), 0))


@pytest.mark.parametrize(
    ("dtype", "empty"), [("f4", np.nan), ("c8", np.nan), ("i4", 0), ("bool", False)]
)
def test_arrays_that_are_shorter_in_some_runs_are_filled_up(dtype: str, empty: Any) -> None:
    values = np.ones((2, 3, 1), dtype)
    found = Variable((4, 2), ("class", "token"), values.dtype).padded(values)
    want = np.full((2, 4, 2), empty, dtype)
    want[:, :3, :1] = 1
    np.testing.assert_array_equal(found, want, strict=True)
    with pytest.raises(ValueError, match=r"\(3, 1\) .* \(2, 2\)"):
        Variable((2, 2), ("class", "token"), values.dtype).padded(values)


def test_a_record_says_what_its_chunk_took_and_where_it_was_made(kept: Folder | InBucket) -> None:
    """Whatever clocks say: the environment is that of the writer, also of one who came second."""
    filled(kept.out)
    first, second = Store.open(kept.out), Store.open(kept.out)
    first.set_environment({"jax": "1", "numpy": "1"}, strict=False)
    second.set_environment({"jax": "2"}, strict=False)
    for number, writer in ((5, first), (0, second), (3, first), (5, second)):
        region = LAYOUT.region(number)
        writer.write(region, at(region, 0), seconds=number + 0.5, program="p" * number)
    chunks = Store.open(kept.out).chunks
    assert {n: (r.seconds, r.program) for n, r in chunks.all().items()} == {
        0: (0.5, ""),
        3: (3.5, "ppp"),
        5: (5.5, "ppppp"),
    }
    by = {n: chunks.environment(r.environment)["jax"] for n, r in chunks.all().items()}
    assert by == {0: "2", 3: "1", 5: "1"}
    # Whoever comes next and is strict; only what both name can differ.
    third, lines = Store.open(kept.out), []
    third.prepare_to_resume((0, 1), {"jax": "1", "python": "3"}, False, lines.append)
    assert len(lines) == 1
    assert "jax 2 -> 1" in lines[0]
    with pytest.raises(StoreError, match="jax 2 -> 1"):
        third.prepare_to_resume((0, 1), {"jax": "1"}, True, None)
    for number in (1, 2, 4):
        third.write(LAYOUT.region(number), at(LAYOUT.region(number), 0))
    # Nothing is left to compute, which needs no environment.
    Store.open(kept.out).prepare_to_resume((0, 1), {"jax": "1"}, True, lines.append)
    assert len(lines) == 1


def test_strict_writers_of_other_versions_share_no_store(kept: Folder | InBucket) -> None:
    """Whoever comes first: before, neither knows of the other."""
    first, second = filled(kept.out), Store.open(kept.out)
    first.set_environment({"jax": "1"}, strict=True)
    second.set_environment({"jax": "2"}, strict=True)
    chunk = LAYOUT.region(0), at(LAYOUT.region(0), 0)
    first.write(*chunk)
    with pytest.raises(StoreError, match="jax 1 -> 2"):
        second.write(*chunk)
    (made,) = (key for key in kept.files() if key.startswith("status/.made/"))
    kept.put(made, None)
    with pytest.raises(StoreError, match=made):
        Store.open(kept.out).set_environment({"jax": "2"}, strict=True)


def test_the_256_latest_chunks_are_verified_before_a_sweep_goes_on(tmp_path: Path) -> None:
    """Older ones are when they are read, or by a check."""
    axes = {"eta_y": list(range(258))}
    sweep = sweeps.Sweep(EMPTY.run, axes, record=("loss",))
    status = {"status": Variable((), (), np.dtype("i1"))}
    store = create(str(tmp_path / "s"), sweep, Layout((258,), (1,)), status)
    for i in range(258):
        store.write((slice(i, i + 1),), {"status": np.zeros(1, "i1")})
        # The later, the smaller the number.
        os.utime(tmp_path / "s" / store.chunks.file(i), (1e9 - i, 1e9 - i))
    for number, seen in ((257, False), (256, False), (255, True), (0, True)):
        path = tmp_path / "s" / store.chunks.keys(number)["status"]
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        key = re.escape(f"status/c/{number} is damaged")
        store = Store.open(tmp_path / "s")
        with pytest.raises(StoreError, match=key) if seen else contextlib.nullcontext():
            store.prepare_to_resume((0, 1), {}, False, None)
        with pytest.raises(StoreError, match=key):
            store.verify()
        path.write_bytes(whole)


def test_a_process_of_several_recomputes_its_own_incomplete_chunks(kept: Folder | InBucket) -> None:
    filled(kept.out, *CHUNKS)
    store, lines = Store.open(kept.out), []
    keys = [store.chunks.keys(n) for n in CHUNKS]
    for key, left in ((keys[1]["loss"], None), (keys[2]["turned"], b""), (keys[5]["status"], b"")):
        kept.put(key, left)
    store.prepare_to_resume((1, 2), {}, False, lines.append)
    assert np.flatnonzero(~store.done()).tolist() == [1, 5]
    assert "3 files" in lines[0]
    store.prepare_to_resume((0, 2), {}, False, lines.append)
    assert np.flatnonzero(~store.done()).tolist() == [1, 2, 5]


def test_chunks_are_written_by_address_alone_while_another_process_has_the_lock(
    kept: Folder | InBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    filled(kept.out)
    store = Store.open(kept.out.name if isinstance(kept.out, Path) else kept.out)
    with store.storage.lock(0, 1, None):
        # As in another process: an address knows no current folder.
        monkeypatch.chdir(tmp_path.parent)
        for region in map(store.layout.region, CHUNKS):
            Store.open(store.address).write(region, at(region, 3))
    assert_holds(kept, dict.fromkeys(CHUNKS, 3))
