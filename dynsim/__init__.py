"""dynsim: training dynamics of attention, theory and simulation side by side.

`dynsim` is the numerical side: tasks, models and gradient descent on them. `odes` holds the
theories, and `sweeps` runs and compares many of both.
"""

import importlib.metadata
import importlib.util
import os
import warnings

from dynsim import classes, schedules
from dynsim.classes.files import TaskFile, save_task
from dynsim.classes.task import SequenceClasses, Task, sequence_classes
from dynsim.classes.tasks import Overlapping, Syn, SynMedium, SynSmall
from dynsim.joma import Joint, JoMA, JoMAClasses
from dynsim.linear_icl.model import (
    LinearNetwork,
    Merged,
    MergedHeads,
    Network,
    Separate,
    SeparateHeads,
)
from dynsim.linear_icl.regression import Regression
from dynsim.linear_icl.spectrum import (
    GeometricSpectrum,
    GivenSpectrum,
    LinearSpectrum,
    Spectrum,
    WhiteSpectrum,
)
from dynsim.problem.base import FullBatch, Problem, full_batch
from dynsim.problem.data import ArrayFile, Arrays, Data
from dynsim.problem.sharpness import sharpness_threshold
from dynsim.problem.train import train
from dynsim.qkv import QKV
from dynsim.qkv.model import Embedded
from dynsim.sparse_attention import Retrieval
from dynsim.training.rule import Ratio, Rule
from dynsim.training.rules import (
    SGD,
    Adam,
    AdamW,
    OptaxRule,
    RMSProp,
    Sign,
    adam,
    adamw,
    from_optax,
    rmsprop,
    sgd,
    sign,
)
from dynsim.trajectory import Status, Trajectory, log_times
from dynsim.transformer.model import LanguageModel
from dynsim.transformer.network import Transformer, TransformerSpec
from dynsim.transformer.task import CorpusSource, SyntheticText, Text, TextFile, TextFolder
from dynsim.two_stage.annealing import Annealed
from dynsim.two_stage.model import PQ
from dynsim.two_stage.task import FastPrompts, JointPrompts, Prompts, two_stage
from dynsim.yz.layer import Layer
from dynsim.yz.model import YZ, Examples

__all__ = [
    "PQ",
    "QKV",
    "SGD",
    "YZ",
    "Adam",
    "AdamW",
    "Annealed",
    "ArrayFile",
    "Arrays",
    "CorpusSource",
    "Data",
    "Embedded",
    "Examples",
    "FastPrompts",
    "FullBatch",
    "GeometricSpectrum",
    "GivenSpectrum",
    "JoMA",
    "JoMAClasses",
    "Joint",
    "JointPrompts",
    "LanguageModel",
    "Layer",
    "LinearNetwork",
    "LinearSpectrum",
    "Merged",
    "MergedHeads",
    "Network",
    "OptaxRule",
    "Overlapping",
    "Problem",
    "Prompts",
    "RMSProp",
    "Ratio",
    "Regression",
    "Retrieval",
    "Rule",
    "Separate",
    "SeparateHeads",
    "SequenceClasses",
    "Sign",
    "Spectrum",
    "Status",
    "Syn",
    "SynMedium",
    "SynSmall",
    "SyntheticText",
    "Task",
    "TaskFile",
    "Text",
    "TextFile",
    "TextFolder",
    "Trajectory",
    "Transformer",
    "TransformerSpec",
    "WhiteSpectrum",
    "adam",
    "adamw",
    "classes",
    "from_optax",
    "full_batch",
    "log_times",
    "rmsprop",
    "save_task",
    "schedules",
    "sequence_classes",
    "sgd",
    "sharpness_threshold",
    "sign",
    "train",
    "two_stage",
]


# W&B publishes a distribution `sweeps` with a module of that name. If both are installed into one
# folder, the second overwrites the first, and uninstalling it breaks the first.
_spec = importlib.util.find_spec("sweeps")
if _spec is not None:
    _folder = os.path.dirname(_spec.origin or "")
    if not _spec.origin or os.path.exists(os.path.join(_folder, "bayes_search.py")):
        warnings.warn(
            f"the package sweeps ({_folder or 'without a file'}) is not dynsim's, or not alone: "
            "W&B's distribution `sweeps` has the same name. Run `pip uninstall sweeps`, then "
            "install dynsim again",
            stacklevel=2,
        )


def __getattr__(name: str) -> str:
    # Metadata are read only when the version is requested.
    if name == "__version__":
        return importlib.metadata.version("dynsim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
