"""Imports go one way: dynsim <- odes <- sweeps."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "dynsim": {"odes", "sweeps", "tests"},
    "odes": {"sweeps", "tests"},
    "sweeps": {"tests"},
}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert not imported(path) & FORBIDDEN[package], path


def test_diffrax_is_called_in_one_place() -> None:
    users = [p.name for p in (ROOT / "odes").rglob("*.py") if "diffrax" in imported(p)]
    assert users == ["integrate.py"]
