"""Tasks: what is learned. One problem per module, checked on the way in."""

from dynsim.tasks.sequence_classes import SequenceClasses, load_task, sequence_classes
from dynsim.tasks.synthetic import Layout, overlapping, syn, syn_medium, syn_small

__all__ = [
    "Layout",
    "SequenceClasses",
    "load_task",
    "overlapping",
    "sequence_classes",
    "syn",
    "syn_medium",
    "syn_small",
]
