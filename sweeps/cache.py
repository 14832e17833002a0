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

_TOLD: set[Path] = set()
"""Folders that were reported."""


def folder(*parts: str) -> Path | None:
    """Return dynsim's cache folder, or one in it, and create it. Returns None if it cannot be
    created, or if another user may write to it or to a folder above it, which is printed once."""
    found = platformdirs.user_cache_path("dynsim").joinpath(*parts)
    try:
        found.mkdir(parents=True, exist_ok=True)
        for each in dict.fromkeys((*_above(found), *_above(found.resolve()))):
            if why := _open_to_others(each):
                if each not in _TOLD:
                    _TOLD.add(each)
                    to_stderr(f"dynsim: caches nothing in {found}: {each} {why}")
                return None
    except OSError:
        return None
    return found


def read(file: Path) -> bytes:
    """Return what `write` has written. Raises `OSError` for a missing file and for one of another
    user, and `ValueError` for one that has changed."""
    with file.open("rb") as opened:
        if why := _open_to_others(opened.fileno()):
            raise PermissionError(f"{file} {why}")
        digest, content = opened.read(hashlib.sha256().digest_size), opened.read()
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{file} has changed since it was written")
    return content


def write(file: Path, content: bytes) -> None:
    """Write a file, or replace it, as a whole and with its digest."""
    written = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        written.unlink()
    opened = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "wb") as stream:
        stream.write(hashlib.sha256(content).digest() + content)
    written.replace(file)


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
    found = os.stat(path)
    if found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    # In a folder with the sticky bit, such as /tmp, users cannot rename what is not theirs.
    if found.st_mode & stat.S_ISVTX:
        return ""
    # Many systems give each user a group of the same name, which may write what the user may.
    shared = stat.S_IWOTH if _is_private(found) else stat.S_IWOTH | stat.S_IWGRP
    return "can be written by other users" if found.st_mode & shared else ""


def _is_private(found: os.stat_result) -> bool:
    """Return whether the group of a file is that of its owner alone."""
    import grp
    import pwd

    try:
        group, owner = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and {*group.gr_mem} <= {owner.pw_name}
