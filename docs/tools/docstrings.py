"""Sphinx extension that turns our docstrings into reStructuredText.

They are plain text with names in single backticks, formulas in the role or the directive `math`,
and sections in Google style. Indented paragraphs, such as an example of a file, become literal
blocks, and characters that reStructuredText would take for markup, such as the bars of |f| and the
star of h*, are escaped.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS = {"Args:", "Attributes:", "Raises:", "Returns:", "Yields:"}
EXAMPLE = "Example:"
"""A section of code, which is left alone."""
QUOTED = re.compile(r"(``.*?``|`[^`]*`)", re.DOTALL)
EITHER = re.compile(r'(\w+)\[Array, ("[^"]*"|\'[^\']*\')\] \| \1\[ndarray, \2\]')
ANNOTATED = re.compile(r"(~typing\.)?Annotated\[")
LIBRARIES = re.compile(r"~(jaxtyping|numpy)\.|~?\b((jax\.)?jaxlib\._jax|jax)\.(?=Array\b)")
"""Module prefixes of well-known names, which are dropped."""
MARKUP = re.compile(r"(^\s*\* )|([\\*|]|(?<=\w)_(?![\w]))", re.MULTILINE)
"""The star of a list item, and the characters to escape."""


def setup(app: "Sphinx") -> dict[str, bool]:
    # Before napoleon, with priority 500, turns sections into fields.
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}


def _process(
    app: "Sphinx", what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = prepared(lines)


def _shorten(
    app: "Sphinx",
    what: str,
    name: str,
    found: Any,
    options: Any,
    given: str | None,
    back: str | None,
) -> tuple[str | None, str | None]:
    return short(given), short(back)


def short(signature: str | None) -> str | None:
    """Shorten a signature: JAX's and NumPy's arrays are both arrays, numbers are floats, and types
    have no range, which the description of the argument gives."""
    if signature is None:
        return None
    one = EITHER.sub(r"\1[Array, \2]", LIBRARIES.sub("", _without_ranges(signature)))
    return one.replace(" | number | float | int", " | float").replace("PosixPath(", "Path(")


def _without_ranges(text: str) -> str:
    """Replace each `Annotated[X, ...]` by X. Brackets and commas within quotes are text."""
    while found := ANNOTATED.search(text):
        depth, quote, ends = 0, "", []
        for at in range(found.end(), len(text)):
            letter = text[at]
            if quote or letter in "'\"":
                quote = "" if letter == quote else quote or letter
            elif depth == 0 and letter in ",]":
                ends.append(at)
                if letter == "]":
                    break
            else:
                depth += (letter in "[(") - (letter in "])")
        text = text[: found.start()] + text[found.end() : ends[0]] + text[ends[-1] + 1 :]
    return text


def _skip(app: "Sphinx", what: str, name: str, found: Any, skip: bool, options: Any) -> bool | None:
    # The class's docstring describes the fields of named tuples.
    return True if type(found).__name__ == "_tuplegetter" else None


def prepared(lines: list[str]) -> list[str]:
    """Turn indented paragraphs of a docstring into literal blocks, and escape markup.

    Formulas in the role or the directive `math` are left alone.
    """
    made: list[str] = []
    text: list[str] = []

    def flush() -> None:
        made.extend(_escaped("\n".join(text)).split("\n") if text else [])
        text.clear()

    in_section = in_block = in_example = False
    margin: int | None = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line and not indent:
            in_example = line.strip() == EXAMPLE
            if in_example:
                flush()
        if in_example:
            made.append(line)
            continue
        if margin is not None and (not line or indent > margin):
            made.append(line)
            continue
        margin = None
        if line.strip() == ".. math::":
            flush()
            made.append(line)
            margin, in_block = indent, False
            continue
        if line.strip() in SECTIONS and not line.startswith(" "):
            in_section = True
        elif line and not line.startswith(" "):
            in_section = False
        indented = line.startswith("    ") and not in_section
        if in_block and line and not indented:
            in_block = False
        if indented and not in_block and number and not lines[number - 1].strip():
            flush()
            made.extend(["::", ""])
            in_block = True
        if in_block:
            made.append(line)
        else:
            text.append(line)
            if not line:
                flush()
    flush()
    return made


def _escaped(text: str) -> str:
    parts = QUOTED.split(text)

    def plain(found: re.Match[str]) -> str:
        return found[1] or "\\" + found[2]

    return "".join(part if i % 2 else MARKUP.sub(plain, part) for i, part in enumerate(parts))
