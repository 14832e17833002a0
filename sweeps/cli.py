"""The command `dynsim`: theory and simulation of attention's training dynamics.

Commands are those of `sweeps.commands.table`, and those of systems. What computes is imported when
somebody asks for it, so that help costs nothing.
"""

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import sweeps
from sweeps import recipes
from sweeps.commands.parsing.offers import offered
from sweeps.commands.parsing.options import hint, known
from sweeps.commands.table import COMMANDS, FOR_SYSTEMS, Command, Run, group
from sweeps.systems.built_in import names


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """The name that `words` begin with, of a command or of a group of them, and the words left.

    Raises:
        ValueError: for a name that does not exist, with those that do.
    """
    firsts = dict.fromkeys(name.split()[0] for name in COMMANDS)
    first = _choose("command", words[0], firsts, near=COMMANDS)
    members = group(first)
    takes_another = bool(members) or first in FOR_SYSTEMS
    if not takes_another or not words[1:] or words[1].startswith("-"):
        return _for_task(first, words[1:]), list(words[1:])
    # PACKAGE.MODULE:NAME is a problem of the user's own.
    own = first in FOR_SYSTEMS and ":" in words[1]
    second = words[1] if own else _choose(first, words[1], members or names())
    return f"{first} {second}", list(words[2:])


def _for_task(first: str, options: Sequence[str]) -> str:
    """The name of the command `first` for the system whose task the options name."""
    parts = [part for option in options for part in option.split("=", 1)]
    if first not in FOR_SYSTEMS or "--task" not in parts[:-1]:
        return first
    from sweeps.systems import registry

    system = registry.system_for(parts[parts.index("--task") + 1])
    # The command by itself is that of the layer in Y and Z, which takes files as tasks as well.
    return first if system is registry.system("yz") else f"{first} {system.name}"


def parse(arguments: Sequence[str] | None = None) -> Any:
    """The settings that a command line asks for; `SystemExit` where it asks for none."""
    return _parse(arguments).settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it. Returns 0, 2 when the input is bad, 1 when chunks
    failed, 130 after Ctrl-C, or 143 after SIGTERM."""
    tell()
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
    _check_place(sys.argv[1:] if arguments is None else arguments)
    asked = _parse(arguments)
    from dynsim import decoding
    from dynsim.decoding import printable
    from sweeps.commands.record import Record
    from sweeps.output import programs

    def say(text: str) -> None:
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)

    began = time.monotonic()
    try:
        decoding.check(asked.settings)
        record = Record.of(asked.name, asked.settings) if asked.recorded else None
        if record and not asked.overwrite:
            record.check()
        programs.keep()
        with asked.drawing(), asked.talking():
            paths = asked.run(asked.settings)
        if record:
            record.write(time.monotonic() - began)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        say(f"dynsim: {error}")
        return 2
    except SystemExit as error:
        # Of somebody else's code that was imported or called: it would end without a word.
        say(f"dynsim: code from outside dynsim asked to end the program ({error!r})")
        return 2
    except sweeps.Interrupted:
        return 130
    except sweeps.ChunksFailed as error:
        say(f"dynsim: {error}")
        return 1
    if paths:
        print("\nwrote " + printable(", ".join(map(str, paths))))
    return 0


class Asked(NamedTuple):
    """A command line that was understood.

    Attributes:
        name: of the command.
        settings: for it.
        run: what runs them.
        recorded: whether a record of them is kept beside what it writes.
        overwrite: whether results of other settings may be written over.
        pictures: options of `sweeps.output.drawing.style`, None for a command that draws nothing.
        quiet: whether to suppress progress output.
    """

    name: str
    settings: Any
    run: Run
    recorded: bool
    overwrite: bool
    pictures: Mapping[str, Any] | None
    quiet: bool

    def talking(self) -> contextlib.AbstractContextManager[None]:
        """A context in which progress is printed, unless the command is to be quiet."""
        if not self.quiet:
            return contextlib.nullcontext()
        from sweeps.runner import progress

        return progress.quiet()

    def drawing(self) -> contextlib.AbstractContextManager[None]:
        """A context in which figures have the style and the file format that were asked for.

        Raises:
            ValueError: where the file that is to be written is called after another format.
        """
        if self.pictures is None:
            return contextlib.nullcontext()
        from sweeps.output import drawing

        asked, named = self.pictures["kind"], Path(self.settings.out).suffix[1:]
        if asked and named in drawing.FORMATS and named not in (asked, drawing.FORMATS[0]):
            raise ValueError(f"format = {asked!r}: out = {self.settings.out} is another one")
        return drawing.style(**self.pictures)


def _parse(arguments: Sequence[str] | None) -> Asked:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0].startswith("-"):
        _help(COMMANDS, "dynsim", words)
    try:
        name, options = find(words)
    except ValueError as error:
        print(f"dynsim: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if name not in COMMANDS and group(name):
        _help(group(name), f"dynsim {name}", options)
    try:
        if at_once := known(name):
            at_once.check(name, options)
        offer = offered(name)
        from sweeps.commands.parsing import words as parsing

        found: Any = parsing.parse(offer.options, options, f"dynsim {name}")
    except ValueError as error:
        print(f"dynsim: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    settings = offer.settings
    given = {field.name: getattr(found, field.name) for field in dataclasses.fields(settings)}
    command, recorded = offer.command, offer.recorded
    pictures = {"name": found.style, "kind": found.format} if command.draws else None
    overwrite, quiet = recorded and found.overwrite, command.talks and found.quiet
    return Asked(name, settings(**given), offer.run, recorded, overwrite, pictures, quiet)


def _check_place(words: Sequence[str]) -> None:
    """End a command that is to read a folder or a sweep file that is not there, before what reads
    it is imported, which takes seconds."""
    what = COMMANDS[words[0]].reads if len(words) > 1 and words[0] in COMMANDS else ""
    place = words[1] if what else ""
    if not what or place.startswith("-") or "://" in place or os.path.lexists(place):
        return
    if what == "file" and place in recipes.names():
        return
    told = recipes.missing(place) if what == "file" else f"{place}: no such sweep"
    print(f"dynsim: {told}", file=sys.stderr)
    raise SystemExit(2)


def _help(commands: Mapping[str, Command], prog: str, options: Sequence[str]) -> NoReturn:
    """Do what options without a command ask for; without any, help is printed as well."""
    width = max(map(len, commands))
    lines = [f"commands (`{prog} COMMAND --help` lists the options of each):"]
    lines += [f"  {name:<{width}}  {command.help}" for name, command in commands.items()]
    parser = argparse.ArgumentParser(
        prog,
        usage=f"{prog} [-h] [--version] COMMAND [OPTIONS]",
        description="Train attention models, solve their theories, and compare both.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    given, unknown = parser.parse_known_args(options)
    if unknown:
        print(
            f"{prog}: has no option {unknown[0]}; its options are --help, --version",
            file=sys.stderr,
        )
        parser.exit(2)
    if given.version:
        print(f"dynsim {importlib.metadata.version('dynsim')}")
        parser.exit()
    parser.print_help()
    parser.exit(2)


def _choose(what: str, given: str, allowed: Iterable[str], near: Iterable[str] = ()) -> str:
    word, allowed = given.replace("-", "_"), list(allowed)
    if word in allowed:
        return word
    meant = hint(word, list(near) or allowed)
    raise ValueError(f"{what} {given!r}: {meant}must be {', '.join(allowed)}")
