"""Normalised-ReLU attention on P/Q prompts (two-stage dynamics): training and the reduced ODE."""

from sweeps.systems.base import Labels, System
from sweeps.systems.two_stage.engines import ENGINES, registered
from sweeps.systems.two_stage.settings import TwoStage

SYSTEM = System(
    name="two_stage",
    tasks=("prompts",),
    run=TwoStage,
    engines=ENGINES,
    labels=Labels(
        about={
            "eta_time": ("sum of the learning rates so far", "1"),
            "K1": ("logistic loss of component P", "nat"),
            "K2": ("logistic loss of component Q", "nat"),
            "J": ("logistic loss of the sum of the components", "nat"),
            "auc_Q": ("area under the ROC curve of component Q", "1"),
            "W_trace": ("trace of the signal part of W", "1"),
            "loss": ("joint logistic loss", "nat"),
            "K1_signal": ("logistic loss of component P by the signal part alone", "nat"),
            "K2_signal": ("logistic loss of component Q by the signal part alone", "nat"),
            "K2_gated": ("logistic loss of component Q by the signal part, gated by all", "nat"),
            "K2_pos": ("logistic loss of component Q on positive labels", "nat"),
            "K2_neg": ("logistic loss of component Q on negative labels", "nat"),
            "V_trace": ("trace of the signal part of V", "1"),
            "tau": ("stationary noise of a weight at eta_1", "1"),
            "r": ("shift of the negative class of component Q", "1"),
            "decay": ("weight decay", "1/eta-time"),
        },
        inner_dims={
            "W_singular": ("rank",),
            "V_singular": ("rank",),
            "W_signal": ("row", "column"),
            "V_signal": ("row", "column"),
            "state": ("reduced",),
        },
    ),
    more=registered,
    compare="sweeps.studies.two_stage.compare:CompareTwoStage",
)
