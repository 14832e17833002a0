"""The documentation site: the reference lacks no public name, the gallery no figure, the list of
commands no command; and the tools that build it do what they say. `make docs` builds it."""

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dynsim
import odes
import sweeps
from sweeps.commands.table import COMMANDS, group
from sweeps.runner import labels
from sweeps.systems import registry
from sweeps.systems.registry import BUILT_IN
from tests.docs.test_docs import PAGES, resolve

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*[!x].md"))
CELL = re.compile(
    r"^```\{code-cell\} ipython3\n(?:---\n(?P<options>.*?)^---\n)?(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PICTURE = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)\s]+)\)"  # ![...](path), and how MyST has it otherwise
    r"|\{(?:image|figure)\} (?P<directive>\S+)\n(?:[^\n]*\n)??:alt: (?P<option>[^\n]+)"
)
DESCRIBED = 40
"""Letters that an alternative text has at least: with less it names a picture."""
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:module):: (\S+)$", re.MULTILINE)
PACKAGES = [vars(odes)[name] for name in odes.__all__ if hasattr(vars(odes)[name], "__path__")]
FRONTS = [
    "dynsim",
    "dynsim.classes",
    "dynsim.schedules",
    "sweeps",
    *sorted(found.__name__ for found in PACKAGES),
]


