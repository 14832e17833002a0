"""Progress output of long work, and its interruption by the user.

In a terminal or a notebook progress is a bar; in a log or the output of a job, it is one line per
minute.
"""

import contextlib
import contextvars
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Protocol, TextIO, TypeVar

from tqdm.auto import tqdm

from sweeps.lines import Escaped, printable, stops, to_stderr

SignalHandler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
ItemT = TypeVar("ItemT")

REFRESH_SECONDS = {True: 1.0, False: 60.0}
"""Seconds between updates: in a terminal or notebook (True), and elsewhere."""
LOG_FORMAT = (
    "{desc}{percentage:.0f} %: {n_fmt} of {total_fmt}, {rate_fmt}, {elapsed} passed, "
    "{remaining} left{postfix}"
)
POLL = 0.2
"""Maximum seconds between checks for a request to stop."""
RESUME = "Make the same call again to resume."


class Bar(Protocol):
    """The part of a bar of tqdm that is used here, which each of its front ends has."""

    n: float

    def update(self, n: float = 1) -> object: ...
    def refresh(self) -> object: ...
    def set_description(self, desc: str, refresh: bool) -> object: ...
    def set_postfix_str(self, s: str, refresh: bool) -> object: ...


_BARS: list[Bar] = []
"""The visible bars, the innermost last."""
_quiet = contextvars.ContextVar("quiet", default=False)


class Interrupted(Exception):  # noqa: N818  (a wish of the user, no error)
    """The user asked to stop; every finished chunk is stored.

    The first argument describes how many runs are stored and where, the second how to resume.

    Attributes:
        number: number of the signal.

    Example:
        >>> issubclass(sweeps.Interrupted, KeyboardInterrupt)
        False
    """

    number = signal.SIGINT

    def __str__(self) -> str:
        return " ".join(self.args)


@contextlib.contextmanager
def quiet(wanted: bool = True) -> Iterator[None]:
    """Suppress progress output inside this context if `wanted`."""
    token = _quiet.set(wanted or _quiet.get())
    try:
        yield
    finally:
        _quiet.reset(token)


def say(line: str) -> None:
    """Print a line about the work to standard error."""
    if not _quiet.get():
        to_stderr(line)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class RunCounter:
    """Counts runs on a progress bar."""

    def __init__(self, bar: Bar, done: int) -> None:
        self._bar, self._done, self._diverged = bar, done, 0

    def computed(self, runs: int, compiling: str = "") -> None:
        """Count `runs` computed runs of a chunk that is not stored yet, and show what compiles."""
        postfix = filter(None, (f"diverged={self._diverged}", compiling))
        self._bar.set_postfix_str(", ".join(postfix), refresh=False)
        self._bar.update(self._done + runs - self._bar.n)

    def stored(self, runs: int, diverged: int) -> None:
        self._done += runs
        self._diverged += diverged
        self.computed(0)


@contextlib.contextmanager
def progress_bar(total: int, done: int) -> Iterator[RunCounter]:
    with _bar(total, done, "run") as bar:
        yield RunCounter(bar, done)


def track(
    items: Sequence[ItemT], unit: str = "step", name: Callable[[ItemT], str] = str
) -> Iterator[ItemT]:
    """Iterate over items, showing how many `unit`s are done and the `name` of the current one."""
    with _bar(len(items), 0, unit) as bar:
        for item in items:
            bar.set_postfix_str(printable(name(item)), refresh=_alive())
            yield item
            bar.update()


@contextlib.contextmanager
def _bar(total: int, done: int, unit: str) -> Iterator[Bar]:
    """Yield a bar that a thread refreshes, so that it moves during slow items."""
    interactive, off = _alive(), _quiet.get()
    draw = functools.partial(tqdm, total=total, initial=done, unit=unit, smoothing=0.1, disable=off)
    if interactive:
        # A bar moves the cursor, by codes that an escaped stream would print as text.
        bar = draw(file=sys.stderr.stream if isinstance(sys.stderr, Escaped) else sys.stderr)
    else:
        # Only the thread below prints, not tqdm itself, so that short work prints nothing.
        bar = draw(
            file=_Lines(sys.stderr),
            bar_format=LOG_FORMAT,
            mininterval=float("inf"),
            delay=1e-9,
            leave=False,
        )
    with bar:
        if off:
            yield bar
            return
        over = threading.Event()

        def refresh() -> None:
            while not over.wait(REFRESH_SECONDS[interactive]):
                bar.refresh()

        clock = threading.Thread(target=refresh, daemon=True, name="dynsim-progress")
        clock.start()
        _BARS.append(bar)
        try:
            yield bar
        finally:
            over.set()
            _BARS.remove(bar)
            clock.join()


def _alive() -> bool:
    """Return whether output is interactive: a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class _Lines:
    """A stream that prints each update of a progress bar on its own line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            self.stream.write(f"{line}\n")

    def flush(self) -> None:
        self.stream.flush()


@contextlib.contextmanager
def stoppable(stopped: Callable[[], Interrupted]) -> Iterator[Callable[[], None]]:
    """Turn the first signal of `stops` into the `Interrupted` that `stopped` returns, raised at the
    next call of the yielded function, so that a write in progress is finished. The second signal
    acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    received: list[int] = []
    handlers: dict[int, SignalHandler] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        # The user's handler is back, so that the next signal acts at once.
        signal.signal(number, handlers[number])

    def check() -> None:
        if received:
            stop = stopped()
            stop.number = signal.Signals(received[0])
            raise stop

    for number in stops():
        handlers[number] = signal.signal(number, handle)
    try:
        yield check
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def in_thread(block: Callable[[], object]) -> threading.Event:
    """Call `block` in a thread; the event is set when it returns or fails. Python handles no signal
    while the main thread is inside a compiled program, or waits for one without a timeout."""
    over = threading.Event()

    def call() -> None:
        with contextlib.suppress(Exception):
            block()
        over.set()

    # At exit, Python does not wait for a daemon.
    threading.Thread(target=call, daemon=True, name="dynsim-wait").start()
    return over


def wait(block: Callable[[], object], check: Callable[[], None], what: str = "") -> None:
    """Call `block` in a thread until it returns or fails, and call `check` meanwhile, which may
    raise to stop. Meanwhile the progress bar begins with `what`, the work it waits for."""
    over = in_thread(block)
    bars = _BARS[-1:] if what else []
    for bar in bars:
        bar.set_description(what, refresh=_alive())
    try:
        while not over.wait(POLL):
            check()
    finally:
        for bar in bars:
            bar.set_description("", refresh=False)
