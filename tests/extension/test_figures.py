"""Figures of other packages are commands, in a process that finds these packages when it starts."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sweeps
from tests.docs.test_docs import FILE, ROOT
from tests.extension import packages


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`dynsim` with these words, where the packages in `folder` are installed too."""
    run = "import sys; from sweeps.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", run, *words],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.more
def test_a_figure_of_another_package_is_a_command(tmp_path):
    """As the page on extending shows it."""
    page = (ROOT / "docs" / "howto" / "extending.md").read_text()
    (tmp_path / "fall.py").write_text(dict(FILE.findall(page))["fall.py"])
    packages.write(tmp_path, "falls", entries={"dynsim.figures": {"fall": "fall:Fall"}})
    done = command(tmp_path, "figure", "fall", "--eta", "0.1,0.2", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out" / "fall"
    stored = sweeps.open(out / "training").loss.load()
    assert f"loss at the end: {float(stored.isel(time=-1).mean()):.3g}" in done.stdout
    with np.load(out / "fall.npz") as arrays:
        np.testing.assert_array_equal(arrays["loss"], stored)
        np.testing.assert_array_equal(arrays["eta"], [0.1, 0.2])
    assert (out / "fall.png").stat().st_size > 5_000


@pytest.mark.more
def test_a_figure_that_cannot_be_loaded_is_named(tmp_path):
    broken = {"broken": "no_such_module:Figure"}
    packages.write(tmp_path, "breaks", entries={"dynsim.figures": broken})
    message = "broken = no_such_module:Figure of breaks: cannot be loaded"
    done = command(tmp_path, "figure", "broken")
    assert done.returncode == 2
    assert message in done.stderr
    # The list of figures is printed with that message.
    done = command(tmp_path, "figure", "--help")
    assert done.returncode == 0, done.stderr
    assert message in done.stdout
