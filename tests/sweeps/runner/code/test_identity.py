"""A stored number belongs to the program that computed it: whatever changes the program is seen,
wherever it comes from, and nothing else is. Each change is made between two processes."""

import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeps.runner.store.store import Store

HEAD = """
import functools
import dynsim, jax, jax.numpy as jnp, numpy as np
from pathlib import Path
RULE = dynsim.sgd(0.1)
class Base(dynsim.Problem):
    def init(self, key):
        return jax.random.normal(key, (3,))
    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))
    def loss(self, params, data):
        return self.scale() * jnp.mean((data @ params) ** 2)
    def scale(self):
        return 1.0
"""
TAIL = "\nPROBLEM = Net()\n"


def net(body: str, before: str = "", tail: str = TAIL) -> str:
    """A module with a problem whose `scale` has this body."""
    scale = textwrap.indent(textwrap.dedent(f"def scale(self):\n    {body}"), "    ")
    return f"{HEAD}{before}\nclass Net(Base):\n{scale}\n{tail}"


TWINS = net("return 1.0", tail="\nOne = Net\nclass Net(Base):\n    def scale(self): return 9.0\n")
FIELD = net("return self.f(1.0)").replace(
    "class Net(Base):", "class Net(Base):\n    f: object = None"
)
ONE = net("return 1.0")
Files = dict[str, Any]


def pair(main: str, **others: str) -> tuple[Files, Files]:
    """A package of modules in which `$S` is 1.0, and what changes of it when it is 9.0."""
    modules = {f"{name}.py": text for name, text in {"main": main, **others}.items()}
    before, after = (
        {name: text.replace("$S", s) for name, text in modules.items()} for s in ("1.0", "9.0")
    )
    return before, {name: text for name, text in after.items() if text != before[name]}


ROWS: dict[str, tuple[Files, Files]] = {
    "constant": pair(net("return S", "S = $S")),
    "array": pair(net("return S.sum()", "S = np.array([1.0, $S])")),
    "imported": pair(net("return S", "from imported_other import S"), other="S = $S"),
    "data": (
        {
            "main.py": net("return D.sum()", "D = np.load(Path(__file__).with_name('d.npy'))"),
            "d.npy": np.ones(1),
        },
        {"d.npy": np.full(1, 9.0)},
    ),
    "helper": pair(net("return helper_f.f(1.0)", "import helper_f"), f="def f(x): return $S * x"),
    "decorator": pair(
        net("return one()", "from decorator_d import d\n@d\ndef one(): return 1.0"),
        d="def d(f): return lambda: $S * f()",
    ),
    "inherited": pair(HEAD.replace("1.0", "$S") + "class Net(Base): pass" + TAIL),
    "default": pair(net("return g()", "def g(x=$S): return x")),
    "zipped": (
        {"zipped.zip": {"zipped_main.py": ONE}},
        {"zipped.zip": {"zipped_main.py": net("return 9.0")}},
    ),
    "twins": pair(f"{TWINS}PROBLEM = One() if $S == 1.0 else Net()\n"),
    "field": pair(f"{FIELD}PROBLEM = Net(lambda x: $S * x)\n"),
    "optax": pair(
        f"{ONE}import optax\n"
        "RULE = dynsim.from_optax(lambda rate: optax.sgd($S * rate), rate=0.1)\n"
        "OPTIONS = {'axes': {'rate': [0.1, 0.2], 'seed': [0, 1]}}\n"
    ),
    "schedule": pair(
        f"{ONE}RULE = dynsim.sgd(lambda k: 0.1 * $S + 0 * k)\n"
        "OPTIONS = {'axes': {'seed': [0, 1]}}\n"
    ),
    "observable": pair(
        f"{ONE}def seen(problem, params): return $S * params.sum()\n"
        "OPTIONS = {'record': [{'seen': seen}]}\n"
    ),
}
"""Files of a package, and those that change: what is not in the text of one class."""
BUILT = """
import dataclasses, equinox as eqx, odes
from dynsim.training.rule import UpdateRule
S = np.float32($S)
class Net(Base):
    table: object = dataclasses.field(default_factory=lambda: jnp.ones(2))
    factor: float = 1.0
    data: object = None
    def scale(self):
        return self.table[0] * self.factor
"""
"""A problem whose scale is the product of an array and a number, and a value `S` that changes."""


