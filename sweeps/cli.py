"""The command `dynsim`: theory and simulation of attention's training dynamics.

Commands are those of `sweeps.commands.table`, and those of systems. What computes is imported when
somebody asks for it, so that help costs nothing.
"""

import _thread
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
from sweeps.commands.environment import reason
from sweeps.commands.line import understood
from sweeps.lines import printable, stops, to_stderr

BEGAN = time.time()
"""When this process began to import modules."""


def parse(arguments: Sequence[str] | None = None) -> Any:
    """The settings that a command line asks for; `SystemExit` where it asks for none."""
    return understood(sys.argv[1:] if arguments is None else arguments, places=False).settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it. Returns 0, 2 when the input is bad, 1 when chunks
    failed, 130 after Ctrl-C, 143 after SIGTERM, or 129 after SIGHUP."""
    if "Sweep" not in getattr(sweeps, "__all__", ()):
        # This file was found, and the package's first one is of another distribution.
        to_stderr(
            "dynsim: the package sweeps is not dynsim's: W&B's distribution `sweeps` has the same "
            "name. Run `pip uninstall sweeps`, then install dynsim again"
        )
        return 2
    tell()
    for name in ("stdout", "stderr"):
        # None where the caller has closed it.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (as long as the process)
    try:
        try:
            with _stoppable():
                return _main(arguments)
        finally:
            # What is left goes now, help as well: when Python ends, nobody can catch an error.
            sys.stdout.flush()
    except KeyboardInterrupt as stop:
        number = stop.args[0] if isinstance(stop, _Stopped) else signal.SIGINT
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        to_stderr(f"dynsim: stopped by {name}")
        if arguments is None:
            # Threads that compile are not waited for: some builds crash when Python ends meanwhile.
            os._exit(128 + number)
        return 128 + number
    except BrokenPipeError:
        _let_go()
        return 141
    except OSError as error:
        _let_go()
        to_stderr(f"dynsim: the output could not be written: {error}")
        return 2


def _let_go() -> None:
    """What is left of the output goes nowhere, when Python ends as well: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell() -> None:
    """Tell libraries by the environment what they read when they are imported."""
    os.environ["MPLBACKEND"] = "Agg"
    # How solvers of Equinox say that an argument is bad: by calling the host, which does not belong
    # into programs for accelerators, unless it is told to say it in the result.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    # How much C++ says, see `sweeps.output.programs`.
    if importlib.metadata.version("jax").startswith(("0.10.", "0.11.")):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class _Stopped(KeyboardInterrupt):
    """The wish of who sends a signal, which is its argument."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP end the command with a word, as Ctrl-C does, whatever
    Python does when they come: what a callback of its garbage collector raises, such as that of
    JAX, Python only prints."""

    def end(number: int, frame: object) -> NoReturn:
        raise _Stopped(signal.Signals(number))

    def again(lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            hook(lost)
            return
        number = lost.exc_value.args[0] if isinstance(lost.exc_value, _Stopped) else signal.SIGINT
        # Once the callback has ended. Windows has no signals that end waiting.
        send = getattr(signal, "pthread_kill", lambda _, number: _thread.interrupt_main(number))
        timer = threading.Timer(0.01, send, [threading.main_thread().ident, number])
        timer.daemon = True
        timer.start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in stops() if number != signal.SIGINT}
    hook, sys.unraisablehook = sys.unraisablehook, again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


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
        with programs.keeping_traced(BEGAN), asked.context():
            paths = asked.run(asked.settings)
        if record:
            record.write(time.monotonic() - began)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        to_stderr(f"dynsim: {reason(error)}")
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
    except RuntimeError as error:
        # JAX has no class of its own for it.
        if not str(error).startswith("Unable to initialize backend"):
            raise
        to_stderr(f"dynsim: JAX cannot use the devices that its environment names: {error}")
        return 2
    if paths:
        print("\nwrote " + printable(", ".join(map(str, paths))))
    return 0
