"""Each theory of the layer computes what its equations say."""

import numpy as np
import pytest

import dynsim
from tests.systems.yz import Layer

pytestmark = pytest.mark.usefixtures("x64")

TASK = dynsim.SynMedium(1).build()
PLAIN = Layer(TASK, dynsim.sgd(1.3, 0.7), (0.0, 10.0, 25.0))
MOMENTUM = Layer(TASK, dynsim.sgd(0.3, 0.2, momentum=0.8), (0.0, 10.0, 25.0))
RNG = np.random.default_rng(0)
RANDOM = (RNG.normal(size=(rows, TASK.M)) / 2 for rows in (TASK.M, 1))
RESIDUAL = Layer(TASK, dynsim.sgd(0.3, 0.4), PLAIN.times, dynsim.YZ(*RANDOM, residual=True))
"""With a residual stream, and from random weights."""
UNEQUAL = Layer(
    dynsim.sequence_classes(np.kron(np.eye(3), [0.2, 0.8]), [0, 0, 1], prior=[0.2, 0.3, 0.5]),
    *(dynsim.sgd(1.3, 0.7), PLAIN.times),
)

OF_SGD = ("plain", "symmetric", "lemma3", "eq10", "eq10-paper", "eq10-finite-m", "eq10-remark-1")
OF_MOMENTUM = ("matched", "heavy-ball", "rescaled", "symmetric")
SYSTEMS = [*((PLAIN, name) for name in OF_SGD), *((MOMENTUM, name) for name in OF_MOMENTUM)]
SYSTEMS += [(RESIDUAL, "plain")]
FEW = {(PLAIN, "plain")}
"""Whose equations the solver takes in the default suite; equal steps, which take a fraction of the
time to compile, take those of the others, and the solver all of them with `make test-full`."""


def named(system: Layer, theory: str, *, full: bool) -> object:
    marks = [pytest.mark.full] if full else []
    return pytest.param(system, theory, id=f"{system.optimizer.name}-{theory}", marks=marks)


@pytest.mark.parametrize(
    ("system", "theory"), [named(*case, full=case not in FEW) for case in SYSTEMS]
)
@pytest.mark.more
def test_theories_through_the_solver(system: Layer, theory: str) -> None:
    system.check(theory)


def cosine(t: float) -> float:
    """Rate over its peak of the flow of `SCHEDULED`: that of the step in progress."""
    return 0.55 + 0.45 * np.cos(np.pi * np.floor(t) / 30)


RATES = (dynsim.schedules.cosine(peak, 30.0, 0.1) for peak in (1.3, 0.7))
SCHEDULED = Layer(TASK, dynsim.sgd(*RATES), PLAIN.times, pace=cosine)


def falling(t: float) -> float:
    """Rate over its peak of `OF_BOTH`. With inertia it matters how a rate varies within a step."""
    return 1.0 if t < 5 else 0.6 if t < 12 else 0.3


RATES = (dynsim.schedules.steps(peak, (5, 12), (0.6, 0.3)) for peak in (0.3, 0.2))
OF_BOTH = Layer(TASK, dynsim.sgd(*RATES, momentum=0.8), PLAIN.times, pace=falling)


@pytest.mark.parametrize("system", [SCHEDULED, UNEQUAL])
def test_attention_that_stays(system: Layer) -> None:
    system.check("fixed_attention")


@pytest.mark.full("odes/yz/test_schedules.py::test_closed_forms_are_flows_in_the_integral")
@pytest.mark.parametrize(
    ("system", "theory"),
    [
        *((SCHEDULED, name) for name in OF_SGD),
        *((OF_BOTH, name) for name in (*OF_MOMENTUM, "eq10", "lemma3")),
    ],
)
def test_theories_under_a_schedule(system: Layer, theory: str) -> None:
    system.check(theory)


# Last, because the fixture stays for the rest of the file.
@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize(
    ("system", "theory"),
    # Variants of eq. 10 differ in a factor.
    [named(*c, full=c[1].startswith("eq10-")) for c in SYSTEMS if c not in FEW],
)
def test_theories_in_equal_steps(system: Layer, theory: str) -> None:
    system.check(theory)
