"""Systems and classes of this project by name, and the language that describes runs.

The classes say what their settings are. Deriving that imports JAX, which takes seconds, so it is
kept in the cache folder until the code changes.
"""

import contextlib
import functools
import importlib.metadata
import json
import pkgutil
from typing import Any

from sweeps.language.derived import derived
from sweeps.language.fields import Field, Kind, Table
from sweeps.language.grammar import Groups, Language

CLASSES = {
    "experiment": "sweeps.systems.experiment:Experiment",
    "yz": "dynsim.yz.layer:Layer",
    "qkv": "dynsim.qkv:QKV",
    "two_stage": "dynsim.two_stage.task:Prompts",
    "two_stage-fast": "dynsim.two_stage.task:FastPrompts",
    "two_stage-joint": "dynsim.two_stage.task:JointPrompts",
    "transformer": "dynsim.transformer.model:LanguageModel",
    "linear_icl": "dynsim.linear_icl.regression:Regression",
    "sparse_attention": "dynsim.sparse_attention:Retrieval",
    "joma": "dynsim.joma:JoMA",
    "syn-small": "dynsim.classes.tasks:SynSmall",
    "syn-medium": "dynsim.classes.tasks:SynMedium",
    "syn": "dynsim.classes.tasks:Syn",
    "overlapping": "dynsim.classes.tasks:Overlapping",
    "file": "dynsim.classes.files:TaskFile",
    "table": "dynsim.classes.tasks:TaskTable",
    "joma-classes": "dynsim.joma:JoMAClasses",
    "synthetic": "dynsim.transformer.task:SyntheticText",
    "text": "dynsim.transformer.task:TextFile",
    "folder": "dynsim.transformer.task:TextFolder",
    "arrays": "dynsim.problem.data:Arrays",
    "npz": "dynsim.problem.data:ArrayFile",
    "linear-spectrum": "dynsim.linear_icl.spectrum:LinearSpectrum",
    "white": "dynsim.linear_icl.spectrum:WhiteSpectrum",
    "geometric": "dynsim.linear_icl.spectrum:GeometricSpectrum",
    "eigenvalues": "dynsim.linear_icl.spectrum:GivenSpectrum",
    "merged": "dynsim.linear_icl.model:MergedHeads",
    "separate": "dynsim.linear_icl.model:SeparateHeads",
    "network": "dynsim.linear_icl.model:LinearNetwork",
    "sgd": "dynsim.training.rules:SGD",
    "adam": "dynsim.training.rules:Adam",
    "adamw": "dynsim.training.rules:AdamW",
    "rmsprop": "dynsim.training.rules:RMSProp",
    "sign": "dynsim.training.rules:Sign",
    "optax": "dynsim.training.rules:OptaxRule",
    "annealed": "dynsim.two_stage.annealing:Annealed",
    "ratio": "dynsim.training.rule:Ratio",
    "constant": "dynsim.schedules:Constant",
    "linear": "dynsim.schedules:Linear",
    "cosine": "dynsim.schedules:Cosine",
    "exponential": "dynsim.schedules:Exponential",
    "inverse-sqrt": "dynsim.schedules:InverseSqrt",
    "step": "dynsim.schedules:Steps",
    "warmup-stable-decay": "dynsim.schedules:WarmupStableDecay",
}
"""The words that choose a class in files and on the command line, as its `kind`; the first is that
of the run."""
GROUP = "dynsim.systems"
"""Entry-point group in which other packages register a `System` under its name."""
BUILT_IN = ("yz", "qkv", "two_stage", "transformer", "linear_icl", "sparse_attention", "joma")
"""Systems of this project; the function NAME of `sweeps.systems.built_in` makes each one."""


@functools.cache
def language() -> Language:
    """Return the language with all classes of this project."""
    kinds = map(Kind.from_json, derived("kinds", _describe_classes))
    return Language(kinds, _kind_of_package, _words_of_packages, _groups)


def _describe_classes() -> list[dict[str, Any]]:
    from sweeps.language.describe import describe

    classes = ((word, pkgutil.resolve_name(location)) for word, location in CLASSES.items())
    return [describe(cls, word).to_json() for word, cls in classes]


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all systems: this project's first, then those of other packages."""
    points = importlib.metadata.entry_points(group=GROUP)
    return tuple(dict.fromkeys((*BUILT_IN, *(point.name for point in points))))


def _kind_of_package(word: str) -> Kind | None:
    """Return the kind of the problem that another package registers under a name."""
    if word not in names() or word in BUILT_IN:
        return None
    # Imported here, because the registry describes runs in this language.
    from sweeps.language.describe import describe
    from sweeps.systems.registry import system

    return describe(system(word).problems[0], word)


def _words_of_packages(base: str) -> list[str]:
    """Return the names that packages register for subclasses of a class; only for problems."""
    is_problem = base == "dynsim.problem.base:Problem"
    return [word for word in names() if is_problem and word not in BUILT_IN]


_GROUPS: dict[tuple[str, type | None], Groups] = {}
"""Results of `_groups`, by the text of the problem's settings and its class."""


def _groups(language: Language, field: Field, part: Table) -> Groups:
    """Return `Kind.groups` of a problem of another package."""
    location = language.find(field, part["kind"], "problem").location
    key = json.dumps(part, sort_keys=True), language.classes.get(location)
    if key not in _GROUPS:
        _GROUPS[key] = ()
        # Code of others can raise anything; the error appears when the problem is trained.
        with contextlib.suppress(Exception):
            from sweeps.systems.experiment import groups_of

            _GROUPS[key] = groups_of(language, field, part)
    return _GROUPS[key]
