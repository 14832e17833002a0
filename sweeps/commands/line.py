"""Parses a command line into a command and its settings.

Modules that compute are imported on demand, so that help and errors are fast.
"""

import contextlib
import importlib.metadata
import itertools
import os
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sweeps.commands.table import (
    COMMANDS,
    OF_PROBLEM,
    RUN,
    Offer,
    Run,
    file_name,
    group,
    summary,
)
from sweeps.language.fields import MISSING, Field, LanguageError, Table, allowed, fold, must_be
from sweeps.language.grammar import Pairs
from sweeps.lines import assignments, to_stderr
from sweeps.systems import kinds

HELP = ("-h", "--help")
ALL = "all"
"""The word after --help for all options."""
AT_ONCE = ("compare", "explain", "phase")
"""Commands that say what they do before they import JAX: they compile for seconds before they have
progress to show."""
NAMES = {
    "theories": ("best",),
    "Compare.theories": ("best", "all"),
    "theory": (),
    "Optimum.theory": ("auto", "best", "none"),
    "against": ("auto", "best", "none"),
    "observable": (),
}
"""Options that name theories or observables of the problem, of any command or of one class, and the
other words that they accept."""
NEEDS = {
    "Explore": {
        "port": "serve",
        "out": "no-serve",
        "overwrite": "no-serve",
        "max_megabytes": "no-serve",
        "observables": "paths",
        "times": "paths",
        "where": "paths",
    },
    "Plot": {"y": "view heatmap", "hue": "view lines"},
    "SweepCommand": {"patience": "coordinator|distributed", "coordinator": "processes|distributed"},
    "Phase": {"probes": "refine", "tolerance": "refine", "max_seeds": "band"},
}
"""Options, by class of the command, that have no effect unless another one is given, one of several
is given, or one is omitted."""
NUMBERED = re.compile(r"sharpness_\d+")
"""Names of individual sharpness eigenvalues."""
FINITE = "-finite-t"
"""Suffix of the names of finite-T theories."""
USAGE = """usage: {prog} [-h] [--version] COMMAND [OPTIONS]

Train attention models, solve their theories, and compare both.

options:
  -h, --help  show this help message and exit
  --version   print the version and exit

commands (`{prog} COMMAND --help` lists the options of each):"""


class Asked(NamedTuple):
    """A parsed command line.

    Attributes:
        name: name of the command.
        settings: settings of the command.
        run: function that runs them.
        offer: the options of the command.
        given: the options and run settings that were given, in text form.
    """

    name: str
    settings: Any
    run: Run
    offer: Offer
    given: Mapping[str, Any]

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Context in which figures have the requested style and format, and progress is printed
        unless it is suppressed.

        Raises:
            ValueError: if the suffix of the output file contradicts the requested format.
        """
        with contextlib.ExitStack() as stack:
            if self.offer.command.draws:
                from sweeps.output import drawing

                style, asked = self.given.get("style"), self.given.get("format")
                named = Path(self.settings.out).suffix[1:]
                if asked and named in drawing.FORMATS and named not in (asked, drawing.FORMATS[0]):
                    raise ValueError(
                        f"format = {asked!r}: out = {self.settings.out} has another suffix"
                    )
                stack.enter_context(drawing.style(style, asked))
            if self.given.get("quiet"):
                from sweeps.runner import progress

                stack.enter_context(progress.quiet())
            yield


def understood(words: Sequence[str], places: bool = True) -> Asked:
    """Parse the words after `dynsim`. Raises `SystemExit` after printing help or an error. `places`
    also checks that the sweep or file to read exists."""
    if not words or words[0].startswith("-"):
        _help(COMMANDS, "", words)
    try:
        name, problem, options = find(words)
        if name not in COMMANDS and group(name):
            _help([each for each in COMMANDS if each.startswith(f"{name} ")], name, options)
        parts = [part for option in options for part in option.split("=", 1)]
        at = parts.index("--problem") + 1 if "--problem" in parts[:-1] else 0
        offer = Offer.of(name, parts[at] if at else problem)
        run = [("problem", problem)] if problem else []
        if {*HELP} & {*options}:
            print(page(offer, name, options, run))
            raise SystemExit(0)
        given = parse(offer, options, run)
        if problem and offer.recorded:
            # Results for another problem get a folder of their own.
            given.setdefault("out", str(Path("out") / file_name(f"{name} {problem}")))
        if places:
            _check_places(offer, given)
        if places and name in AT_ONCE and not given.get("quiet"):
            # Printed first, as the imports of a command take seconds.
            to_stderr(f"{name}: {summary(name)}")
        settings, run_command = _made(offer, given)
    except ValueError as error:
        to_stderr(f"dynsim: {error}")
        raise SystemExit(2) from None
    return Asked(f"{name} {problem}".strip(), settings, run_command, offer, given)


def find(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the name of the command or group that `words` begin with, the word of a problem if one
    is given, and the remaining words.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """
    firsts, left = list(dict.fromkeys(name.split()[0] for name in COMMANDS)), list(words)
    name = _choose("command", left.pop(0), firsts, near=COMMANDS)
    if group(name) and _begins(left):
        name = f"{name} {_choose(name, left.pop(0), group(name))}"
    problem = left.pop(0) if name in OF_PROBLEM and _begins(left) else ""
    return name, problem, left


