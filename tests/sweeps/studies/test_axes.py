"""Axes of figures as options describe them, and runs in a line."""

import re

import numpy as np
import pytest

import dynsim
from dynsim.classes.tasks import TaskTable
from sweeps.studies.options import axis, described, path
from sweeps.systems.experiment import Experiment, experiment
from tests.sweeps.studies.scaling.quadratic import Quadratic

RUN = experiment()


def test_axes_may_be_linear_and_whole() -> None:
    linear = pytest.approx((0.0, 0.3, 0.6, 0.9))
    assert axis("momentum:0:0.9:4:lin", 9, RUN) == ("momentum", linear)
    assert axis("eta_y:0.1:10", 3, RUN) == ("eta_y", pytest.approx((0.1, 1.0, 10.0)))
    assert axis("batch:2:32:3", 9, RUN) == ("batch", (2, 8, 32))
    assert axis("batch:2,4,3", 9, RUN) == ("batch", (2, 4, 3))
    # Of a problem of one's own too.
    own = Experiment(Quadratic(), dynsim.sgd(1.0))
    np.testing.assert_allclose(axis("curvature:1:4", 3, own)[1], [1, 2, 4])


def test_an_axis_has_two_values_or_more_each_once() -> None:
    assert axis("eta_y:1:4:2", 9, RUN) == ("eta_y", pytest.approx((1, 4)))
    # Downwards too, and as many as usual on a linear one.
    assert axis("eta_y:4:1:3", 9, RUN) == ("eta_y", pytest.approx((4, 2, 1)))
    assert axis("momentum:-0.5:0.5:lin", 5, RUN)[1] == pytest.approx((-0.5, -0.25, 0, 0.25, 0.5))
    # Rounded, without what rounding makes equal.
    assert axis("batch:1:4:9", 3, RUN) == ("batch", (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("eta_y:1:4:1", "axis = 'eta_y:1:4:1': must be NAME:FIRST:LAST"),
        ("eta_y:1:4:2:3", "axis = 'eta_y:1:4:2:3': must be NAME:FIRST:LAST"),
        ("eta_y:1:a", "axis = 'eta_y:1:a': must be NAME:FIRST:LAST"),
        ("eta_y:1", "axis = 'eta_y:1': must be NAME:FIRST:LAST"),
        ("eta_y:0:4", "axis eta_y = 0.0: must be finite and in (0, inf)"),
        ("momentum:0:inf:lin", "axis momentum = inf: must be finite"),
        ("eta_y:2:2", "needs two ends, and at most 16777216 values"),
        ("eta_y:1:2:16777217", "needs two ends, and at most 16777216 values"),
    ],
)
def test_bad_axes_are_named(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        axis(word, 9, RUN)


@pytest.mark.parametrize("name", ["length", "problem.length", "Length"])
def test_an_axis_is_known_by_its_path(name: str) -> None:
    assert path(RUN, name) == ("problem", "length")


def test_a_run_in_a_line_leaves_out_what_varies_and_what_is_usual() -> None:
    run = experiment(task="overlapping", K=4, momentum=0.9, length=64)
    words = "yz, overlapping, length = 64, sgd, eta.Z = 0.1, momentum = 0.9, steps = 1000"
    assert described(run, ["eta_y", "K", "batch"]) == words
    table = TaskTable([[0.5, 0.5, 0], [0.5, 0, 0.5]], [0, 0])
    words = "yz, table, adam, steps = 1000, batch = 128"
    assert described(experiment(task=table, rule="adam"), ["eta"]) == words
    # By the name under which its package registers it.
    words = "saxe, layers = 3, sgd, steps = 1000, batch = 64"
    assert described(experiment("saxe", layers=3), ["eta"]) == words
