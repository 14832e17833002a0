"""Sphinx extension that warns of slow notebooks and configures their kernels."""

import atexit
import logging as python_logging
import os
import tempfile
from pathlib import Path

from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

SECONDS = 300
"""Time limit of a notebook: five times what its page promises, for slow and busy machines."""

CONFIGURATION = """
c.IPKernelApp.log_level = "ERROR"
c.InlineBackend.figure_formats = {"retina"}
"""
"""Configuration of kernels: no messages about their ports, and images of twice the resolution."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-check-consistency", _check)
    _quiet_kernels()
    return {"parallel_read_safe": True}


def _quiet_kernels() -> None:
    """Let kernels read `CONFIGURATION`."""
    home = tempfile.TemporaryDirectory(prefix="dynsim-docs-")
    atexit.register(home.cleanup)
    profile = Path(home.name) / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(CONFIGURATION)
    os.environ["IPYTHONDIR"] = home.name
    # The executor logs each notebook, even with `-q`.
    python_logging.getLogger("traitlets").setLevel(python_logging.WARNING)


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    for page in sorted(env.found_docs):
        seconds = (NbMetadataCollector.get_exec_data(env, page) or {}).get("runtime") or 0
        if seconds > SECONDS:
            logging.getLogger(__name__).warning(
                "took %.0f s, may take %d s", seconds, SECONDS, location=page
            )
