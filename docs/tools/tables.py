"""Sphinx extension with tables that are made from the code during the build.

Two directives: `optimisers NAME` lists the optimisers that each theory of a system describes,
according to the registry and the hierarchies in `odes`; `observables NAME` lists the
quantities that a system records. Their names, units and axes come from the system's theories and
labels. Their meaning and formula are in docs/reference/observables.toml, which must have exactly
these names.
"""

import functools
import importlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sweeps
from odes.theory import FINITE, AnyTheory, Training, error_message
from sweeps.runner import labels
from sweeps.systems import registry
from sweeps.systems.base import System

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
FORMULAS = DOCS / "reference" / "observables.toml"
SUITING = {
    "yz": {"task": "syn", "num_queries": 2, "num_common": 1},
    "qkv": {"embedding": "identity", "width": 34},
    "linear_icl": {"attention": "merged", "spectrum": "white"},
    "joma": {"attention": "exp", "head": "signal"},
}
"""Settings for the theories that do not describe the default run of a system."""
RULES: dict[str, dict[str, Any]] = {
    "sgd": {"rule": "sgd"},
    "momentum": {"rule": "sgd", "momentum": 0.9},
    "nesterov": {"rule": "sgd", "momentum": 0.9, "nesterov": True},
    "rmsprop": {"rule": "rmsprop"},
    "adam": {"rule": "adam"},
    "adamw": {"rule": "adamw", "decay": 1e-3},
    "sign": {"rule": "sign"},
}
"""Update rules of systems, as settings of a run."""
WITH = {"sign": ({"momentum": 0.9},)}
"""Other settings of an update rule that theories distinguish."""
NO_INERTIA = {
    "yz": (
        "rescaled",
        "lemma3",
        "eq10-finite-m",
        "eq10",
        "eq10-paper",
        "eq10-remark-1",
        "theorem4",
        "fixed_attention",
    ),
    "linear_icl": ("rescaled", "scalar", "plateaus", "sigmoid"),
    "sparse_attention": ("rescaled", "printed", "escape"),
}
"""Theories in which momentum only turns eta into eta / (1 - mu), as tests of the docs check."""
SIGNS = (
    (r"-> infinity", "→ ∞"),
    (r"->", "→"),
    (r"\beta_([YZ])\b", r"$\\eta_\1$"),
    (r"\beta\^2", "η²"),
    (r"\beta\b", "η"),
    (r"\bmu\b", "μ"),
    (r"\brho\b", "ρ"),
    (r"T\^2", "T²"),
)
"""Replacements in titles and assumptions, which are plain text in the code."""
HEADS = {
    "sgd": "SGD",
    "momentum": "momentum",
    "nesterov": "Nesterov",
    "rmsprop": "RMSProp",
    "adam": "Adam",
    "adamw": "AdamW",
    "sign": "sign descent",
    "annealed": "noisy SGD",
}


def setup(app: "Sphinx") -> dict[str, bool]:
    # Imported here, because the tests use the tables without Sphinx.
    from sphinx.util.docutils import SphinxDirective

    def directive(make: Callable[[str], str]) -> type[SphinxDirective]:
        class Made(SphinxDirective):
            """A directive whose Markdown content is made from its argument."""

            required_arguments = 1

            def run(self) -> list[Any]:
                # The page depends on the code, not only on its own file.
                self.env.note_reread()
                return self.parse_text_to_nodes(make(self.arguments[0]))

        return Made

    app.add_directive("optimisers", directive(optimisers))
    app.add_directive("observables", directive(observables))
    return {"parallel_read_safe": True}


def optimisers(name: str) -> str:
    """Tabulate training and the theories of a system, with the rules and assumptions of each."""
    system = registry.system(name)
    rules = update_rules(name)
    head = ["theory", *(HEADS[rule] for rule in rules), "assumes"]
    rows = []
    for theory, (title, assumes, finite) in theories(system).items():
        applies = described(name, theory)
        cells = [_cell(name, theory, rule, rule in applies) for rule in rules]
        also = f", `{theory}{FINITE}`" if finite else ""
        rows.append([f"`{theory}`{also}: {_pretty(title)}", *cells, _pretty(assumes)])
    return _table(head, rows, centred=range(1, 1 + len(rules)))


def theories(system: System) -> dict[str, tuple[str, str, bool]]:
    """Return title, assumptions, and whether there is a finite-T variant, by name, for the
    theories of a system in sweeps, and those in its hierarchy that sweeps do not have."""
    every: dict[str, AnyTheory] = dict(system.theories)
    every = {**every, **{n: each for n, each in hierarchy(system.name).items() if n not in every}}
    found = {}
    for name, each in every.items():
        if name == "simulation":
            found[name] = "training", "nothing", False
        elif not name.endswith(FINITE):
            found[name] = each.title, each.assumes, name + FINITE in every
    return found


