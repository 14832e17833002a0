"""The words of this project's systems and classes, and the language in which runs are described.

The metadata of the classes is read from a file, because describing them imports JAX, which takes
seconds. `python -m tests.sweeps.commands.table` writes it.
"""

import functools
import importlib.metadata
import json
import pkgutil
from pathlib import Path
from typing import Any

from sweeps.language.fields import Kind
from sweeps.language.grammar import Language

FILE = Path(__file__).with_name("metadata.json")
GROUP = "dynsim.systems"
"""Entry points by which other packages register a `System`, under its name."""
BUILT_IN = ("yz", "qkv", "two_stage", "transformer", "linear_icl", "sparse_attention", "joma")
"""Systems of this project: each is the `SYSTEM` of the module `sweeps.systems.NAME`, which
is imported when it is asked for."""
WORDS = {
    "experiment": "sweeps.systems.experiment:Experiment",
    "yz": "dynsim:AttentionLayer",
    "qkv": "dynsim:QKV",
    "two_stage": "dynsim:Prompts",
    "two_stage-fast": "dynsim:FastPrompts",
    "two_stage-joint": "dynsim:JointPrompts",
    "transformer": "dynsim:LanguageModel",
    "linear_icl": "dynsim:Regression",
    "sparse_attention": "dynsim:Retrieval",
    "joma": "dynsim:JoMA",
    "syn-small": "dynsim:SynSmall",
    "syn-medium": "dynsim:SynMedium",
    "syn": "dynsim:Syn",
    "overlapping": "dynsim:Overlapping",
    "file": "dynsim:TaskFile",
    "table": "dynsim:TaskTable",
    "joma-classes": "dynsim:JoMAClasses",
    "synthetic": "dynsim:SyntheticText",
    "text": "dynsim:TextFile",
    "folder": "dynsim:TextFolder",
    "arrays": "dynsim:Arrays",
    "npz": "dynsim:ArrayFile",
    "linear-spectrum": "dynsim:LinearSpectrum",
    "white": "dynsim:WhiteSpectrum",
    "geometric": "dynsim:GeometricSpectrum",
    "eigenvalues": "dynsim:GivenSpectrum",
    "merged": "dynsim:MergedHeads",
    "separate": "dynsim:SeparateHeads",
    "network": "dynsim:LinearNetwork",
    "sgd": "dynsim:SGD",
    "adam": "dynsim:Adam",
    "adamw": "dynsim:AdamW",
    "rmsprop": "dynsim:RMSProp",
    "sign": "dynsim:Sign",
    "optax": "dynsim:OptaxRule",
    "annealed": "dynsim:Annealed",
    "ratio": "dynsim:Ratio",
    "constant": "dynsim.schedules:Constant",
    "linear": "dynsim.schedules:Linear",
    "cosine": "dynsim.schedules:Cosine",
    "exponential": "dynsim.schedules:Exponential",
    "inverse-sqrt": "dynsim.schedules:InverseSqrt",
    "step": "dynsim.schedules:Steps",
    "warmup-stable-decay": "dynsim.schedules:WarmupStableDecay",
}
"""Classes by the word that chooses them as a `kind`."""


@functools.cache
def metadata() -> dict[str, Any]:
    """What the file holds: "kinds", of which the first one is that of a run; "commands", with their
    settings; and "engines", the names of theories, other engines and observables by problem."""
    return json.loads(FILE.read_text())


@functools.cache
def language() -> Language:
    """The language with all classes of this project."""
    kinds = map(Kind.from_json, metadata()["kinds"])
    return Language(kinds, _of_package, _of_packages)


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all systems, those of this project first, then those that other packages have."""
    points = importlib.metadata.entry_points(group=GROUP)
    return tuple(dict.fromkeys((*BUILT_IN, *(point.name for point in points))))


def _of_package(word: str) -> Kind | None:
    """The kind of the problem that another package registers under a name."""
    if word not in names() or word in BUILT_IN:
        return None
    from sweeps.language.describe import describe

    # The registry knows runs, which are described in this language.
    system = pkgutil.resolve_name("sweeps.systems.registry:system")
    return describe(system(word).problems[0], word)


def _of_packages(base: str) -> list[str]:
    """The words that packages register for subclasses of a class: problems alone."""
    problem = base == "dynsim.problem.base:Problem"
    return [word for word in names() if problem and word not in BUILT_IN]
