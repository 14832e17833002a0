"""What options there are, known before JAX is imported: a mistyped one is told at once.

`options.json` holds the options of every command, with what each takes. `python -m
tests.sweeps.commands.table` writes it anew from the settings, and a test tells when it has to be.
"""

import difflib
import itertools
import json
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_suffix(".json")
OWN = ("help", "tyro_print_completion", "tyro_write_completion")
"""Options that every command has besides its settings."""
WORDS, INTEGER, ENDLESS = "one of ", "an integer", ", or inf"
"""How what an option takes begins, or ends, where a word alone tells whether it is of that kind."""


class Options(NamedTuple):
    """The options of a command, in Python's spelling.

    Attributes:
        takes: what each takes, in words; empty where the words do not tell.
        lists: those that take several values.
        also: other words that are options, such as switches turned off.
    """

    takes: dict[str, str]
    lists: list[str]
    also: list[str]

    def check(self, command: str, words: Sequence[str]) -> None:
        """Raise `ValueError` for an option that the command does not have, or for a value that it
        does not take."""
        for word, after in itertools.pairwise([*words, "--"]):
            option, equals, value = word.partition("=")
            name = option[2:].replace("-", "_")
            if not word.startswith("--") or not name:
                continue
            if not equals and after.startswith("--"):
                if name in self.lists:
                    raise ValueError(f"{command}: option {option} needs at least one value")
                value = ""
            elif not equals:
                value = after
            if name not in self.takes and name not in (*self.also, *OWN):
                raise ValueError(f"{command}: has no option {option}{self._instead(name)}")
            takes = self.takes.get(name, "")
            if value and not fits(value, takes):
                raise ValueError(f"{name} = {value!r}: {_meant(value, takes)}must be {takes}")

    def _instead(self, name: str) -> str:
        if near := [shown(each) for each in _near(name, self.takes)]:
            return f"; did you mean {', '.join(near)}?"
        listed = ", ".join(map(shown, sorted(self.takes)))
        return f"; its options are {listed}" if listed else ""


def fits(value: str, takes: str) -> bool:
    """Whether a value is of the kind that an option `takes`: one of some words, or a number."""
    if value == "None" or not takes:
        return True
    if takes.startswith(WORDS):
        return value in takes[len(WORDS) :].split(", ")
    try:
        number = float(value)
    except ValueError:
        return False
    whole = number.is_integer() or (math.isinf(number) and takes.endswith(ENDLESS))
    return whole or not takes.startswith(INTEGER)


def shown(name: str) -> str:
    """A field as the command line has it."""
    return f"--{name.replace('_', '-')}"


def known(command: str) -> Options | None:
    """The options of a command that comes with dynsim, None of any other."""
    found = json.loads(FILE.read_text()).get(command)
    return found and Options(**found)


def hint(word: str, names: Collection[str]) -> str:
    """The beginning of a sentence that asks for what is meant, as `dynsim.checks.hint` has it, for
    what must not import JAX; empty where it may be anything."""
    near = _near(word, names)
    if not near or len(near) == len(names) > 1:
        return ""
    return f"did you mean {' or '.join(map(repr, near))}? It "


def _near(word: str, names: Iterable[str]) -> list[str]:
    """The names that are meant: but for case, - and _ the same, or similar."""
    folded = {each: each.casefold().replace("-", "_") for each in names}
    given = word.casefold().replace("-", "_")
    near = (
        [given] if given in folded.values() else difflib.get_close_matches(given, folded.values())
    )
    return [each for one in near for each, letters in folded.items() if letters == one]


def _meant(value: str, takes: str) -> str:
    return hint(value, takes[len(WORDS) :].split(", ")) if takes.startswith(WORDS) else ""