def hierarchy(name: str) -> Mapping[str, AnyTheory]:
    """Return the theories of a system by name; empty for a system without theories."""
    try:
        package = importlib.import_module(f"odes.{name}")
    except ModuleNotFoundError:
        return {}
    return {theory.name: theory for theory in package.THEORIES}


def update_rules(system: str) -> dict[str, dict[str, Any]]:
    """Return the update rules of a system by name, each as settings of a run."""
    return {"annealed": {}} if system == "two_stage" else RULES


@functools.cache
def described(name: str, theory: str) -> tuple[str, ...]:
    """Return the update rules for which a theory describes the default run of a system, or the run
    in `SUITING`."""
    return tuple(
        rule
        for rule, settings in update_rules(name).items()
        if any(
            _describes(name, theory, sweeps.experiment(name, **settings, **more))
            for more in ({}, SUITING.get(name, {}), *WITH.get(rule, ()))
        )
    )


def _describes(name: str, theory: str, run: sweeps.Experiment) -> bool:
    run.check()
    known = registry.system(name).theories
    if theory not in known:
        return hierarchy(name)[theory].inapplicable(Training(*run.built)) is None
    return error_message(registry.check_run, known[theory], run) is None


def observables(name: str) -> str:
    """List what a system records by default, and tabulate everything that it can record."""
    system, about = registry.system(name), formulas(name)
    recorded = recorders(system)
    lacking, unknown = sorted(set(recorded) - set(about)), sorted(set(about) - set(recorded))
    if lacking or unknown:
        raise ValueError(f"{FORMULAS}: {name} lacks {lacking}, and records no {unknown}")
    rows = []
    for each, names in recorded.items():
        entry = about[each]
        formula = f"\n\n    $\\displaystyle {entry['formula']}$" if "formula" in entry else ""
        axes = entry.get("axes") or _axes(system, each)
        by = entry.get("by") or _recorders(system, names)
        rows.append([f"`{each}`", entry["text"] + formula, axes, _unit(system, each), by])
    default = f"By default, `dynsim.train` records {_listed(system.problems[0].RECORD)}."
    rows.insert(0, ["name", "quantity", "one per", "unit", "recorded by"])
    table = "\n".join(f"* - {row[0]}\n" + "".join(f"  - {c}\n" for c in row[1:]) for row in rows)
    return f"{default}\n\n````{{list-table}}\n:header-rows: 1\n:class: observables\n\n{table}````\n"


@functools.cache
def formulas(name: str) -> dict[str, dict[str, str]]:
    """Return the entries of the file of formulas for a system, by the name of the quantity."""
    read = tomllib.loads(FORMULAS.read_text(encoding="utf-8"))
    own, names = read[name], recorders(registry.system(name))
    if "like" in own:
        own = {each: entry for each, entry in read[own["like"]].items() if each in names}
    return {**{each: entry for each, entry in read["every"].items() if each in names}, **own}


def recorders(system: System) -> dict[str, list[str]]:
    """Return the names of the theories that record each quantity, by its name. Statistics predicted
    for every quantity NAME, such as the standard deviation, have one entry, NAME_std; so have
    standard errors, also those of NAME_std."""
    found: dict[str, list[str]] = {}
    problem = sweeps.experiment(system.name).bare
    for theory, each in system.theories.items():
        known = each.observables(problem)
        for name in known.names():
            base, _, end = name.rpartition("_")
            predicted = end in ("std", "drift", "error") and base in known.functions
            names = found.setdefault(f"NAME_{end}" if predicted else name, [])
            if theory not in names:
                names.append(theory)
    return found


def _recorders(system: System, names: Iterable[str]) -> str:
    every = list(dict.fromkeys(name.removesuffix(FINITE) for name in system.theories))
    mine = list(dict.fromkeys(name.removesuffix(FINITE) for name in names))
    others = [name for name in every if name not in mine]
    if others == ["simulation"]:
        return "theories"
    if mine == ["simulation"]:
        return "training"
    if not others:
        return "all"
    if len(others) < len(mine):
        return f"all but {_listed(others)}"
    return _listed(mine).replace("`simulation`", "training")


def _axes(system: System, name: str) -> str:
    axes = system.labels.inner_dims.get(name, ())
    named = ", ".join(axis.replace("_", " ") for axis in axes)
    return named or ("as NAME" if name.startswith("NAME_") else "run")


def _unit(system: System, name: str) -> str:
    return "as NAME" if name.startswith("NAME_") else labels.about(system, name)["units"]


def _cell(system: str, theory: str, rule: str, applies: bool) -> str:
    if applies and rule in ("momentum", "nesterov") and theory in NO_INERTIA.get(system, ()):
        return "✓ as $\\eta/(1-\\mu)$"
    return "✓" if applies else "–"


def _pretty(text: str) -> str:
    for plain, sign in SIGNS:
        text = re.sub(plain, sign, text)
    return text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: list[str], rows: list[list[str]], centred: Iterable[int] = ()) -> str:
    rule = [":-:" if i in centred else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"
