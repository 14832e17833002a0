"""Axes of figures as options describe them, and runs in a line."""

import numpy as np
import pytest

import dynsim
from sweeps.studies.options import axis, described, path
from sweeps.systems.experiment import Experiment, experiment
from tests.sweeps.studies.transitions.quadratic import Quadratic

RUN = experiment()


def test_axes_may_be_linear_and_whole() -> None:
    linear = pytest.approx((0.0, 0.3, 0.6, 0.9))
    assert axis("momentum:0:0.9:4:lin", 9, RUN) == ("momentum", linear)
    assert axis("eta_y:0.1:10", 3, RUN) == ("eta_y", pytest.approx((0.1, 1.0, 10.0)))
    assert axis("batch:2:32:3", 9, RUN) == ("batch", (2, 8, 32))
    # Of a problem of one's own too.
    own = Experiment(Quadratic(), dynsim.sgd(1.0))
    np.testing.assert_allclose(axis("curvature:1:4", 3, own)[1], [1, 2, 4])


@pytest.mark.parametrize("name", ["length", "problem.length", "Length"])
def test_an_axis_is_known_by_its_path(name: str) -> None:
    assert path(RUN, name) == ("problem", "length")


def test_a_run_in_a_line_leaves_out_what_varies_and_what_is_usual() -> None:
    run = experiment(task="overlapping", K=4, momentum=0.9, length=64)
    words = "yz, overlapping, length = 64, sgd, eta.Z = 0.1, momentum = 0.9, steps = 1000"
    assert described(run, ["eta_y", "K", "batch"]) == words
    table = dynsim.TaskTable([[0.5, 0.5, 0], [0.5, 0, 0.5]], [0, 0])
    words = "yz, table, adam, steps = 1000, batch = 128"
    assert described(experiment(task=table, rule="adam"), ["eta"]) == words
    # By the name under which its package registers it.
    words = "saxe, layers = 3, sgd, steps = 1000, batch = 64"
    assert described(experiment("saxe", layers=3), ["eta"]) == words
