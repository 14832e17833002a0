"""Sequence classes: given as tables, generated, or estimated from text; and their overlap.

Example:
    >>> text = dynsim.classes.synthetic_corpus(0)
    >>> estimate = dynsim.classes.estimate_classes(text.train, text.vocabulary, num_queries=2)
    >>> estimate.task.num_queries
    2
"""

from dynsim.classes.corpus import (
    Corpus,
    batches,
    load_corpus,
    sample_windows,
    synthetic_corpus,
)
from dynsim.classes.estimated import Estimate, Rare, estimate_classes
from dynsim.classes.files import save_task
from dynsim.classes.overlap import OverlapReport, overlap_report, owned
from dynsim.classes.task import SequenceClasses
from dynsim.classes.tasks import Layout

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