def _begins(words: Sequence[str]) -> bool:
    """Return whether the next word is not an option."""
    return bool(words) and words[0][:1] not in ("", "-")


def _choose(what: str, given: str, names: Collection[str], near: Collection[str] = ()) -> str:
    word = given.replace("-", "_")
    if word not in names:
        reason = must_be(given, near or names, ", ".join(names))
        raise ValueError(f"{what} {given!r}: {reason}")
    return word


def _help(names: Collection[str], first: str, options: Sequence[str]) -> NoReturn:
    """Handle options without a command; without any, print help."""
    prog = f"dynsim {first}".strip()
    unknown = [option for option in options if option not in (*HELP, "--version")]
    helped = not options or {*HELP} & {*options}
    if unknown and not helped:
        to_stderr(f"{prog}: has no option {unknown[0]}; its options are --help, --version")
        raise SystemExit(2)
    if helped:
        shown = {n: n.removeprefix(f"{first} ") + " [PROBLEM]" * (n in OF_PROBLEM) for n in names}
        width = max(map(len, shown.values()))
        lines = [f"  {each:<{width}}  {summary(name)}" for name, each in shown.items()]
        print("\n".join([USAGE.format(prog=prog), *lines]))
    else:
        print(f"dynsim {importlib.metadata.version('dynsim')}")
    raise SystemExit(0 if options else 2)


def parse(offer: Offer, words: Sequence[str], given: Pairs) -> Table:
    """Parse the options and run settings, and add the defaults of the command.

    Args:
        offer: the options of the command.
        words: the words after its name.
        given: run settings that are already given.

    Raises:
        ValueError: for an unknown option or setting, with a suggestion, or for an invalid value.
    """
    given = [*given, *read(offer, words)]
    known = offer.chosen([pair for pair in given if pair[1] is not MISSING])
    for option in [option for option, value in given if value is MISSING]:
        field = offer.language.resolve(known, option).field
        if "boolean" not in field.types:
            needed = allowed(field.one, offer.language.words(field))
            some = "at least one value, each" if field.listed else "a value,"
            raise ValueError(f"option --{option} needs {some} {needed}")
    table = offer.chosen([(option, value is MISSING or value) for option, value in given])
    offer.language.finished(table)
    of_run = offer.run_of(table)
    for name, field in offer.options.items():
        word = table.get(name, field.default)
        if field.form and field.form[2] and word is not None:
            try:
                kinds.language().resolve(of_run, str(word).partition(":")[0])
            except LanguageError as error:
                raise LanguageError(name, error.reason, word) from None
        if name in NAMES:
            _check_names(name, offer, table)
    for name, others in NEEDS.get(class_of(offer), {}).items():
        if name in table and not any(_holds(each, offer, table) for each in others.split("|")):
            alone = others.startswith("no-")
            words = " or ".join(f"--{each.removeprefix('no-')}" for each in others.split("|"))
            reason = f"has no effect {'with' if alone else 'without'} {words}; leave it out"
            raise LanguageError(name, reason, table[name])
    return table


def class_of(offer: Offer) -> str:
    """Return the name of the class of the command's settings."""
    return offer.kind.word.partition(":")[2]


def _holds(needed: str, offer: Offer, table: Table) -> bool:
    """Return whether a line satisfies a need: `NAME`, `no-NAME` or `NAME VALUE`."""
    name, _, value = needed.removeprefix("no-").partition(" ")
    found = table.get(name, offer.options[name].default)
    return found == value if value else bool(found) != needed.startswith("no-")


def _check_names(option: str, offer: Offer, table: Table) -> None:
    """Raise `LanguageError` if an option names something that the problem does not have."""
    asked, default = table.get(option, []), offer.options[option].default
    known = offer.names(option, table)
    # Figures may use derived observables that runs do not record, such as divergence.
    usual = [default] if isinstance(default, str) else []
    others = NAMES.get(f"{class_of(offer)}.{option}", NAMES[option])
    names = [*dict.fromkeys((*others, *known, *usual))]
    for word in map(str, asked if isinstance(asked, list) else [asked]):
        if known and word not in names and not NUMBERED.fullmatch(word):
            own = {each: each.removesuffix(FINITE) for each in names}
            short = [n for n, base in own.items() if n == base or base not in names]
            shown = (each + f"[{FINITE}]" * (each + FINITE in names) for each in short)
            reason = must_be(word, names, f"one of {', '.join(shown)}")
            raise LanguageError(option, reason, word)


