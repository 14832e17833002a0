"""What befalls stores in folders: copies, moves, links, names, kills, other writers, full disks."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeps
from sweeps import StoreError, Sweep, Training
from sweeps.runner.store import local
from sweeps.runner.store.local import Folder
from sweeps.runner.store.store import Store

SWEEP = Sweep(
    {"eta_y": [0.5, 1.0, 2.0, 4.0]}, Training(steps=2, length=8, batch=4), record=("loss",)
)
SHORTER = Sweep({"eta_y": [0.5, 1.0]}, SWEEP.run, record=("loss",))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder, with a name that is a pattern as well, with the sweep in it."""
    sweeps.run(SWEEP, tmp_path / "s[1]*", chunk=1)
    return tmp_path / "s[1]*"


def test_a_store_is_copied_moved_linked_and_read_where_nobody_may_write(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweeps.open(out).load()
    copy = shutil.copytree(out, tmp_path / "copy")
    (copy / "status/c/2").unlink()
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
            with store.lock(*held), pytest.raises(StoreError, match="another process is writing"):
                sweeps.run(SWEEP, path, process=asked)
    # A lock that nobody holds is only a file.
    assert [p.name for p in tmp_path.glob("*.lock")]
    assert sweeps.run(SWEEP, link).identical(sweeps.open(out))


def test_only_what_a_writer_itself_has_begun_is_removed(out: Path) -> None:
    begun = out / local.BEGUN
    begun.mkdir(exist_ok=True)
    mine, alive, others = (
        begun / f"{writer}.{'0' * 32}" for writer in ("1-of-12", "2-of-12", "0-of-1")
    )
    users = [out / "notes.partial", out / "loss" / "c" / "0.partial", out / "status" / "x.partial"]
    for path in (mine, alive, others, *users):
        path.write_text("half")
    sweeps.run(SWEEP, out, process=(1, 12))
    # The lock of 0 of 1 was held for a moment if anybody had ever held it, as the sweep's maker.
    assert not mine.exists()
    assert not others.exists()
    for path in (alive, *users):
        assert path.read_text() == "half"


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
    left = [p.name for p in tmp_path.iterdir() if p.is_dir()]
    assert len(left) == 2
    sweeps.run(SWEEP, tmp_path / "s")
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"s", ".s-notes"}


def test_who_reads_while_others_write_sees_whole_chunks_alone(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look before each file that is written, and one begun before and ended after it."""
    write, seen, begun = Folder.write, [], []

    def look(place: Folder, key: str, value: bytes) -> None:
        for dataset in (sweeps.open(tmp_path / "new"), *begun):
            computed = dataset.status.values != -1
            np.testing.assert_array_equal(np.isfinite(dataset.loss.values), computed)
            seen.append(int(computed.sum()))
        begun[:] = [sweeps.open(tmp_path / "new")]
        write(place, key, value)

    monkeypatch.setattr(Folder, "write", look)
    found = sweeps.run(SWEEP, tmp_path / "new", chunk=1)
    # What is written last is a note of the time that it took.
    assert set(seen) == {0, 1, 2, 3, 4}
    assert found.loss.identical(sweeps.open(out).loss)


def test_a_durable_chunk_is_on_the_disk_before_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, done = tmp_path / "s", []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def renamed(old: Path, new: Path) -> None:
        if out in Path(new).parents:
            assert done[-1] == ("sync", Path(old))
        done.append(("name", Path(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    sweeps.run(SHORTER, out, chunk=1, durable=True)
    assert ("sync", out.parent) in done, "the name of the store itself"
    for chunk in ("0", "1"):
        at = done.index(("name", out / f"status/c/{chunk}"))
        for array in ("loss", "first_bad_step"):
            named = done.index(("name", out / array / "c" / chunk))
            folders = [path for what, path in done[named:at] if what == "sync"]
            assert {out / array / "c", out / array, out} <= set(folders)
    number = len(done)
    sweeps.run(SHORTER, tmp_path / "plain", chunk=1)
    assert not [what for what, _ in done[number:] if what == "sync"]


def test_a_full_disk_ends_a_sweep_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Folder._save

    def full(place: Folder, path: Path, value: bytes) -> None:
        save(place, path, value[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sweeps.run(SWEEP, tmp_path / "s", chunk=1)
    (tmp_path / "s/status/c/3").unlink()
    monkeypatch.setattr(Folder, "_save", full)
    with pytest.raises(StoreError, match=r"could not be written .*No space left"):
        sweeps.run(SWEEP, tmp_path / "s")
    monkeypatch.undo()
    assert not list((tmp_path / "s" / local.BEGUN).iterdir())
    assert sweeps.open(tmp_path / "s").status.values.tolist() == [0, 0, 0, -1]


@pytest.mark.parametrize(
    ("name", "file"), [("run.v1", "run.v1.nc"), ("run.v2", "run.v2.nc"), ("run", "run.nc")]
)
def test_files_beside_stores_have_names_of_their_own(tmp_path: Path, name: str, file: str) -> None:
    assert Folder(tmp_path / name).beside(".nc") == tmp_path / file
