"""Every theory of the layer stands in a sweep, with another solver in place of the real one, which
`tests/systems/test_yz.py` holds against the equations."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from odes.solver import flows
from odes.solver.tolerances import DEFAULT_TOLERANCES
from odes.theory import FINITE
from odes.yz import spread
from sweeps import Sweep, experiment
from sweeps.runner import tiles
from sweeps.runner.work import Work
from sweeps.systems import registry
from tests.systems.euler import euler, euler_instead


@pytest.fixture(scope="module", autouse=True)
def by_euler() -> Iterator[None]:
    with euler_instead():
        yield


def largest(task: Any, snapshot: Any) -> Any:
    return snapshot.c.max()


@pytest.mark.parametrize("name", ["spread", "eq10", "symmetric"])
@pytest.mark.more
def test_theories_record_functions(name: str) -> None:
    sweep = Sweep(experiment(steps=5), {"eta_z": [1.0]}, name, {"largest": largest}, (0, 5))
    with jax.enable_x64(True):
        made = Work(sweep, tiles.mesh()).variables()
    assert made["largest"].shape == (2,)


def test_adams_denominator_has_noise_by_the_theory_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AskedError(Exception):
        pass

    def solve(*_: Any, squares: bool, **__: Any) -> None:
        raise AskedError(squares)

    monkeypatch.setattr(spread, "solve", solve)
    for name, squares in (("spread", False), ("spread-squares", True)):
        sweep = Sweep(experiment(steps=5, rule="adam"), {"eta_z": [1.0]}, name, ("loss_std",))
        with jax.enable_x64(True), pytest.raises(AskedError, match=str(squares)):
            Work(sweep, tiles.mesh()).variables()


# By default one of each kind: the others differ in their equations, which `tests/odes` solves.
SHOWN = (
    *("simulation", "descent", "plain", "plain-finite-t", "matched", "adam", "rmsprop-finite-t"),
    *("eq10", "fixed_attention-discrete", "symmetric", "symmetric-descent-finite-t"),
    *("spread-squares", "symmetric-noise"),
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHOWN else pytest.mark.full)
        for name in registry.system("yz").theories
        if name != "theorem4"
    ],
)
@pytest.mark.more
def test_every_theory_traces(name: str) -> None:
    # theorem4 needs a task with a single common token, which no named task has.
    rule: dict[str, Any] = {"rule": next((r for r in ("adam", "rmsprop") if r in name), "sgd")}
    if name.removesuffix(FINITE) in ("matched", "heavy-ball", "rescaled", "corrected"):
        rule |= {"momentum": 0.9}
    sweep = Sweep(experiment(steps=5, **rule), {"eta_z": [1.0]}, name, ("loss",), (0, 5))
    sweep.check()
    with jax.enable_x64(sweep.dtype == "float64"):
        made = Work(sweep, tiles.mesh()).variables()
    assert (made["loss"].shape, made["loss"].dims) == ((2,), ("time",))


def test_a_sweep_is_solved_to_its_own_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def integrate(*given: Any, tolerances: Any, **options: Any) -> Any:
        asked.append((tolerances.rtol, tolerances.atol))
        return euler(*given, **options)

    monkeypatch.setattr(flows, "integrate", integrate)
    # No other test of this file records it: JAX would find the program again, and not trace it.
    record = ("entropy",)
    for rtol in (1e-4, 1e-9, None):
        sweep = Sweep(experiment(steps=5), {"eta_z": [1.0]}, "plain", record, (0, 5), rtol=rtol)
        with jax.enable_x64(True):
            Work(sweep, tiles.mesh()).variables()
    # The absolute one is a hundredth of it, and by default the solver has its own.
    np.testing.assert_allclose(asked[:2], [(1e-4, 1e-6), (1e-9, 1e-11)])
    assert asked[2] == DEFAULT_TOLERANCES["float64"][:2]
