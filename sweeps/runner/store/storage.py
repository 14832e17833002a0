"""Storage backends: the memory of this process, or a folder; and the choice of one by address,
which may also be a bucket."""

import contextlib
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import filelock

from dynsim import checks
from sweeps import output
from sweeps.runner.store import MARKER, MAX_FILE_SIZE, RECORDS, Report, StoreError, damaged

Item = TypeVar("Item")
Result = TypeVar("Result")
CheckLock = Callable[[], None]
"""Raises `StoreError` if this process has lost its right to write."""
NUM_LOCKS = 16
"""Number of locks that serialize writers of the same chunk; other writers rarely share one."""


class FileInfo(NamedTuple):
    """Modification time of a file, in seconds since 1970, and its size in bytes."""

    time: float
    size: int


class Storage:
    """Files of a sweep by name, such as "loss/c/0/0". This class stores them in the memory of this
    process; subclasses have the same interface.

    Attributes:
        name: the location as the user wrote it, for messages.
        address: address under which other processes find it; None in memory.
        records: folder of the commit records of the store that was opened there.
        fence: token with which a worker checks that the driver still holds the lock, if supported.
        streams: number of files that can usefully be read or written at once.
        durable: whether written files survive a power failure.
    """

    name: str = "memory"
    address: str | None = None
    records: str = ""
    fence: str = ""
    streams: int = 1
    durable: bool = False

    def __init__(self) -> None:
        self.memory: dict[str, bytes] = {}

    def vacant(self) -> bool:
        """Return whether a sweep can be created there: it is empty, or an incomplete creation."""
        return not self.memory

    def check_writable(self) -> None:
        """Raise `StoreError` if files cannot be written."""

    def create(self, files: Mapping[str, bytes]) -> None:
        """Create a sweep from its files, the last of which is its `MARKER`. Raises
        `FileExistsError` if something has been created there in the meantime."""
        self.memory.update(files)

    def read(self, key: str, most: int = MAX_FILE_SIZE) -> bytes | None:
        """Read a file; None if there is none. Raises `StoreError` if it exceeds `most` bytes."""
        del most
        return self.memory.get(key)

    def files(self, folder: str = "") -> dict[str, FileInfo]:
        """Return the files below a folder, by their paths relative to it."""
        start = f"{folder}/" if folder else ""
        inside = {key: value for key, value in self.memory.items() if key.startswith(start)}
        return {key[len(start) :]: FileInfo(0.0, len(value)) for key, value in inside.items()}

    def record_folders(self) -> list[str]:
        """Return the folders of commit records, also those of other stores."""
        return [self.records]

    def commit(
        self, number: int, files: Mapping[str, bytes], record: bytes, check_lock: CheckLock
    ) -> bool:
        """Write the files of chunk `number` and then its record, `number`.json in `records`.
        Returns False if the record exists already. `check_lock` raises `StoreError` if this process
        may not write."""
        del check_lock
        self.memory |= {**files, f"{self.records}/{number}.json": record}
        return True

    def put(self, key: str, value: bytes) -> bool:
        """Write a file that is not part of a chunk; returns False if it exists already."""
        return self.memory.setdefault(key, value) is value

    def remove(self, key: str) -> None:
        """Delete a file."""
        del self.memory[key]

    def check_exists(self) -> None:
        """Raise `StoreError` unless the opened store still exists."""

    def lock(
        self, process: int, processes: int, report: Report | None
    ) -> contextlib.AbstractContextManager[CheckLock]:
        """Lock writer `process` of `processes` for this process. The yielded function raises
        `StoreError` if the lock is lost. Entering raises `StoreError` if another writer is active
        or nothing can be written."""
        del process, processes, report
        return contextlib.nullcontext(never_lost)

    def watch(self, fence: str) -> CheckLock:
        """Return a check that raises `StoreError` when the driver with this `fence` lost the
        lock."""
        del fence
        return never_lost

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Map a function over items, several at a time if there are streams for them."""
        if self.streams == 1:
            return list(map(function, items))
        with ThreadPoolExecutor(self.streams) as pool:
            return list(pool.map(function, items))

    def moved(self) -> StoreError:
        """Return the error for a store that was moved or removed."""
        return StoreError(
            f"{self.name}: has been moved or removed while this process wrote to it ({self.records}"
            " is gone). Finished chunks moved with the store; run the sweep again there."
        )


def never_lost() -> None:
    """Check a lock that cannot be lost."""


class Folder(Storage):
    """A folder of a file system that supports locks and renames. Locks and other shared files are
    siblings of the folder that symbolic links resolve to."""

    streams = 4

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            self.real = path.resolve()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self.real.stat()
        except (OSError, RuntimeError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise StoreError(f"{self.name}: cannot be a folder ({why})") from None
        self.address = str(self.real)

    def vacant(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return not os.listdir(self.real)
        return not self.real.exists()

    def check_writable(self) -> None:
        path = Path(self.name)
        if path.is_symlink() and not path.exists():
            raise StoreError(
                f"{self.name}: is a symbolic link to {self.real}, which does not exist; make that "
                "folder, or remove the link"
            )
        existing = next(path for path in (self.real, *self.real.parents) if path.exists())
        if not existing.is_dir():
            raise StoreError(f"{self.name}: cannot be created, because {existing} is a file")
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            why = f"this process has no permission to write to {existing}"
            raise StoreError(f"{self.name}: cannot be written: {why} ({error.strerror})") from None

    def create(self, files: Mapping[str, bytes]) -> None:
        # Build the store in a sibling folder and rename it, so that it is never incomplete.
        temporary = self._sibling("creating")
        with filelock.FileLock(self._sibling("creator.lock")) as lock:
            # What is left of an interrupted creation is nobody's, as its lock is free.
            shutil.rmtree(temporary, ignore_errors=True)
            if not self.vacant():
                raise FileExistsError(f"{self.name}: has been made by another process")
            for key, value in files.items():
                path = temporary / key
                path.parent.mkdir(parents=True, exist_ok=True)
                self._write_file(str(path), value)
            self._flush_all(str(temporary))
            os.replace(temporary, self.real)
            self._flush(str(self.real.parent))
            # Processes waiting for the lock will find the sweep and write nothing.
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)

    def read(self, key: str, most: int = MAX_FILE_SIZE) -> bytes | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path = f"{self.real}/{key}"
            info = os.stat(path)
            if info.st_size > most:
                raise damaged(self.name, key, "it is far too large")
            # Reading a pipe might never end.
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    return file.read()
        return None

    def files(self, folder: str = "") -> dict[str, FileInfo]:
        start, files = str(self.real / folder), {}
        for inside, _, names in os.walk(start):
            for path in (f"{inside}/{name}" for name in names):
                # Other processes rename their temporary files meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    info = os.stat(path)
                    files[path[len(start) + 1 :]] = FileInfo(info.st_mtime, info.st_size)
        return files

    def record_folders(self) -> list[str]:
        return [str(path.relative_to(self.real)) for path in self.real.glob(f"{RECORDS}*")]

    def commit(
        self, number: int, files: Mapping[str, bytes], record: bytes, check_lock: CheckLock
    ) -> bool:
        # The record is last: a chunk exists once it does.
        with_record = {**files, f"{self.records}/{number}.json": record}
        return self._write(str(number % NUM_LOCKS), with_record, check_lock)

    def put(self, key: str, value: bytes) -> bool:
        return self._write("put", {key: value}, self.check_exists)

    def remove(self, key: str) -> None:
        (self.real / key).unlink(missing_ok=True)

    def check_exists(self) -> None:
        if not os.path.exists(f"{self.real}/{self.records}/{MARKER}"):
            raise self.moved()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[CheckLock]:
        # A lock of the operating system, which releases it when the process dies.
        del report
        if self.real.exists() and not os.access(self.real, os.W_OK):
            raise StoreError(f"{self.name}: is read-only, so the sweep cannot resume here")
        self.real.parent.mkdir(parents=True, exist_ok=True)
        # Existing files may be recent, or from a writer that was not durable.
        self._flush_all(str(self.real))
        for folder in self.real.parents:
            # Some parents cannot be opened, or are not on a disk.
            with contextlib.suppress(OSError):
                self._flush(str(folder))
        # Locks are siblings of the store, because zarr warns about foreign files inside it.
        group = f"-of-{processes}.lock"
        own, prefix = self._sibling(f"writer-{process}{group}"), self._sibling("writer-").name
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(filelock.FileLock(own, timeout=0))
                # Writers that divide the chunks differently would compute the same ones.
                for other in self.real.parent.iterdir():
                    if other.name.startswith(prefix) and not other.name.endswith(group):
                        with filelock.FileLock(other, timeout=0):
                            pass
            except filelock.Timeout as error:
                lock = Path(error.lock_file).name
                raise StoreError(f"{self.name}: another process is writing here ({lock})") from None
            yield never_lost

    def _sibling(self, suffix: str) -> Path:
        return self.real.parent / f".{self.real.name}.{suffix}"

    def _write(self, lock: str, files: Mapping[str, bytes], check_lock: CheckLock) -> bool:
        """Write files unless the last one exists, while holding a lock."""
        # Each file is written among the records and then renamed. If another folder has replaced
        # the store, it lacks the records folder and stays unchanged.
        records = f"{self.real}/{self.records}"
        temporary = f"{records}/{lock}.begun"
        with filelock.FileLock(f"{records}/{lock}.lock", poll_interval=0.005):
            # The lock created a missing records folder; the marker shows whether that happened.
            check_lock()
            if os.path.exists(f"{self.real}/{[*files][-1]}"):
                return False
            try:
                for key, value in files.items():
                    self._write_file(temporary, value)
                    self._rename(temporary, key)
            except FileNotFoundError:
                raise self.moved() from None
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        return True

    def _write_file(self, path: str, value: bytes) -> None:
        try:
            with open(path, "wb") as file:
                file.write(value)
                if self.durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            # A full disk does not say which file did not fit.
            error.filename = error.filename or path
            raise

    def _rename(self, temporary: str, key: str) -> None:
        """Rename a file to its final name; creates folders only inside that of its array."""
        array, *inside = key.split("/")[:-1]
        folders = list(itertools.accumulate((f"{self.real}/{array}", *inside), "{}/{}".format))
        try:
            os.replace(temporary, f"{self.real}/{key}")
        except FileNotFoundError:
            # Raises if the records are gone as well, so that no folder is created.
            os.stat(temporary)
            for folder in folders[1:]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
            os.replace(temporary, f"{self.real}/{key}")
        # A file survives a power failure once its name is on the disk, too.
        for folder in folders:
            self._flush(folder)

    def _flush_all(self, folder: str) -> None:
        """Flush everything in a folder to disk, if durable."""
        for inside, _, names in os.walk(folder) if self.durable else ():
            for path in filter(os.path.isfile, (f"{inside}/{name}" for name in names)):
                # Other writers may rename their temporary files meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    self._flush(path)
            self._flush(inside)

    def _flush(self, path: str) -> None:
        """Flush a file, or the names in a folder, to disk, if durable."""
        # Windows cannot open folders and flushes their entries by itself.
        if self.durable and os.name != "nt":
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def as_storage(where: str | Path | Storage | None) -> Storage:
    """Return the storage for an argument: a bucket for an address with a scheme, the memory of this
    process for None, else a folder. Raises `ValueError` for an invalid address, `StoreError` if a
    required package is not installed."""
    if isinstance(where, Storage):
        return where
    if where is None:
        return Storage()
    checks.kind("out", where, str, os.PathLike)
    address = output.address(where)
    if address is None:
        return Folder(Path(where))
    # Imported on demand: most sweeps are stored in folders.
    from sweeps.runner.store.bucket import Bucket

    return Bucket(address)