def changed(code: str, tail: str = TAIL) -> tuple[Files, Files]:
    """A package with this code, where `S` is 1 and then 9."""
    return pair(HEAD + BUILT + code + tail)


def built(fields: str, more: str = "") -> tuple[Files, Files]:
    """One in which `build` sets fields."""
    return changed(f"    def build(self, rule): return dataclasses.replace(self, {fields})\n{more}")


ENTERING: dict[str, tuple[Files, Files]] = {
    "built_array": built("table=jnp.full(2, S)"),
    "rule_along_an_axis": changed(
        "class Mine(UpdateRule):\n    size: float = 1.0\n"
        "    def build(self): return dynsim.sgd(0.1 * float(S) * self.size)\n"
        "RULE = Mine()\nOPTIONS = {'axes': {'size': [1.0, 2.0], 'seed': [0, 1]}}"
    ),
    "built_data": changed(
        "class Made(dynsim.Data):\n"
        "    def build(self): return dynsim.Arrays({'x': S * np.ones((8, 3), np.float32)})\n"
        "class Net(Base):\n    data: dynsim.Data = Made()\n"
        "    def draw(self, key, batch): return self.data.draw(key, batch)['x']\n"
    ),
    "cached_table": changed(
        "@functools.cache\ndef table(): return jnp.full(2, S)\n"
        "class Net(Net):\n"
        "    def build(self, rule): return dataclasses.replace(self, table=table())"
    ),
    "not_init_array": changed(
        "    made: object = eqx.field(init=False)\n"
        "    def __post_init__(self): self.made = jnp.full(2, S)\n"
        "    def scale(self): return self.made.sum()"
    ),
    "table_of_a_task": changed(
        "class Pair(dynsim.Task):\n"
        "    def build(self):\n"
        "        own = 0.05 * float(S)\n"
        "        rows = [[1 - own, own, 0], [1 - own, 0, own]]\n"
        "        return dynsim.sequence_classes(rows, [0, 1])\n"
        "PROBLEM = dynsim.Layer(Pair())\nRULE = dynsim.sgd({'Y': 1.0, 'Z': 0.1})\n"
        "OPTIONS = {'axes': {'eta_y': [0.5, 1.0], 'seed': [0, 1]}, 'record': ['loss']}",
        "",
    ),
    "needs": built(
        "factor=float(S)",
        "    @staticmethod\n    def theories(): return (DECAY,)\n"
        "    def observables(self): return {'weight': lambda problem, w: w}\n"
        "def decay(problem, rule, times, *, factor, **options):\n"
        "    weight = factor * jnp.ones(len(times))\n"
        "    return dynsim.Trajectory(times, {'weight': weight}, weight, jnp.int32(0), -1)\n"
        "DECAY = odes.Theory('decay', 'decay', 'none', decay, lambda training: None,\n"
        "                    needs=('factor',), adaptive=False)\n"
        "OPTIONS = {'theory': 'decay', 'axes': {'eta': [0.1, 0.2]}, 'record': ['weight']}",
    ),
    # Not named by anybody before.
    "one_entry": built(
        "data=jnp.ones(999).at[500].set(S)", "    def scale(self): return self.data[500]"
    ),
    "key": built("table=jax.random.uniform(jax.random.key(int(S)), 2)"),
    "dtype": built(
        "data=jnp.asarray(np.arange(1, 3) if S > 1 else np.arange(1.0, 3.0))",
        "    def scale(self): return 1.0 + 0.0 * self.data.sum()",
    ),
}
"""What enters a program as an argument, and is not in its text."""
SAME: dict[str, tuple[Files, Files]] = {
    "layout": ({"main.py": net("return (1.0)")}, {"main.py": net("return (\n        1.0\n    )")}),
    "jitted": (
        {"main.py": net("return one()", "@jax.jit\ndef one(): return jnp.cos(0.0)")},
        {"main.py": net("return two()", "@jax.jit\ndef two(): return jnp.cos(0.0)")},
    ),
    "built_alike": built("table=jnp.full(2, S / S)"),
    "unused": pair(net("return 1.0", "def other(): return $S")),
    "callback": pair(
        net("return jax.pure_callback(lambda: np.float32($S), jax.ShapeDtypeStruct((), 'f4')) ** 0")
    ),
}
"""What changes no program, or, as what a callback does, is not part of it."""


