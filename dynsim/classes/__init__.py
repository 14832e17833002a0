"""Tasks: what is learned. One problem per module, checked on the way in."""

from dynsim.classes.corpus import Corpus, batches, load_corpus, sample_windows, synthetic_corpus
from dynsim.classes.estimated import Estimate, Rare, estimate_classes
from dynsim.classes.overlap import OverlapReport, overlap_report, owned
from dynsim.classes.synthetic import Layout, overlapping, syn, syn_medium, syn_small
from dynsim.classes.task import SequenceClasses, load_task, sequence_classes
from dynsim.two_stage.task import Prompts, prompts, sample_prompts

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
