"""Objects of a bucket: read with their version, and written only where that has not changed."""

import contextlib
import datetime
import functools
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeps.runner.store.base import LARGEST, StoreError, damaged

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import RetryConfig

ADDRESS = re.compile(
    r"(?:(s3|gs|az)://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])|(memory):/)"
    r"((?:/(?!\.\.?(?:/|$))[^/?#%\\\x00-\x1f]+)+)/*"
)
RETRIES: "RetryConfig" = {
    "max_retries": 10,
    "backoff": {
        "init_backoff": datetime.timedelta(milliseconds=100),
        "max_backoff": datetime.timedelta(seconds=15),
        "base": 2,
    },
    "retry_timeout": datetime.timedelta(minutes=3),
}
"""How often a request is sent again that was answered with a server's error, or not at all."""
TRIES = 5
"""How often a put is tried that the server answers with a conflict though nothing is there."""
LONGEST = 400
"""Characters of an error of obstore that are shown; it goes on with its inner workings."""


class OutageError(StoreError, OSError):
    """A bucket that cannot be reached, or that answers with an error."""


pause = time.sleep


class Found(NamedTuple):
    """An object: what it holds, and what a conditional put knows it by."""

    value: bytes
    version: "UpdateVersion"


class Objects:
    """The objects of a bucket. All methods raise `OutageError` when it cannot be reached, and
    `StoreError` when credentials forbid what they do.

    Args:
        address: scheme://bucket/path, or memory://path.

    Raises:
        ValueError: for an address that cannot be one.
        StoreError: when obstore is not installed.
    """

    def __init__(self, address: str) -> None:
        found = ADDRESS.fullmatch(address)
        if found is None:
            raise ValueError(
                f"{address}: must be a folder, or a folder in a bucket: s3://, gs:// or az:// and "
                "BUCKET/PATH, or memory://PATH, with a bucket of lower-case letters, digits and "
                "hyphens and a path without any of ? # % \\; credentials come from the environment"
            )
        self.name, self.path = address, found[4][1:]
        try:
            from obstore import exceptions, store
        except ModuleNotFoundError:
            raise StoreError(
                f'{address}: object stores need obstore; pip install "dynsim[cloud]"'
            ) from None
        self.errors = exceptions
        kinds = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        with self.reached():
            scheme = kinds.get(found[1])
            self.bucket: Any = scheme(found[2], retry_config=RETRIES) if scheme else _memory()

    def look(self, key: str, most: int = LARGEST) -> Found | None:
        """The object `key` of at most so many bytes, None if there is none."""
        with self.reached(), contextlib.suppress(FileNotFoundError):
            got = self.bucket.get(key)
            if got.meta["size"] > most:
                raise damaged(self.name, key, "it is far too large")
            value = bytes(got.bytes())
            # Nothing of a store begins like that.
            if value.lstrip()[:1] == b"<":
                raise OutageError(
                    f"{self.name}: cannot be reached (a web page answers for {key}, as of a proxy "
                    "or a sign-in; look at the address and the network)"
                )
            return Found(value, _version(got.meta))
        return None

    def remove(self, key: str) -> None:
        """Delete an object."""
        with self.reached(), contextlib.suppress(FileNotFoundError):
            self.bucket.delete(key)

    def check_conditions(self, key: str) -> None:
        """Raise `StoreError` where a put does not obey its condition, seen by an object `key` of
        this caller alone, which is removed again."""
        lost = (self.errors.AlreadyExistsError, self.errors.PreconditionError)
        version: Any = "create"
        try:
            for condition in ("If-None-Match", "If-Match"):
                # An answer that was lost makes a first put be refused as well, but not the second.
                for value, obeys in ((b"1", True), (b"2", False)):
                    with self.reached(), contextlib.suppress(*lost):
                        content = condition.encode() + value
                        self.bucket.put(key, content, mode=version, use_multipart=False)
                        if not obeys:
                            raise StoreError(
                                f"{self.name}: the server ignores the condition {condition} of a "
                                "put, so that two writers could overwrite each other; use a bucket "
                                "of another server, or a folder"
                            )
                if (found := self.look(key)) is not None:
                    version = found.version
        finally:
            self.remove(key)

    def swap(self, key: str, value: bytes, version: "UpdateVersion | None") -> Any:
        """Put `value` where nothing is yet, or where `version` still is if that is given.

        Returns:
            The version put; None where something else is there. That may have come after `value`,
            where several processes change an object in turn without waiting for each other.
        """
        with self.reached():
            for wait in range(TRIES):
                try:
                    # One request, which the conditions of several parts would not be.
                    mode = version or "create"
                    return _version(self.bucket.put(key, value, mode=mode, use_multipart=False))
                except (self.errors.BaseError, FileNotFoundError) as error:
                    # An answer that was lost makes the request be sent again, and fail by its own
                    # success. So what is there decides: no two processes put the same words.
                    found = self.look(key)
                    if found is not None and found.value == value:
                        return found.version
                    lost = (self.errors.AlreadyExistsError, self.errors.PreconditionError)
                    gone = version is not None and isinstance(error, FileNotFoundError)
                    changed = (found and found.version) != version
                    if changed and (gone or isinstance(error, lost)):
                        return None
                    # Servers answer so as well while another request for the key is under way.
                    if not isinstance(error, lost) or wait == TRIES - 1:
                        raise
                    pause(0.1 * 2**wait)

    def list(self, folder: str) -> Iterator["ObjectMeta"]:
        """Keys (`path`), times (`last_modified`) and sizes of the objects below a folder."""
        with self.reached():
            for batch in self.bucket.list(folder):
                yield from batch

    def folders(self, folder: str) -> Sequence[str]:
        """The folders in a folder."""
        with self.reached():
            return self.bucket.list_with_delimiter(f"{folder}/")["common_prefixes"]

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Turn errors of obstore, but not what is or is not there, into those of the store."""
        try:
            yield
        except (self.errors.PermissionDeniedError, self.errors.UnauthenticatedError) as error:
            raise StoreError(
                f"{self.name}: is read-only, or may not be read, with the credentials of this "
                f"environment ({_shown(error)})"
            ) from error
        except (self.errors.BaseError, FileNotFoundError) as error:
            raise OutageError(f"{self.name}: cannot be reached ({_shown(error)})") from error


@functools.cache
def _memory() -> Any:
    """The one bucket of this process's memory."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _version(answer: Any) -> "UpdateVersion":
    # A store that knows no generations says None, which it does not take back.
    kept: Any = {name: answer[name] for name in ("e_tag", "version") if answer[name] is not None}
    return kept


def _shown(error: Exception) -> str:
    return str(error).splitlines()[0][:LONGEST]
