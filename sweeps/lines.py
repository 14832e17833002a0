"""Lines for people and from people. Imports nothing that takes time."""

import contextlib
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator
from typing import Any

WORD = re.compile(r"[A-Za-z_./~][\w./:~-]*")
"""Text that needs no quotes in a value."""
WORDS = re.compile(rf"\s*({WORD.pattern}|\[\s*{WORD.pattern}\s*(,\s*{WORD.pattern}\s*)*\])\s*")
POINT = re.compile(
    r"(?<![\w./~:+-])([+-]?)(?=\.?\d)(\d*)\.(\d*)(?=(?:[eE][+-]?\d+)?\s*(?:[],}]|$))"
)
"""A number with a point, which may be its first or its last character."""
KEPT = ("true", "false", "inf", "nan")
"""Words that TOML reads."""


def stops() -> list[signal.Signals]:
    """The signals that ask a program to stop: Ctrl-C, SIGTERM, and the SIGHUP of a terminal that
    closes, unless `nohup` had it ignored."""
    found = [signal.SIGINT, signal.SIGTERM]
    # Windows has none.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        found.append(hangup)
    return found


@contextlib.contextmanager
def unstopped() -> Iterator[None]:
    """A context in which these signals wait. JAX crashes if one comes while its library loads."""
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
    """The text as a line that a terminal shows and does not obey: ends of lines, other control
    characters, and those that turn the direction of writing are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_stderr(text: str) -> None:
    """Print lines to standard error, if it is still there: a terminal may have been closed."""
    with contextlib.suppress(OSError):
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def assignments(text: str) -> dict[str, Any]:
    """The values by name that a line `NAME = VALUE` of TOML gives. Text needs no quotes in a value
    that is one word or a list of words, and a number without quotes no digit before or after its
    point: .5 or 5.; `ValueError` for what cannot be read."""
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
