"""Every engine of the layer stands in a sweep, with another solver in place of the real one, which
`tests/systems/test_yz.py` holds against the equations."""

from collections.abc import Iterator

import jax
import pytest

from odes.theory import FINITE
from sweeps import Sweep, Training
from sweeps.runner import tiles
from sweeps.runner.work import Work
from sweeps.systems.yz.engines import ENGINES
from tests.systems.euler import euler_instead


@pytest.fixture(scope="module", autouse=True)
def by_euler() -> Iterator[None]:
    with euler_instead():
        yield


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "theorem4"])
def test_every_engine_traces(name: str) -> None:
    # theorem4 needs a task with a single common token, which no named task has.
    momentum = (
        0.9
        if name.removesuffix(FINITE) in ("matched", "heavy-ball", "rescaled", "corrected")
        else None
    )
    optimizer = "adam" if "adam" in name else "sgd"
    training = Training(optimizer=optimizer, momentum=momentum, steps=5)
    sweep = Sweep({"eta_z": [1.0]}, training, engine=name, record=("loss",), times=(0, 5))
    sweep.check()
    with jax.enable_x64(sweep.dtype == "float64"):
        made = Work(sweep, tiles.mesh()).variables()
    assert (made["loss"].shape, made["loss"].dims) == ((2,), ("time",))
