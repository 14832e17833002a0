"""odes: what theory predicts of the training dynamics of attention.

Every solver returns the `dynsim.Trajectory` that simulation returns. The rungs of the attention
layer are in `ladder.THEORIES`; `spread` predicts how far its seeds scatter, `symmetric` is its
exact reduction for symmetric tasks, `qkv` the flow of the layer's factors, `two_stage` the reduced
dynamics of training on prompts, `linear_icl` in-context regression by linear attention,
`sparse_attention` retrieval of one token, `joma` an MLP layer and the attention below it, each of
the last five with a `ladder` of its own.
"""

from odes import joma, linear_icl, qkv, sparse_attention, symmetric, two_stage
from odes.central import central_flow
from odes.formulas import (
    coefficients,
    decoder,
    discrete_decoder,
    growth,
    omega,
    predictions,
)
from odes.general import closed_form, computed
from odes.problem import Reduction, descent, flow
from odes.solver.posed import Flow
from odes.solver.tolerances import DEFAULT_TOLERANCES, Tolerances
from odes.system import system
from odes.theory import Ladder, Theory, Training
from odes.yz import eq10, fixed_attention, ladder, lemma3, population, spread, theorem4

__all__ = [
    "DEFAULT_TOLERANCES",
    "Flow",
    "Ladder",
    "Reduction",
    "Theory",
    "Tolerances",
    "Training",
    "central_flow",
    "closed_form",
    "coefficients",
    "computed",
    "decoder",
    "descent",
    "discrete_decoder",
    "eq10",
    "fixed_attention",
    "flow",
    "growth",
    "joma",
    "ladder",
    "lemma3",
    "linear_icl",
    "omega",
    "population",
    "predictions",
    "qkv",
    "sparse_attention",
    "spread",
    "symmetric",
    "system",
    "theorem4",
    "two_stage",
]
