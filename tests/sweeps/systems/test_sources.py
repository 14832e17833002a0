"""The hash of code from outside: it changes with what decides numbers, and with nothing else."""

import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dynsim
from sweeps import cli
from sweeps.systems import registry, sources

SOURCE = """
import functools
import numpy as np
FACTOR = 2
class Base:
    def scale(self):
        return other(3)
class Model(Base):
    def loss(self, x):
        return helper(x) * self.scale()
def helper(x):
    return x + 1
def other(x):
    return x
def unrelated(x):
    return x
def made(x):
    return functools.partial(helper, x)
"""
Written = Callable[[str], ModuleType]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Imports a text as a package of somebody else's, anew each time."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = iter(range(100))

    def write(text: str) -> ModuleType:
        # A folder for each: Python would take one of the same second and size for the same.
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "somebody.py").write_text(text)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "somebody", raising=False)
        return importlib.import_module("somebody")

    return write


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("x + 1", "x + 2", True),
        ("return x\ndef unrelated", "return 2 * x\ndef unrelated", True),
        ("other(3)", "other(4)", True),
        ("def unrelated(x):\n    return x", "def unrelated(x):\n    return 5", False),
        ("return x + 1", "return x + 1  # a comment\n", False),
        ("class Model(Base):", "class Model(Base):\n    version = '1'", True),
    ],
)
def test_what_a_class_names_is_part_of_it(
    old: str, new: str, changes: bool, written: Written
) -> None:
    before = sources.fingerprint(written(SOURCE).Model)
    after = sources.fingerprint(written(SOURCE.replace(old, new, 1)).Model)
    assert before
    assert (after != before) == changes


def test_a_version_takes_the_place_of_the_source(written: Written) -> None:
    told = SOURCE.replace("class Model(Base):", "class Model(Base):\n    version = '1'")
    one = sources.fingerprint(written(told).Model)
    assert sources.fingerprint(written(told.replace("x + 1", "x + 2")).Model) == one
    assert sources.fingerprint(written(told.replace("'1'", "'2'")).Model) != one


def test_functions_are_found_in_what_is_made_of_them(written: Written) -> None:
    def code(text: str, of: Callable[[Any], Any]) -> str:
        return sources.fingerprint(of(written(text)))

    changed = SOURCE.replace("x + 1", "x + 2")
    for of in (
        lambda module: functools.partial(np.add, module.helper),
        lambda module: module.Model().loss,
        lambda module: module.made,
        lambda module: lambda x: module.helper(x) if x else FACTOR(x),
    ):
        assert code(SOURCE, of)
    for of in (lambda m: functools.partial(np.add, m.helper), lambda m: m.made):
        assert code(SOURCE, of) != code(changed, of)
    # What shares a line is told apart.
    one, two = lambda x: x + 1, lambda x: x + 2
    assert sources.fingerprint(one) != sources.fingerprint(two)


FACTOR = float


def test_what_is_ours_or_a_librarys_has_no_hash() -> None:
    for value in (
        dynsim.Layer,
        dynsim.sgd,
        np.mean,
        functools.partial(np.mean, axis=0),
        json.dumps,
    ):
        assert sources.fingerprint(value) == ""


def test_results_of_changed_code_are_not_taken_for_finished(
    tmp_path: Path, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    model = """
import dynsim, jax.numpy as jnp
class Slope(dynsim.Problem):
    def init(self, key):
        return jnp.zeros(())
    def draw(self, key, batch):
        return jnp.ones(batch)
    def loss(self, params, data):
        return jnp.mean((params - goal() * data) ** 2)
def goal():
    return 1.0
"""
    file, out = tmp_path / "sweep.toml", tmp_path / "store"
    file.write_text(
        'system = "somebody:Slope"\nrecord = ["batch_loss"]\n[run]\nsteps = 2\nbatch = 2\n'
        "[axes]\neta = [0.1, 0.2]\n"
    )
    for text, code in ((model, 0), (model, 0), (model.replace("1.0", "3.0"), 2)):
        written(text)
        registry._KNOWN.pop("somebody:Slope", None)
        assert cli.main(["sweep", str(file), "--out", str(out)]) == code
    assert "run.problem_code: the code of the problem changed (" in capsys.readouterr().err