def write(folder: Path, name: str, files: Files) -> None:
    for file, content in files.items():
        path = folder / name / (f"{name}_{file}" if file.endswith(".py") else file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            with zipfile.ZipFile(path, "w") as archive:
                for inside, text in content.items():
                    archive.writestr(inside, text)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        else:
            path.write_text(content)


def processed(folder: Path, stores: Path, cwd: Path, **changes: str) -> dict[str, float | str]:
    """What a process of its own makes of all packages of a folder."""
    # As users have it: Python keeps what it has compiled of a module.
    kept = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    root = str(Path(__file__).parents[4])
    found = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("computing.py")), folder, stores],
        cwd=cwd,
        env={**kept, "PYTHONPATH": root, "PYTHONHASHSEED": "1", **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return dict(map(json.loads, found.stdout.splitlines()))


FULL = {*ROWS, *ENTERING, *SAME} - {
    *("helper", "optax", "callback"),
    *("built_array", "rule_along_an_axis", "built_data", "table_of_a_task", "needs"),
}
"""Packages of which others show the same, or `test_agreement.py` and `test_problems.py`."""
Found = dict[str, float | str]
Twice = Callable[[str], tuple[float | str, float | str]]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """What a process makes of a package, and another one when it has changed. All packages that are
    asked for together share the processes; of every other store a chunk is gone in between."""

    @functools.cache
    def found(full: bool) -> tuple[Found, Found]:
        folder, stores = (tmp_path_factory.mktemp(name) for name in ("packages", "stores"))
        rows = {
            name: each
            for name, each in {**ROWS, **ENTERING, **SAME}.items()
            if (name in FULL) == full
        }
        for name, (files, _) in rows.items():
            write(folder, name, files)
        before = processed(folder, stores, folder)
        for i, (name, (_, changed)) in enumerate(rows.items()):
            write(folder, name, changed)
            if i % 2:
                store = Store.open(stores / name)
                store.storage.remove(store.chunks.file(1))
        return before, processed(folder, stores, stores, PYTHONHASHSEED="2")

    def of(name: str) -> tuple[float | str, float | str]:
        before, after = found(name in FULL)
        return before[name], after[name]

    return of


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.full) if n in FULL else n for n in names]


@pytest.mark.parametrize("name", marked(ROWS))
@pytest.mark.more
def test_other_code_never_takes_part_in_what_is_stored(name: str, twice: Twice) -> None:
    before, after = twice(name)
    assert isinstance(before, float), before
    assert isinstance(after, str)
    assert "computed by different code" in after
    assert "--accept-code" in after


@pytest.mark.parametrize("name", marked(ENTERING))
def test_other_arrays_and_numbers_never_take_part_in_what_is_stored(
    name: str, twice: Twice
) -> None:
    before, after = twice(name)
    assert isinstance(before, float), before
    assert isinstance(after, str)
    assert "computed by different code" in after
    # Of arrays and of numbers along an axis, the error has short hashes.
    assert re.search(r"(array|number) [a-z._0-9]+ [0-9a-f.]+ -> [0-9a-f.]+", after)


@pytest.mark.parametrize("name", marked(SAME))
def test_what_changes_no_program_is_no_other_code(name: str, twice: Twice) -> None:
    before, after = twice(name)
    assert isinstance(before, float), before
    assert after == before
