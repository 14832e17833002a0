"""The engines of the attention layer: simulation, descent and every theory of the ladder."""

import math

from dynsim.yz.layer import layer
from odes.theory import named
from odes.yz import ladder
from sweeps.systems.base import Engine
from sweeps.systems.engines import FLOW, descent, engines_of, of_theory, of_weights
from sweeps.systems.yz import memory, reduced
from sweeps.systems.yz.memory import LIKE
from sweeps.systems.yz.scatter import engine as spread

TILE = 16


def _of_theory(theory: ladder.Theory) -> Engine:
    found = of_theory(theory, LIKE)
    arrays = memory.BY_CLASS.get(theory.name.split("-")[0])
    return found if arrays is None else found._replace(bytes_per_run=memory.by_class(arrays))


DESCENT = descent(LIKE, TILE, lambda task: layer(task, math.inf))._replace(
    title="descent, T infinite, batch infinite", assumes="T -> infinity, batch -> infinity"
)
FINITE_DESCENT = descent(LIKE, TILE, reduced.of_finite_length)._replace(
    title="descent, T finite, batch infinite", assumes="1/T^2 -> 0, batch -> infinity"
)
_FINITE = reduced.engines(True, FINITE_DESCENT, LIKE)
ENGINES: dict[str, Engine] = {
    "simulation": engines_of(LIKE, TILE)["simulation"],
    named("descent", finite=True): FINITE_DESCENT._replace(variant=False),
    "descent": DESCENT._replace(variant=False),
    **{name: _of_theory(theory) for name, theory in ladder.THEORIES.items()},
    **_FINITE,
    FLOW: of_weights(LIKE),
    "spread": spread(LIKE),
    "spread-squares": spread(LIKE, squares=True),
    **reduced.engines(False, DESCENT, LIKE),
    reduced.NOISE: reduced.noisy(_FINITE[named("symmetric-descent", finite=True)]),
}
"""Engines by the name under which a sweep asks for them: training, training with an infinite batch
(on all parameters, or on those that a symmetric task leaves), every rung of the ladder."""
