"""Where a sweep is kept: the memory of this process, or a folder; and from an address to its
place, which may be a bucket as well."""

import contextlib
import itertools
import os
import pkgutil
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from dynsim import checks
from sweeps import output
from sweeps.runner.store import LARGEST, MARKER, RECORDS, Report, StoreError, damaged

Check = Callable[[], None]
"""Raises `StoreError` where this process may write no longer."""
SHARES = 16
"""Locks by which writers of one chunk wait for each other; those of others hardly ever do."""


class Written(NamedTuple):
    """When a file was written, in seconds since 1970, and its number of bytes."""

    time: float
    size: int


class Place:
    """Where a sweep is kept, or can be: files by their names, such as "loss/c/0/0". This one is the
    memory of this process, found by nobody who does not have it; others do the same elsewhere.

    Attributes:
        name: the place as the user wrote it, for messages.
        address: what another process finds it by; None where no other process can.
        records: folder of the commit records of the store that was opened there.
        fence: the words by which a worker knows that the driver still holds the lock, if it can.
        streams: number of files that are worth reading or writing at the same time.
        durable: whether a file that was written outlasts a loss of power.
    """

    name: str = "memory"
    address: str | None = None
    records: str = ""
    fence: str = ""
    streams: int = 1
    durable: bool = False

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def vacant(self) -> bool:
        """Whether a sweep can be made there: nothing is, but what is left of a creation."""
        return not self.kept

    def check_writable(self) -> None:
        """Raise `StoreError` for a place where nothing can ever be written."""

    def create(self, files: Mapping[str, bytes]) -> None:
        """Make a sweep of these files, of which the last one is its `MARKER`. `FileExistsError`
        when something has been made there in the meantime."""
        self.kept.update(files)

    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        """What a file holds, None if there is none; `StoreError` for one of more bytes."""
        del most
        return self.kept.get(key)

    def files(self, folder: str = "") -> dict[str, Written]:
        """The files in a folder, and in those below, by their names behind that of the folder."""
        start = f"{folder}/" if folder else ""
        found = {key: value for key, value in self.kept.items() if key.startswith(start)}
        return {key[len(start) :]: Written(0.0, len(value)) for key, value in found.items()}

    def stores(self) -> list[str]:
        """The folders of commit records that are there."""
        return [self.records]

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        """Write the files of chunk `number` and then its record, `number`.json in `records`; False
        if there is a record already. `check` raises `StoreError` where this process may not."""
        del check
        self.kept |= {**files, f"{self.records}/{number}.json": record}
        return True

    def put(self, key: str, value: bytes) -> bool:
        """Write a file beside the chunks; False if it is there already."""
        return self.kept.setdefault(key, value) is value

    def remove(self, key: str) -> None:
        """Delete a file."""
        del self.kept[key]

    def own(self) -> None:
        """Raise `StoreError` unless the store that was opened there is still there."""

    def lock(
        self, process: int, processes: int, report: Report | None
    ) -> contextlib.AbstractContextManager[Check]:
        """Be process number `process` of `processes` writers, alone; what this yields raises
        `StoreError` once that has ended. `StoreError` as well where another writer is at work, or
        the place cannot be written."""
        del process, processes, report
        return contextlib.nullcontext(held)

    def watch(self, fence: str) -> Check:
        """What raises `StoreError` once the driver that has this `fence` holds no lock."""
        del fence
        return held

    def several(self, act: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
        """What `act` makes of each, several at a time where there are streams for them."""
        if self.streams == 1:
            return list(map(act, each))
        with ThreadPoolExecutor(self.streams) as pool:
            return list(pool.map(act, each))

    def gone(self) -> StoreError:
        """The error for a store that is not there any more."""
        return StoreError(
            f"{self.name}: has been moved or removed while this process wrote to it ({self.records}"
            " is gone). Finished chunks moved with the store; run the sweep again there."
        )


def held() -> None:
    """The check of a lock that nobody can take away."""


class Folder(Place):
    """A folder of a file system that has locks and renames. What other processes have to agree on,
    locks above all, lies beside the folder that is meant, whatever links lead to it."""

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
        given = Path(self.name)
        if given.is_symlink() and not given.exists():
            raise StoreError(
                f"{self.name}: is a symbolic link to {self.real}, which does not exist; make that "
                "folder, or remove the link"
            )
        there = next(path for path in (self.real, *self.real.parents) if path.exists())
        if not there.is_dir():
            raise StoreError(f"{self.name}: cannot be created, because {there} is a file")
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            why = f"this process has no permission to write to {there}"
            raise StoreError(f"{self.name}: cannot be written: {why} ({error.strerror})") from None

    def create(self, files: Mapping[str, bytes]) -> None:
        # Another folder, beside this one, that takes its place: half a store is none.
        made = self._beside("creating")
        with filelock.FileLock(self._beside("creator.lock")) as lock:
            # What a killed creation left: its lock is free.
            shutil.rmtree(made, ignore_errors=True)
            if not self.vacant():
                raise FileExistsError(f"{self.name}: has been made by another process")
            for key, value in files.items():
                path = made / key
                path.parent.mkdir(parents=True, exist_ok=True)
                self._save(str(path), value)
            self._settle_all(str(made))
            os.replace(made, self.real)
            self._settle(str(self.real.parent))
            # Who waits for it will find the sweep, and touch nothing.
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)

    def read(self, key: str, most: int = LARGEST) -> bytes | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path = f"{self.real}/{key}"
            about = os.stat(path)
            if about.st_size > most:
                raise damaged(self.name, key, "it is far too large")
            # A pipe would not end.
            if stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    return file.read()
        return None

    def files(self, folder: str = "") -> dict[str, Written]:
        start, found = str(self.real / folder), {}
        for inside, _, names in os.walk(start):
            for path in (f"{inside}/{name}" for name in names):
                with contextlib.suppress(FileNotFoundError):
                    about = os.stat(path)
                    found[path[len(start) + 1 :]] = Written(about.st_mtime, about.st_size)
        return found

    def stores(self) -> list[str]:
        return [str(path.relative_to(self.real)) for path in self.real.glob(f"{RECORDS}*")]

    def commit(self, number: int, files: Mapping[str, bytes], record: bytes, check: Check) -> bool:
        written = {**files, f"{self.records}/{number}.json": record}
        return self._write(str(number % SHARES), written, check)

    def put(self, key: str, value: bytes) -> bool:
        return self._write("put", {key: value}, self.own)

    def remove(self, key: str) -> None:
        (self.real / key).unlink(missing_ok=True)

    def own(self) -> None:
        if not os.path.exists(f"{self.real}/{self.records}/{MARKER}"):
            raise self.gone()

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        # The operating system's, which a killed process does not hold.
        del report
        if self.real.exists() and not os.access(self.real, os.W_OK):
            raise StoreError(f"{self.name}: is read-only, so the sweep cannot resume here")
        self.real.parent.mkdir(parents=True, exist_ok=True)
        # What is there may have been made just now, or by a writer that was not durable.
        self._settle_all(str(self.real))
        for folder in self.real.parents:
            # Some of those further up cannot be opened, or are of no disk.
            with contextlib.suppress(OSError):
                self._settle(str(folder))
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

    def _beside(self, what: str) -> Path:
        return self.real.parent / f".{self.real.name}.{what}"

    def _write(self, share: str, files: Mapping[str, bytes], check: Check) -> bool:
        """Write files, unless the last one is there, alone among those who write this share."""
        # Each file is begun among the records and then renamed: what has taken the place of the
        # store has no such folder, and stays as it is.
        records = f"{self.real}/{self.records}"
        begun = f"{records}/{share}.begun"
        with filelock.FileLock(f"{records}/{share}.lock", poll_interval=0.005):
            # The lock would have made the folder; nobody makes the marker twice.
            check()
            if os.path.exists(f"{self.real}/{[*files][-1]}"):
                return False
            try:
                for key, value in files.items():
                    self._save(begun, value)
                    self._name(begun, key)
            except FileNotFoundError:
                raise self.gone() from None
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(begun)
                raise
        return True

    def _save(self, path: str, value: bytes) -> None:
        with open(path, "wb") as file:
            file.write(value)
            if self.durable:
                file.flush()
                os.fsync(file.fileno())

    def _name(self, begun: str, key: str) -> None:
        """Give a file its name, in folders that are made in that of its array and nowhere else."""
        array, *inside = key.split("/")[:-1]
        folders = list(itertools.accumulate((f"{self.real}/{array}", *inside), "{}/{}".format))
        try:
            os.replace(begun, f"{self.real}/{key}")
        except FileNotFoundError:
            # Where the records are gone as well, no folder is made.
            os.stat(begun)
            for folder in folders[1:]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
            os.replace(begun, f"{self.real}/{key}")
        for folder in folders:
            self._settle(folder)

    def _settle_all(self, folder: str) -> None:
        """Make all that is in a folder outlast a loss of power, if that is wanted."""
        for inside, _, names in os.walk(folder) if self.durable else ():
            for path in filter(os.path.isfile, (f"{inside}/{name}" for name in names)):
                # Other writers rename what they have begun.
                with contextlib.suppress(FileNotFoundError):
                    self._settle(path)
            self._settle(inside)

    def _settle(self, path: str) -> None:
        """Make a file, or the names in a folder, outlast a loss of power, if that is wanted."""
        # Windows opens no folders, and writes their names down by itself.
        if self.durable and os.name != "nt":
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def place(where: str | Path | Place | None) -> Place:
    """The place that is meant: one in a bucket by an address with a scheme, the memory of this
    process by None, and a folder by everything else. `ValueError` for an address that cannot be
    one, `StoreError` when what it needs is not installed."""
    if isinstance(where, Place):
        return where
    if where is None:
        return Place()
    checks.kind("out", where, str, os.PathLike)
    address = output.address(where)
    if address is None:
        return Folder(Path(where))
    # Loaded when it is asked for: most sweeps are kept in folders.
    return pkgutil.resolve_name("sweeps.runner.store.bucket:Bucket")(address)
