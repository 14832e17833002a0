"""Sweeps in folders and in the memory of this process, and from an address to its place."""

import contextlib
import errno
import itertools
import os
import pkgutil
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import filelock

from sweeps import output
from sweeps.runner.store.base import (
    LARGEST,
    MARKER,
    RECORDS,
    Check,
    Place,
    Report,
    StoreError,
    held,
)

SHARES = 16
"""Locks by which writers of one chunk wait for each other; those of others hardly ever do."""


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

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        return self.real.exists()

    def vacant(self) -> bool:
        """Whether there is none, or one that is empty."""
        return not self.exists() or (self.real.is_dir() and not any(self.real.iterdir()))

    def create(self, files: Mapping[str, bytes]) -> None:
        """Write the files to another folder beside this one, and rename that."""
        self.real.parent.mkdir(parents=True, exist_ok=True)
        made = self._beside("creating")
        with filelock.FileLock(self._beside("creator.lock")) as lock:
            # What a killed creation left: its lock is free.
            shutil.rmtree(made, ignore_errors=True)
            if not self.vacant():
                raise _made(self.path)
            try:
                for key, value in files.items():
                    path = made / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._save(str(path), value)
                for folder, _, _ in os.walk(made):
                    self._settle(folder)
                os.replace(made, self.real)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise _made(self.path) from None
                raise
            finally:
                shutil.rmtree(made, ignore_errors=True)
            self._settle(str(self.real.parent))
            # Who waits for it will find the sweep, and touch nothing.
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink()

    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        """What a file holds; no pipe or device is one."""
        path = f"{self.real}/{key}"
        try:
            about = os.stat(path)
            if not stat.S_ISREG(about.st_mode):
                return None
            if about.st_size > most:
                raise StoreError(f"{self.name}: the file {key} is damaged (it is far too large)")
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def files(self, folder: str) -> dict[str, float]:
        """By what the file system says about them."""
        start, found = str(self.real / folder), {}
        for inside, _, names in os.walk(start):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    path = f"{inside}/{name}"
                    found[path[len(start) + 1 :]] = os.stat(path).st_mtime
        return found

    def stores(self) -> list[str]:
        """Folders of that name."""
        return [str(path.relative_to(self.real)) for path in self.real.glob(f"{RECORDS}*")]

    def lacking(self, keys: Iterable[str]) -> set[str]:
        """By a look at each, which is quicker than to look through folders of folders."""

        def there(key: str) -> bool:
            try:
                return os.stat(f"{self.real}/{key}").st_size > 0
            except (FileNotFoundError, NotADirectoryError):
                return False

        return {key for key in keys if not there(key)}

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        """Write each file among the records, and then rename it: what has taken the place of the
        store, which has no such folder, stays as it is."""
        records, share = f"{self.real}/{self.records}", number % SHARES
        begun, committed = f"{records}/{share}.begun", f"{records}/{number}.json"
        with filelock.FileLock(f"{records}/{share}.lock", poll_interval=0.005):
            # That would have made the folder, but nobody makes its marker twice.
            check()
            if os.path.exists(committed):
                return False
            try:
                for name, value in files.items():
                    self._save(begun, value)
                    self._name(begun, name)
                self._save(begun, record)
                os.replace(begun, committed)
                self._settle(records)
            except FileNotFoundError:
                raise self.gone() from None
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(begun)
                raise
        return True

    def remove(self, key: str) -> None:
        """Delete it."""
        (self.real / key).unlink(missing_ok=True)

    def own(self) -> None:
        """By its marker, which nobody but its creation writes."""
        if not os.path.exists(f"{self.real}/{self.records}/{MARKER}"):
            raise self.gone()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Be a writer by the operating system's lock, so that a killed process holds none."""
        del report
        if self.exists() and not os.access(self.real, os.W_OK):
            raise StoreError(f"{self.name}: is read-only, so the sweep cannot go on here")
        self.real.parent.mkdir(parents=True, exist_ok=True)
        # Beside the store, because zarr warns of files in it that are not its own.
        share = f"-of-{processes}.lock"
        mine, prefix = self._beside(f"writer-{process}{share}"), self._beside("writer-").name
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(filelock.FileLock(mine, timeout=0))
                for other in self.real.parent.iterdir():
                    if other.name.startswith(prefix) and not other.name.endswith(share):
                        with filelock.FileLock(other, timeout=0):
                            pass
            except filelock.Timeout as error:
                lock = Path(error.lock_file).name
                raise StoreError(f"{self.name}: another process is writing here ({lock})") from None
            yield held

    def beside(self, suffix: str) -> Path:
        """The folder's name and the suffix."""
        path = self.path.absolute() if self.path.name in ("", "..") else self.path
        return path.parent / f"{path.name or 'sweep'}{suffix}"

    def _beside(self, what: str) -> Path:
        return self.real.parent / f".{self.real.name}.{what}"

    def _save(self, path: str, value: bytes) -> None:
        with open(path, "wb") as file:
            file.write(value)
            if self.durable:
                file.flush()
                os.fsync(file.fileno())

    def _name(self, begun: str, key: str) -> None:
        """Give a file its name, in folders that are made in that of its array and nowhere else."""
        target = f"{self.real}/{key}"
        array, *inside = key.split("/")[:-1]
        folders = list(itertools.accumulate((f"{self.real}/{array}", *inside), "{}/{}".format))
        try:
            os.replace(begun, target)
        except FileNotFoundError:
            for folder in folders[1:]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
            os.replace(begun, target)
        for folder in folders:
            self._settle(folder)

    def _settle(self, folder: str) -> None:
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
        self.kept: dict[str, bytes] = {}

    def exists(self) -> bool:
        """Whether it has been made."""
        return bool(self.kept)

    def create(self, files: Mapping[str, bytes]) -> None:
        """Keep the files."""
        self.kept.update(files)

    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        """What is kept."""
        del most
        return self.kept.get(key)

    def files(self, folder: str) -> dict[str, float]:
        """What is kept, of no time."""
        start = f"{folder}/"
        return {key[len(start) :]: 0.0 for key in self.kept if key.startswith(start)}

    def stores(self) -> list[str]:
        """The one that there is."""
        return [self.records]

    def lacking(self, keys: Iterable[str]) -> set[str]:
        """What is not kept."""
        return set(keys) - self.kept.keys()

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        """Keep them."""
        del check
        self.kept.update(files)
        self.kept[f"{self.records}/{number}.json"] = record
        return True

    def remove(self, key: str) -> None:
        """Let go of it."""
        del self.kept[key]

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Nobody else can write."""
        del process, processes, report
        yield held

    def beside(self, suffix: str) -> Path:
        """A file in the current folder."""
        return Path("sweep").with_suffix(suffix)


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
