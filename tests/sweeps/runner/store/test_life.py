"""What befalls stores in folders: copies, moves, links, other writers, full disks, losses of power,
files in wrong places."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import StoreError, Sweep, cli
from sweeps.runner.store.storage import as_storage
from sweeps.runner.store.store import Store
from tests.sweeps.runner.store.places import EMPTY, LAYOUT, SWEEP, Killed, at, filled

OTHER = Sweep(SWEEP.run.at({"eta_z": 0.7}), SWEEP.axes, record=SWEEP.record)
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
    """A copy of the first store, with a name that is a pattern as well."""
    return Path(shutil.copytree(stores / "one", tmp_path / "s[1]*"))


@pytest.fixture
def other(stores: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores / "other", tmp_path / "other"))


@pytest.fixture(scope="module")
def whole(stores: Path) -> Any:
    return sweeps.open(stores / "one").load()


def record(out: Path, chunk: int) -> Path:
    return out / Store.open(out).chunks.file(chunk)


@pytest.mark.more
def test_a_store_is_copied_moved_linked_and_read_where_nobody_may_write(
    one: Path, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(one, tmp_path / "copy"))
    record(copy, 2).unlink()
    assert sweeps.run(SWEEP, copy).identical(sweeps.open(one))
    moved = copy.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(moved)
    for path in (moved, tmp_path / "link"):
        assert sweeps.open(path).equals(whole)
        assert sweeps.run(SWEEP, path).equals(whole)
    # Whoever has all rights may write to a folder that says otherwise.
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("written"))
    assert sweeps.open(moved).equals(whole)
    with pytest.raises(StoreError, match="is read-only"):
        sweeps.run(SWEEP, moved)


def test_a_second_writer_raises_an_error_whatever_the_folder_is_called(
    one: Path, whole: Any, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(one)
    store = Store.open(one)
    for held, asked in (((0, 1), (0, 1)), ((0, 1), (1, 2)), ((1, 2), (0, 1)), ((1, 2), (1, 2))):
        for path in (one, link):
            lock = store.storage.lock(*held, None)
            with lock, pytest.raises(StoreError, match="another process is writing"):
                sweeps.run(SWEEP, path, process=asked)
    with store.storage.lock(0, 2, None), store.storage.lock(1, 2, None):
        pass
    # A lock that nobody holds is only a file.
    assert [p.name for p in tmp_path.glob("*.lock")]
    assert sweeps.run(SWEEP, link).equals(whole)


def test_a_killed_creation_is_swept_up_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    (tmp_path / ".s-notes").mkdir()
    with monkeypatch.context() as during:
        during.setattr(os, "replace", die)
        with pytest.raises(Killed):
            filled(str(tmp_path / "s"))
    folders = lambda: {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert folders() == {".s.creating", ".s-notes"}
    (tmp_path / ".s.creating/left").touch()
    filled(str(tmp_path / "s"))
    assert folders() == {"s", ".s-notes"}
    assert not (tmp_path / "s/left").exists()


def test_who_reads_while_others_write_sees_whole_chunks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look before each file that is written, and one begun before and ended after it."""
    store, replace, seen, begun = filled(str(tmp_path / "s")), os.replace, set(), []

    def look(*names: Any) -> None:
        for dataset in (sweeps.open(tmp_path / "s"), *begun):
            computed = dataset.status.values != -1
            np.testing.assert_array_equal(np.isfinite(dataset.loss.values[..., 0]), computed)
            seen.add(int(computed.sum()))
        begun[:] = [sweeps.open(tmp_path / "s")]
        replace(*names)

    monkeypatch.setattr(os, "replace", look)
    for number in (0, 5):
        store.write(LAYOUT.region(number), at(LAYOUT.region(number), 0))
    assert seen == {0, 4}


