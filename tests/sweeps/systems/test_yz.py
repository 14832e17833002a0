"""The attention layer in sweeps: what runs read, and one reduction with all that it records."""

from pathlib import Path

import numpy as np
import pytest

import dynsim
import sweeps
from dynsim.yz.observables import OBSERVABLES
from sweeps.runner import tiles
from sweeps.runner.config import config_of, from_config
from sweeps.runner.spec import Sweep, load
from sweeps.runner.work import Work
from sweeps.systems import budget, registry
from sweeps.systems.experiment import experiment

pytestmark = pytest.mark.usefixtures("quick_theory")

AXES = {"eta_y": [0.5, 1.0], "eta_z": [1.0]}
TRAINING = experiment(task="syn", num_common=3, num_distinct=2, steps=30)


@pytest.mark.full(
    "test_memory_of_the_symmetric_theory_grows_with_what_it_records",
    "odes/symmetric/test_placement.py::test_a_merged_state_stands_for_one_of_single_tokens",
)
def test_the_symmetric_theory_records_what_any_theory_does() -> None:
    own = registry.system("yz").theories["symmetric"].observables(TRAINING.bare).names()
    assert {name for name in OBSERVABLES if name != "B"} < set(own)
    names = ("speed", "z", "attention", "overlap", "recall", "z_distinct")
    found, reduced = (
        sweeps.run(Sweep(TRAINING, AXES, "symmetric", record, times=(0, 30))).load()
        for record in (names, ("speed",))
    )
    assert found.z.dims == ("eta_y", "eta_z", "time", "class", "token")
    task = TRAINING.built[0].classes
    assert (found.sizes["class"], found.sizes["token"]) == (task.K, task.M)
    distinct = found.z.values[..., np.asarray(task.distinct())].reshape(2, 1, 2, task.K, -1)
    order = np.sort(distinct, axis=-1)
    np.testing.assert_array_equal(order, np.sort(found.z_distinct.values)[..., None, :] + 0 * order)
    assert np.ptp(found.z_distinct.values) > 0.1
    # Of the reduced task alone there is one class, at a cost without K and M.
    assert reduced.sizes["class"] == 1
    np.testing.assert_allclose(reduced.speed[..., 0], found.speed[..., 3], rtol=1e-12)


def test_memory_of_the_symmetric_theory_grows_with_what_it_records() -> None:
    def bytes_per_run(*record: str) -> int:
        sweep = Sweep(TRAINING, AXES, "symmetric", record)
        return Work(sweep, tiles.mesh(), tile=1).plan.bytes_per_device

    task = TRAINING.built[0].classes
    assert bytes_per_run("loss", "attention") - bytes_per_run("loss") > 8 * task.M**2


@pytest.mark.more
def test_a_task_is_known_by_what_it_holds(tmp_path: Path) -> None:
    table, out = tmp_path / "mix.npz", tmp_path / "run"
    first, second = (dynsim.Syn(1, 2, num_common=n, num_distinct=2).build() for n in (2, 3))

    def sweep(task: str | dynsim.SequenceClasses) -> Sweep:
        return Sweep(experiment(task=task, steps=3), {"eta_z": [0.1, 0.2]}, "descent", ("loss",))

    dynsim.save_task(table, first)
    found = sweeps.run(sweep(str(table)), out)
    # A task in memory needs no file.
    np.testing.assert_array_equal(sweeps.run(sweep(first)).loss, found.loss)
    assert config_of(sweep(first))["run"] != config_of(sweep(second))["run"]
    config = config_of(sweep(str(table)))
    assert config_of(from_config(config)) == config
    dynsim.save_task(table, second)
    with pytest.raises(sweeps.StoreError, match=r"the arrays of the task.* changed .* -> "):
        sweeps.run(sweep(str(table)), out)
    with pytest.raises(ValueError, match=r"changed since the store was made"):
        from_config(config)


@pytest.mark.parametrize(
    ("settings", "axes", "message"),
    [
        ({"num_queries": 4}, {}, "num_queries = 4: syn-small does not have it; syn-medium, syn do"),
        ({"task": "overlapping", "layout": "paper"}, {}, "layout = 'paper': overlapping does not"),
        ({"rule": "adam", "momentum": 0.5}, {}, "momentum = 0.5: adam does not have it; sgd"),
        ({}, {"ratio": [2.0]}, "ratio = 2.0: rule.eta does not have it; ratio does"),
        ({}, {"overlap": [0.1]}, "overlap = 0.1: syn-small does not have it; overlapping"),
        ({}, {"seed": [2**32]}, "seed = 4294967296: must be an integer from 0 to 4294967295"),
    ],
)
def test_nothing_that_is_given_is_ignored(settings: dict, axes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep(experiment(**settings), {"eta_z": [0.1]} | axes).check()


def test_what_is_left_out_is_the_default_of_what_reads_it() -> None:
    given = experiment(task="syn", num_queries=3, classes_per_query=2, eta_y=1.0)
    left_out = experiment(task="syn")
    assert config_of(Sweep(left_out, AXES)) == config_of(Sweep(given, AXES))
    assert left_out.built[0].classes.K == 6
    rates = experiment(eta="ratio", ratio=4.0, eta_z=0.5).built[1].schedules
    assert rates["Y"].peak == 2.0


@pytest.mark.parametrize("problem", ["yz", "qkv", "joma"])
def test_a_table_that_is_too_large_is_not_made(problem: str) -> None:
    run = experiment(problem, task="overlapping", K=10**5)
    with pytest.raises(ValueError, match=r"K = 100000: its table .* would take 372.5 GiB"):
        Sweep(run, {"seed": [0]}).check()
    # One that exists is taken as it is.
    assert not budget.is_large(dynsim.SynSmall().build())


def test_the_best_is_the_most_exact_theory_of_all_runs(tmp_path: Path) -> None:
    file = 'theory = "matched"\n[run]\nproblem = "yz"\n[axes]\neta_z = [0.1]\n'
    (tmp_path / "mine.toml").write_text(file)
    words = ("theory=best", "run.steps=5", "record=[loss, entropy]")
    sweep = load(tmp_path / "mine.toml", words)
    assert (sweep.theory, sweep.record, sweep.first.steps) == (
        "plain-finite-t",
        ("loss", "entropy"),
        5,
    )
    # Some of the sequences are infinitely long, and nothing has to be by default.
    sweep = load(tmp_path / "mine.toml", ("theory=best", "axes.length=[16, inf]"))
    assert sweep.theory == "plain"
    assert load(tmp_path / "mine.toml", ("theory=",)).theory == "simulation"
    assert load(tmp_path / "mine.toml", ("theory=best", "run.rule=adam")).theory == (
        "matched-adam-finite-t"
    )
