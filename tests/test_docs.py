"""What README and docs show runs: Python blocks as they stand, commands as far as parsing, and the
sweeps that come along as far as checking."""

import re
import shlex
from pathlib import Path

import pytest

import sweeps
from sweeps import cli
from sweeps.commands.sweep import SweepCommand

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda page: page.stem
)
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
