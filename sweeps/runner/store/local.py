"""Sweeps in folders and in the memory of this process, and from an address to its place."""

import contextlib
import errno
import os
import pkgutil
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import filelock

from sweeps import output
from sweeps.runner.store.base import Check, Place, Report, StoreError, Written

BEGUN = "status/.begun"
"""Folder of the files that are being written, in a store, so that they can be renamed, and in an
array of it, where zarr does not wonder about them."""


class Folder(Place):
    """A folder of a file system that has locks and renames.

    Args:
        path: of the folder. What other processes have to agree on, locks above all, lies beside the
            folder that is meant, whatever links lead to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.real = path.resolve()
        self.address = str(self.real)
        # Workers, who hold no lock, write for the one who does, and who is the only process.
        self.writer = "0-of-1"

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        return self.real.exists()

    def vacant(self) -> bool:
        """Whether there is none, or one that is empty."""
        return not self.exists() or (self.real.is_dir() and not any(self.real.iterdir()))

    def create(self, files: Mapping[str, bytes], report: Report | None = None) -> None:
        """Write the files to another folder beside this one, and rename that."""
        self.real.parent.mkdir(parents=True, exist_ok=True)
        with self._creating(report):
            prefix = f".{self.real.name}.creating-"
            for left in self._beside(prefix):
                shutil.rmtree(left, ignore_errors=True)
            made = Path(tempfile.mkdtemp(dir=self.real.parent, prefix=prefix))
            try:
                for key, value in files.items():
                    path = made / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._save(path, value)
                for folder in {made, *(path for path in made.rglob("*") if path.is_dir())}:
                    self._settle(folder)
                made.chmod(0o755)
                os.replace(made, self.real)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise _made(self.path) from None
                raise
            finally:
                shutil.rmtree(made, ignore_errors=True)
            self._settle(self.real.parent)

    def read(self, key: str) -> bytes | None:
        """What a file holds."""
        try:
            return (self.real / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def write(self, key: str, value: bytes) -> None:
        """Write a file under another name, and rename it."""
        target = self.real / key
        begun = self.real / BEGUN / f"{self.writer}.{uuid.uuid4().hex}"
        for folder in (begun.parent, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._save(begun, value)
            os.replace(begun, target)
        except BaseException:
            begun.unlink(missing_ok=True)
            raise
        for folder in target.parents[: len(Path(key).parents)]:
            self._settle(folder)

    def written(self, folder: str, names: Sequence[str] | None = None) -> dict[str, Written]:
        """By what the file system says about them: which is quicker than to look through folders
        of folders."""
        start, found = str(self.real / folder), {}
        if names is None:
            with contextlib.suppress(FileNotFoundError):
                names = os.listdir(start)
        for name in names or ():
            try:
                about = os.stat(f"{start}/{name}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            found[name] = Written(about.st_mtime, about.st_size)
        return found

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Be a writer by the operating system's lock, so that a killed process holds none."""
        del report
        if not os.access(self.real, os.W_OK):
            raise StoreError(f"{self.name}: is read-only, so the sweep cannot go on here")
        # Beside the store, because zarr warns of files in it that are not its own.
        prefix, share = f".{self.real.name}.writer-", f"-of-{processes}"
        mine = self.real.parent / f"{prefix}{process}{share}.lock"
        before = self.writer
        try:
            with filelock.FileLock(mine, timeout=0):
                for other in self._beside(prefix):
                    if other.suffix == ".lock" and not other.stem.endswith(share):
                        with filelock.FileLock(other, timeout=0):
                            self._clean(other.stem.removeprefix(prefix))
                self.writer = f"{process}{share}"
                self._clean(self.writer)
                yield held
        except filelock.Timeout as error:
            raise StoreError(
                f"{self.name}: another process is writing here ({Path(error.lock_file).name})"
            ) from None
        finally:
            self.writer = before

    def beside(self, suffix: str) -> Path:
        """The folder's name and the suffix."""
        path = self.path.absolute() if self.path.name in ("", "..") else self.path
        return path.parent / f"{path.name or 'sweep'}{suffix}"

    @contextlib.contextmanager
    def _creating(self, report: Report | None) -> Iterator[None]:
        """Be the only one who makes a sweep here; `FileExistsError` if another one has."""
        lock = filelock.FileLock(self.real.parent / f".{self.real.name}.creator.lock")
        waiting = False
        while True:
            try:
                lock.acquire(timeout=0.2, poll_interval=0.02)
                break
            except filelock.Timeout:
                if not waiting and report:
                    report(f"{self.name}: waiting for another process that makes a sweep here")
                waiting = True
        try:
            if not self.vacant():
                raise _made(self.path)
            yield
            # Who waits for it will find the sweep, and touch nothing.
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink()
        finally:
            lock.release()

    def _beside(self, prefix: str) -> list[Path]:
        """What lies beside the folder under names that begin so."""
        return [path for path in self.real.parent.iterdir() if path.name.startswith(prefix)]

    def _clean(self, writer: str) -> None:
        """Remove what a writer that was killed had begun; its lock says that it is not at work."""
        with contextlib.suppress(FileNotFoundError):
            for begun in (self.real / BEGUN).iterdir():
                if begun.name.startswith(f"{writer}."):
                    begun.unlink(missing_ok=True)

    def _save(self, path: Path, value: bytes) -> None:
        with path.open("wb") as file:
            file.write(value)
            if self.durable:
                file.flush()
                os.fsync(file.fileno())

    def _settle(self, folder: Path) -> None:
        """Make names in a folder outlast a loss of power, if that is wanted."""
        # Windows opens no folders, and writes their names down by itself.
        if self.durable and os.name != "nt":
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


class Memory(Place):
    """The memory of this process, found by nobody who does not have it."""

    name = "memory"
    address = None

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def exists(self) -> bool:
        """Whether it has been made."""
        return bool(self.files)

    def create(self, files: Mapping[str, bytes], report: Report | None = None) -> None:
        """Keep the files."""
        del report
        self.files.update(files)

    def read(self, key: str) -> bytes | None:
        """What is kept."""
        return self.files.get(key)

    def write(self, key: str, value: bytes) -> None:
        """Keep it."""
        self.files[key] = value

    def written(self, folder: str, names: Sequence[str] | None = None) -> dict[str, Written]:
        """What is kept, of no time."""
        del names
        start = f"{folder}/"
        return {
            key.removeprefix(start): Written(0.0, len(value))
            for key, value in self.files.items()
            if key.startswith(start)
        }

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
    return pkgutil.resolve_name("sweeps.runner.store.remote.bucket:Bucket")(address)


def _made(path: Path) -> FileExistsError:
    return FileExistsError(f"{path}: has been made by another process")
