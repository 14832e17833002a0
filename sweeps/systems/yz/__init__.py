"""The attention layer in Y and Z (Scan and Snap): training, and every theory of the ladder."""

import dataclasses
import functools
from typing import Any

from dynsim import AttentionLayer, Layer
from odes.theory import Theory, Training
from odes.yz import ladder
from sweeps.systems.engines import system
from sweeps.systems.yz.engines import ENGINES
from sweeps.systems.yz.labels import LABELS
from sweeps.systems.yz.memory import LAYER


def _registered() -> dict[str, Theory[Any, Any]]:
    """Theories of other packages, which start from zero unless they need `init` or `key`."""

    def inapplicable(training: Training, *, theory: Theory[Any, Any]) -> str | None:
        if training.problem.start != "zero" and not {"init", "key"} & set(theory.needs):
            return "it starts from zero weights; one that takes others has needs = ('init',)"
        return theory.inapplicable(training)

    return {
        name: dataclasses.replace(
            theory, inapplicable=functools.partial(inapplicable, theory=theory)
        )
        for name, theory in ladder.registered().items()
    }


SYSTEM = system(
    LAYER,
    "yz",
    problems=(AttentionLayer, Layer),
    registered=_registered,
    labels=LABELS,
    compare="sweeps.compare.report",
)._replace(engines=ENGINES)
