"""A warning for every notebook that takes longer than it may."""

from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

SECONDS = 300
"""That a notebook may take: five times what its page promises, for slow and busy machines."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True}


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    for page in sorted(env.found_docs):
        seconds = (NbMetadataCollector.get_exec_data(env, page) or {}).get("runtime") or 0
        if seconds > SECONDS:
            logging.getLogger(__name__).warning(
                "took %.0f s, may take %d s", seconds, SECONDS, location=page
            )
