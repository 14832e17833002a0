"""Sphinx extension that fixes the HTML of Sphinx and the theme for screen readers.

Headings of the sidebar get their missing level, code can be scrolled with the keyboard, words of
code break only if they are longer than a small screen is wide, and signatures of several lines
become spans, because they are invalid as definition lists without terms.
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
    # After the theme, with priority 500, has made its sidebar.
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
        # Wide code can be scrolled with the keyboard only if it can have the focus.
        body = signatures(body).replace("<pre>", '<pre tabindex="0">')
        context["body"] = LONG.sub('<span class="pre long">', body)
    if sidebar := context.get("furo_navigation_tree"):
        context["furo_navigation_tree"] = sidebar.replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )


def signatures(body: str) -> str:
    """Turn the lines of signatures in a page from definitions into spans."""
    lines = LINE.sub(r'<span class="sig-line">\1</span>', OPENED.sub(r"\1<span>", body))
    return CLOSED.sub(r"</span>\1", lines)
