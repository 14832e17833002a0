"""Sequence classes: given, generated, estimated from text, and how much they overlap."""

from dynsim.classes.corpus import Corpus, batches, load_corpus, sample_windows, synthetic_corpus
from dynsim.classes.estimated import Estimate, Rare, estimate_classes
from dynsim.classes.overlap import OverlapReport, overlap_report, owned
from dynsim.classes.synthetic import Layout
from dynsim.classes.task import SequenceClasses
from dynsim.classes.tasks import save_task

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
    "overlap_report",
    "owned",
    "sample_windows",
    "save_task",
    "synthetic_corpus",
]
