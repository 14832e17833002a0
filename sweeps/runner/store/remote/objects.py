"""Objects of a bucket: read with their version, and written only where that has not changed.

Errors of obstore come out as `OSError`s, as those of files do.
"""

import contextlib
import datetime
import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeps.runner.store.base import LARGEST, StoreError

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import RetryConfig

NAMES = {
    "s3": r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "gs": r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]",
    "az": r"[a-z0-9](-?[a-z0-9]){2,62}",
    "memory": "",
}
"""What addresses begin with, and the names that buckets have there; memory is one without."""
PART = re.compile(r"[^/?#%\\\x00-\x1f]+")
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


class Found(NamedTuple):
    """An object: what it holds, and what a conditional put knows it by."""

    value: bytes
    version: "UpdateVersion"


class Objects:
    """The objects of a bucket.

    Args:
        address: scheme://bucket/path, or memory://path.

    Raises:
        ValueError: for an address that cannot be one.
        ModuleNotFoundError: when obstore is not installed.
        OSError: when obstore knows of something that is missing.
    """

    def __init__(self, address: str) -> None:
        scheme, bucket, self.path = parse(address)
        self.bucket = _connect(scheme, bucket)

    def look(self, key: str, most: int = LARGEST) -> Found | None:
        """The object `key` of at most so many bytes, None if there is none."""
        import obstore

        with as_os_errors():
            try:
                got = obstore.get(self.bucket, key)
                if got.meta["size"] > most:
                    raise StoreError(f"{key} is damaged (it is far too large)")
                return Found(bytes(got.bytes()), _version(got.meta))
            except FileNotFoundError:
                return None

    def remove(self, key: str) -> None:
        """Delete an object."""
        import obstore

        with as_os_errors():
            obstore.delete(self.bucket, key)

    def swap(self, key: str, value: bytes, version: "UpdateVersion | None") -> Any:
        """Put `value` where nothing is yet, or where `version` still is if that is given.

        Returns:
            The version put; None where something else is there. That may have come after `value`,
            where several processes change an object in turn without waiting for each other.
        """
        import obstore
        from obstore import exceptions

        with as_os_errors():
            try:
                # One request, which the conditions of several parts would not be.
                return _version(
                    obstore.put(
                        self.bucket, key, value, mode=version or "create", use_multipart=False
                    )
                )
            except (exceptions.BaseError, FileNotFoundError) as error:
                # An answer that was lost makes the request be sent again, and fail by its own
                # success. So what is there decides: no two processes put the same words.
                found = self.look(key)
                if found is not None and found.value == value:
                    return found.version
                lost = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
                gone = version is not None and isinstance(error, FileNotFoundError)
                if gone or isinstance(error, lost):
                    return None
                raise

    def list(self, folder: str) -> Iterator["ObjectMeta"]:
        """Keys (`path`), times (`last_modified`) and sizes of the objects below a folder."""
        import obstore

        with as_os_errors():
            for batch in obstore.list(self.bucket, folder):
                yield from batch

    def folders(self, folder: str) -> Sequence[str]:
        """The folders in a folder."""
        import obstore

        with as_os_errors():
            return obstore.list_with_delimiter(self.bucket, f"{folder}/")["common_prefixes"]


def parse(address: str) -> tuple[str, str, str]:
    """Scheme, bucket and path of an address; memory has no bucket.

    Raises:
        ValueError: naming the address and what is allowed.
    """
    scheme, _, rest = address.partition("://")
    if scheme not in NAMES:
        known = ", ".join(f"{name}://" for name in NAMES)
        raise ValueError(f"{address}: must be a folder, or begin with one of {known}")
    bucket, _, path = ("", "", rest) if scheme == "memory" else rest.partition("/")
    if not re.fullmatch(NAMES[scheme], bucket):
        raise ValueError(
            f"{address}: the bucket {bucket!r} must have lower-case letters, digits and hyphens, "
            "3 to 63 of them; credentials come from the environment"
        )
    path = path.rstrip("/")
    parts = path.split("/")
    if not all(PART.fullmatch(part) and part not in (".", "..") for part in parts):
        raise ValueError(
            f"{address}: must name a folder in the bucket, such as {scheme}://"
            f"{bucket + '/' if bucket else ''}runs/fig6, without any of ? # % \\"
        )
    return scheme, bucket, path


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Turn errors of obstore into `OSError`s, which are errors of files as well."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(_shown(error)) from error
    except exceptions.BaseError as error:
        raise OSError(_shown(error)) from error


def _connect(scheme: str, bucket: str) -> Any:
    from obstore import store

    if scheme == "memory":
        return _memory()
    kinds = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
    with as_os_errors():
        return kinds[scheme](bucket, retry_config=RETRIES)


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
