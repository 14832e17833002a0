"""What a person at the terminal sees of a running sweep, and how they stop it."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from tqdm import tqdm

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Interrupted(Exception):  # noqa: N818  (a wish of the user, no error)
    """The user asked to stop; every chunk that was finished is stored."""


@contextlib.contextmanager
def shown(total: int, done: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar over `total` runs, `done` of which are there at the beginning.

    Yields:
        a function to call with the numbers of runs and of diverged runs in each finished chunk.
    """
    diverged = 0
    with tqdm(
        total=total,
        initial=done,
        unit="run",
        smoothing=0.1,
        disable=None,
        file=sys.stderr,
    ) as bar:

        def advance(runs: int, bad: int) -> None:
            nonlocal diverged
            diverged += bad
            bar.set_postfix(diverged=diverged, refresh=False)
            bar.update(runs)

        yield advance


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Turn the first Ctrl-C or SIGTERM into an `Interrupted` at the next call of what this
    yields, so that a write in flight is finished; the second one acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked = threading.Event()
    before: dict[int, Handler] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        asked.set()
        signal.signal(number, before[number])

    def check() -> None:
        if asked.is_set():
            raise Interrupted

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