class Disk:
    """What a loss of power leaves of a folder: the contents of files and the names in folders, as
    they were when each was last synchronised; names that were not, at worst, or else (`eager`) all
    names as they are."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.act = root, lambda: None
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {root.stat().st_ino: {}}
        fsync = os.fsync

        def synced(handle: int) -> None:
            fsync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            number = os.fstat(handle).st_ino
            if path.is_dir():
                self.names[number] = {each.name: each.inode() for each in os.scandir(path)}
            else:
                self.contents[number] = path.read_bytes()
            self.act()

        monkeypatch.setattr(os, "fsync", synced)

    def left(self, to: Path, eager: bool) -> Path:
        """The folder after a loss of power now, made at `to`."""
        kept = self.names
        if eager:
            kept = {
                os.stat(folder).st_ino: {each.name: each.inode() for each in os.scandir(folder)}
                for folder, _, _ in os.walk(self.root)
            }
        folders = {os.stat(folder).st_ino for folder, _, _ in os.walk(self.root)}

        def make(folder: Path, number: int) -> None:
            folder.mkdir()
            for name, inside in kept.get(number, {}).items():
                if inside in folders:
                    make(folder / name, inside)
                else:
                    (folder / name).write_bytes(self.contents.get(inside, b""))

        make(to, self.root.stat().st_ino)
        return to


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.more
def test_a_durable_chunk_outlasts_a_loss_of_power_at_any_moment(
    begun: bool, eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`begun`: by another writer, for which nothing was promised."""
    root, out = tmp_path / "disk", "runs/of/mine"
    root.mkdir()
    where = as_storage(root / out)
    few = ("loss", "status")
    if begun:
        filled(as_storage(root / out), 5, names=few)
    where.durable, disk, committed, counts = True, Disk(root, monkeypatch), set(), set()

    def lost() -> None:
        left = disk.left(tmp_path / "left", eager) / out
        # Nothing was promised before this writer has committed a chunk.
        if committed or (not begun and (left / "zarr.json").exists()):
            store = Store.open(left)
            assert committed <= set(np.flatnonzero(store.done()).tolist())
            store.verify()
            counts.add(int(store.done().sum()))
        shutil.rmtree(tmp_path / "left")

    disk.act = lost
    with where.lock(0, 1, None):
        store = Store.open(where) if begun else filled(where, names=few)
        for number in (0, 1):
            store.write(LAYOUT.region(number), at(LAYOUT.region(number), 0))
            committed.add(number)
            lost()
    assert counts == ({2, 3} if begun else {0, 1, 2})


