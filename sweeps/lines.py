"""Lines of text for the terminal, and values in lines of input. All imports are fast."""

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

WORD = re.compile(r"[A-Za-z_./~][\w./:~-]*")
"""Text that needs no quotes as a value."""
WORDS = re.compile(rf"\s*({WORD.pattern}|\[\s*{WORD.pattern}\s*(,\s*{WORD.pattern}\s*)*\])\s*")
POINT = re.compile(
    r"(?<![\w./~:+-])([+-]?)(?=\.?\d)(\d*)\.(\d*)(?=(?:[eE][+-]?\d+)?\s*(?:[],}]|$))"
)
"""A number whose first or last character may be the decimal point."""
MOST_TEXT = 2**23
"""Maximum number of characters of TOML."""
MOST_PARTS = 32
"""Maximum number of parts of a dotted key."""
PART = r"""(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*"""
LONG_KEY = re.compile(rf"(?<![\w-]){PART}(?:\.[ \t]*{PART}){{{MOST_PARTS}}}")
"""A dotted key with more parts."""
REMEDIES = dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space there, or choose another place"
) | {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EROFS: "choose a place that is not read-only",
    errno.EACCES: "choose a place for which you have the permission",
}
"""What to do about errors of the operating system."""
TOML_WORDS = ("true", "false", "inf", "nan")
"""Words that are TOML values, without quotes."""


def stops() -> list[signal.Signals]:
    """Return the signals that ask a program to stop: Ctrl-C, SIGTERM, and SIGHUP when a terminal
    closes, unless `nohup` ignores it."""
    signals = [signal.SIGINT, signal.SIGTERM]
    # Windows does not have it.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        signals.append(hangup)
    return signals


@contextlib.contextmanager
def unstopped() -> Iterator[None]:
    """Context in which these signals wait. JAX crashes if one arrives while its library loads."""
    pending: list[int] = []
    # Only the main thread may set handlers.
    numbers = stops() if threading.current_thread() is threading.main_thread() else ()
    before = {n: signal.signal(n, lambda number, frame: pending.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in pending[:1]:
        signal.raise_signal(number)


def printable(text: str) -> str:
    """Escape a text for one line of terminal output: line ends, other control characters, and those
    that change the writing direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_stderr(text: str) -> None:
    """Print lines to standard error, unless it is closed, as with a closed terminal."""
    with contextlib.suppress(OSError):
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


class Escaped:
    """A stream of text whose lines are `printable`: the one way of a command to its terminal, as
    names and titles come from files of others, and libraries quote them in warnings."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write("\n".join(map(printable, text.split("\n"))))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def explained(error: OSError) -> str:
    """Return an error of the operating system as one line: the file, the reason, and what to do."""
    remedy = REMEDIES.get(error.errno or 0, "")
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "the output"
    return f"{where}: {error.strerror or error}{remedy and f'; {remedy}'}"


def assignments(text: str) -> dict[str, Any]:
    """Parse a line `NAME = VALUE` of TOML. As extensions, a word or a list of words needs no
    quotes, and numbers may start or end with the decimal point, as .5 or 5. Raises `ValueError` for
    invalid input."""
    name, _, value = text.partition("=")
    # Inside of quotes nothing changes.
    if not {'"', "'"} & {*value}:
        value = POINT.sub(lambda match: f"{match[1]}{match[2] or 0}.{match[3] or 0}", value)
        text = f"{name}={value}"
    if WORDS.fullmatch(value):
        value = WORD.sub(lambda word: word[0] if word[0] in TOML_WORDS else f'"{word[0]}"', value)
        text = f"{name}={value}"
    return parse_toml(text)


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; raises `OSError`, and `ValueError` as `parse_toml` does."""
    with open(path, encoding="utf-8-sig") as file:
        return parse_toml(file.read(MOST_TEXT + 1))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises `ValueError` for invalid input."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"more than {MOST_TEXT} characters")
    # The memory that a key takes grows with the square of its parts.
    if match := LONG_KEY.search(text):
        raise ValueError(f"a key {match[0][:20]!r}...: has more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    # Deeply nested lists.
    except RecursionError as error:
        raise ValueError(str(error)) from None
