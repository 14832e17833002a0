"""Pictures enlarge on click, are loaded when they come into view, and keep their room until then.

A picture of the gallery that was made with options says so on any other page, which may tell of the
full figure. A picture without a text that describes it is a warning.
"""

from pathlib import Path

from docutils import nodes
from made import command
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

LETTERS = 40
"""Fewest of an alternative text: one that names the picture without describing it has less."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", _prepare)
    return {"parallel_read_safe": True}


def _prepare(app: Sphinx, tree: nodes.document, page: str) -> None:
    if app.builder.format != "html":
        return
    for image in list(tree.findall(nodes.image)):
        if image["uri"] not in app.env.images:
            continue
        if len(image.get("alt", "")) < LETTERS:
            logging.getLogger(__name__).warning("a picture is not described", location=image)
        _reserve(image, Path(app.srcdir) / image["uri"])
        paragraph = image.parent
        _link(app, image, page)
        made = command(Path(app.srcdir), image["uri"])
        if made and page != "gallery/index" and isinstance(paragraph, nodes.paragraph):
            paragraph.parent.insert(paragraph.parent.index(paragraph) + 1, _note(made))


def _reserve(image: nodes.image, file: Path) -> None:
    """Load it late, with its size known before, so that nothing on the page moves."""
    image["loading"] = "lazy"
    if "width" not in image:
        with Image.open(file) as picture:
            image["width"], image["height"] = map(str, picture.size)


def _link(app: Sphinx, image: nodes.image, page: str) -> None:
    """Let it lead to its own file, unless it leads elsewhere already."""
    if isinstance(image.parent, nodes.reference):
        return
    file = f"{app.builder.imagedir}/{app.env.images[image['uri']][1]}"
    uri = relative_uri(app.builder.get_target_uri(page), file)
    link = nodes.reference("", "", internal=True, refuri=uri, reftitle="Enlarge")
    link["classes"] += ["enlarge"]
    image.replace_self(link)
    link += image


def _note(made: str) -> nodes.paragraph:
    note = nodes.paragraph("", "", nodes.Text("Picture: "))
    for number, line in enumerate(made.splitlines()):
        note += [nodes.Text(", then ")] * (number > 0) + [nodes.literal("", line)]
    note["classes"] += ["made-by"]
    return note
