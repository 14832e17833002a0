"""The language in which runs are described: short words for the classes of this project."""

import functools
import pkgutil

from sweeps.language.fields import Kind
from sweeps.language.grammar import Language
from sweeps.systems.built_in import BUILT_IN, names

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
def language() -> Language:
    """The language with all classes of this project."""
    from sweeps.language.describe import describe

    kinds = [describe(pkgutil.resolve_name(at), word) for word, at in WORDS.items()]
    return Language(kinds, of_package, of_packages)


def of_package(word: str) -> Kind | None:
    """The kind of the problem that another package registers under a name."""
    if word not in names() or word in BUILT_IN:
        return None
    from sweeps.language.describe import describe

    # The registry knows runs, which are described in this language.
    system = pkgutil.resolve_name("sweeps.systems.registry:system")
    return describe(system(word).problems[0], word)


def of_packages(base: str) -> list[str]:
    """The words that packages register for subclasses of a class: problems alone."""
    problem = base == "dynsim.problem.base:Problem"
    return [word for word in names() if problem and word not in BUILT_IN]
