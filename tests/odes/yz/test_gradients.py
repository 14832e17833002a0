"""Every theory of the layer: its start, and reverse mode through its own arithmetic.

The loop of the solver is the same for all of them and takes ten seconds to compile in reverse;
`test_ladder.py` goes through that. Euler's method stands for it here, whose derivatives are those
of as many of its steps.
"""

import numpy as np
import pytest

import dynsim
from odes.theory import FINITE
from odes.yz import THEORIES
from tests.systems.euler import euler_instead
from tests.systems.gradients import IN_Y_AND_Z, check, differentiated, task_for

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module", autouse=True)
def by_euler():
    differentiated.cache_clear()
    with euler_instead():
        yield
    differentiated.cache_clear()


# All flows of finite T have the gradient of one loss, full or reduced; of others that differ
# in numbers alone one stands for the others. By default one is taken of each kind of state.
NAMES = [each.name for each in THEORIES if not each.name.endswith(FINITE)]
NAMES += ["corrected" + FINITE, "symmetric" + FINITE]
FEW = {"adam", "fixed_attention"}
CASES = [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in NAMES]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.more
def test_reverse_mode_is_central_differences(name):
    check(name, differentiated(name))


@pytest.mark.parametrize("name", CASES)
def test_a_theory_returns_a_trajectory_from_the_start(name):
    task, result = task_for(name), differentiated(name).result
    assert isinstance(result, dynsim.Trajectory)
    assert (result.source, result.status, result.first_bad_step) == (name, dynsim.Status.OK, -1)
    assert result.times[0] == 0
    shapes = {key: value.shape for key, value in result.observables.items()}
    assert shapes == {"loss": (2,), "entropy": (2,)}
    # Zero logits, and attention in proportion to the probabilities.
    np.testing.assert_allclose(result["loss"][0], np.log(task.M), rtol=1e-14)
    own = np.asarray(task.probs)[0][np.asarray(task.distinct())[0]]
    own = own / own.sum()
    np.testing.assert_allclose(result["entropy"][0], -own @ np.log(own), rtol=1e-12)
    assert result["loss"][1] < result["loss"][0]
    if name.removesuffix(FINITE) in IN_Y_AND_Z:
        assert result.params.Y.shape == (task.M, task.M)
        assert result.params.Z.shape == (task.num_queries, task.M)
    else:
        assert result.params is None