@pytest.mark.parametrize("durable", [False, True])
def test_a_sweep_is_synchronised_only_where_that_is_wanted(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sweeps.run(SWEEP, tmp_path / "s", chunk=2, tile=1, durable=durable)
    assert bool(synced) is durable


def test_a_full_disk_ends_a_sweep_with_what_it_has(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    record(one, 3).unlink()
    with monkeypatch.context() as during:
        during.setattr(os, "replace", full)
        with pytest.raises(StoreError, match=r"s\[1\].*No space left"):
            sweeps.run(SWEEP, one)
    assert not list((one / "status").rglob("*.begun"))
    assert (sweeps.open(one).status == -1).sum() == 1


@pytest.mark.parametrize("action", ["moved", "removed", "replaced"])
def test_a_writer_whose_store_is_taken_away_ends_within_a_chunk(
    action: str, tmp_path: Path
) -> None:
    """And harms nothing that takes its place; who is refused meanwhile leaves nothing behind."""
    out = tmp_path / "x"
    store = filled(str(out), 0)
    region = LAYOUT.region(1)
    with store.storage.lock(0, 1, None) as store.check_lock:
        if action == "moved":
            out.rename(tmp_path / "old")
        else:
            shutil.rmtree(out)
        with pytest.raises(StoreError, match="another process is writing here"):
            sweeps.run(EMPTY, out, chunk=1)
        assert not out.exists()
        if action == "replaced":
            # As where the locks were removed, too.
            filled(str(out), 2, version=7)
        with pytest.raises(StoreError, match="has been moved or removed"):
            store.write(region, at(region, 0))
        if action == "replaced":
            Store.open(out).verify()
            assert np.flatnonzero(Store.open(out).done()).tolist() == [2]
        else:
            assert not out.exists()
    if action == "moved":
        moved = Store.open(tmp_path / "old")
        moved.write(region, at(region, 0))
        assert np.flatnonzero(moved.done()).tolist() == [0, 1]


def exchanged(one: Path, other: Path) -> None:
    good = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(good)


def chunk(out: Path, number: int, array: str) -> Path:
    return out / f"{array}/c/{number // 2}/{number % 2}"


def rolled_back(out: Path, *files: Path) -> None:
    """Chunk 0 is computed anew, to other numbers, and then some of its files are those before."""
    before = {path: path.read_bytes() for path in files}
    store = Store.open(out)
    store.chunks.remove(0)
    zeros = {name: np.zeros((1, 1), each.dtype) for name, each in store.variables.items()}
    store.write(store.layout.region(0), zeros)
    for path, value in before.items():
        path.write_bytes(value)


OF_OTHERS = r"s\[1\]\*: .*(damaged|belongs to another store|computed by different code)"
MISPLACED: dict[str, Callable[[Path, Path], object]] = {
    "swapped": lambda a, b: exchanged(chunk(a, 0, "loss"), chunk(a, 3, "loss")),
    "swapped with all files and records": lambda a, b: [
        *(exchanged(chunk(a, 0, n), chunk(a, 3, n)) for n in Store.open(a).names),
        exchanged(record(a, 0), record(a, 3)),
    ],
    "of another array": lambda a, b: shutil.copy(chunk(a, 0, "entropy"), chunk(a, 0, "loss")),
    "twice with its record": lambda a, b: [
        shutil.copy(chunk(a, 0, "loss"), chunk(a, 1, "loss")),
        shutil.copy(record(a, 0), record(a, 1)),
    ],
    "of another sweep": lambda a, b: shutil.copy(chunk(b, 0, "loss"), chunk(a, 0, "loss")),
    "of another sweep with its record": lambda a, b: [
        *(shutil.copy(chunk(b, 0, n), chunk(a, 0, n)) for n in Store.open(a).names),
        shutil.copy(record(b, 0), record(a, 0)),
    ],
    "a file of an earlier state": lambda a, b: rolled_back(a, chunk(a, 0, "loss")),
    "a record of an earlier state": lambda a, b: rolled_back(a, record(a, 0)),
    "coordinates of another axis": lambda a, b: exchanged(a / "eta_y/c/0", a / "seed/c/0"),
    "metadata of another axis": lambda a, b: exchanged(a / "eta_y/zarr.json", a / "seed/zarr.json"),
    "settings of another sweep": lambda a, b: shutil.copy(b / "zarr.json", a / "zarr.json"),
}


@pytest.mark.parametrize("how", MISPLACED)
def test_what_lies_in_a_wrong_place_is_never_a_result(how: str, one: Path, other: Path) -> None:
    MISPLACED[how](one, other)
    axes = {**SWEEP.axes, "seed": [0, 3, 4]}
    more = Sweep(SWEEP.run, axes, record=SWEEP.record)
    ways: dict[str, Callable[[], Any]] = {
        "open": lambda: sweeps.open(one).load(),
        "resume": lambda: sweeps.run(SWEEP, one).load(),
        "check": lambda: Store.open(one).verify(),
        "reuse": lambda: sweeps.run(more, reuse=[one]),
    }
    for use in ways.values():
        with pytest.raises(StoreError, match=OF_OTHERS):
            use()


def test_chunks_of_another_store_are_ignored_with_a_line(
    one: Path, other: Path, whole: Any
) -> None:
    """As a copy over another store leaves them."""
    shutil.copytree(one, other, dirs_exist_ok=True)
    lines: list[str] = []
    assert sweeps.open(other, lines.append).equals(whole)
    assert any("status/.chunks-" in line for line in lines)
    with contextlib.suppress(UserWarning):
        assert cli.main(["check", str(other)]) == 0
