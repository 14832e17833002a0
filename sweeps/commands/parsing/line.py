"""From a command line to the command that it asks for and its settings.

What computes is imported when somebody asks for it, so that help and mistakes cost nothing.
"""

import contextlib
import importlib.metadata
import itertools
import os
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sweeps import recipes
from sweeps.commands.parsing.metadata import RUN, Offer, language, offer
from sweeps.commands.table import COMMANDS, OF_PROBLEM, Command, Run, file_name, group
from sweeps.language.fields import (
    MISSING,
    Field,
    LanguageError,
    Table,
    allowed,
    check,
    closest,
    fold,
    is_branch,
    must_be,
)
from sweeps.language.pages import option_lines, settings_page
from sweeps.lines import assignments, to_stderr

HELP = ("-h", "--help")
USAGE = """usage: {prog} [-h] [--version] COMMAND [OPTIONS]

Train attention models, solve their theories, and compare both.

options:
  -h, --help  show this help message and exit
  --version   print the version and exit

commands (`{prog} COMMAND --help` lists the options of each):"""
Pairs = list[tuple[str, Any]]


class Asked(NamedTuple):
    """A command line that was understood.

    Attributes:
        name: of the command.
        settings: for it.
        run: what runs them.
        offer: what the command offers.
        own: its options that were given, in text form.
    """

    name: str
    settings: Any
    run: Run
    offer: Offer
    own: Mapping[str, Any]

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """A context in which figures have the style and the file format that were asked for, and no
        progress is printed where none is wanted.

        Raises:
            ValueError: where the file that is to be written is called after another format.
        """
        with contextlib.ExitStack() as stack:
            if self.offer.command.draws:
                from sweeps.output import drawing

                style, asked = self.own.get("style"), self.own.get("format")
                named = Path(self.settings.out).suffix[1:]
                if asked and named in drawing.FORMATS and named not in (asked, drawing.FORMATS[0]):
                    raise ValueError(
                        f"format = {asked!r}: out = {self.settings.out} is another one"
                    )
                stack.enter_context(drawing.style(style, asked))
            if self.own.get("quiet"):
                from sweeps.runner import progress

                stack.enter_context(progress.quiet())
            yield


def understood(words: Sequence[str]) -> Asked:
    """What the words behind `dynsim` ask for; `SystemExit` where that is help or a mistake, which
    is printed."""
    if not words or words[0].startswith("-"):
        _help(COMMANDS, "dynsim", words)
    try:
        name, problem, options = find(words)
        if name not in COMMANDS and group(name):
            _help(group(name), f"dynsim {name}", options)
        parts = [part for option in options for part in option.split("=", 1)]
        at = parts.index("--problem") + 1 if "--problem" in parts[:-1] else 0
        found = offer(name, parts[at] if at else problem)
        run: Pairs = [("problem", problem)] if problem else []
        if {*HELP} & {*options}:
            print(page(found, name, options, run))
            raise SystemExit(0)
        given = parse(found, name, options, run)
        if problem and found.recorded:
            # What was asked of another problem has a folder of its own.
            given.own.setdefault("out", str(Path("out") / file_name(f"{name} {problem}")))
        if found.command.reads == "file":
            file, overrides = str(given.own["file"]), typing.cast("list[str]", given.own.get("set"))
            if os.path.exists(file) or file in recipes.names():
                recipes.check(language(), file, overrides or ())
        settings, run_command = _made(found, given)
    except ValueError as error:
        to_stderr(f"dynsim: {error}")
        raise SystemExit(2) from None
    return Asked(f"{name} {problem}".strip(), settings, run_command, found, given.own)