def tool(path: str) -> ModuleType:
    """A module of the site's tools, by its path in docs/."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, DOCS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, tables = tool("gallery/make.py"), tool("tools/tables.py")
CLOSED = ("plateaus", "escape", "fixed_attention", "fixed_attention-discrete")
"""Theories that need no solver, of which two read momentum as a larger rate alone."""


def names_in_reference() -> list[str]:
    """The names that the pages of the reference document, by their own directives."""
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    return DIRECTIVE.findall(pages)


@pytest.mark.parametrize("front", [*FRONTS, "odes"])
def test_reference_has_every_public_name(front):
    package = importlib.import_module(front)
    documented = {id(resolve(name)) for name in names_in_reference()}
    public = getattr(package, "__all__", ())
    assert public
    assert [name for name in public if id(getattr(package, name)) not in documented] == []


def test_reference_documents_each_name_on_one_page():
    names = names_in_reference()
    assert sorted(names) == sorted(set(names))


def test_list_of_commands_is_whole():
    page = (DOCS / "reference" / "commands.md").read_text()
    names = {name.split()[0] for name in COMMANDS}
    assert [name for name in sorted(names) if f"`dynsim {name}" not in page] == []


def test_gallery_has_a_card_and_a_picture_of_every_figure():
    cards = make.cards()
    drawn = {card.figure for card in cards.values() if not card.commands}
    assert drawn == set(group("figure"))
    for name, card in cards.items():
        assert (make.HERE / card.page.partition("#")[0]).is_file(), name
        assert make.problem(card) is None, f"make gallery FIGURES={name}"
    assert make.page() == make.PAGE.read_text(), "make gallery"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_are_those_of_cards_and_described(page):
    """`make gallery` makes all of them. The next test makes those again that take seconds, and
    compares them; `make.py --check` does for any."""
    text = page.read_text()
    cards = {(make.HERE / card.picture).resolve() for card in make.cards().values()}
    for found in PICTURE.finditer(text):
        path = found["path"] or found["directive"]
        assert (page.parent / path).resolve() in cards, f"{path}: no card of the gallery makes it"
        assert len(found["alt"] or found["option"]) >= DESCRIBED, f"{path}: describe what it shows"
    # Another way to show a picture would not be seen here.
    assert len(PICTURE.findall(text)) == len(re.findall(r"!\[|\{image\}|\{figure\}|<img", text))


CHEAP = 10.0
"""CPU seconds up to which a card is made again by the tests at full size."""


@pytest.mark.full("test_arrays_are_the_same_but_for_rounding")
@pytest.mark.parametrize(
    "name", [n for n, found in make.made().items() if found["cpu_seconds"] < CHEAP]
)
def test_pictures_are_those_of_the_present_code(name, tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert make.differs(make.cards()[name], tmp_path / "made") is None


def test_arrays_are_the_same_but_for_rounding():
    rng = np.random.default_rng(0)
    arrays = {"a/x": rng.normal(size=(7, 300)), "a/y": np.arange(5), "a/z": np.zeros(3)}
    x, found = arrays["a/x"], make.fingerprint(arrays)
    assert make.same(found, make.fingerprint(arrays))
    # As float32 rounds, in the worst case always alike.
    assert make.same(found, make.fingerprint({**arrays, "a/x": x * (1 + 1e-6)}))
    one, lost = x.copy(), x.copy()
    one[3, 5] += 0.1
    lost[0, 0] = np.nan
    changed = [one, lost, x * 1.001, -x, x.T, x[::-1]]
    others = [{**arrays, "a/x": each} for each in changed]
    others += [{"b/x": x, "a/y": np.arange(5), "a/z": np.zeros(3)}, {**arrays, "a/z": np.ones(3)}]
    for other in (*others, {"a/x": x, "a/y": np.arange(5)}):
        assert not make.same(found, make.fingerprint(other))


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_pictures_of_notebooks_are_described(page):
    for cell in CELL.finditer(page.read_text()):
        described = re.search(r"^    alt: \"(.+)\"$", cell["options"] or "", re.MULTILINE)
        if "plt." in cell["code"]:
            assert described, cell["code"]
            assert len(described[1]) >= DESCRIBED


def test_tables_of_the_reference_have_every_system():
    for page, directive in (("optimisers", "optimisers"), ("observables", "observables")):
        text = (DOCS / "reference" / f"{page}.md").read_text()
        assert re.findall(rf"^```{{{directive}}} (\w+)$", text, re.MULTILINE) == list(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_recorded_quantity_is_explained(name):
    """`observables` raises for names without an entry in the file of formulas, and entries without
    a name; what is said by hand of who records one is checked below."""
    table = tables.observables(name)
    problem = sweeps.experiment(name).bare
    for each in registry.system(name).theories["simulation"].observables(problem).names():
        assert f"* - `{each}`\n" in table


def test_units_of_the_glossary_are_those_of_what_is_recorded():
    text = (DOCS / "theory" / "glossary.md").read_text()
    rows = r"^\|[^|]*\|[^|]*\| ([^|]*?) \|.*(?:measured|recorded) as `\"(\w+)\"`"
    units = {name: unit for unit, name in re.findall(rows, text, re.M)}
    assert {"speed", "xi", "B"} <= set(units)
    logits = re.search(r"attention logits;[^|]*\| (.*?) \|", text)
    assert logits is not None
    # Attention is proportional to e^z: z is a natural logarithm of a ratio.
    assert logits[1] == "nat"
    units |= dict.fromkeys(("z", "z_top_distinct", "z_top_distinct_std"), "nat")
    for name, unit in units.items():
        assert labels.about(registry.system("yz"), name)["units"] == unit, name


def test_the_growth_bound_is_recorded_by_none_but_those_that_its_entry_names():
    task, optimizer = dynsim.Layer(dynsim.Syn(2, 1, num_common=1)), dynsim.sgd(1.0, 0.1)
    for theory in odes.yz.THEORIES:
        applies = theory.why_not(task, optimizer) is None
        if applies and not theory.name.startswith(("eq10", "theorem4")):
            with pytest.raises(ValueError, match="record = 'B'"):
                theory.solve(task, optimizer, [0.0, 1.0], record="B")


BOTH = [
    pytest.param(name, theory, marks=[] if theory in CLOSED else [pytest.mark.full])
    for name in ("yz", "linear_icl", "sparse_attention")
    for theory in tables.theories(registry.system(name))
    if theory in tables.hierarchy(name)
]


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize(("name", "theory"), BOTH)
@pytest.mark.more
def test_theories_without_inertia_are_those_that_the_table_names(name, theory):
    """Momentum mu at the rate eta is SGD at eta / (1 - mu) for them, and for no others."""
    rules = tables.described(name, theory)
    if "momentum" not in rules:
        return
    settings, mu = tables.RULES, 0.5
    suiting = tables.SUITING.get(name, {})
    suits = suiting if theory in ("theorem4", "sigmoid") else {}
    if name == "linear_icl":
        # So that weights move far within few steps.
        suits = {**suits, "scale": 0.5}
    of_momentum = {**settings["momentum"], "momentum": mu, **suits}
    of_sgd = {**settings["sgd"], **suits}
    rates = ("eta_y", "eta_z") if name == "yz" else ("eta",)
    larger = {rate: sweeps.experiment(name).setting(rate) / (1 - mu) for rate in rates}
    # SGD has no flow called "rescaled": it is the plain one of a larger rate.
    other = theory if "sgd" in rules else "plain"

    def last(by: str, **given: Any) -> float:
        run = sweeps.experiment(name, **given, steps=20)
        found = sweeps.run(sweeps.Sweep(run, {"seed": [0]}, by, ("loss",)))
        return float(found["loss"].squeeze())

    by_sgd, by_momentum = last(other, **of_sgd, **larger), last(theory, **of_momentum)
    same = by_momentum == pytest.approx(by_sgd, rel=1e-6)
    assert same == (theory in tables.NO_INERTIA.get(name, ())), (by_momentum, by_sgd)


def test_citations_are_those_of_the_page():
    """Both lists name the same papers, and the same version of the software."""
    page = (DOCS / "reference/cite.md").read_text()
    file = (DOCS.parent / "CITATION.cff").read_text()
    cited = re.findall(r"arXiv:(\d{4}\.\d{5})", file)
    assert sorted(cited) == sorted(re.findall(r"\[arXiv:(\d{4}\.\d{5})\]", page))
    assert len(cited) == file.count("- type: article")
    assert f"version: {dynsim.__version__}\n" in file
    assert f"Version {dynsim.__version__}," in page
    assert f"Version {dynsim.__version__}," in (DOCS.parent / "README.md").read_text()


def test_gallery_is_small_enough_to_be_kept():
    pictures = [*make.HERE.rglob("*.png"), *make.HERE.rglob("*.gif")]
    assert {p.relative_to(make.HERE) for p in pictures} == {
        c.picture for c in make.cards().values()
    }
    assert sum(picture.stat().st_size for picture in pictures) < 5e6


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a> <a href="b.html#not">2</a> <a href="no.html">3</a>'
        '<a href="https://example.org/x">elsewhere</a> <img src="b.html"> <a href="#top">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    checked, wrong = tool("tools/check_links.py").broken(tmp_path)
    assert (checked, wrong) == (5, ["a.html: b.html#not", "a.html: no.html"])


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` as it stands in code, or None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    front = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if front is None else f"{front}.{node.attr}"


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_name_functions_and_arguments_that_are_there(page):
    code = "\n".join(cell["code"] for cell in CELL.finditer(page.read_text()))
    nodes = list(ast.walk(ast.parse(code)))
    ours: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            ours |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            ours |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    checked = 0
    for node in nodes:
        name = dotted(node.func) if isinstance(node, ast.Call) else None
        first, *rest = (name or "").split(".")
        if ours.get(first, "").split(".")[0] not in {"dynsim", "odes", "sweeps"}:
            continue
        parameters = inspect.signature(resolve(".".join([ours[first], *rest]))).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            assert {k.arg for k in node.keywords} - {None} <= {*parameters}, ast.unparse(node)
        checked += 1
    assert checked > 1


@pytest.mark.full("test_notebooks_name_functions_and_arguments_that_are_there")
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_run(page, tmp_path):
    """In a process of their own, as a kernel runs them."""
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(cell["code"] for cell in CELL.finditer(page.read_text())))
    environment = os.environ | {"MPLBACKEND": "Agg"}
    environment.pop("XLA_FLAGS", None)
    subprocess.run([sys.executable, str(script)], check=True, cwd=DOCS.parent, env=environment)


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_tutorial_can_be_downloaded_as_a_notebook(page):
    pytest.importorskip("myst_nb")
    found = tool("tools/notebook_downloads.py").notebook(page.read_text())
    code = [cell.source for cell in found.cells if cell.cell_type == "code"]
    assert code == [cell["code"].rstrip("\n") for cell in CELL.finditer(page.read_text())]
    assert not any("mystnb" in cell.metadata for cell in found.cells)
