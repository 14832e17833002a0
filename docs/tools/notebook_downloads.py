"""Sphinx extension that offers each tutorial as a Jupyter notebook for download."""

from pathlib import Path

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

FOLDER = "_downloads"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", _offer)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}


def is_notebook(page: str) -> bool:
    return page.startswith("tutorials/") and page != "tutorials/index"


def notebook(text: str) -> nbformat.NotebookNode:
    """Convert a MyST page to a notebook."""
    found = read_myst_markdown_notebook(text)
    # Metadata for Sphinx and Jupytext, such as descriptions of images, mean nothing elsewhere.
    found.metadata.pop("jupytext", None)
    for cell in found.cells:
        cell.metadata.pop("mystnb", None)
    return found


def _offer(app: Sphinx, tree: nodes.document, page: str) -> None:
    if app.builder.format != "html" or not is_notebook(page):
        return
    file = f"{FOLDER}/{Path(page).name}.ipynb"
    link = nodes.reference("", "Download this notebook", internal=True)
    link["refuri"] = relative_uri(app.builder.get_target_uri(page), file)
    title = next(iter(tree.findall(nodes.title)))
    paragraph = nodes.paragraph("", "", link)
    paragraph["classes"] += ["made-by"]
    title.parent.insert(title.parent.index(title) + 1, paragraph)


def _write(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(exist_ok=True)
    for page in sorted(filter(is_notebook, app.env.found_docs)):
        text = Path(app.env.doc2path(page)).read_text()
        nbformat.write(notebook(text), folder / f"{Path(page).name}.ipynb")
