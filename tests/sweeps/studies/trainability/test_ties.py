"""Where ties are unstable, and descent with noise, as phase diagrams have them."""

from pathlib import Path

import numpy as np
import pytest

import dynsim
import sweeps
from odes import symmetric
from sweeps.studies.trainability import ties
from sweeps.systems.yz import Training

pytestmark = pytest.mark.usefixtures("quick_theory")


def test_the_line_is_that_of_the_flow_at_each_point() -> None:
    training = Training(momentum=0.9, steps=60)
    (values,) = ties.lines(training, {"eta_y": (0.01, 0.1), "eta_z": (1.0, 100.0)}).values()
    task = symmetric.merged(symmetric.symmetric_task(dynsim.syn_small()))
    rule = dynsim.momentum(0.1, 100.0)
    one = symmetric.instability(task, rule, steps=60, batch=128, length=128)
    point = values.sel(eta_y=0.1, eta_z=100.0)
    # Solved in lockstep with others, to the tolerances of the solver.
    np.testing.assert_allclose(point, one.max(), rtol=1e-3)
    assert values.sel(eta_z=1.0).max() < 0 < point


@pytest.mark.parametrize(
    ("training", "axis"),
    [
        ({"length": np.inf}, "eta_z"),
        ({"optimizer": "adam"}, "eta_z"),
        ({}, "batch"),
    ],
)
def test_there_is_no_line_where_the_theory_says_nothing(training: dict, axis: str) -> None:
    assert ties.lines(Training(**training), {"eta_y": (0.1, 1.0), axis: (10.0, 100.0)}) == {}


def test_regions_of_a_theory_with_noise_are_probabilities(tmp_path: Path) -> None:
    options = sweeps.phase.settings("yz")(
        x="eta_y:0.01:0.1:2",
        y="eta_z:30:60:2",
        steps=10,
        engine="symmetric-noise",
        seeds=3,
        out=tmp_path,
    )
    found = sweeps.phase.maps(options)["symmetric-noise"]
    assert found.seeds.values.tolist() == [[3, 3], [3, 3]]
    np.testing.assert_allclose(found.share.sum("code"), 1)
