"""What stands on what within dynsim: training and classes below, the systems beside each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "dynsim"
GENERAL = {"schedules", "training", "problem"}


def files(name: str) -> list[Path]:
    """Of a package, or the one of a module."""
    found = [*(ROOT / name).glob("*.py"), *ROOT.glob(f"{name}.py")]
    assert found, name
    return found


ALLOWED = {
    "schedules": set(),
    "training": {"schedules"},
    "problem": GENERAL,
    "classes": set(),
    "yz": {*GENERAL, "classes"},
    "qkv": {*GENERAL, "classes", "yz"},
    "two_stage": GENERAL,
    "linear_icl": GENERAL,
    "sparse_attention": GENERAL,
    "joma": {*GENERAL, "classes", "yz"},
    "transformer": {*GENERAL, "classes"},
}


@pytest.mark.parametrize(("name", "allowed"), ALLOWED.items())
def test_systems_stand_on_training_and_classes(name: str, allowed: set[str]) -> None:
    folders = (path.name for path in ROOT.iterdir() if path.is_dir())
    others = {*ALLOWED, *folders} - allowed - {name}
    for path in files(name):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dynsim."):
                assert node.module.split(".")[1] not in others, path


def test_the_init_of_a_system_imports_nothing() -> None:
    for system in ("yz", "two_stage", "transformer", "linear_icl"):
        (only,) = ast.parse((ROOT / system / "__init__.py").read_text()).body
        assert isinstance(only, ast.Expr)
