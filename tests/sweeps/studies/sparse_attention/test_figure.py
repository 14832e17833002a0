"""The figure of sparse attention: what is read off curves, on curves that are known."""

import math
import re
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Status, Trajectory
from sweeps.studies import sparse_attention


def curves(axes: dict[str, list[int]], length) -> xr.Dataset:
    """Losses that fall in a straight line from 1/2 to 0 in five times the `length` of a cell, so
    that they are at 0.8 of their start at that length."""
    times = np.linspace(0, 1e6, 40_001)
    shape = [len(values) for values in axes.values()]
    cells = [
        dict(zip(axes, values, strict=True))
        for values in np.stack(np.meshgrid(*axes.values(), indexing="ij"), -1).reshape(
            -1, len(axes)
        )
    ]
    loss = np.array([np.maximum(0.5 - times / (10 * length(**cell)), 0) for cell in cells])
    return xr.Dataset(
        {
            "loss": ((*axes, "time"), loss.reshape(*shape, -1)),
            "status": (tuple(axes), np.full(shape, Status.OK)),
        },
        {**axes, "time": times},
    )


def test_the_closed_form_is_the_root_law() -> None:
    assert sparse_attention.predicted(256, 16) == pytest.approx(math.sqrt(math.pi / 2 * 16) * 256)


def test_the_plateau_is_read_between_records_and_fitted_by_the_root_law() -> None:
    law = lambda length, d=64: 1.5 * math.sqrt(d) * length
    found = {
        "length/plain": curves(
            {"length": list(sparse_attention.LENGTHS), "d": list(sparse_attention.SIZES)}, law
        ),
        "length/simulation": curves({"length": list(sparse_attention.LENGTHS)}, law),
        "wide/plain": curves(
            {"length": list(sparse_attention.WIDE)}, lambda length: law(length, 256)
        ),
        "square/simulation": curves({"seed": [0, 1]}, lambda seed: 6000 + 20 * seed),
    }
    got = sparse_attention.plateau(found["length/simulation"])
    np.testing.assert_allclose(got, [law(n) for n in sparse_attention.LENGTHS], rtol=1e-9)
    first, square, *_ = sparse_attention.length_lines(found)
    assert first.startswith("flow: 1.5000 sqrt(d) T steps, R^2 = 1.000000")
    # Of 6000 and 6020, and 1.5 sqrt(256) 256; sqrt(pi/2) of the same is the closed form.
    assert "training 6010.0 ± 14.1, flow 6144.0, closed 5133.6" in square
    assert np.isnan(sparse_attention.plateau(curves({"length": [9]}, lambda length: 1e9))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 1}, "seeds = 1: must be an integer from 2"),
        ({"steps": 0}, "steps = 0: must be an integer from 1"),
        ({"batch": 0}, "batch = 0: must be an integer from 1 to 2147483647, or inf"),
    ],
)
def test_bad_input_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        sparse_attention.run(sparse_attention.FigureSparseAttention(**options))


def test_adam_with_noise_escapes_where_its_loss_has_fallen_to_four_fifths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def solve(task: Any, rule: Any, times: np.ndarray, *, batch: float) -> Trajectory:
        assert isinstance(rule, dynsim.Adam)
        assert (task.T, task.d) == (64, 64)
        # Down from 0.5 by one part in ten batches at every step, so at 0.4 after two batches.
        loss = np.maximum(0.5 * (1 - times / (10 * batch)), 0)
        return Trajectory(times, {"loss": loss}, None, np.array(0), np.array(-1), "")

    monkeypatch.setattr(sparse_attention.finite_batch, "solve", solve)
    assert sparse_attention.FALLEN == 0.8
    assert sparse_attention.noisy(16) == pytest.approx(32)
    # As long as training is, and no longer.
    last = sparse_attention.RULES["adam"][1]
    assert sparse_attention.noisy(last / 2 - 0.25) == pytest.approx(last - 0.5)
    assert not sparse_attention.noisy(last / 2 + 0.25) < math.inf
