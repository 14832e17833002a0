"""Sphinx extension that links names of our modules and functions to the reference.

`odes.population.solve` in backticks is resolved as Python does; names that the reference lacks are
left alone. Pages of source code lose links back to names that the reference has under another name.
"""

import importlib
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

BACK = re.compile(r'<a class="viewcode-back" href="[./]*([^"#]*)\.html#([^"]*)">.*?</a>')
NAME = re.compile(r"((?:dynsim|odes|sweeps)(?:\.\w+)+)(\(.*\))?")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", _link)
    app.connect("html-page-context", _drop_broken)
    return {"parallel_read_safe": True}


def _link(app: Sphinx, tree: nodes.document, page: str) -> None:
    known = app.env.domaindata["py"]["objects"]
    for literal in list(tree.findall(nodes.literal)):
        match = NAME.fullmatch(literal.astext())
        if match is None or _inside_link(literal):
            continue
        entry = next((known[name] for name in names(match[1]) if name in known), None)
        if entry is None:
            continue
        uri = app.builder.get_relative_uri(page, entry.docname) + "#" + entry.node_id
        link = nodes.reference("", "", internal=True, refuri=uri, reftitle=match[1])
        literal.replace_self(link)
        link += literal


def _drop_broken(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    if page.startswith("_modules/") and "body" in context:
        objects = app.env.domaindata["py"]["objects"].values()
        known = {(entry.docname, entry.node_id) for entry in objects}
        context["body"] = BACK.sub(
            lambda match: match[0] if match.groups() in known else "", context["body"]
        )


def _inside_link(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.reference | nodes.title):
            return True
    return False


def names(name: str) -> list[str]:
    """Return the names of an object in the reference: as written, and where it is defined."""
    found = resolve(name)
    module = getattr(found, "__module__", None)
    if module and hasattr(found, "__qualname__"):
        return [name, f"{module}.{found.__qualname__}"]
    return [name, *([found.__name__] if isinstance(found, type(re)) else [])]


def resolve(name: str) -> Any:
    """Return the object with a dotted name, or None. An attribute takes precedence over a module of
    the same name, unless only the module has the next part."""
    first, *rest = name.split(".")
    found, path = importlib.import_module(first), first
    for part in rest:
        try:
            holder = found if hasattr(found, part) else importlib.import_module(path)
            path = f"{path}.{part}"
            has = hasattr(holder, part)
            found = getattr(holder, part) if has else importlib.import_module(path)
        except ModuleNotFoundError:
            return None
    return found
