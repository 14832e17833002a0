"""The command `dynsim`: theory and simulation of attention's training dynamics.

Commands are listed in `sweeps.commands.table`. Modules that compute are imported on demand, so that
help is fast.
"""

import _thread
import contextlib
import gc
import importlib.metadata
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NoReturn

import sweeps
from sweeps.commands.line import parse_command
from sweeps.lines import Escaped, explained, stops, to_stderr

BEGAN = time.time()
"""Time at which this process started to import modules."""


def parse(arguments: Sequence[str] | None = None) -> Any:
    """Return the settings of a command line; raises `SystemExit` if it requests none."""
    words = sys.argv[1:] if arguments is None else arguments
    return parse_command(words, check_paths=False).settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it. Returns 0, 2 for invalid input, 1 if chunks failed, 130
    after Ctrl-C, 143 after SIGTERM, or 129 after SIGHUP."""
    if "Sweep" not in getattr(sweeps, "__all__", ()):
        # A package `sweeps` of another distribution comes first on the import path.
        to_stderr(
            "dynsim: the package sweeps is not dynsim's: W&B's distribution `sweeps` has the same "
            "name. Run `pip uninstall sweeps`, then install dynsim again"
        )
        return 2
    set_environment()
    for name in ("stdout", "stderr"):
        # It is None if the caller has closed it.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (as long as the process)
    # Names and titles that a command prints, and those in warnings, may come from files of others.
    out: Any = Escaped(sys.stdout)
    err: Any = Escaped(sys.stderr)
    if arguments is None:
        sys.excepthook = lambda *error: to_stderr("".join(traceback.format_exception(*error)))
    try:
        try:
            with _stoppable(), redirect_stdout(out), redirect_stderr(err):
                code = _run(arguments)
        finally:
            # Flush here, including help: errors at interpreter exit cannot be caught.
            sys.stdout.flush()
    except KeyboardInterrupt as stop:
        number = stop.args[0] if isinstance(stop, _Stopped) else signal.SIGINT
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        to_stderr(f"dynsim: stopped by {name}")
        code = 128 + number
    except OSError as error:
        # Discard the remaining output, also at interpreter exit: nobody reads it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        to_stderr(f"dynsim: {explained(error)}")
        return 2
    if code > 128 and arguments is None:
        # Do not wait for compilers and devices: some builds crash if Python exits meanwhile.
        os._exit(code)
    return code


def set_environment() -> None:
    """Set environment variables that libraries read when they are imported."""
    os.environ["MPLBACKEND"] = "Agg"
    # Solvers of Equinox report invalid arguments by a host callback by default, which programs for
    # accelerators must not contain. With "nan" they report them in the result.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    # Level of C++ log output, see `sweeps.output.programs`.
    if importlib.metadata.version("jax").startswith(("0.10.", "0.11.")):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class _Stopped(KeyboardInterrupt):
    """Raised for a signal, whose number is its argument."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP end the command with a message, like Ctrl-C. It also
    works if the signal arrives in a callback of Python's garbage collector, such as that of JAX,
    whose exceptions Python would only print."""

    def end(number: int, frame: object) -> NoReturn:
        raise _Stopped(signal.Signals(number))

    def again(lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            hook(lost)
            return
        number = lost.exc_value.args[0] if isinstance(lost.exc_value, _Stopped) else signal.SIGINT
        # Sent again after the callback has ended. On Windows, signals do not interrupt waiting.
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


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if not {"", os.getcwd()} & {*sys.path}:
        # Allows imports of users' modules from the current folder. Last, so as to shadow nothing.
        sys.path.append(os.getcwd())
    # Garbage collection would scan all imported modules again and again, which takes a quarter of
    # the time of a short command. In a caller's process it is left alone.
    if arguments is None:
        gc.disable()
    command = parse_command(words)
    if arguments is None:
        gc.freeze()
        gc.enable()
    from dynsim import checks
    from sweeps.commands.record import Record
    from sweeps.output import programs

    began = time.monotonic()
    try:
        recorded = command.options.recorded
        record = Record.of(command.name, command.settings) if recorded else None
        if record and not command.table.get("overwrite"):
            record.check()
        with programs.keeping_traced(BEGAN), command.context(), checks.callbacks_of_user():
            paths = command.run(command.settings)
        if record:
            record.write(time.monotonic() - began)
    except BrokenPipeError:
        raise
    except (ValueError, FloatingPointError) as error:
        to_stderr(f"dynsim: {error}")
        return 2
    except OSError as error:
        to_stderr(f"dynsim: {explained(error)}")
        return 2
    except SystemExit as error:
        # SystemExit in third-party code would end the command silently.
        to_stderr(f"dynsim: code from outside dynsim asked to end the program ({error!r})")
        return 2
    except sweeps.Interrupted as stop:
        to_stderr(f"dynsim: {stop.args[0]} Run the same command again to resume.")
        return 128 + stop.number
    except sweeps.ChunksFailed as error:
        to_stderr(f"dynsim: {error}")
        return 1
    except RuntimeError as error:
        # JAX raises a plain RuntimeError for this.
        if not str(error).startswith("Unable to initialize backend"):
            raise
        to_stderr(f"dynsim: JAX cannot use the devices that its environment names: {error}")
        return 2
    if paths:
        print("\nwrote " + ", ".join(map(str, paths)))
    return 0
