"""The figure of the factors' flow: what its arrays must satisfy, and bad input."""

import re
from pathlib import Path

import numpy as np
import pytest

from sweeps.studies.qkv import FigureQKV, run

pytestmark = pytest.mark.usefixtures("quick_theory")


# Two flows and a training.
@pytest.mark.full(
    "odes/qkv/test_factors.py::test_the_factors_move_as_the_weights_do_and_y_and_z_as_derived"
)
def test_the_figure_shows_the_flow_of_the_factors_closer_than_the_plain_one(tmp_path: Path) -> None:
    config = FigureQKV(out=tmp_path, width=(40,), scale=(1.0, 4.0), steps=50, seeds=1)
    paths = run(config)
    assert {path.name for path in paths} == {"qkv.npz", "qkv.png"}
    with np.load(tmp_path / "qkv.npz") as arrays:
        plain, own = arrays["plain/attention"][0], arrays["factors/attention"][0]
    # Descent of 50 steps at rate 0.2 is some 3 % from its flow.
    assert (own < 0.05).all()
    assert (plain > 3 * own).all()
    # At its best case the plain flow still tells where attention goes.
    assert (plain < 0.8).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps = 0: must be an integer from 1"),
        ({"width": (64, 16)}, "width = (64, 16): must be a list of increasing numbers"),
        ({"width": (0, 16)}, "width = 0: must be an integer >= 1"),
        ({"scale": ()}, "scale = (): must be a list of increasing numbers"),
        ({"scale": (0.0, 1.0)}, "scale = 0.0: must be finite and in (0"),
        ({"eta_z": 0.0}, "eta_z = 0.0: must be a number in (0"),
    ],
)
def test_bad_input_is_named(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(FigureQKV(out=tmp_path, **options))
