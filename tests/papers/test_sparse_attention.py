"""The figure of sparse attention: what is measured on loss curves that are known."""

import math
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dynsim
from dynsim import Trajectory
from papers import sparse_attention
from papers.sparse_attention.figure import SparseAttention
from tests.papers import made


def lengths(axis: str, values: Any, law: Any) -> xr.DataArray:
    """Length of the plateau by a law, over one axis."""
    return xr.DataArray([law(value) for value in values], {axis: [*values]}, name="loss")


def test_the_closed_form_is_the_root_law() -> None:
    assert sparse_attention.closed_form(256, 16) == pytest.approx(256 * math.sqrt(8 * math.pi))
    ratio = sparse_attention.closed_form(256, 64, 4) / sparse_attention.closed_form(256, 64)
    assert ratio == pytest.approx(1 / 2)


def test_the_law_is_fitted_where_the_plateau_ended() -> None:
    by_size = {d: lengths("length", (256, 512), lambda T, d=d: 1.5 * d**0.5 * T) for d in (16, 64)}
    assert sparse_attention.law(by_size) == pytest.approx((1.5, 1))
    by_size[64] = by_size[64].where(by_size[64].length < 512)
    assert sparse_attention.law(by_size) == pytest.approx((1.5, 1))


def test_adam_with_noise_escapes_where_its_loss_has_fallen_to_four_fifths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def solve(task: Any, rule: Any, times: range, *, batch: float) -> Trajectory:
        assert isinstance(rule, dynsim.Adam)
        assert (task.T, task.d, times[-1]) == (64, 64, 400)
        # Down from 0.5 by one part in ten batches at every step, so at 0.4 after two batches.
        loss = 0.5 * (1 - np.array(times) / (10 * batch))
        return Trajectory(np.array(times), {"loss": loss}, None, np.array(0), np.array(-1), "")

    monkeypatch.setattr(sparse_attention.odes.sparse_attention.finite_batch, "solve", solve)
    assert sparse_attention.with_noise() == pytest.approx(2 * sparse_attention.BATCH)


def test_the_figure_reports_exponents_of_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of flows fall in a straight line to 0 in five times (64 + T^0.7 d^0.4) steps."""
    monkeypatch.setattr(sparse_attention, "with_noise", lambda: 12.3)
    figure = SparseAttention(seeds=2)
    data = {name: made.falling(each) for name, each in figure.sweeps().items()}
    for name in sparse_attention.RULES:
        for T, d in sparse_attention.LADDER:
            flow = data[f"{name}/{T}-{d}"]
            flow["loss"] = 1 - flow.time / (5 * T**0.7 * d**0.4) + 0 * flow.loss
    picture = figure.draw(data)
    assert len(picture.figure.axes) == 3
    row = next(line.split() for line in picture.text.split("\n") if line.startswith("momentum"))
    assert [float(row[i]) for i in (-3, -2)] == pytest.approx([0.7, 0.4], abs=1e-4)
