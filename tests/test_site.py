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

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*[!x].md"))
CELL = re.compile(
    r"^```\{code-cell\} ipython3\n(?:---\n(?P<options>.*?)^---\n)?(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
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


def names_in_reference() -> list[str]:
    """The names that the pages of the reference document, by their own directives."""
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    return DIRECTIVE.findall(pages)


@pytest.mark.parametrize("front", [*FRONTS, "odes"])
def test_reference_has_every_public_name(front: str) -> None:
    package = importlib.import_module(front)
    documented = {id(resolve(name)) for name in names_in_reference()}
    public = getattr(package, "__all__", ())
    assert public
    assert [name for name in public if id(getattr(package, name)) not in documented] == []


def test_reference_documents_each_name_on_one_page() -> None:
    names = names_in_reference()
    assert sorted(names) == sorted(set(names))


def test_list_of_commands_is_whole() -> None:
    page = (DOCS / "reference" / "commands.md").read_text()
    names = {name.split()[0] for name in COMMANDS}
    assert [name for name in sorted(names) if f"`dynsim {name}" not in page] == []


def test_gallery_has_a_card_and_a_picture_of_every_figure() -> None:
    cards = make.cards()
    drawn = {card.figure for card in cards.values() if not card.commands}
    assert drawn == set(group("figure"))
    for name, card in cards.items():
        assert (make.HERE / card.page).is_file(), name
        assert make.problem(card) is None, f"make gallery FIGURES={name}"
    assert make.page() == make.PAGE.read_text(), "make gallery"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_are_those_of_cards_and_described(page: Path) -> None:
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
def test_pictures_are_those_of_the_present_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert make.differs(make.cards()[name], tmp_path / "made") is None


def test_arrays_are_the_same_but_for_rounding() -> None:
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
def test_pictures_of_notebooks_are_described(page: Path) -> None:
    for cell in CELL.finditer(page.read_text()):
        described = re.search(r"^    alt: \"(.+)\"$", cell["options"] or "", re.MULTILINE)
        if "plt." in cell["code"]:
            assert described, cell["code"]
            assert len(described[1]) >= DESCRIBED


def test_pictures_made_with_options_say_so() -> None:
    command = tool("tools/made.py").command
    assert command(DOCS, "gallery/paper/12.png") == "dynsim figure 12 --seeds 4"
    assert command(DOCS, "gallery/paper/3.png") is None
    assert command(DOCS, "elsewhere/12.png") is None


def test_tables_of_the_reference_have_every_system() -> None:
    for page, directive in (("optimisers", "optimisers"), ("observables", "observables")):
        text = (DOCS / "reference" / f"{page}.md").read_text()
        assert re.findall(rf"^```{{{directive}}} (\w+)$", text, re.MULTILINE) == list(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_recorded_quantity_is_explained(name: str) -> None:
    """`observables` raises for names without an entry in the file of formulas, and entries without
    a name; what is said by hand of who records one is checked below."""
    table = tables.observables(name)
    problem = sweeps.experiment(name).bare
    for each in registry.system(name).theories["simulation"].observables(problem).names():
        assert f"* - `{each}`\n" in table


def test_units_of_the_glossary_are_those_of_what_is_recorded() -> None:
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


def test_the_growth_bound_is_recorded_by_none_but_those_that_its_entry_names() -> None:
    task, optimizer = dynsim.Layer(dynsim.Syn(2, 1, num_common=1)), dynsim.sgd(1.0, 0.1)
    for theory in odes.yz.THEORIES:
        applies = theory.why_not(task, optimizer) is None
        if applies and not theory.name.startswith(("eq10", "theorem4")):
            with pytest.raises(ValueError, match="record = 'B'"):
                theory.solve(task, optimizer, [0.0, 1.0], record="B")


def test_a_table_says_which_theory_describes_which_optimiser() -> None:
    assert tables.described("yz", "plain") == ("sgd", "sign")
    assert tables.described("yz", "matched") == ("momentum", "nesterov", "sign")
    assert tables.described("yz", "matched-adam") == ("adam", "adamw")
    # One common token, of the run that suits it.
    assert tables.described("yz", "theorem4") == ("sgd", "momentum", "nesterov")
    assert tables.described("joma", "erf") == ("sgd",)
    assert tables.described("two_stage", "seeds") == ("annealed",)


BOTH = [
    pytest.param(name, theory, marks=[] if theory in CLOSED else [pytest.mark.full])
    for name in ("yz", "linear_icl", "sparse_attention")
    for theory in tables.theories(registry.system(name))
    if theory in tables.hierarchy(name)
]


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize(("name", "theory"), BOTH)
@pytest.mark.more
def test_theories_without_inertia_are_those_that_the_table_names(name: str, theory: str) -> None:
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


def test_citations_are_those_of_the_page() -> None:
    """Both lists name the same papers, and the same version of the software."""
    page = (DOCS / "reference/cite.md").read_text()
    file = (DOCS.parent / "CITATION.cff").read_text()
    cited = re.findall(r"arXiv:(\d{4}\.\d{5})", file)
    assert sorted(cited) == sorted(re.findall(r"\[arXiv:(\d{4}\.\d{5})\]", page))
    assert len(cited) == file.count("- type: article")
    assert f"version: {dynsim.__version__}\n" in file
    assert f"Version {dynsim.__version__}," in page
    assert f"Version {dynsim.__version__}," in (DOCS.parent / "README.md").read_text()


def test_gallery_is_small_enough_to_be_kept() -> None:
    pictures = list(make.HERE.rglob("*.png"))
    assert {p.relative_to(make.HERE) for p in pictures} == {
        c.picture for c in make.cards().values()
    }
    assert sum(picture.stat().st_size for picture in pictures) < 4e6


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a> <a href="b.html#not">2</a> <a href="no.html">3</a>'
        '<a href="https://example.org/x">elsewhere</a> <img src="b.html"> <a href="#top">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    checked, wrong = tool("tools/check_links.py").broken(tmp_path)
    assert (checked, wrong) == (5, ["a.html: b.html#not", "a.html: no.html"])


def test_a_signature_of_several_lines_is_no_list_of_definitions() -> None:
    opened, closed = (f'<span class="sig-paren">{bracket}</span>' for bracket in "()")
    line = '<dd><em class="sig-param">a</em>,</dd>'
    body = f"<dl><dt>{opened}\n\n<dl>\n{line}\n{line}\n</dl>\n\n{closed}</dt></dl>"
    found = tool("tools/accessible.py").signatures(body)
    assert found.count("<dl>") == found.count("</dl>") == 1
    assert "<dd>" not in found
    assert found.count('<span class="sig-line"><em class="sig-param">a</em>,</span>') == 2
    assert found.count("<span") == found.count("</span>")


def test_formulas_of_docstrings_are_set_apart() -> None:
    lines = ["Of |f|, h* and `a*b`:", "", "    x = |y|*", "", "Args:", "    a: of |b|."]
    wanted = [r"Of \|f\|, h\* and `a*b`:", "", "::", "", "    x = |y|*", ""]
    prepared = tool("tools/docstrings.py").prepared(lines)
    assert prepared == [*wanted, "Args:", r"    a: of \|b\|."]
    # Typeset formulas keep their bars, stars and backslashes.
    typeset = ["With :math:`|h^*|`,", "", ".. math::", "", r"    |x| = \sqrt{y^*}", "", "as h*."]
    prepared = tool("tools/docstrings.py").prepared(typeset)
    assert prepared == [*typeset[:-1], r"as h\*."]
    items = ["* of h*", "* of", "  |x|"]
    assert tool("tools/docstrings.py").prepared(items) == [r"* of h\*", "* of", r"  \|x\|"]
    # Code of an example is code.
    example = ["Of h.", "", "Example:", "    >>> 2 ** 3 | 1", "    9"]
    assert tool("tools/docstrings.py").prepared(example) == example


def test_signatures_are_short() -> None:
    short = tool("tools/docstrings.py").short
    array, other = "~jaxtyping.Real[jaxlib._jax.Array, '*#P']", "~jaxtyping.Real[ndarray, '*#P']"
    given = f"{array} | {other} | ~numpy.number | float | int"
    assert short(f"(eta: {given})") == "(eta: Real[Array, '*#P'] | float)"
    # Ranges are left out, whatever brackets and commas are in them.
    words = "~typing.Annotated[str, Form(pattern='[^:]+,(:lin)?', setting=True)]"
    ranged = f"~typing.Annotated[{given}, ~annotated_types.Ge(ge=0), Unit(symbol='1/step')]"
    wanted = "(x: str, y: list[Real[Array, '*#P'] | float] | None = None) -> ~odes.Theory"
    assert short(f"(x: {words}, y: list[{ranged}] | None = None) -> ~odes.Theory") == wanted


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` as it stands in code, or None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    front = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if front is None else f"{front}.{node.attr}"


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_name_functions_and_arguments_that_are_there(page: Path) -> None:
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
    assert checked > 2


@pytest.mark.full("test_notebooks_name_functions_and_arguments_that_are_there")
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_run(page: Path, tmp_path: Path) -> None:
    """In a process of their own, as a kernel runs them."""
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(cell["code"] for cell in CELL.finditer(page.read_text())))
    environment = os.environ | {"MPLBACKEND": "Agg"}
    environment.pop("XLA_FLAGS", None)
    subprocess.run([sys.executable, str(script)], check=True, cwd=DOCS.parent, env=environment)


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_tutorial_can_be_downloaded_as_a_notebook(page: Path) -> None:
    pytest.importorskip("myst_nb")
    found = tool("tools/notebook_downloads.py").notebook(page.read_text())
    code = [cell.source for cell in found.cells if cell.cell_type == "code"]
    assert code == [cell["code"].rstrip("\n") for cell in CELL.finditer(page.read_text())]
    assert not any("mystnb" in cell.metadata for cell in found.cells)
