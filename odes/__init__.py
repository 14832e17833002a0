"""odes: theories of the training dynamics of attention.

`theories` returns the theories of a problem by name. Every solver returns a `dynsim.Trajectory`, as
simulations do. For the attention layer, `spread` predicts the standard deviation across seeds,
`symmetric` is an exact reduction for symmetric tasks, and `qkv` is the flow of its factors. The
other modules cover training on prompts (`two_stage`), in-context regression by linear attention
(`linear_icl`), retrieval of one token (`sparse_attention`), and an MLP above attention (`joma`).
"""

from odes import (
    coefficients,
    decoder,
    growth,
    joma,
    linear_icl,
    predictions,
    qkv,
    sparse_attention,
    symmetric,
    two_stage,
)
from odes.batch_noise import linear_noise
from odes.batch_noise.escape import EscapeError, escape_error
from odes.batch_noise.paths import sde
from odes.central import central_flow
from odes.general import closed_form, computed
from odes.hierarchy import applicable, theories
from odes.problem import Reduction, descent, flow
from odes.solver.posed import Flow, effective_rates
from odes.solver.tolerances import DEFAULT_TOLERANCES, Tolerances
from odes.system import system
from odes.theory import Theory, Training
from odes.yz import eq10, fixed_attention, lemma3, population, spread, theorem4

__all__ = [
    "DEFAULT_TOLERANCES",
    "EscapeError",
    "Flow",
    "Reduction",
    "Theory",
    "Tolerances",
    "Training",
    "applicable",
    "central_flow",
    "closed_form",
    "coefficients",
    "computed",
    "decoder",
    "descent",
    "effective_rates",
    "eq10",
    "escape_error",
    "fixed_attention",
    "flow",
    "growth",
    "joma",
    "lemma3",
    "linear_icl",
    "linear_noise",
    "population",
    "predictions",
    "qkv",
    "sde",
    "sparse_attention",
    "spread",
    "symmetric",
    "system",
    "theorem4",
    "theories",
    "two_stage",
]
