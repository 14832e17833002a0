"""The systems of this project, one function each, which the registry calls on demand."""

import math

import numpy as np

from dynsim import (
    QKV,
    FastPrompts,
    JointPrompts,
    JoMA,
    LanguageModel,
    Layer,
    Prompts,
    SequenceClasses,
    Text,
)
from dynsim.linear_icl.regression import Regression
from dynsim.sparse_attention import Retrieval
from dynsim.yz.observables import RECALL_THRESHOLDS
from odes.batch_noise import STD
from sweeps.systems import layer, prompts
from sweeps.systems.base import Labels, System
from sweeps.systems.diagrams import Diagram
from sweeps.systems.training import make_system, of_infinite_length
from sweeps.systems.yz import DRIFT, theories

ONE, TWO = np.zeros(1, np.int32), np.zeros(2, np.int32)
# In NumPy: importing this module must not initialise a device.
SMALLEST_CLASSES = SequenceClasses(
    probs=np.array([[1.0, 0.0]]),
    prior=np.ones(1),
    query=ONE,
    next_token=ONE,
    queries=ONE,
    query_index=ONE,
    support=ONE[None],
    owner=TWO,
    shared=ONE[:0],
    place=TWO,
    place_shared=ONE[None, :0],
)
"""The smallest sequence classes, which represent all of them."""

CLASS, TOKEN = ("class",), ("class", "token")
NOISE_SUFFIXES = ("", STD, DRIFT)
"""The quantity, its standard deviation, and the shift of its mean by noise."""
OF_CLASS = ("z_top_distinct", "z_top_common", "speed", "xi", "B")
IN_NAT = (*OF_CLASS, "z", "z_distinct", "z_common")
"""Logits, and the gradients and growth that change them."""
LABELS = Labels(
    about={
        **{
            name + end: ((name + end).replace("_", " "), "nat")
            for name in IN_NAT
            for end in NOISE_SUFFIXES
        },
        "eta_y": ("learning rate of Y", "1/step"),
        "eta_z": ("learning rate of Z", "1/step"),
        "ratio": ("eta_y / eta_z", "1"),
        "length": ("sequence length T", "tokens"),
        "loss": ("population cross entropy", "nat"),
        "batch_loss": ("cross entropy of the next batch", "nat"),
        "relative_loss": ("mean loss of the last 20 steps over that of the first", "1"),
        "entropy": ("entropy of attention on distinct tokens", "nat"),
        "loss_drift": ("what noise adds to the mean of the loss", "nat"),
        "entropy_drift": ("what noise adds to the mean of the entropy", "nat"),
        "loss_std": ("predicted standard deviation of the loss over seeds", "nat"),
        "entropy_std": ("predicted standard deviation of the entropy over seeds", "nat"),
    },
    inner_dims={
        **{name + end: CLASS for name in OF_CLASS for end in NOISE_SUFFIXES},
        **dict.fromkeys(("attention", "normalised_attention", "z"), TOKEN),
        "overlap": ("class", "other_class"),
        "recall": ("threshold",),
    },
    values={"threshold": RECALL_THRESHOLDS},
)
"""Labels of the attention layer, in Y and Z or in ordinary parameters."""


def yz() -> System:
    """Return the attention layer in Y and Z (Scan and Snap): training, and all theories."""

    def diagram() -> Diagram:
        # Imported on demand, because it loads xarray.
        from sweeps.systems.layer_diagram import DIAGRAM

        return DIAGRAM

    return make_system(
        Layer(SMALLEST_CLASSES),
        "yz",
        theories=theories,
        labels=LABELS,
        predict=layer.predict,
        rows=layer.rows,
        defaults={
            "figure scaling": {
                "steps": 100,
                "rate": "eta_z:30:80",
                "size": "length:32:128:4",
                "observable": "entropy",
            },
            "figure edge": {
                "length": math.inf,
                "batch": math.inf,
                "steps": 100,
                "rates": [1.0, 4.0, 10.0, 16.0, 64.0],
                "resolution": 0,
            },
            # Longer sequences reveal their class, so that every rate above some value trains to a
            # loss of 0.
            "figure optimum": {
                "eta": {"kind": "ratio", "ratio": 1.0},
                "steps": 100,
                "length": 4,
                "rate": "eta_z:0.03:1000",
                "observable": "relative_loss",
            },
        },
        diagram=diagram,
    )


