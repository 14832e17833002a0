"""From the words behind a command to its settings; what is wrong with them, in a line."""

import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.commands.parsing.metadata import RUN, Offer, language
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
)
from sweeps.language.pages import option_lines, settings_page

HELP = ("-h", "--help")
Pairs = list[tuple[str, Any]]


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
        values = [value] if equals else []
        found = options.get(fold(option))
        switch = options.get(fold(option.removeprefix("no-")))
        field = offer.options[found] if found else None
        if found is None and switch and "boolean" in offer.options[switch].types:
            own[switch] = False
            continue
        most = len(left) if field and field.listed else 1
        if field and "boolean" in field.types and left[:1] not in (["true"], ["false"]):
            most = 0
        while not equals and len(values) < most and left and not left[0].startswith("--"):
            values.append(left.pop(0))
        if field is None and offer.run is None:
            hint = closest(option, offer.options) or f"its options are {_listed(offer)}"
            raise ValueError(f"{name}: has no option --{option}; {hint}")
        if field is None:
            given.append((option, _value(values[0]) if values else MISSING))
        elif not values and "boolean" not in field.types:
            many = "at least one value, each" if field.listed else "a value,"
            raise ValueError(f"{name}: option --{option} needs {many} {allowed(field.one)}")
        elif found:
            own[found] = values if field.listed else (values or ["true"])[0]
    checked = {n: check(offer.options[n], _typed(offer.options[n], v), n) for n, v in own.items()}
    for option, field in offer.options.items():
        if field.required and option not in checked:
            raise ValueError(f"{name}: needs {option} ({field.doc})")
    return Given(checked, given if offer.run is None else _run(offer, given))


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
    found = []
    for option, value in given:
        if value is MISSING:
            field = language().resolve(table, option).field
            if "boolean" not in field.types:
                needed = allowed(field, language().words(field))
                raise ValueError(f"option --{option} needs a value, {needed}")
        found.append((option, True if value is MISSING else value))
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
    value = next(each.value for each in language().walk(table) if each.name == "problem")
    return value["kind"] if is_branch(value) else ""


def made(offer: Offer, given: Given) -> Any:
    """The settings of a command as its class has them."""
    from sweeps.language.tree import build, value_of
    from sweeps.systems import kinds

    cls, _ = offer.load()
    hints = typing.get_type_hints(cls, include_extras=True)
    own = {n: v for n, v in given.own.items() if n in offer.kind.fields}
    settings = {n: value_of(offer.kind.fields[n], value, n) for n, value in own.items()}
    for name, value in settings.items():
        if isinstance(value, str) and "pathlib.Path" in str(hints[name]):
            settings[name] = Path(value)
    if offer.run is not None:
        settings[RUN] = build(kinds.language(), chosen(offer, given.run))
    return cls(**settings)


def page(offer: Offer, name: str, run: Pairs) -> str:
    """The help of a command."""
    places = "".join(f" {each.upper()}" for each in offer.positional)
    lines = [f"usage: dynsim {name}{places} [OPTIONS]", "", offer.kind.about or offer.command.help]
    lines += ["", "Options.", *option_lines(offer.options)]
    if offer.run is not None:
        lines += ["", settings_page(language(), chosen(offer, run))]
    return "\n".join(lines)


def _value(text: str) -> Any:
    """A value of a setting as TOML has it; text needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _typed(field: Field, value: Any) -> Any:
    """A value as the field of an option takes it: text stays text where that is allowed."""
    if isinstance(value, list):
        return [_typed(field.one, each) for each in value]
    return value if "text" in field.types and value != "none" else _value(value)


def _listed(offer: Offer) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(offer.options))
