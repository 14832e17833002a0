"""Makes valid what the theme and Sphinx write, for those who read with a screen reader.

Headings of the sidebar get the level that they lack, code can be scrolled by keys, a word of code
is broken only where it is longer than a small screen is wide, and a signature of several lines is
no list of definitions without anything that is defined.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

OPENED = re.compile(r'(<span class="sig-paren">[(\[]</span>)\s*<dl>')
LINE = re.compile(r'<dd>(<em class="sig-param">.*?)</dd>', re.DOTALL)
LONG = re.compile(r'<span class="pre">(?=[^<]{36})')
CLOSED = re.compile(r'</dl>\s*(<span class="sig-paren">[)\]]</span>)')


def setup(app: "Sphinx") -> dict[str, bool]:
    # After the theme, which has 500, has made its sidebar.
    app.connect("html-page-context", _mend, priority=900)
    return {"parallel_read_safe": True}


def _mend(
    app: "Sphinx",
    page: str,
    template: str,
    context: dict[str, Any],
    tree: "nodes.document | None",
) -> None:
    if body := context.get("body"):
        # Code that is wider than the page is scrolled by keys once it can be reached by them.
        body = signatures(body).replace("<pre>", '<pre tabindex="0">')
        context["body"] = LONG.sub('<span class="pre long">', body)
    if sidebar := context.get("furo_navigation_tree"):
        context["furo_navigation_tree"] = sidebar.replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )


def signatures(body: str) -> str:
    """The page with lines of signatures as lines instead of definitions."""
    lines = LINE.sub(r'<span class="sig-line">\1</span>', OPENED.sub(r"\1<span>", body))
    return CLOSED.sub(r"</span>\1", lines)
