"""Sphinx extension for images: they load lazily, in reserved space, and enlarge on click.

On pages other than the gallery, which may describe the full figure, a gallery image made with
options gets a note with its command. An image without a descriptive text causes a warning.
"""

from pathlib import Path

from docutils import nodes
from made import command
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

LETTERS = 40
"""Smallest length of an alternative text: shorter ones name an image without describing it."""


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
    """Load an image lazily, with its size known, so that nothing on the page moves."""
    image["loading"] = "lazy"
    if "width" not in image:
        with Image.open(file) as picture:
            image["width"], image["height"] = map(str, picture.size)


def _link(app: Sphinx, image: nodes.image, page: str) -> None:
    """Link an image to its own file, unless it is a link already."""
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
