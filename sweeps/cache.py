"""The user's cache folder. Programs are run from it, so nothing is read that another user may have
written, or that has changed since it was written. All imports are fast."""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from sweeps.lines import to_stderr

_REPORTED: set[Path] = set()
"""Folders that others may write to, which are reported once."""


def folder(*parts: str) -> Path | None:
    """Return dynsim's cache folder, or one in it, and create it. Returns None if it cannot be
    created, or if another user may write to it or to a folder above it, which is printed once."""
    path = platformdirs.user_cache_path("dynsim").joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Whoever may write to a folder above it, or above what a link leads to, may replace it.
        for above in dict.fromkeys((*_above(path), *_above(path.resolve()))):
            if why := _open_to_others(above):
                if above not in _REPORTED:
                    _REPORTED.add(above)
                    to_stderr(f"dynsim: caches nothing in {path}: {above} {why}")
                return None
    except OSError:
        return None
    return path


def read(file: Path) -> bytes:
    """Return what `write` has written. Raises `OSError` for a missing file and for one of another
    user, and `ValueError` for one that has changed."""
    with file.open("rb") as stream:
        # Of the open file, as another one may have its name by now.
        if why := _open_to_others(stream.fileno()):
            raise PermissionError(f"{file} {why}")
        digest, content = stream.read(hashlib.sha256().digest_size), stream.read()
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{file} has changed since it was written")
    return content


def write(file: Path, content: bytes) -> None:
    """Write a file, or replace it, as a whole and with its digest."""
    temporary = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Only this user may read or write it, and it is no file or link that existed before.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(hashlib.sha256(content).digest() + content)
    temporary.replace(file)


def _above(path: Path) -> Iterator[Path]:
    """Yield a folder and those above it, up to the user's home or the folder of temporary files."""
    tops = Path("~").expanduser(), Path(tempfile.gettempdir())
    for each in (path, *path.parents):
        yield each
        if each in (*tops, *(top.resolve() for top in tops)):
            return


def _open_to_others(path: Path | int) -> str:
    """Return why users other than this one and the administrator may change a file or folder; ""
    if they may not."""
    if not hasattr(os, "geteuid"):
        return ""
    import grp
    import pwd

    info = os.stat(path)
    if info.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    # In a folder with the sticky bit, such as /tmp, users cannot rename files of others.
    if info.st_mode & stat.S_ISVTX:
        return ""
    # Many systems give each user a group of the same name, which may write what the user may.
    others = stat.S_IWOTH | stat.S_IWGRP
    with contextlib.suppress(KeyError):
        group, owner = grp.getgrgid(info.st_gid), pwd.getpwuid(info.st_uid)
        if group.gr_name == owner.pw_name and {*group.gr_mem} <= {owner.pw_name}:
            others = stat.S_IWOTH
    return "can be written by other users" if info.st_mode & others else ""
