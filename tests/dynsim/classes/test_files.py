"""Tasks from archives and tables, whole and damaged."""

import zipfile
from pathlib import Path
from typing import IO

import equinox as eqx
import numpy as np
import pytest

import dynsim
from dynsim.classes import tasks

TABLE = """query,0,1,2,3,prior,next_token
0,0.5,0.5,0,0,0.25,2
1,0.5,0.25,0.25,0,0.75,3
"""


def written(tmp_path: Path) -> Path:
    path = tmp_path / "task.npz"
    dynsim.save_task(path, dynsim.SynSmall("paper").build())
    return path


def test_a_saved_task_is_read_again_to_the_bit(tmp_path: Path) -> None:
    assert eqx.tree_equal(
        dynsim.TaskFile(written(tmp_path)).build(), dynsim.SynSmall("paper").build()
    )
    assert [path.name for path in tmp_path.iterdir()] == ["task.npz"]


@pytest.mark.parametrize("gone", [False, True])
def test_what_cannot_be_written_leaves_the_file_as_it_was(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beside it, and the error as it was, even if what was written is gone."""
    whole = written(tmp_path).read_bytes()

    def full(file: IO[bytes], **arrays: np.ndarray) -> None:
        if gone:
            next(tmp_path.glob(".task.npz-*")).unlink()
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space left"):
        dynsim.save_task(tmp_path / "task.npz", dynsim.SynSmall().build())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"task.npz": whole}


def test_a_table_is_the_task_that_its_columns_say(tmp_path: Path) -> None:
    path = tmp_path / "task.csv"
    path.write_text(TABLE)
    want = dynsim.sequence_classes(
        [[0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0]],
        query=[0, 1],
        next_token=[2, 3],
        prior=[0.25, 0.75],
    )
    assert eqx.tree_equal(dynsim.TaskFile(path).build(), want)


def test_a_table_may_have_a_single_class(tmp_path: Path) -> None:
    path = tmp_path / "task.csv"
    path.write_text("0,query,1\n0.25,1,0.75\n")
    assert eqx.tree_equal(
        dynsim.TaskFile(path).build(), dynsim.sequence_classes([[0.25, 0.75]], [1])
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace("0.25,2\n", "0.25\n"), "line 2 has 6 columns, the first 7"),
        (TABLE.replace("0.5,0.25", "0.5,half"), "line 3, column .1.: .half. must be a number"),
        (TABLE.replace("\n", "\n\n", 1).replace("0.25,0.25", "half,0"), "line 4, column '1'"),
        (TABLE.replace(",", ";"), "line 1 is separated by ';'; must be separated by ','"),
        (TABLE.replace("prior", "query"), "line 1 names two columns 'query'"),
        (TABLE.splitlines()[0], "must have a line of names"),
        (TABLE.replace("query", "quary"), "lacks the array query"),
        (TABLE.replace("0.5,0.5", "0.5,0.4"), r"probs\[0\] \(class 0\): sums to 0.9"),
        ("", "must have a line of names"),
    ],
)
def test_bad_tables_are_named_with_their_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "task.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"task file .*task.csv: .*{message}"):
        dynsim.TaskFile(path).build()


def test_paths_that_are_no_task_are_named(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    np.savez(path, probs=np.eye(2))
    with pytest.raises(ValueError, match="lacks the array query"):
        dynsim.TaskFile(path).build()
    with pytest.raises(ValueError, match="no such file"):
        dynsim.TaskFile(tmp_path / "absent.npz").build()
    with pytest.raises(ValueError, match=r"must end in \.npz or \.csv"):
        dynsim.TaskFile(tmp_path / "task.txt").build()
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ValueError, match="must be a file"):
        dynsim.TaskFile(tmp_path / "folder.npz").build()
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        dynsim.save_task(tmp_path / "task.csv", dynsim.SynSmall().build())


def test_archives_that_claim_too_much_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    monkeypatch.setattr(tasks, "LARGEST", claimed - 1)
    with pytest.raises(ValueError, match=f"claims {claimed} bytes"):
        dynsim.TaskFile(path).build()


@pytest.mark.parametrize("more", [0, 1])
def test_archives_of_two_gigabytes_are_the_largest(more: int, tmp_path: Path) -> None:
    """An entry whose size is forged in the directory at the end, at byte 24 of its record."""
    path = tmp_path / "task.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("probs.npy", b"")
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = (2**31 + more).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a readable \.npz archive") as error:
        dynsim.TaskFile(path).build()
    message = f"claims {2**31 + 1} bytes of arrays, at most {2**31} are read"
    assert (message in str(error.value)) == (more == 1)


def test_archives_run_no_code(tmp_path: Path) -> None:
    """Objects would be made by what is written in the file."""
    path = tmp_path / "task.npz"
    np.savez(path, probs=np.array([[0.5, None]], object), query=[0])
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        dynsim.TaskFile(path).build()


def test_others_may_read_a_saved_task(tmp_path: Path) -> None:
    assert written(tmp_path).stat().st_mode & 0o777 == 0o644


def test_damaged_archives_end_in_one_kind_of_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole, damaged = path.read_bytes(), tmp_path / "damaged.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(200):
        content = bytearray(whole)
        if trial % 4 == 0:
            del content[rng.integers(len(content)) :]
        else:
            content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        damaged.write_bytes(content)
        error, found = None, None
        try:
            found = dynsim.TaskFile(damaged).build()
        except ValueError as raised:
            error = str(raised)
            refused += 1
        # What zip does not check, such as a time, changes nothing.
        assert error is not None or eqx.tree_equal(found, dynsim.SynSmall("paper").build())
        assert error is None or error.startswith(f"task file {damaged}: ")
    assert refused > 100