def qkv() -> System:
    """Return the attention layer in ordinary parameters U, W_Q, W_K and W_V."""
    return make_system(
        QKV(SMALLEST_CLASSES),
        "qkv",
        theories=of_infinite_length,
        labels=LABELS,
        at_once=8,
        diagram=lambda: Diagram(flow={"length": math.inf}),
    )


def joma() -> System:
    """Return hidden nodes and attention (JoMA) on sequence classes."""
    return make_system(
        JoMA(SMALLEST_CLASSES),
        "joma",
        theories=of_infinite_length,
        labels=Labels(
            about={
                "eta_y": ("learning rate of the MLP", "1/step"),
                "eta_z": ("learning rate of the attention logits", "1/step"),
                "scale": ("standard deviation of a starting weight", "1"),
                "temperature": ("temperature of the attention", "1"),
                "loss": ("population loss", "nat"),
            },
            inner_dims={
                **dict.fromkeys(("conserved", "weight"), ("token",)),
                "logits": ("query", "token"),
                "attended": ("class", "token"),
            },
        ),
        at_once=32,
        diagram=lambda: Diagram(flow={"length": math.inf}),
    )


def linear_icl() -> System:
    """Return in-context regression by linear attention."""
    return make_system(
        Regression(),
        "linear_icl",
        labels=Labels(
            about={
                "eta": ("learning rate", "1/step"),
                "scale": ("standard deviation of a starting weight", "1"),
                "loss": ("population mean square error", "1"),
            },
            inner_dims={
                "learned": ("component",),
                **dict.fromkeys(("values", "imbalance"), ("head",)),
                "matrix": ("row", "column"),
            },
        ),
        at_once=256,
        defaults={
            "figure edge": {
                "scale": 0.3,
                "batch": math.inf,
                "steps": 1000,
                "rates": [1.0, 1.86, 1.9, 1.93, 2.03],
                "before": 150,
                "scales": "scale:0.1:1",
            }
        },
    )


def sparse_attention() -> System:
    """Return retrieval of one token (the emergence of sparse attention)."""
    return make_system(
        Retrieval(),
        "sparse_attention",
        labels=Labels(
            about={
                "length": ("tokens of a sequence", "tokens"),
                "eta": ("learning rate", "1/step"),
                "loss": ("population mean square error / 2", "1"),
            }
        ),
        at_once=8,
    )


def transformer() -> System:
    """Return decoder-only transformers on text."""
    empty = np.zeros(36, int)
    return make_system(
        # A placeholder: each run has its own text.
        LanguageModel(Text(empty, empty, 2)),
        "transformer",
        labels=Labels(
            about={
                "eta": ("learning rate", "1/step"),
                "length": ("tokens of a window", "tokens"),
                "clip": ("largest norm of the gradient", "nat"),
                "loss": ("cross entropy on held-out text", "nat"),
            },
            inner_dims={
                **dict.fromkeys(("layer_entropy", "layer_top", "layer_change"), ("layer",)),
                "attention": ("prompt", "layer", "head", "query", "key"),
            },
        ),
        at_once=1,
    )


def two_stage() -> System:
    """Return normalised-ReLU attention on P/Q prompts (two-stage dynamics) and its reduced ODE."""
    return make_system(
        Prompts(),
        "two_stage",
        problems=(Prompts, FastPrompts, JointPrompts),
        at_once=1,
        # Runs step from record to record.
        resumes=False,
        rows=prompts.rows,
        # The noise-free growth rate of Q increases with r.
        stiffness=lambda training: training.problem.r,
        defaults={
            "figure edge": {
                "d": 8,
                "length": 17,
                "tau_0": 0.25,
                "pool": 8,
                "num_test": 8,
                "batch": 64,
                "rule": "sgd",
                "eta": 1.0,
                "steps": 300,
                "rates": [1.0, 2.0, 4.0, 8.0, 16.0],
                "rtol": 1e-3,
                "resolution": 0,
            }
        },
        labels=Labels(
            about={
                "loss": ("joint logistic loss", "nat"),
                "tau": ("stationary noise of a weight at eta_1", "1"),
                "r": ("shift of the negative class of component Q", "1"),
                "decay": ("weight decay", "1/eta-time"),
            },
            inner_dims={
                **{f"{block}_singular": ("rank",) for block in "WV"},
                **{f"{block}_signal": ("row", "column") for block in "WV"},
                "state": ("reduced",),
            },
        ),
    )
