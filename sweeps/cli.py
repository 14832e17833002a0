"""The command `dynsim`: theory and simulation of attention's training dynamics.

Commands are those of `sweeps.commands.table`, and those of systems. What computes is imported when
somebody asks for it, so that help costs nothing.
"""

import contextlib
import importlib.metadata
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import sweeps
from sweeps.commands.parsing.line import understood
from sweeps.lines import printable, to_stderr


def parse(arguments: Sequence[str] | None = None) -> Any:
    """The settings that a command line asks for; `SystemExit` where it asks for none."""
    return understood(sys.argv[1:] if arguments is None else arguments, places=False).settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it. Returns 0, 2 when the input is bad, 1 when chunks
    failed, 130 after Ctrl-C, or 143 after SIGTERM."""
    tell()
    for name in ("stdout", "stderr"):
        # None where the caller has closed it.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (as long as the process)
    try:
        try:
            with _terminable():
                return _main(arguments)
        finally:
            # What is left goes now, help as well: when Python ends, nobody can catch an error.
            sys.stdout.flush()
    except KeyboardInterrupt as stop:
        by, code = ("SIGTERM", 143) if isinstance(stop, _Terminated) else ("Ctrl-C", 130)
        print(f"dynsim: stopped by {by}", file=sys.stderr, flush=True)
        if arguments is None:
            # Threads that compile are not waited for: some builds crash when Python ends meanwhile.
            os._exit(code)
        return code
    except BrokenPipeError:
        # Who read the output has gone. What is left of it goes nowhere, when Python ends as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def tell() -> None:
    """Tell libraries by the environment what they read when they are imported."""
    os.environ["MPLBACKEND"] = "Agg"
    # How solvers of Equinox say that an argument is bad: by calling the host, which does not belong
    # into programs for accelerators, unless it is told to say it in the result.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    # How much C++ says, see `sweeps.output.programs`.
    if importlib.metadata.version("jax").startswith(("0.10.", "0.11.")):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class _Terminated(KeyboardInterrupt):
    """The wish of who sends a SIGTERM."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A context in which SIGTERM ends the command with a word, as Ctrl-C does."""

    def end(number: int, frame: object) -> NoReturn:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _main(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if not {"", os.getcwd()} & {*sys.path}:
        # Modules of users may lie in the current folder. Last, so that they hide no others.
        sys.path.append(os.getcwd())
    asked = understood(words)
    from sweeps.commands.record import Record
    from sweeps.output import programs

    began = time.monotonic()
    try:
        record = Record.of(asked.name, asked.settings) if asked.offer.recorded else None
        if record and not asked.given.get("overwrite"):
            record.check()
        programs.keep()
        with asked.context():
            paths = asked.run(asked.settings)
        if record:
            record.write(time.monotonic() - began)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        to_stderr(f"dynsim: {error}")
        return 2
    except SystemExit as error:
        # Of somebody else's code that was imported or called: it would end without a word.
        to_stderr(f"dynsim: code from outside dynsim asked to end the program ({error!r})")
        return 2
    except sweeps.Interrupted as stop:
        to_stderr(f"dynsim: {stop.args[0]} Run the same command again to resume.")
        return 128 + stop.number
    except sweeps.ChunksFailed as error:
        to_stderr(f"dynsim: {error}")
        return 1
    if paths:
        print("\nwrote " + printable(", ".join(map(str, paths))))
    return 0
