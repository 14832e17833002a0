"""Tasks: what is learned. One problem per module, checked on the way in."""

from dynsim.tasks.corpus import Corpus, batches, load_corpus, sample_windows, synthetic_corpus
from dynsim.tasks.estimated import Estimate, Rare, estimate_classes
from dynsim.tasks.overlap import OverlapReport, overlap_report, owned
from dynsim.tasks.prompts import Prompts, prompts, sample_prompts
from dynsim.tasks.sequence_classes import SequenceClasses, load_task, sequence_classes
from dynsim.tasks.synthetic import Layout, overlapping, syn, syn_medium, syn_small

__all__ = [
    "Corpus",
    "Estimate",
    "Layout",
    "OverlapReport",
    "Prompts",
    "Rare",
    "SequenceClasses",
    "batches",
    "estimate_classes",
    "load_corpus",
    "load_task",
    "overlap_report",
    "overlapping",
    "owned",
    "prompts",
    "sample_prompts",
    "sample_windows",
    "sequence_classes",
    "syn",
    "syn_medium",
    "syn_small",
    "synthetic_corpus",
]
