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
    RUN_FIELD,
    CommandOptions,
    Run,
    file_name,
    group,
    summary_of,
)
from sweeps.language.fields import MISSING, Field, LanguageError, Table, allowed, must_be, normalise
from sweeps.language.grammar import Pairs
from sweeps.lines import assignments, to_stderr
from sweeps.systems import kinds

HELP = ("-h", "--help")
ALL_OPTIONS = "all"
"""The word after --help for all options."""
AT_ONCE = ("compare", "explain", "phase")
"""Commands that say what they do before they import JAX: they compile for seconds before they have
progress to show."""
NAME_OPTIONS = {
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
EIGENVALUE = re.compile(r"sharpness_\d+")
"""Names of individual sharpness eigenvalues."""
FINITE_T = "-finite-t"
"""Suffix of the names of finite-T theories."""
USAGE = """usage: {prog} [-h] [--version] COMMAND [OPTIONS]

Train attention models, solve their theories, and compare both.

options:
  -h, --help  show this help message and exit
  --version   print the version and exit

commands (`{prog} COMMAND --help` lists the options of each):"""


class ParsedCommand(NamedTuple):
    """A parsed command line.

    Attributes:
        name: name of the command.
        settings: an instance of the class of its settings.
        run: function that runs them.
        options: the options of the command.
        table: the options and run settings on the line, with defaults, in text form.
    """

    name: str
    settings: Any
    run: Run
    options: CommandOptions
    table: Mapping[str, Any]

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Context in which figures have the requested style and format, and progress is printed
        unless it is suppressed.

        Raises:
            ValueError: if the suffix of the output file contradicts the requested format.
        """
        with contextlib.ExitStack() as stack:
            if self.options.command.draws:
                from sweeps.output import drawing

                style, form = self.table.get("style"), self.table.get("format")
                suffix = Path(self.settings.out).suffix[1:]
                # The first format is that of default names, which another one may replace.
                others = {*drawing.FORMATS} - {form, drawing.FORMATS[0]}
                if form and suffix in others:
                    raise ValueError(
                        f"format = {form!r}: out = {self.settings.out} has another suffix"
                    )
                stack.enter_context(drawing.style(style, form))
            if self.table.get("quiet"):
                from sweeps.runner import progress

                stack.enter_context(progress.quiet())
            yield


def parse_command(words: Sequence[str], check_paths: bool = True) -> ParsedCommand:
    """Parse the words after `dynsim`. Raises `SystemExit` after printing help or an error.
    `check_paths` also checks that the sweep or file to read exists."""
    if not words or words[0].startswith("-"):
        _print_help(COMMANDS, "", words)
    try:
        name, problem, words = split_command(words)
        if name not in COMMANDS and group(name):
            _print_help([word for word in COMMANDS if word.startswith(f"{name} ")], name, words)
        # Defaults depend on the problem, which may also be an option.
        parts = [part for word in words for part in word.split("=", 1)]
        at = parts.index("--problem") + 1 if "--problem" in parts[:-1] else 0
        options = CommandOptions.of(name, parts[at] if at else problem)
        pairs: Pairs = [("problem", problem)] if problem else []
        if {*HELP} & {*words}:
            print(help_page(options, name, words, pairs))
            raise SystemExit(0)
        table = parse_options(options, words, pairs)
        if problem and options.recorded:
            # Results for another problem get a folder of their own.
            table.setdefault("out", str(Path("out") / file_name(f"{name} {problem}")))
        # Errors of files come first, as the imports of a command take seconds.
        if check_paths and options.command.reads:
            paths: Any = table.get(options.positional[0], [])
            overrides: Any = table.get("set", [])
            for path in [paths] if isinstance(paths, str) else paths:
                if options.command.reads == "file":
                    from sweeps import recipes

                    recipes.check(kinds.language(), path, overrides)
                elif "://" not in path and not os.path.lexists(path):
                    raise ValueError(f"{path}: no such sweep")
        if check_paths and name in AT_ONCE and not table.get("quiet"):
            to_stderr(f"{name}: {summary_of(name)}")
        # The module of the command is imported here, and JAX with most of them.
        cls, run = options.command.load()
        from sweeps.language.tree import build, to_object

        fields = {n: field for n, field in options.kind.fields.items() if n in table}
        settings = {n: to_object(options.language, f, table[n], (n,)) for n, f in fields.items()}
        if options.has_run:
            settings[RUN_FIELD] = build(kinds.language(), options.run_of(table))
        config = cls(**settings)
    except ValueError as error:
        to_stderr(f"dynsim: {error}")
        raise SystemExit(2) from None
    return ParsedCommand(f"{name} {problem}".strip(), config, run, options, table)


def split_command(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the name of the command or group that `words` begin with, the word of a problem if
    there is one, and the remaining words.

    Raises:
        ValueError: for an unknown name; the message lists the known ones.
    """

    def choose(what: str, names: Collection[str], near: Collection[str]) -> str:
        word = left.pop(0)
        if (name := word.replace("-", "_")) in names:
            return name
        raise ValueError(f"{what} {word!r}: {must_be(word, near, ', '.join(names))}")

    left = list(words)
    firsts = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    name = choose("command", firsts, COMMANDS)
    # What begins with a dash is an option.
    if (seconds := group(name)) and left and left[0][:1] not in ("", "-"):
        name = f"{name} {choose(name, seconds, seconds)}"
    is_problem = name in OF_PROBLEM and left and left[0][:1] not in ("", "-")
    return name, left.pop(0) if is_problem else "", left


def _print_help(names: Collection[str], first: str, words: Sequence[str]) -> NoReturn:
    prog = f"dynsim {first}".strip()
    # Without any words, help is printed as an error.
    is_help = not words or {*HELP} & {*words}
    unknown = [word for word in words if word not in (*HELP, "--version")]
    if unknown and not is_help:
        to_stderr(f"{prog}: has no option {unknown[0]}; its options are --help, --version")
        raise SystemExit(2)
    if is_help:
        usage = {n: n.removeprefix(f"{first} ") + " [PROBLEM]" * (n in OF_PROBLEM) for n in names}
        width = max(map(len, usage.values()))
        lines = [f"  {text:<{width}}  {summary_of(name)}" for name, text in usage.items()]
        print("\n".join([USAGE.format(prog=prog), *lines]))
    else:
        print(f"dynsim {importlib.metadata.version('dynsim')}")
    raise SystemExit(0 if words else 2)


def parse_options(options: CommandOptions, words: Sequence[str], pairs: Pairs) -> Table:
    """Parse the options and run settings, and add the defaults of the command.

    Args:
        options: the options of the command.
        words: the words after its name.
        pairs: run settings that the name of the command has set.

    Raises:
        ValueError: for an unknown option or setting, with a suggestion, or for an invalid value.
    """
    pairs = [*pairs, *split_options(options, words)]
    # A switch needs no value. Which settings are switches depends on those with a value.
    with_value = options.with_defaults([pair for pair in pairs if pair[1] is not MISSING])
    for name in [name for name, value in pairs if value is MISSING]:
        field = options.language.resolve(with_value, name).field
        if "boolean" not in field.types:
            needed = allowed(field.one, options.language.words(field))
            some = "at least one value, each" if field.listed else "a value,"
            raise ValueError(f"option --{name} needs {some} {needed}")
    table = options.with_defaults([(name, value is MISSING or value) for name, value in pairs])
    options.language.finished(table)

    for name, field in options.fields.items():
        word = table.get(name, field.default)
        # The third entry of a form says that the text begins with the name of a setting.
        if field.form and field.form[2] and word is not None:
            try:
                setting = str(word).partition(":")[0]
                kinds.language().resolve(options.run_of(table), setting)
            except LanguageError as error:
                raise LanguageError(name, error.reason, word) from None
        if name in NAME_OPTIONS:
            _check_names(name, options, table)

    needs_by_name = NEEDS.get(options.kind.word.partition(":")[2], {})
    for name, needs in ((n, needs) for n, needs in needs_by_name.items() if n in table):
        for need in needs.split("|"):
            other, _, value = need.removeprefix("no-").partition(" ")
            now = table.get(other, options.fields[other].default)
            if now == value if value else bool(now) != need.startswith("no-"):
                break
        else:
            alone = needs.startswith("no-")
            others = " or ".join(f"--{need.removeprefix('no-')}" for need in needs.split("|"))
            reason = f"has no effect {'with' if alone else 'without'} {others}; leave it out"
            raise LanguageError(name, reason, table[name])
    return table


def _check_names(option: str, options: CommandOptions, table: Table) -> None:
    """Raise `LanguageError` if an option names something that the problem does not have."""
    value, default = table.get(option, []), options.fields[option].default
    known = options.names(option, table)
    # Figures may use derived observables that runs do not record, such as divergence.
    usual = [default] if isinstance(default, str) else []
    cls = options.kind.word.partition(":")[2]
    others = NAME_OPTIONS.get(f"{cls}.{option}", NAME_OPTIONS[option])
    names = [*dict.fromkeys((*others, *known, *usual))]
    for word in map(str, value if isinstance(value, list) else [value]):
        if known and word not in names and not EIGENVALUE.fullmatch(word):
            # A theory and its finite-T form are one entry of the list, such as flow[-finite-t].
            short = [n for n in names if (b := n.removesuffix(FINITE_T)) == n or b not in names]
            listed = (name + f"[{FINITE_T}]" * (name + FINITE_T in names) for name in short)
            reason = must_be(word, names, f"one of {', '.join(listed)}")
            raise LanguageError(option, reason, word)


def split_options(options: CommandOptions, words: Sequence[str]) -> Pairs:
    """Split words into options and their values as written; the value is `MISSING` for an option
    without one. Raises `ValueError` for a word that is not an option."""
    left, positional, pairs = list(words), list[str](), Pairs()
    fields = {normalise(name): field for name, field in options.fields.items()}
    switches = {name for name, field in fields.items() if "boolean" in field.types}
    while left:
        word = left.pop(0)
        option, equals, value = word.removeprefix("--").partition("=")
        name = normalise(option)
        if not word.startswith("--"):
            positional.append(word)
        elif not option:
            raise ValueError(f"{word!r}: must be followed by the name of an option")
        elif name not in fields and name.startswith("no") and name[2:] in switches:
            # `normalise` has removed the dash of --no-NAME.
            pairs.append((option[2:], False))
        else:
            field = fields.get(name, Field())
            most = len(left) if field.listed else 1
            # A switch takes the next word only if this is its value: `--json info` has none.
            if name in switches and left[:1] not in (["true"], ["false"]):
                most = 0
            texts = list(itertools.takewhile(lambda text: not text.startswith("--"), left[:most]))
            texts, left = ([value], left) if equals else (texts, left[len(texts) :])
            if field.listed and {*field.types} <= {"number", "integer"}:
                # Numbers of a list may be separated by commas too.
                parts = [[text] if "[" in text else text.split(",") for text in texts]
                texts = list(itertools.chain(*parts))
            values: list[object] = list(texts)
            for i, text in enumerate(texts):
                # A value is TOML or else text; that of a text field is always text.
                if not {"text", "path"} & {*field.types} or text == "none":
                    with contextlib.suppress(ValueError):
                        values[i] = assignments(f"value={text}")["value"]
            pairs.append((option, (values if field.listed else values[0]) if values else MISSING))
    for name in options.positional:
        number = len(positional) if (listed := options.fields[name].listed) else 1
        first, positional = positional[:number], positional[number:]
        pairs += [(name, first if listed else first[0])] if first else []
    if positional:
        raise ValueError(f"{positional[0]!r} is not an option; options begin with --")
    return pairs


def help_page(options: CommandOptions, name: str, words: Sequence[str], pairs: Pairs) -> str:
    """Return the help of a command: its own options and those of the problem; with the word "all"
    also how all rules are refined and figures look. Settings are those of the kinds that the other
    words select."""
    rest = [word for word in words if word not in (*HELP, ALL_OPTIONS)]
    pairs = [*pairs, *split_options(options, rest)]
    table = options.with_defaults([pair for pair in pairs if pair[1] is not MISSING])
    chosen = {normalise(option) for option, _ in pairs}

    def is_usual(path: Sequence[str]) -> bool:
        first = path[0]
        refined = first == "rule" and path[1:2] not in ((), ("eta",)) and "rule" not in chosen
        return first in options.kind.fields or (
            first not in ("style", "format", "quiet", "dtype", "seed") and not refined
        )

    every = [setting for setting in options.language.walk(table) if not setting.shared]
    some = [setting for setting in every if is_usual(setting.path)]
    # A line about two more options would be no shorter than these.
    if ALL_OPTIONS in words or len(every) - len(some) < 3:
        some = every
    places = "".join(f" {place.upper()}" for place in options.positional)
    lines = [f"usage: dynsim {name}{places} [OPTIONS]", "", textwrap.fill(options.kind.about, 96)]
    lines += [
        "",
        "Options. The last part of a name suffices if it is unique; - _ . are interchangeable.",
    ]
    for setting in some:
        field, value = setting.field, setting.value
        default = setting.kind or ("none" if value is None else value)
        now = "required" if value is MISSING else f"default: {default}"
        text = f"{field.doc} ({allowed(field, options.language.words(field))}; {now})"
        text = textwrap.fill(text.lstrip() + " *" * field.traced, 90)
        lines += [f"  --{setting.name}", textwrap.indent(text, " " * 6)]
    lines += ["* Runs that differ only in these share one compiled program."]
    if len(some) < len(every):
        lines += [
            f"`--help all` lists {len(every) - len(some)} more, of the update rule and of figures."
        ]
    return "\n".join(lines)
