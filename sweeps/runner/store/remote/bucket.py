"""Sweeps in buckets of object stores, where an object appears whole and nothing can be renamed.

A sweep is there once its group's zarr.json is. Its creator claims that very object by a lease, puts
all others, and ends the lease by putting the group's in its place. So what a killed creation leaves
counts as no sweep, and a creator that had been stopped, and was given up by another one, can end
none.

Nor can it spoil the other one's. The first creator puts objects only where none are. Who inherits
the claim of a dead one also puts them over those, if they have not changed; that a bucket tells by
a hash of what they hold, so that the put of an heir which had been stopped could hit an object
that a third creator had put meanwhile. So there is no third: nobody inherits from an heir.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from sweeps.runner.store.base import Check, Place, Report, StoreError, Written
from sweeps.runner.store.remote.lease import FREE, Lease, NoLeaseError, TakenError, terms
from sweeps.runner.store.remote.objects import Objects


class Bucket(Place):
    """A folder in a bucket.

    Args:
        address: scheme://bucket/path, or memory://path for one in the memory of this process.

    Raises:
        ValueError: for an address that cannot be one.
        StoreError: when obstore is not installed or knows of something that is missing.
    """

    streams = 16
    outages = (OSError,)
    durable = True

    def __init__(self, address: str) -> None:
        self.name = self.address = address
        try:
            with self._reached():
                self.objects = Objects(address)
        except ModuleNotFoundError:
            raise StoreError(
                f'{address}: object stores need obstore; pip install "dynsim[cloud]"'
            ) from None
        self.path = PurePosixPath(self.objects.path)
        self.root = f"{self.path}/zarr.json"

    def exists(self) -> bool:
        """Whether any object is there, of a creation that was completed or of something else."""
        with self._reached():
            found = self.objects.look(self.root)
            if found is None:
                return next(self.objects.names(str(self.path)), None) is not None
        try:
            terms(found, self.root)
        except NoLeaseError:
            return True
        return False

    def create(self, files: Mapping[str, bytes], report: Report | None = None) -> None:
        """Claim the group, put what is in it, and then itself.

        Raises:
            FileExistsError: when another process has made one.
            StoreError: when the bucket cannot be written, or two creators in a row have died.
        """
        made = dict(files)
        group = made.pop("zarr.json")
        with self._reached():
            while True:
                claim = Lease(self.objects, self.root, self.name)
                try:
                    claim.take(report, once=True)
                except NoLeaseError:
                    raise FileExistsError(
                        f"{self.name}: has been made by another process"
                    ) from None
                except TakenError:
                    continue
                with claim.kept():
                    if all(
                        self._put(claim, f"{self.path}/{key}", value) for key, value in made.items()
                    ) and claim.end(group):
                        return

    def read(self, key: str) -> bytes | None:
        """What an object holds."""
        found = self.objects.look(f"{self.path}/{key}")
        return found and found.value

    def write(self, key: str, value: bytes) -> None:
        """Put an object, whatever was in its place."""
        self.objects.put(f"{self.path}/{key}", value)

    def written(self, folder: str, names: Sequence[str] | None = None) -> dict[str, Written]:
        """By what the bucket says about its objects, a thousand of which are one request."""
        del names
        start = f"{self.path}/{folder}/"
        with self._reached():
            found = list(self.objects.list(start))
        return {
            meta["path"].removeprefix(start): Written(
                meta["last_modified"].timestamp(), meta["size"]
            )
            for meta in found
        }

    @contextlib.contextmanager
    def lock(self, process: int, processes: int, report: Report | None) -> Iterator[Check]:
        """Be a writer by a lease, which ends by itself when this process dies."""
        # Beside the store, because zarr warns of objects in it that are not its own.
        folder = str(self.path.with_name(f".{self.path.name}.writers"))
        share = f"-of-{processes}"
        mine = Lease(self.objects, f"{folder}/{process}{share}", self.name)
        with self._reached():
            try:
                mine.take(report)
            except PermissionError as error:
                raise StoreError(
                    f"{self.name}: is read-only, so the sweep cannot go on here ({error})"
                ) from None
        with mine.kept():
            with self._reached():
                for key in self.objects.names(folder):
                    if not key.endswith(share):
                        other = Lease(self.objects, key, self.name)
                        other.take(report)
                        other.end(FREE)
            yield mine.check

    def beside(self, suffix: str) -> Path:
        """A file in the current folder."""
        return Path(self.path.name).with_suffix(suffix)

    def _put(self, claim: Lease, key: str, value: bytes) -> bool:
        """Put an object of a creation; False when the claim has passed on."""
        while claim.held:
            if self.objects.swap(key, value, None) is not None:
                return True
            # Looked at before the claim is asked: what comes after it has passed on is not ours.
            left = self.objects.look(key)
            claim.renew()
            if left is None or not claim.held:
                continue
            if not claim.inherited:
                raise StoreError(f"{self.name}: holds something other than a sweep of dynsim")
            if self.objects.swap(key, value, left.version) is not None:
                return True
        return False

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors of the bucket, but not what is or is not in it, into those of the store."""
        try:
            yield
        except PermissionError as error:
            raise StoreError(
                f"{self.name}: may not be read or written with the credentials of this "
                f"environment ({error})"
            ) from error
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            raise StoreError(f"{self.name}: cannot be reached ({error})") from error
