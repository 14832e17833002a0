"""What README and docs show runs: Python blocks as they stand, commands as far as parsing, and the
sweeps that come along as far as checking."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

import odes.theory
import sweeps
from dynsim.training import recording
from sweeps import cli
from sweeps.commands.sweep import SweepCommand
from sweeps.systems import registry

pytestmark = pytest.mark.usefixtures("quick_theory")

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`((?:dynsim|odes|sweeps)(?:\.\w+)+)")
GROUPS = {recording.GROUP, odes.theory.GROUP, registry.GROUP}
"""Of entry points: names that stand for no object."""


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


# By default those that a newcomer reads first.
FIRST = {"README", "extending", "ladder"}
WITH_PYTHON = [
    pytest.param(p, id=p.stem, marks=[] if p.stem in FIRST else [pytest.mark.full])
    for p in PAGES
    if blocks(p, "python")
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page, "python")), str(page), "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_parse_and_links_resolve(page: Path) -> None:
    for code in blocks(page, "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "dynsim" and "--help" not in words:
                asked = cli.parse(words[1:])
                if isinstance(asked, SweepCommand) and not asked.file.endswith(".toml"):
                    sweeps.load(asked.file, asked.set).check()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def resolve(name: str) -> object:
    """What a dotted name stands for: the longest module in front, and what it holds."""
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split("."):
        module = f"{module}.{part}"
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module and not module.startswith(f"{error.name}."):
                raise
            found = getattr(found, part)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_modules_and_functions_are_there(page: Path) -> None:
    for name in sorted(set(NAME.findall(page.read_text())) - GROUPS):
        resolve(name)


def test_names_that_are_not_there_are_found_out() -> None:
    assert resolve("odes.yz.ladder.theory") is odes.ladder.theory
    for name in ("odes.yz.laddder", "odes.yz.ladder.thory", "dynsim.simulate.steps"):
        with pytest.raises(AttributeError):
            resolve(name)
