"""The smallest layer there is, which stands for all of them, and names and units of what runs of
the attention layer record, in Y and Z or in ordinary parameters."""

import numpy as np

from dynsim import Layer
from dynsim.yz.observables import RECALL_THRESHOLDS
from sweeps.systems.base import Labels

ONE, TWO = np.zeros(1, np.int32), np.zeros(2, np.int32)
# In NumPy: no device may be used before somebody computes.
LAYER = Layer(
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

CLASS, TOKEN = ("class",), ("class", "token")
ENDS = ("", "_std", "_drift")
"""Of names: the quantity itself, and what theories say of its spread and the shift of its mean."""
OF_CLASS = ("z_top_distinct", "z_top_common", "speed", "xi", "B")
IN_NAT = (*OF_CLASS, "z", "z_distinct", "z_common")
"""Logits, and the gradients and growth that change them."""
LABELS = Labels(
    about={
        **{name + end: ((name + end).replace("_", " "), "nat") for name in IN_NAT for end in ENDS},
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
        **{name + end: CLASS for name in OF_CLASS for end in ENDS},
        **dict.fromkeys(("attention", "normalised_attention", "z"), TOKEN),
        "overlap": ("class", "other_class"),
        "recall": ("threshold",),
    },
    values={"threshold": RECALL_THRESHOLDS},
)
"""Of the attention layer, in Y and Z or in ordinary parameters."""
