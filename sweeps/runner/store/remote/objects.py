"""Objects of a bucket: read with their version, and written only where that has not changed."""

import contextlib
import datetime
import functools
import re
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
LONGEST = 400
"""Characters of an error of obstore that are shown; it goes on with its inner workings."""


class OutageError(StoreError, OSError):
    """A bucket that cannot be reached, or that answers with an error."""


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
            return Found(bytes(got.bytes()), _version(got.meta))
        return None

    def remove(self, key: str) -> None:
        """Delete an object."""
        with self.reached():
            self.bucket.delete(key)

    def swap(self, key: str, value: bytes, version: "UpdateVersion | None") -> Any:
        """Put `value` where nothing is yet, or where `version` still is if that is given.

        Returns:
            The version put; None where something else is there. That may have come after `value`,
            where several processes change an object in turn without waiting for each other.
        """
        with self.reached():
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
                if gone or isinstance(error, lost):
                    return None
                raise

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
        except self.errors.BaseError as error:
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