def read(offer: Offer, words: Sequence[str]) -> Pairs:
    """Split words into options and their values as written; the value is `MISSING` for an option
    without one. Raises `ValueError` for a word that is not an option."""
    left, alone, given = list(words), list[str](), Pairs()
    options = {fold(each): field for each, field in offer.options.items()}
    switches = {each for each, field in options.items() if "boolean" in field.types}
    while left:
        word = left.pop(0)
        option, equals, value = word.removeprefix("--").partition("=")
        name = fold(option)
        if not word.startswith("--"):
            alone.append(word)
        elif not option:
            raise ValueError(f"{word!r}: must be followed by the name of an option")
        elif name not in options and name.startswith("no") and name[2:] in switches:
            given.append((option[2:], False))
        else:
            field = options.get(name, Field())
            most = len(left) if field.listed else 1
            if name in switches and left[:1] not in (["true"], ["false"]):
                most = 0
            values = list(itertools.takewhile(lambda each: not each.startswith("--"), left[:most]))
            values, left = ([value], left) if equals else (values, left[len(values) :])
            if field.listed and {*field.types} <= {"number", "integer"}:
                # Numbers of a list may be separated by commas too.
                values = [
                    n for each in values for n in ([each] if "[" in each else each.split(","))
                ]
            found = [_typed(field, each) for each in values]
            given.append((option, (found if field.listed else found[0]) if found else MISSING))
    for place in offer.positional:
        number = len(alone) if (listed := offer.options[place].listed) else 1
        found, alone = alone[:number], alone[number:]
        given += [(place, found if listed else found[0])] if found else []
    if alone:
        raise ValueError(f"{alone[0]!r} is not an option; options begin with --")
    return given


def _typed(field: Field, text: str) -> Any:
    """Parse a value as TOML, or else as text; always as text for a text field."""
    if not {"text", "path"} & {*field.types} or text == "none":
        with contextlib.suppress(ValueError):
            return assignments(f"value={text}")["value"]
    return text


def _check_places(offer: Offer, given: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an invalid sweep file or a missing store, before the slow imports that
    would read them."""
    places: Any = given.get(offer.positional[0], []) if offer.command.reads else []
    for place in [places] if isinstance(places, str) else places:
        if offer.command.reads == "file":
            from sweeps import recipes

            recipes.check(kinds.language(), place, given.get("set", ()))
        elif "://" not in place and not os.path.lexists(place):
            raise ValueError(f"{place}: no such sweep")


def _made(offer: Offer, given: Table) -> tuple[Any, Run]:
    """Return the settings of a command as an instance of its class, and its run function."""
    cls, run = offer.command.load()
    from sweeps.language.tree import build, built

    own = {n: field for n, field in offer.kind.fields.items() if n in given}
    settings = {n: built(offer.language, field, given[n], (n,)) for n, field in own.items()}
    if offer.run:
        settings[RUN] = build(kinds.language(), offer.run_of(given))
    return cls(**settings), run


def page(offer: Offer, name: str, words: Sequence[str], run: Pairs) -> str:
    """Return the help of a command: its own options and those of the problem; with the word "all"
    also how all rules are refined and figures look. Settings are those of the kinds that the other
    words select."""
    every = ALL in words
    rest = [word for word in words if word not in (*HELP, ALL)]
    given = [*run, *read(offer, rest)]
    table = offer.chosen([pair for pair in given if pair[1] is not MISSING])
    places = "".join(f" {each.upper()}" for each in offer.positional)
    chosen = {fold(option) for option, _ in given}

    def usual(path: Sequence[str]) -> bool:
        first = path[0]
        refined = first == "rule" and path[1:2] not in ((), ("eta",)) and "rule" not in chosen
        return first in offer.kind.fields or (
            first not in ("style", "format", "quiet", "dtype", "seed") and not refined
        )

    shown = [each for each in offer.language.walk(table) if not each.shared]
    some = [each for each in shown if usual(each.path)]
    if every or len(shown) - len(some) < 3:
        some = shown
    lines = [f"usage: dynsim {name}{places} [OPTIONS]", "", textwrap.fill(offer.kind.about, 96), ""]
    lines += [
        "Options. The last part of a name suffices if it is unique; - _ . are interchangeable."
    ]
    for setting in some:
        field, value = setting.field, setting.value
        default = setting.kind or ("none" if value is None else value)
        now = "required" if value is MISSING else f"default: {default}"
        text = f"{field.doc} ({allowed(field, offer.language.words(field))}; {now})"
        text = textwrap.fill(text.lstrip() + " *" * field.traced, 90)
        lines += [f"  --{setting.name}", textwrap.indent(text, " " * 6)]
    lines += ["* Runs that differ only in these share one compiled program."]
    if len(some) < len(shown):
        lines += [
            f"`--help all` lists {len(shown) - len(some)} more, of the update rule and of figures."
        ]
    return "\n".join(lines)
