"""W&B publishes a distribution `sweeps` with a module of that name: the clash is explained."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def unpacked(folder: Path, *, theirs_last: bool):
    """The packages of both distributions in one folder, as pip leaves them."""
    for name in ("dynsim", "odes", "papers"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "sweeps").mkdir()
    for path in (ROOT / "sweeps").iterdir():
        if path.name != "__init__.py":
            (folder / "sweeps" / path.name).symlink_to(path)
    (folder / "sweeps" / "bayes_search.py").touch()
    init = "" if theirs_last else (ROOT / "sweeps" / "__init__.py").read_text()
    (folder / "sweeps" / "__init__.py").write_text(init)


@pytest.mark.parametrize(("theirs_last", "code"), [(False, 0), (True, 2)])
def test_the_command_explains_the_clash_in_one_line(theirs_last: bool, code: int, tmp_path: Path):
    unpacked(tmp_path, theirs_last=theirs_last)
    run = "import sys; from sweeps.cli import main; sys.exit(main(['--version']))"
    found = subprocess.run(
        [sys.executable, "-c", run],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == code, found.stderr
    assert found.stderr.count("\n") == (1 if code else 0)
    assert ("pip uninstall sweeps" in found.stderr) == bool(code)
