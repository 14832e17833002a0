"""Sweeps in folders and in the memory of this process, and from an address to its place."""

import contextlib
import errno
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import zarr
from zarr.storage import MemoryStore

from sweeps import output
from sweeps.runner.store.base import Check, Fill, Place, Report, StoreError


class Folder(Place):
    """A folder of a file system that has locks and renames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.address = str(path.absolute())

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        return self.path.exists()

    def vacant(self) -> bool:
        """Whether there is none, or one that is empty."""
        return not self.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def create(self, fill: Fill, report: Report | None = None) -> None:
        """Make the group under another name beside the folder, and rename it."""
        del report
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}-"))
        try:
            fill(zarr.create_group(temporary))
            temporary.chmod(0o755)
            os.replace(temporary, self.path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError(f"{self.path}: has been made by another process") from None
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def open(self) -> zarr.Group:
        """The group in the folder."""
        return zarr.open_group(self.path, mode="r+" if os.access(self.path, os.W_OK) else "r")

    def written(self, array: str) -> dict[str, float]:
        """By the times of its files."""
        chunks = self.path / array / "c"
        return {
            str(Path(folder, name).relative_to(chunks)): os.stat(Path(folder, name)).st_mtime
            for folder, _, names in os.walk(chunks)
            for name in names
            # Others are what a writer has begun, and may be gone by now.
            if name.isdecimal()
        }

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Be a writer by the operating system's lock, so that a killed process holds none."""
        del report
        if not os.access(self.path, os.W_OK):
            raise StoreError(f"{self.path}: is read-only, so the sweep cannot go on here")
        # Beside the store, because zarr warns of files in it that are not its own.
        prefix = f".{self.path.name}.writer"
        mine = self.path.parent / f"{prefix}-{process}-of-{processes}.lock"
        try:
            with filelock.FileLock(mine, timeout=0):
                for other in self.path.parent.glob(f"{prefix}-*.lock"):
                    if not other.name.endswith(f"-of-{processes}.lock"):
                        with filelock.FileLock(other, timeout=0):
                            pass
                _clean(self.path)
                yield held
        except filelock.Timeout as error:
            raise StoreError(
                f"{self.path}: another process is writing here ({Path(error.lock_file).name})"
            ) from None

    def beside(self, suffix: str) -> Path:
        """The folder's name with another suffix."""
        return self.path.with_suffix(suffix)


class Memory(Place):
    """The memory of this process, found by nobody who does not have it."""

    name = "memory"
    address = None

    def __init__(self) -> None:
        self.store, self.made = MemoryStore(), False

    def exists(self) -> bool:
        """Whether it has been made."""
        return self.made

    def create(self, fill: Fill, report: Report | None = None) -> None:
        """Make the group."""
        del report
        fill(zarr.create_group(self.store))
        self.made = True

    def open(self) -> zarr.Group:
        """The group."""
        return zarr.open_group(self.store, mode="r+")

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Nobody else can write."""
        del process, processes, report
        yield held

    def beside(self, suffix: str) -> Path:
        """A file in the current folder."""
        return Path("sweep").with_suffix(suffix)


def held() -> None:
    """What a lock yields that nobody can take away."""


def place(where: str | Path | Place | None) -> Place:
    """The place that is meant: one in a bucket by an address with a scheme, the memory of this
    process by None, and a folder by everything else.

    Raises:
        ValueError: for an address that cannot be one, naming what is allowed.
        StoreError: when what it needs is not installed.
    """
    if isinstance(where, Place):
        return where
    if where is None:
        return Memory()
    address = output.address(where)
    if address is None:
        return Folder(Path(where))
    # Loaded when it is asked for: most sweeps are kept in folders.
    return pkgutil.resolve_name("sweeps.runner.store.bucket:Bucket")(address)


def _clean(path: Path) -> None:
    """Remove what killed writers left behind; the lock says that none is at work."""
    for rubbish in path.rglob("*.partial"):
        rubbish.unlink(missing_ok=True)
