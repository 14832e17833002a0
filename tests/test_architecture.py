"""The layout's rules: few entries in a folder, imports that go one way, and in short chains."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

from sweeps.systems import registry

ROOT = Path(__file__).parents[1]
ROOMS = ("dynsim", "odes", "sweeps")
"""From the lowest up: a room imports those before it."""
MOST_ENTRIES = 16
LONGEST_CHAIN = 13
FLOORS = {
    "dynsim": (
        "checks numeric __main__",
        "plugins precision decoding",
        "compiling trajectory schedules",
        "training",
        "classes problem",
        "yz two_stage linear_icl sparse_attention transformer",
        "qkv joma",
    ),
    "odes": (
        "solver coefficients decoder run",
        "growth predictions theory problem",
        "general batch_noise central symmetric two_stage",
        "linear_icl joma sparse_attention system yz",
        "qkv",
        "hierarchy",
    ),
    "sweeps": (
        "lines",
        "cache",
        "language output",
        "recipes",
        "systems",
        "runner",
        "comparison figures",
        "studies",
        "commands",
        "cli",
    ),
}
"""Folders of each room, and modules that are in none, from the lowest floor up: what is imported is
in the same one or on a lower floor. So runner and systems know no study, and studies no command
line."""


@functools.cache
def modules() -> dict[str, Path]:
    """All modules of the rooms by name."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imported(path: Path, at_once: bool = False) -> frozenset[str]:
    """Names of what a file imports, anywhere in it, or only of what it imports `at_once`: modules,
    and for what they contain that too."""
    found = set()
    tree = ast.parse(path.read_text())
    later = {
        inner
        for node in ast.walk(tree)
        if at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in {*ast.walk(tree)} - later:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from package import module` imports the module.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in names}
    return frozenset(found)


def used(module: str, at_once: bool = False) -> set[str]:
    """Modules of its own room that a module imports, or imports `at_once`, without the room's
    front."""
    room = module.split(".")[0]
    found = {name for name in imported(modules()[module], at_once) if name in modules()}
    return {name for name in found if name.startswith(f"{room}.")} - {module}


def within(room) -> list[str]:
    """The modules of a room without its front."""
    return sorted(name for name in modules() if name.startswith(f"{room}."))


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room):
    forbidden = {*ROOMS[ROOMS.index(room) + 1 :], "tests"}
    for path in (modules()[name] for name in [room, *within(room)]):
        assert not {name.split(".")[0] for name in imported(path)} & forbidden, path


BY_NAME = {
    "dynsim.__main__": "the command line, which is above it",
    "sweeps": "public names, imported when they are used",
    "sweeps.commands.table": "modules of commands",
    "sweeps.language.describe": "names in files of users",
    "sweeps.runner.cluster": "packages of executors, where they are installed",
    "sweeps.runner.program.program_cache": "whether a name leads back to its object",
    "sweeps.systems.kinds": "classes by their words",
}
"""Modules that import by a name in a text, which the other tests here cannot read, and what."""


def test_imports_are_statements():
    calls = {"resolve_name", "import_module", "__import__"}
    found = {
        name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls
    }
    assert found == {*BY_NAME}


def test_diffrax_is_called_in_one_place():
    users = [name for name in within("odes") if "diffrax" in imported(modules()[name])]
    assert users == ["odes.solver.integrate"]


def test_settings_cannot_be_changed():
    thawed = [
        name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for each in node.decorator_list
        if re.search(r"\bdataclass\b(?!.*frozen=True)", ast.unparse(each))
    ]
    assert {*thawed} == {"sweeps.runner.agreement", "sweeps.runner.store.manifest"}


@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_folders_have_few_entries(room):
    """Entries with the name of a system are not counted: a new system adds its own, and moves
    nothing else."""
    # What Python has compiled lies beside its source, in folders of its own.
    kept = lambda path: not path.name.startswith((".", "__pycache__"))
    inside = (path for path in (ROOT / room).rglob("*") if path.is_dir() and kept(path))
    for folder in (ROOT / room, *inside):
        entries = filter(kept, folder.iterdir())
        counted = sorted(p.name for p in entries if p.stem not in registry.BUILT_IN)
        assert len(counted) <= MOST_ENTRIES, (folder, counted)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_do_not_climb(room):
    folder = lambda module: module.split(".")[1]
    floors = {name: i for i, names in enumerate(FLOORS[room]) for name in names.split()}
    assert {folder(name) for name in within(room)} == {*floors}
    climbing = [
        f"{module} -> {other}"
        for module in within(room)
        for other in sorted(used(module))
        if folder(module) != folder(other) and floors[folder(module)] <= floors[folder(other)]
    ]
    assert not climbing


@pytest.mark.parametrize("room", ROOMS)
def test_chains_of_imports_are_short(room):
    # What a function imports may import the module of the function.
    imports = {name: used(name, at_once=True) for name in within(room)}
    longest: dict[str, list[str]] = {}
    # Raises where modules import each other.
    for module in graphlib.TopologicalSorter(imports).static_order():
        below = max((longest[other] for other in imports[module]), key=len, default=[])
        longest[module] = [module, *below]
    chain = max(longest.values(), key=len)
    assert len(chain) <= LONGEST_CHAIN, " > ".join(chain)


def test_full_tests_name_the_default_tests_that_stand_for_them(collected):
    """A test that only `make test-full` runs has cases that run by default, or names default tests
    that guard the same: by name in its own file, else as `odes/yz/test_spread.py::test_name`."""
    tests = ROOT / "tests"
    file = lambda item: str(item.path.relative_to(tests))
    test = lambda item: f"{file(item)}::{getattr(item, 'originalname', item.name)}"
    default = {test(item) for item in collected if item.get_closest_marker("full") is None}
    # A run of some files says nothing about the tests of others.
    unseen = {str(p.relative_to(tests)) for p in tests.rglob("*.py")} - {*map(file, collected)}
    missing = set()
    for item in collected:
        if mark := item.get_closest_marker("full"):
            named = [n if "::" in n else f"{file(item)}::{n}" for n in mark.args] or [test(item)]
            absent = [n for n in named if n not in default and n.split("::")[0] not in unseen]
            missing |= {f"{test(item)} needs a default test: {n}" for n in absent}
    assert not missing
