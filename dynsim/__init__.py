"""dynsim: training dynamics of attention, theory and simulation side by side.

`dynsim` is the numeric side: tasks, models and gradient descent on them. `odes` holds the
theories and `sweeps` runs many of both and compares them.
"""

from dynsim.descent import Descent
from dynsim.models import YZ, Examples
from dynsim.models.embedded import Embedded
from dynsim.models.embedded_init import EmbeddedSpec
from dynsim.models.relu_prompt import PQ
from dynsim.models.transformer import Transformer, TransformerSpec
from dynsim.noisy_sgd import NoisySGD, noisy_sgd
from dynsim.optim import Clock, Optimizer, adam, momentum, sgd
from dynsim.presets import two_stage
from dynsim.simulate import initial_weights, simulate
from dynsim.simulate_embedded import initial_embedded, simulate_embedded
from dynsim.simulate_prompts import simulate_prompts
from dynsim.simulate_text import simulate_text
from dynsim.tasks import (
    Prompts,
    SequenceClasses,
    load_task,
    overlapping,
    prompts,
    sequence_classes,
    syn,
    syn_medium,
    syn_small,
)
from dynsim.tasks.text import Text, text
from dynsim.trajectory import Status, Trajectory, log_times

__all__ = [
    "PQ",
    "YZ",
    "Clock",
    "Descent",
    "Embedded",
    "EmbeddedSpec",
    "Examples",
    "NoisySGD",
    "Optimizer",
    "Prompts",
    "SequenceClasses",
    "Status",
    "Text",
    "Trajectory",
    "Transformer",
    "TransformerSpec",
    "adam",
    "initial_embedded",
    "initial_weights",
    "load_task",
    "log_times",
    "momentum",
    "noisy_sgd",
    "overlapping",
    "prompts",
    "sequence_classes",
    "sgd",
    "simulate",
    "simulate_embedded",
    "simulate_prompts",
    "simulate_text",
    "syn",
    "syn_medium",
    "syn_small",
    "text",
    "two_stage",
]
