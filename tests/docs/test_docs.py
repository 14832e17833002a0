"""What README and docs show runs: Python blocks as they stand, with the output that the page shows,
commands as far as parsing, and built-in sweeps as far as checking."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest

import odes.theory
import sweeps
from dynsim.training import recording
from sweeps import cli
from sweeps.commands import table
from sweeps.commands.sweep import SweepCommand
from sweeps.systems import registry

pytestmark = pytest.mark.usefixtures("quick_theory")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\A\n+[^`]*?\bprints?:?\n+```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""What a page shows as the output of the block before it."""
FILE = re.compile(r"This is all of `(\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A complete module that a page shows, with its name."""
NUMBER = re.compile(r"-?\d+(?:\.(\d+))?")
NAME = re.compile(r"`((?:dynsim|odes|sweeps)(?:\.\w+)+)")
GROUPS = {recording.GROUP, odes.hierarchy.GROUP, registry.GROUP, table.FIGURES}
"""Of entry points: names that stand for no object."""


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


# By default what a newcomer reads first; other tests run the modules of some other pages.
FIRST = {"README", "ladder"}
FULL = pytest.mark.full(
    "test_python_blocks_run",
    "sweeps/systems/test_own_problem.py::test_compare_holds_training_flow_and_closed_form_together",
    "extension/test_extension.py::test_its_system_is_compared_with_its_theory",
)
WITH_PYTHON = [
    pytest.param(p, id=p.stem, marks=[] if p.stem in FIRST else [FULL])
    for p in PAGES
    if blocks(p, "python")
]


def printed_by(page) -> list[tuple[str, str]]:
    """What the Python blocks of a page print, one after the other, and what the page says that they
    do, of those of which it says it."""
    text, known, found = page.read_text(), {"__name__": "docs"}, []
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            output = io.StringIO()
            # Errors have the line of the page.
            above = "\n" * text.count("\n", 0, block.start(2))
            with contextlib.redirect_stdout(output):
                exec(compile(above + block[2], str(page), "exec"), known)
            if shown := SHOWN.match(text[block.end() :]):
                found.append((output.getvalue(), shown[1]))
    return found


def alike(printed: str, shown: str, units: float = 1.0, share: float = 0.0) -> bool:
    """Whether two texts are the same but for `units` of the last digit of each number, and a
    `share` of it."""
    words = [NUMBER.sub("#", text).split() for text in (printed, shown)]
    pairs = zip(NUMBER.finditer(printed), NUMBER.finditer(shown), strict=False)
    return words[0] == words[1] and all(
        abs(float(a[0]) - float(b[0]))
        <= 1.01 * units * 10.0 ** -len(b[1] or "") + share * abs(float(b[0]))
        for a, b in pairs
    )


@pytest.mark.parametrize("page", WITH_PYTHON)
@pytest.mark.more
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for printed, shown in printed_by(page):
        # Rounding in float32, and the equal steps of `quick_theory`, change the last digit.
        assert alike(printed, shown), printed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_pages_show_what_their_example_prints(page: str):
    text = (ROOT / page).read_text()
    assert [SHOWN.match(text[b.end() :]) is not None for b in BLOCK.finditer(text)].count(True) == 1


def test_other_output_than_a_page_shows_is_found_out():
    assert alike("loss 0.0212 0.5 of 2\n", "loss  0.0211 0.5 of 2")
    for wrong in (
        "loss 0.0213 0.5 of 2",
        "loss 0.0211 0.5 of 4",
        "loss 0.0211 of 2",
        "lost 0.0211",
    ):
        assert not alike(wrong, "loss 0.0211 0.5 of 2")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.more
def test_commands_parse_and_links_resolve(page, tmp_path, monkeypatch):
    # Pages show modules that lie beside them, and whole ones.
    monkeypatch.syspath_prepend(str(page.parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, code in FILE.findall(page.read_text()):
        (tmp_path / name).write_text(code)
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
    """What a dotted name stands for: an attribute where a module is called alike, unless only the
    module has what comes next."""
    first, *rest = name.split(".")
    found, path = importlib.import_module(first), first
    for part in rest:
        holder = found if hasattr(found, part) else importlib.import_module(path)
        path = f"{path}.{part}"
        found = getattr(holder, part) if hasattr(holder, part) else importlib.import_module(path)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_modules_and_functions_are_there(page):
    for name in sorted(set(NAME.findall(page.read_text())) - GROUPS):
        resolve(name)


def test_names_that_are_not_there_are_found_out():
    assert resolve("odes.yz.THEORIES") is odes.yz.THEORIES
    for name in ("odes.yzz", "odes.yz.THEORY", "dynsim.train.steps"):
        with pytest.raises(ImportError):
            resolve(name)


def test_every_promise_about_stores_names_a_test():
    page = (ROOT / "docs" / "howto" / "guarantees.md").read_text()
    named = re.findall(r"`([\w/.]+\.py)::(\w+)`", page)
    assert len(named) >= 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / "sweeps" / file).read_text(), name


def test_every_answer_to_where_is_in_the_file_that_it_names():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    answers = re.findall(r"^\| [^|]+\? \| `([\w/.]+)` \| `([\w.]+)`", page, re.MULTILINE)
    assert len(answers) == 13
    for file, name in answers:
        defined = rf"^ *(def|class) {name.rpartition('.')[2]}\b|^{name}\b"
        assert re.search(defined, (ROOT / file).read_text(), re.MULTILINE), name
