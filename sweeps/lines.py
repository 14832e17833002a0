"""Lines for people, of text that anybody may have written. Imports nothing that takes time."""

import sys


def printable(text: str) -> str:
    """The text as a line that a terminal shows and does not obey: ends of lines, other control
    characters, and those that turn the direction of writing are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_stderr(text: str) -> None:
    """Print lines to standard error."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)
