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


def test_plateaus_of_copies_and_exponents_of_rules_are_read_off_curves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So short that the logarithm of one step more has other exponents."""
    asked = []
    monkeypatch.setattr(sparse_attention, "noisy", lambda batch: asked.append(batch) or 12.34)
    copies = {
        f"copies/{theory}": curves({"B": [1, 2, 4, 8]}, lambda B, i=i: 800 / B + 10 * i)
        for i, theory in enumerate(("simulation", "plain", "printed"))
    }
    lines = sparse_attention.copies_lines(copies)
    assert lines == [
        f"B = {B}, T = 256, d = 64: simulation {800 / B:.1f}, plain {800 / B + 10:.1f}, printed "
        f"{800 / B + 20:.1f}, closed {256 * math.sqrt(math.pi / 2 * 64 / B):.1f}"
        for B in (1, 2, 4, 8)
    ]
    found = {}
    for i, name in enumerate(("sgd", "momentum", "adam")):
        seeds = curves({"seed": [0, 1, 2]}, lambda seed, i=i: 70 + i + [1, 2, 6][seed])
        found[f"{name}/simulation"] = seeds
        for T, d in ((64, 64), (128, 64), (256, 64), (64, 128), (64, 256)):
            length = (60 + i) * (T / 64) ** (0.7 + i / 10) * (d / 64) ** (0.4 - i / 10)
            found[f"{name}/{T}-{d}"] = curves({"p": [0]}, lambda p, length=length: length)
    # 1, 2 and 6 are 3 on average, by the root of 7.
    sgd, momentum, noise, adam = sparse_attention.exponent_lines(found, 16)
    sd = math.sqrt(7)
    end = "T = d = 64: flow {:.1f}, training {:.1f} ± {:.1f}"
    assert sgd == "sgd: T^0.700 d^0.400; " + end.format(60, 73, sd)
    assert momentum == "momentum: T^0.800 d^0.300; " + end.format(61, 74, sd)
    assert noise == "adam: finite batch 12.3"
    assert adam == "adam: T^0.900 d^0.200; " + end.format(62, 75, sd)
    assert asked == [16]