def find(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """The name that `words` begin with, of a command or of a group of them; the word of a problem,
    where one is named; and the words left.

    Raises:
        ValueError: for a name that does not exist, with those that do.
    """
    firsts = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    first, left = _choose("command", words[0], firsts, near=COMMANDS), list(words[1:])
    members, named = group(first), bool(left) and left[0][:1] not in ("", "-")
    if named and members:
        return f"{first} {_choose(first, left[0], members)}", "", left[1:]
    if named and first in OF_PROBLEM:
        return first, left[0], left[1:]
    return first, "", left


def _choose(what: str, given: str, names: Collection[str], near: Collection[str] = ()) -> str:
    word = given.replace("-", "_")
    if word not in names:
        reason = must_be(given, near or names, ", ".join(names))
        raise ValueError(f"{what} {given!r}: {reason}")
    return word


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
    unknown = [option for option in options if option not in (*HELP, "--version")]
    if unknown and not {*HELP} & {*options}:
        to_stderr(f"{prog}: has no option {unknown[0]}; its options are --help, --version")
        raise SystemExit(2)
    if "--version" in options and not {*HELP} & {*options}:
        print(f"dynsim {importlib.metadata.version('dynsim')}")
    else:
        width = max(map(len, commands))
        lines = [f"  {name:<{width}}  {command.help}" for name, command in commands.items()]
        print("\n".join([USAGE.format(prog=prog), *lines]))
    raise SystemExit(0 if options else 2)


class Given(NamedTuple):
    """What words ask for.

    Attributes:
        own: options of the command by name, in text form.
        run: settings of the run by name, as they were given.
    """

    own: Table
    run: Pairs


def parse(offer: Offer, name: str, words: Sequence[str], run: Pairs) -> Given:
    """What the words behind a command ask for.

    Args:
        offer: of the command.
        name: of the command, for messages.
        words: behind it.
        run: settings of the run that are given already.

    Raises:
        ValueError: for an option or a setting that there is not, with the one that is meant, or a
            value that it does not take.
    """
    own, given = read(offer, name, words, run)
    checked = {n: check(offer.options[n], _typed(offer.options[n], v), n) for n, v in own.items()}
    for option, field in offer.options.items():
        if field.required and option not in checked:
            raise ValueError(f"{name}: needs {option} ({field.doc})")
    return Given(checked, given if offer.run is None else _run(offer, given))


def read(offer: Offer, name: str, words: Sequence[str], run: Pairs) -> Given:
    """What `parse` returns, before values are checked; `ValueError` for what is no option."""
    own, given, places = dict[str, Any](), list(run), list(offer.positional)
    left, options = list(words), {fold(each): each for each in offer.options}
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            if not places:
                raise ValueError(f"{name}: {word!r} is no option; options begin with --")
            listed = offer.options[places[0]].listed
            own[places[0]] = [*own.get(places[0], []), word] if listed else word
            places = places if listed else places[1:]
            continue
        option, equals, value = word[2:].partition("=")
        if not option:
            raise ValueError(f"{name}: {word!r} has no name of an option")
        found = options.get(fold(option))
        negated = options.get(fold(option.removeprefix("no-")), "")
        if not found and negated and _is_switch(offer.options[negated]):
            own[negated] = "false"
            continue
        field = offer.options[found] if found else Field()
        most = len(left) if field.listed else 1
        if _is_switch(field) and left[:1] not in (["true"], ["false"]):
            most = 0
        values = [value]
        if not equals:
            values = list(itertools.takewhile(lambda each: not each.startswith("--"), left[:most]))
            del left[: len(values)]
        if found and not values and not _is_switch(field):
            many = "at least one value, each" if field.listed else "a value,"
            raise ValueError(f"{name}: option --{option} needs {many} {allowed(field.one)}")
        if found in own:
            raise ValueError(f"{name}: option --{option} is given twice")
        if found:
            own[found] = values if field.listed else (values or ["true"])[0]
        elif offer.run is not None:
            given.append((option, _value(values[0]) if values else MISSING))
        else:
            known = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(offer.options))
            hint = closest(option, offer.options) or f"its options are {known}"
            raise ValueError(f"{name}: has no option --{option}; {hint}")
    return Given(own, given)


def _is_switch(field: Field) -> bool:
    return "boolean" in field.types


def _typed(field: Field, value: Any) -> Any:
    """A value as the field of an option takes it: text stays text where that is allowed."""
    if isinstance(value, list):
        return [_typed(field.one, each) for each in value]
    return value if "text" in field.types and value != "none" else _value(value)


def _value(text: str) -> Any:
    """A value of a setting as TOML has it, or else the text."""
    try:
        return assignments(f"value={text}")["value"]
    except ValueError:
        return text


def _run(offer: Offer, given: Pairs) -> Pairs:
    """The settings of the run, with switches turned on; `ValueError` for what a run does not have,
    before anything is imported."""
    try:
        table = chosen(offer, [pair for pair in given if pair[1] is not MISSING])
    except LanguageError as error:
        near = closest(error.path, offer.options)
        if near and "is not a setting; there are" in error.reason:
            raise ValueError(f"{error.path}: is not an option; {near}") from None
        raise
    for option in [option for option, value in given if value is MISSING]:
        field = language().resolve(table, option).field
        if not _is_switch(field):
            needed = allowed(field, language().words(field))
            raise ValueError(f"option --{option} needs a value, {needed}")
    found = [(option, True if value is MISSING else value) for option, value in given]
    language().finished(chosen(offer, found))
    return found


def chosen(offer: Offer, given: Pairs) -> Table:
    """The settings of the run: those given, and the others of the command."""
    words = language()
    table = words.assign({}, [pair for pair in given if pair[0] == "problem"])
    usual = words.assign({}, (offer.run or {}).items())
    # What is usual for the problem of the command says nothing of another one.
    other = table and _problem(table) != _problem(usual)
    return words.assign(table if other else usual, [p for p in given if p[0] != "problem"])


def _problem(table: Table) -> str:
    value = language().resolve(table, "problem").value
    return value["kind"] if is_branch(value) else ""


def _made(offer: Offer, given: Given) -> tuple[Any, Run]:
    """The settings of a command as its class has them, and what runs them."""
    from dynsim.decoding import parts_of
    from sweeps.language.tree import build, value_of
    from sweeps.systems import kinds

    cls, run = offer.command.load()
    hints = typing.get_type_hints(cls, include_extras=True)
    own = {n: v for n, v in given.own.items() if n in offer.kind.fields}
    settings = {n: value_of(offer.kind.fields[n], value, n) for n, value in own.items()}
    for name, value in settings.items():
        if isinstance(value, str) and Path in parts_of(hints[name]):
            settings[name] = Path(value)
    if offer.run is not None:
        settings[RUN] = build(kinds.language(), chosen(offer, given.run))
    return cls(**settings), run


def page(offer: Offer, name: str, words: Sequence[str], run: Pairs) -> str:
    """The help of a command. Settings are those of the kinds that the other words choose."""
    words = [word for word in words if word not in HELP]
    given = [pair for pair in read(offer, name, words, run).run if pair[1] is not MISSING]
    places = "".join(f" {each.upper()}" for each in offer.positional)
    lines = [f"usage: dynsim {name}{places} [OPTIONS]", "", offer.kind.about or offer.command.help]
    lines += ["", "Options.", *option_lines(offer.options)]
    if offer.run is not None:
        lines += ["", settings_page(language(), chosen(offer, given))]
    return "\n".join(lines)
