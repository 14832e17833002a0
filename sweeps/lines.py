"""Lines of text for the terminal, and values in lines of input. All imports are fast."""

import contextlib
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator
from typing import Any

WORD = re.compile(r"[A-Za-z_./~][\w./:~-]*")
"""Text that needs no quotes as a value."""
WORDS = re.compile(rf"\s*({WORD.pattern}|\[\s*{WORD.pattern}\s*(,\s*{WORD.pattern}\s*)*\])\s*")
POINT = re.compile(
    r"(?<![\w./~:+-])([+-]?)(?=\.?\d)(\d*)\.(\d*)(?=(?:[eE][+-]?\d+)?\s*(?:[],}]|$))"
)
"""A number whose first or last character may be the decimal point."""
KEPT = ("true", "false", "inf", "nan")
"""Words that are TOML values."""


def stops() -> list[signal.Signals]:
    """Return the signals that ask a program to stop: Ctrl-C, SIGTERM, and SIGHUP when a terminal
    closes, unless `nohup` ignores it."""
    found = [signal.SIGINT, signal.SIGTERM]
    # Windows does not have it.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        found.append(hangup)
    return found


@contextlib.contextmanager
def unstopped() -> Iterator[None]:
    """Context in which these signals wait. JAX crashes if one arrives while its library loads."""
    came: list[int] = []
    numbers = stops() if threading.current_thread() is threading.main_thread() else ()
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def printable(text: str) -> str:
    """Escape a text for one line of terminal output: line ends, other control characters, and those
    that change the writing direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_stderr(text: str) -> None:
    """Print lines to standard error, unless it is closed, as with a closed terminal."""
    with contextlib.suppress(OSError):
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def assignments(text: str) -> dict[str, Any]:
    """Parse a line `NAME = VALUE` of TOML. As extensions, a word or a list of words needs no
    quotes, and numbers may start or end with the decimal point, as .5 or 5. Raises `ValueError` for
    invalid input."""
    name, _, value = text.partition("=")
    if not {'"', "'"} & {*value}:
        value = POINT.sub(lambda found: f"{found[1]}{found[2] or 0}.{found[3] or 0}", value)
        text = f"{name}={value}"
    if WORDS.fullmatch(value):
        value = WORD.sub(lambda word: word[0] if word[0] in KEPT else f'"{word[0]}"', value)
        text = f"{name}={value}"
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
