"""Sequence classes: given, generated, estimated from text, and how much they overlap."""

from dynsim.classes.corpus import Corpus, batches, load_corpus, sample_windows, synthetic_corpus
from dynsim.classes.estimated import Estimate, Rare, estimate_classes
from dynsim.classes.files import load_task, save_task
from dynsim.classes.overlap import OverlapReport, overlap_report, owned
from dynsim.classes.synthetic import Layout, overlapping, syn, syn_medium, syn_small
from dynsim.classes.task import SequenceClasses, sequence_classes

__all__ = [
    "Corpus",
    "Estimate",
    "Layout",
    "OverlapReport",
    "Rare",
    "SequenceClasses",
    "batches",
    "estimate_classes",
    "load_corpus",
    "load_task",
    "overlap_report",
    "overlapping",
    "owned",
    "sample_windows",
    "save_task",
    "sequence_classes",
    "syn",
    "syn_medium",
    "syn_small",
    "synthetic_corpus",
]
