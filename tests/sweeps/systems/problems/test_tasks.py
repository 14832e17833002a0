"""Problems that hold a task chosen by name: settings, axes, and what a store knows of them."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps.systems.problems.options import problem_system
from sweeps.systems.yz.tasks import ClassOptions

import dynsim
import sweeps
from dynsim.decoding import Length
from sweeps import Sweep
from sweeps.systems import registry


class Counter(dynsim.Problem):
    """Softmax regression of the next token on a contextual one.

    Attributes:
        length: tokens of a sequence.
        scale: standard deviation of a starting weight.
        begin: how weights start.
    """

    NAME = "counter"

    classes: dynsim.SequenceClasses
    scale: float = 0.1
    length: Length = eqx.field(static=True, default=math.inf)
    begin: str = eqx.field(static=True, default="random")

    def init(self, key):
        shape = (self.classes.M, self.classes.M)
        return {"Y": self.scale * jax.random.normal(key, shape), "Z": jnp.zeros(())}

    def groups(self, params):
        return {"Y": "Y", "Z": "Z"}

    def population_loss(self, params):
        logits = jnp.asarray(self.classes.probs) @ params["Y"] * (1 + params["Z"])
        picked = jax.nn.log_softmax(logits)[jnp.arange(self.classes.K), self.classes.next_token]
        return -jnp.sum(jnp.asarray(self.classes.prior) * picked)


@dataclasses.dataclass(frozen=True)
class CounterOptions(ClassOptions):
    """Of the toy.

    Attributes:
        eta_z: learning rate of the gain.
    """

    DEFAULT_ETA_Y = 0.5


SYSTEM = problem_system(
    Counter(dynsim.syn_small()),
    "counter",
    options=CounterOptions,
    names={"begin": "init"},
    task="",
    eta_z=0.2,
    batch=math.inf,
    steps=4,
)
Run: Any = SYSTEM.run


@pytest.fixture(autouse=True)
def known() -> None:
    registry._KNOWN["counter"] = SYSTEM


@pytest.mark.full(
    "sweeps/systems/test_problems.py::test_a_run_of_a_sweep_is_the_run_that_train_makes",
    "sweeps/runner/test_run.py::test_static_axes_are_runs_of_their_own_shapes",
)
def test_a_sweep_over_sizes_of_a_task_runs_what_train_does() -> None:
    axes = {"K": [2, 4], "ratio": [1.0, 3.0], "scale": [0.25], "seed": [0, 3]}
    found = sweeps.run(Sweep(axes, Run(task="overlapping", overlap=0.3), "descent", ("loss",)))
    problem = Counter(dynsim.overlapping(4, 0.3), scale=0.25)
    rule = dynsim.sgd({"Y": 3 * 0.2, "Z": 0.2})
    key = jax.random.fold_in(jax.random.key(0), 3)
    alone = dynsim.train(problem, rule, key, steps=4, batch=math.inf, times=[4], dtype="float64")
    loss = found.loss.sel(K=4, ratio=3.0, seed=3).item()
    # The same sums in batches of other shapes.
    np.testing.assert_allclose(loss, float(alone["loss"][0]), rtol=1e-12)


def test_a_task_is_a_name_a_file_a_reference_or_an_object(tmp_path: Path) -> None:
    task = dynsim.syn(1, 2, num_common=1, num_distinct=2)
    dynsim.save_task(tmp_path / "mine.npz", task)
    named = Run(task="syn", num_queries=1, num_common=1, num_distinct=2)
    found = [Run(task=each) for each in (task, str(tmp_path / "mine.npz"))]
    for each in found:
        np.testing.assert_array_equal(each.problem.classes.probs, named.problem.classes.probs)
        assert each.contents() == found[0].contents()
    assert "task_holds" not in named.contents()
    assert Run(task="dynsim:syn_small").problem.classes.K == 2
    # One program for tasks of one shape, which are told from each other by what they hold.
    assert named.fixed() == found[0].fixed()
    assert found[0].as_json()["task"] == "of your own"
    assert "task_holds" in Run(task=task).contents()


@pytest.mark.parametrize(
    ("given", "axes", "message"),
    [
        ({"M": 50}, {}, "M = 50: task 'syn-small' does not read it"),
        ({"task": "nowhere"}, {}, "task = 'nowhere': must be syn-small, .*npz or .csv file, or MO"),
        ({"task": "dynsim:nothing"}, {}, "task = 'dynsim:nothing': cannot be imported"),
        ({"task": "math:pi"}, {}, "must stand for a SequenceClasses, got 3.14"),
        ({"ratio": 1.0, "eta_y": 1.0}, {}, "eta_y = 1.0: ratio = 1.0 says it already"),
        ({"ratio": 1.0}, {"eta_y": [1.0]}, "run.ratio = 1.0: eta_y is an axis, and ratio = eta_y"),
        ({}, {"overlap": [0.1]}, "axes.overlap: task 'syn-small' does not read it"),
        ({"task": "syn"}, {"K": [2], "num_queries": [1]}, "axes: K = num_queries"),
        ({"length": 1}, {}, "length = 1: must be an integer >= 2"),
    ],
)
def test_nothing_that_is_given_is_ignored(given: dict, axes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep({"eta_z": [0.1]} | axes, Run(**given), "descent", ("loss",)).check()


def test_what_is_left_out_is_written_with_its_default() -> None:
    plain = Run(task="syn").as_json()
    assert (plain["eta_y"], plain["eta_z"], plain["num_queries"]) == (0.5, 0.2, 3)
    assert plain["init"] == "random"
    assert "begin" not in plain
    assert set(Run.AXES.static) >= {"K", "M", "overlap", "length"}
    assert set(Run.AXES.traced) >= {"eta_y", "eta_z", "ratio", "scale", "momentum"}
    assert Run(ratio=4.0, eta_z=0.5).make_optimizer().schedules["Y"].peak == 2.0
