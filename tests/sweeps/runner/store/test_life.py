"""What befalls stores in folders: copies, moves, links, names, kills, other writers, full disks."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import StoreError, Sweep, experiment
from sweeps.runner.store.place import Folder
from sweeps.runner.store.store import Store

SWEEP = Sweep(
    experiment(steps=2, length=8, batch=4), {"eta_y": [0.5, 1.0, 2.0, 4.0]}, record=("loss",)
)
SHORTER = Sweep(SWEEP.run, {"eta_y": [0.5, 1.0]}, record=("loss",))


def record(out: Path, chunk: int) -> Path:
    """The commit record of a chunk."""
    return out / Store.open(out).chunks.file(chunk)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder, with a name that is a pattern as well, with the sweep in it."""
    sweeps.run(SWEEP, tmp_path / "s[1]*", chunk=1)
    return tmp_path / "s[1]*"


@pytest.mark.more
def test_a_store_is_copied_moved_linked_and_read_where_nobody_may_write(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweeps.open(out).load()
    copy = shutil.copytree(out, tmp_path / "copy")
    record(copy, 2).unlink()
    assert sweeps.open(out).identical(whole)
    assert sweeps.run(SWEEP, copy).identical(whole)
    moved = copy.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(moved)
    for place in (moved, tmp_path / "link"):
        assert sweeps.open(place).identical(whole)
        assert sweeps.run(SWEEP, place).identical(whole)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Folder, "_save", lambda *_: pytest.fail("written"))
    assert sweeps.open(moved).identical(whole)
    with pytest.raises(StoreError, match="is read-only"):
        sweeps.run(SWEEP, moved)


def test_the_lock_is_that_of_the_folder_whatever_it_is_called(out: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(out)
    store = Store.open(out)
    for held, asked in (((0, 1), (0, 1)), ((0, 1), (1, 2)), ((1, 2), (0, 1)), ((1, 2), (1, 2))):
        for path in (out, link):
            lock = store.place.lock(*held, None)
            with lock, pytest.raises(StoreError, match="another process is writing"):
                sweeps.run(SWEEP, path, process=asked)
    # A lock that nobody holds is only a file.
    assert [p.name for p in tmp_path.glob("*.lock")]
    assert sweeps.run(SWEEP, link).identical(sweeps.open(out))


@pytest.mark.more
def test_a_killed_creation_is_swept_up_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for what ends a process without a word."""

    def die(*_: Any) -> None:
        raise Killed

    users = tmp_path / ".s-notes"
    users.mkdir()
    with monkeypatch.context() as during:
        during.setattr(os, "replace", die)
        during.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            sweeps.run(SWEEP, tmp_path / "s")
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {".s.creating", ".s-notes"}
    sweeps.run(SWEEP, tmp_path / "s")
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"s", ".s-notes"}


@pytest.mark.more
def test_who_reads_while_others_write_sees_whole_chunks_alone(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look before each file that is written, and one begun before and ended after it."""
    name, seen, begun = Folder._name, [], []

    def look(place: Folder, *file: str) -> None:
        for dataset in (sweeps.open(tmp_path / "new"), *begun):
            computed = dataset.status.values != -1
            np.testing.assert_array_equal(np.isfinite(dataset.loss.values), computed)
            seen.append(int(computed.sum()))
        begun[:] = [sweeps.open(tmp_path / "new")]
        name(place, *file)

    monkeypatch.setattr(Folder, "_name", look)
    found = sweeps.run(SWEEP, tmp_path / "new", chunk=1)
    assert set(seen) == {0, 1, 2, 3}
    assert found.loss.identical(sweeps.open(out).loss)


def test_a_durable_chunk_is_on_the_disk_before_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, done = tmp_path / "s", []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def renamed(old: str, new: str) -> None:
        # The second time, in a folder that had to be made.
        if out in Path(new).parents and done[-1] != ("name", Path(new)):
            assert done[-1] == ("sync", Path(old))
        done.append(("name", Path(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    sweeps.run(SHORTER, out, chunk=1, durable=True)
    assert ("sync", out.parent) in done, "the name of the store itself"
    for chunk in ("0", "1"):
        at = done.index(("name", record(out, int(chunk))))
        for array in ("loss", "first_bad_step", "status"):
            named = done.index(("name", out / array / "c" / chunk))
            folders = [path for what, path in done[named:at] if what == "sync"]
            assert {out / array / "c", out / array} <= set(folders)
    number = len(done)
    sweeps.run(SHORTER, tmp_path / "plain", chunk=1)
    assert not [what for what, _ in done[number:] if what == "sync"]


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
    root, out = tmp_path / "disk", "runs/of/mine"
    root.mkdir()
    disk, committed, counts = Disk(root, monkeypatch), [], set()
    commit = Folder.commit

    def noted(its: Folder, number: int, *options: Any) -> bool:
        made = commit(its, number, *options)
        committed.append(number)
        return made

    def lost() -> None:
        left = disk.left(tmp_path / "left", eager) / out
        # Nothing was promised of what the other writer did until this one has committed a chunk.
        if committed or (not begun and (left / "zarr.json").exists()):
            store = Store.open(left)
            assert set(committed) <= set(np.flatnonzero(store.done()).tolist())
            store.verify()
            counts.add(int(store.done().sum()))
        shutil.rmtree(tmp_path / "left")

    if begun:
        sweeps.run(SWEEP, root / out, chunk=1, process=(0, 2))
    monkeypatch.setattr(Folder, "commit", noted)
    disk.act = lost
    sweeps.run(SWEEP, root / out, chunk=1, durable=True)
    lost()
    assert counts == ({3, 4} if begun else {0, 1, 2, 3, 4})


def test_a_full_disk_ends_a_sweep_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Folder._save

    def full(place: Folder, path: str, value: bytes) -> None:
        save(place, path, value[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sweeps.run(SWEEP, tmp_path / "s", chunk=1)
    record(tmp_path / "s", 3).unlink()
    monkeypatch.setattr(Folder, "_save", full)
    with pytest.raises(StoreError, match=r"could not be written .*No space left"):
        sweeps.run(SWEEP, tmp_path / "s")
    monkeypatch.undo()
    assert not list((tmp_path / "s/status").rglob("*.begun"))
    assert sweeps.open(tmp_path / "s").status.values.tolist() == [0, 0, 0, -1]
