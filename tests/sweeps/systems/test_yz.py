"""Engines of the attention layer: one reduction, and everything recorded from it."""

import numpy as np
import pytest

import sweeps
from dynsim.yz.observables import OBSERVABLES
from sweeps.runner import tiles
from sweeps.runner.spec import Sweep
from sweeps.runner.work import Work
from sweeps.systems.yz.engines import ENGINES
from sweeps.systems.yz.settings import Training

pytestmark = pytest.mark.usefixtures("quick_theory")

AXES = {"eta_y": [0.5, 1.0], "eta_z": [1.0]}
TRAINING = Training(task="syn", num_common=3, num_distinct=2, steps=30)


def test_the_symmetric_engine_records_what_any_theory_does() -> None:
    own = ENGINES["symmetric"].observables.names()
    assert {name for name in OBSERVABLES if name != "B"} < set(own)
    names = ("speed", "z", "attention", "overlap", "recall", "z_distinct")
    found, reduced = (
        sweeps.run(Sweep(AXES, TRAINING, "symmetric", record, times=(0, 30))).load()
        for record in (names, ("speed",))
    )
    assert found.z.dims == ("eta_y", "eta_z", "time", "class", "token")
    task = TRAINING.make_task()
    assert (found.sizes["class"], found.sizes["token"]) == (task.K, task.M)
    distinct = found.z.values[..., np.asarray(task.distinct())].reshape(2, 1, 2, task.K, -1)
    order = np.sort(distinct, axis=-1)
    np.testing.assert_array_equal(order, np.sort(found.z_distinct.values)[..., None, :] + 0 * order)
    assert np.ptp(found.z_distinct.values) > 0.1
    # Of the reduced task alone there is one class, at a cost without K and M.
    assert reduced.sizes["class"] == 1
    np.testing.assert_allclose(reduced.speed[..., 0], found.speed[..., 3], rtol=1e-12)


def test_memory_of_the_symmetric_engine_grows_with_what_it_records() -> None:
    def bytes_per_run(*record: str) -> int:
        sweep = Sweep(AXES, TRAINING, "symmetric", record)
        return Work(sweep, tiles.mesh(), tile=1).plan.bytes_per_device

    task = TRAINING.make_task()
    assert bytes_per_run("loss", "attention") - bytes_per_run("loss") > 8 * task.M**2
