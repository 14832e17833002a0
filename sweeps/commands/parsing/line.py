"""From a command line to the command that it asks for and its settings.

What computes is imported when somebody asks for it, so that help and mistakes cost nothing.
"""

import argparse
import contextlib
import importlib.metadata
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sweeps import recipes
from sweeps.commands.parsing import words as parsing
from sweeps.commands.parsing.metadata import offer
from sweeps.commands.table import COMMANDS, OF_PROBLEM, Command, Run, file_name, group
from sweeps.language.fields import closest
from sweeps.lines import to_stderr


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


def understood(words: Sequence[str]) -> Asked:
    """What the words behind `dynsim` ask for; `SystemExit` where that is help or a mistake, which
    is printed."""
    if not words or words[0].startswith("-"):
        _help(COMMANDS, "dynsim", words)
    try:
        name, problem, options = find(words)
        if name not in COMMANDS and group(name):
            _help(group(name), f"dynsim {name}", options)
        run: parsing.Pairs = [("problem", problem)] if problem else []
        parts = [part for option in options for part in option.split("=", 1)]
        at = parts.index("--problem") + 1 if "--problem" in parts[:-1] else 0
        found = offer(name, parts[at] if at else problem)
        if {*parsing.HELP} & {*options}:
            print(parsing.page(found, name, run))
            raise SystemExit(0)
        given = parsing.parse(found, name, options, run)
        if problem and found.recorded:
            # What was asked of another problem has a folder of its own.
            given.own.setdefault("out", str(Path("out") / file_name(f"{name} {problem}")))
        settings = parsing.made(found, given)
    except ValueError as error:
        to_stderr(f"dynsim: {error}")
        raise SystemExit(2) from None
    own, command = given.own, found.command
    pictures = {"name": own.get("style"), "kind": own.get("format")} if command.draws else None
    flags = {flag: bool(own.get(flag, False)) for flag in ("overwrite", "quiet")}
    return Asked(
        f"{name} {problem}".strip(),
        settings,
        found.load()[1],
        found.recorded,
        **flags,
        pictures=pictures,
    )


def find(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """The name that `words` begin with, of a command or of a group of them; the word of a problem,
    where one is named; and the words left.

    Raises:
        ValueError: for a name that does not exist, with those that do.
    """
    firsts = dict.fromkeys(name.split()[0] for name in COMMANDS)
    first = _choose("command", words[0], firsts, near=COMMANDS)
    members, second = group(first), words[1] if words[1:] else ""
    if not second or second.startswith("-") or not (members or first in OF_PROBLEM):
        return first, "", list(words[1:])
    if members:
        return f"{first} {_choose(first, second, members)}", "", list(words[2:])
    return first, second, list(words[2:])


def check_place(words: Sequence[str]) -> None:
    """End a command that is to read a folder or a sweep file that is not there, before what reads
    it is imported, which takes seconds."""
    what = COMMANDS[words[0]].reads if len(words) > 1 and words[0] in COMMANDS else ""
    place = words[1] if what else ""
    if not what or place.startswith("-") or "://" in place or os.path.lexists(place):
        return
    if what == "file" and place in recipes.names():
        return
    told = recipes.missing(place) if what == "file" else f"{place}: no such sweep"
    to_stderr(f"dynsim: {told}")
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
        to_stderr(f"{prog}: has no option {unknown[0]}; its options are --help, --version")
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
    meant = closest(word, list(near) or allowed)
    meant = f"{meant} It " if meant else ""
    raise ValueError(f"{what} {given!r}: {meant}must be {', '.join(allowed)}")
