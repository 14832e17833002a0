"""The figure of the factors' flow: its errors, and how far both theories are from descent."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dynsim import Status, Trajectory
from papers.qkv import figure
from papers.qkv.figure import FactorFlow
from sweeps import cli


# Two flows and a training.
@pytest.mark.usefixtures("quick_theory")
@pytest.mark.full(
    "odes/qkv/test_factors.py::test_the_factors_move_as_the_weights_do_and_y_and_z_as_derived"
)
def test_the_flow_of_the_factors_is_closer_than_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figure, "SCALES", (1.0, 4.0))
    monkeypatch.setattr(figure, "SEEDS", 1)
    errors = FactorFlow(steps=50).errors(40)
    plain, factors = errors["plain/attention"], errors["factors/attention"]
    # Descent of 50 steps at rate 0.2 is some 3 % from its flow.
    assert (factors < 0.05).all()
    assert (plain > 3 * factors).all()
    # At its best case the plain flow still tells where attention goes.
    assert (plain < 0.8).all()


def test_errors_are_distances_over_how_far_descent_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descent moves at a speed of 1 plus its seed, one theory at the speed of the scale and the
    other at twice that, which fails at the scale 4."""

    def moved(speed: Any, status: Any = Status.OK) -> Trajectory:
        along = jnp.arange(11.0) * speed
        values = {"attention": jnp.stack([along] * 3, -1), "loss": 1 - along}
        return Trajectory(jnp.arange(11), values, None, jnp.int32(status), jnp.int32(-1), "")

    def runs(self: FactorFlow, width: int, scale: Any, seed: Any) -> Any:
        factors = moved(2 * scale, Status.SOLVER_FAILED * (scale == 4))
        return moved(1.0 + seed), {"plain": moved(scale), "factors": factors}

    monkeypatch.setattr(FactorFlow, "runs", runs)
    assert cli.main(["figure", "qkv", "--out", str(tmp_path)]) == 0
    assert {path.suffix for path in tmp_path.glob("qkv.*")} == {".npz", ".png"}
    away = lambda speed: np.hypot(speed - 1, speed / 2 - 1) / 2**0.5
    scales = np.array(figure.SCALES)
    with np.load(tmp_path / "qkv.npz") as arrays:
        for measure in ("attention", "loss"):
            plain, factors = arrays[f"plain/{measure}"], arrays[f"factors/{measure}"]
            assert plain.shape == (4, 5)
            np.testing.assert_allclose(plain[-1], away(scales))
            np.testing.assert_allclose(factors[0], [*away(2 * scales[:-1]), np.nan])
