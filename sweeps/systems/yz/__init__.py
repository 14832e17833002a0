"""The attention layer in Y and Z (Scan and Snap): training, and every theory."""

from collections.abc import Mapping

from dynsim import AttentionLayer, Layer, SequenceClasses
from odes.general import WHOLE
from odes.theory import named
from odes.yz import THEORIES
from sweeps.systems.base import Engine, Settings
from sweeps.systems.engines import descent, of_infinite_length, system
from sweeps.systems.yz import reduced, scatter
from sweeps.systems.yz.layer import LABELS, LAYER

BY_CLASS = {"lemma3": 24, "eq10": 12, "theorem4": 3, "fixed_attention": 1}
"""Arrays of the shape (K, M) that a theory holds which has no array of all weights, by the part of
its name before the first dash."""


def _engines(found: Mapping[str, Engine]) -> dict[str, Engine]:
    """Training, training with an infinite batch (on all parameters, or on those that a symmetric
    task leaves), every theory, and what a finite batch adds to them."""
    finite_t = named("descent", finite=True)
    descents = {
        finite_t: descent(found["simulation"], reduced.of_finite_length)._replace(
            variant=False,
            title="descent, T finite, batch infinite",
            assumes="1/T^2 -> 0, batch -> infinity",
        ),
        "descent": of_infinite_length(found)["descent"]._replace(
            variant=False,
            title="descent, T infinite, batch infinite",
            assumes="T -> infinity, batch -> infinity",
        ),
    }
    theories = {each.name: _theory(each.name, found[each.name]) for each in THEORIES}
    reduced_finite = reduced.engines(True, theories, descents[finite_t])
    return {
        "simulation": found["simulation"],
        **descents,
        **theories,
        **reduced_finite,
        WHOLE.name: found[WHOLE.name],
        "spread": scatter.engine(found["simulation"]),
        "spread-squares": scatter.engine(found["simulation"], squares=True),
        **reduced.engines(False, theories, descents["descent"]),
        reduced.NOISE: reduced.noisy(reduced_finite[named("symmetric-descent", finite=True)]),
    }


def _theory(name: str, engine: Engine) -> Engine:
    """The engine of a theory, with the memory that it needs where it holds such arrays."""
    if not (arrays := BY_CLASS.get(name.split("-")[0])):
        return engine

    def bytes_per_run(task: SequenceClasses, settings: Settings) -> int:
        return settings.width * arrays * task.K * task.M + reduced.recorded(task, settings)

    return engine._replace(bytes_per_run=bytes_per_run)


SYSTEM = system(
    LAYER,
    "yz",
    problems=(AttentionLayer, Layer),
    engines=_engines,
    labels=LABELS,
    compare="sweeps.compare.layer:LayerComparison",
)
