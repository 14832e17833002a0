"""The reduced ODE of the two-stage system computes what its equations say."""

import pytest

from dynsim import Annealed, Prompts
from tests.systems.two_stage import Components

START = (0.3, 0.6, 0.03, 0.03, 0.04, 0.015, 0.01)
TASK = Prompts(12, 33, r=2.0, gamma0=0.8, s1=1.1, s2=0.9)
SMALL = Components(TASK, Annealed(tau=0.15), START, 15.0)


@pytest.mark.usefixtures("jax_precision")
def test_drift_of_the_reduced_ode() -> None:
    SMALL.check_drift()


@pytest.mark.full("test_drift_of_the_reduced_ode")
@pytest.mark.usefixtures("x64")
def test_reduced_ode() -> None:
    SMALL.check()
