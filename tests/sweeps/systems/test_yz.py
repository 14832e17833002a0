"""The attention layer in sweeps: what runs read, and one reduction with all that it records."""

from pathlib import Path

import numpy as np
import pytest

import dynsim
import sweeps
from dynsim.yz.observables import OBSERVABLES
from sweeps.runner import tiles
from sweeps.runner.files import from_table, load
from sweeps.runner.spec import Sweep
from sweeps.runner.work import Work
from sweeps.systems.yz import Training
from sweeps.systems.yz.engines import ENGINES

pytestmark = pytest.mark.usefixtures("quick_theory")

AXES = {"eta_y": [0.5, 1.0], "eta_z": [1.0]}
TRAINING = Training(task="syn", num_common=3, num_distinct=2, steps=30)


@pytest.mark.full(
    "test_memory_of_the_symmetric_engine_grows_with_what_it_records",
    "odes/symmetric/test_placement.py::test_a_merged_state_stands_for_one_of_single_tokens",
)
def test_the_symmetric_engine_records_what_any_theory_does() -> None:
    own = ENGINES["symmetric"].observables.names()
    assert {name for name in OBSERVABLES if name != "B"} < set(own)
    names = ("speed", "z", "attention", "overlap", "recall", "z_distinct")
    found, reduced = (
        sweeps.run(Sweep(AXES, TRAINING, "symmetric", record, times=(0, 30))).load()
        for record in (names, ("speed",))
    )
    assert found.z.dims == ("eta_y", "eta_z", "time", "class", "token")
    task = TRAINING.make_task()
    assert (found.sizes["class"], found.sizes["token"]) == (task.K, task.M)
    distinct = found.z.values[..., np.asarray(task.distinct())].reshape(2, 1, 2, task.K, -1)
    order = np.sort(distinct, axis=-1)
    np.testing.assert_array_equal(order, np.sort(found.z_distinct.values)[..., None, :] + 0 * order)
    assert np.ptp(found.z_distinct.values) > 0.1
    # Of the reduced task alone there is one class, at a cost without K and M.
    assert reduced.sizes["class"] == 1
    np.testing.assert_allclose(reduced.speed[..., 0], found.speed[..., 3], rtol=1e-12)


def test_memory_of_the_symmetric_engine_grows_with_what_it_records() -> None:
    def bytes_per_run(*record: str) -> int:
        sweep = Sweep(AXES, TRAINING, "symmetric", record)
        return Work(sweep, tiles.mesh(), tile=1).plan.bytes_per_device

    task = TRAINING.make_task()
    assert bytes_per_run("loss", "attention") - bytes_per_run("loss") > 8 * task.M**2


def test_a_task_is_known_by_what_it_holds(tmp_path: Path) -> None:
    table, out = tmp_path / "mix.npz", tmp_path / "run"
    first, second = (dynsim.syn(1, 2, num_common=n, num_distinct=2) for n in (2, 3))
    axes = {"eta_z": [0.1, 0.2]}

    def sweep(task: str | dynsim.SequenceClasses) -> Sweep:
        return Sweep(axes, Training(task=task, steps=3), "descent", ("loss",))

    dynsim.save_task(table, first)
    found = sweeps.run(sweep(str(table)), out)
    # A task in memory needs no file.
    np.testing.assert_array_equal(sweeps.run(sweep(first)).loss, found.loss)
    assert (
        sweep(first).as_json()["run"]["task_holds"] != sweep(second).as_json()["run"]["task_holds"]
    )
    config = sweep(str(table)).as_json()
    assert from_table(config).as_json() == config
    dynsim.save_task(table, second)
    with pytest.raises(
        sweeps.StoreError, match=r"task_holds: the arrays of the task changed .* -> "
    ):
        sweeps.run(sweep(str(table)), out)
    with pytest.raises(ValueError, match=r"run\.task_holds = .*: what the run names holds"):
        from_table(config)


@pytest.mark.parametrize(
    ("training", "axes", "message"),
    [
        ({"num_queries": 4}, {}, "num_queries = 4: task 'syn-small' does not read it"),
        ({"task": "overlapping", "layout": "paper"}, {}, "layout = 'paper': task 'overlapping'"),
        ({"optimizer": "adam", "momentum": 0.0}, {}, "momentum = 0.0: optimizer 'adam'"),
        ({"eta_y": 3.0}, {"ratio": [2.0]}, "run.eta_y = 3.0: ratio is an axis"),
        ({"ratio": 3.0}, {"eta_y": [2.0]}, "run.ratio = 3.0: eta_y is an axis"),
        ({}, {"eta_y": [1.0], "ratio": [2.0]}, "leave one of eta_y and ratio out"),
        ({}, {"overlap": [0.1]}, "axes.overlap: task 'syn-small' does not read it"),
        ({}, {"seed": [2**32]}, r"axes.seed = 4294967296: must be an integer <= 4294967295"),
    ],
)
def test_nothing_that_is_given_is_ignored(training: dict, axes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep({"eta_z": [0.1]} | axes, Training(**training)).check()


def test_what_is_left_out_is_the_default_of_what_reads_it() -> None:
    given = Training(task="syn", num_queries=3, classes_per_query=2, eta_y=1.0, momentum=0.0)
    left_out = Training(task="syn")
    assert Sweep({"eta_z": [1.0]}, left_out).as_json() == Sweep({"eta_z": [1.0]}, given).as_json()
    assert left_out.make_task().K == 6
    assert Training(ratio=4.0, eta_z=0.5).make_optimizer().schedules["Y"].peak == 2.0


def test_the_best_engine_is_the_most_exact_theory_of_all_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('engine = "matched"\n[axes]\neta_z = [0.1]\n')
    words = ("engine=best", "run.steps=5", "record=[loss, entropy]")
    sweep = load(tmp_path / "mine.toml", words)
    assert (sweep.engine, sweep.record, sweep.run.steps) == (
        "plain-finite-t",
        ("loss", "entropy"),
        5,
    )
    # Some of the sequences are infinitely long, and nothing has to be by default.
    sweep = load(tmp_path / "mine.toml", ("engine=best", "axes.length=[16, inf]"))
    assert sweep.engine == "plain"
    assert load(tmp_path / "mine.toml", ("engine=",)).engine == "simulation"
    assert load(tmp_path / "mine.toml", ("engine=best", "run.optimizer=adam")).engine == (
        "matched-adam-finite-t"
    )
