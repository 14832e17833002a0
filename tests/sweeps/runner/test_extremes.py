"""Numbers at the edge of what they can be: the status is right, and no run that is OK holds NaN."""

import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import sweeps
from dynsim import Status
from sweeps import Sweep, experiment
from sweeps.runner.work import Work
from sweeps.systems import budget

RATES = [1e-300, 1e-30, 1.0, 1e30, 1e300]
RECORD = ("loss", "entropy", "accuracy")
ONE = {"task": "syn", "num_queries": 1, "num_distinct": 1, "layout": "paper"}
TASKS: dict[str, dict[str, Any]] = {
    "one distinct token": {**ONE, "classes_per_query": 2},
    "K = 1, M = 2": {**ONE, "classes_per_query": 1, "num_common": 1, "M": 2},
    "rare": {},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.999999},
    "adam": {"rule": "adam", "b1": 0.99999, "b2": 0.99999},
}
QUICK = ("one distinct token", "sgd", 4), ("rare", "adam", float("inf"))


@pytest.fixture
def rare(tmp_path: Path) -> str:
    """A task in which a token is as rare as float64 can say."""
    path = tmp_path / "rare.npz"
    probs = np.array([[1.0, 0.0, 1e-300], [0.0, 1.0, 1e-300]])
    dynsim.save_task(path, dynsim.sequence_classes(probs, query=[0, 1]))
    return str(path)


def found(task: dict[str, Any], **settings: Any) -> Any:
    training = experiment(**task, steps=4, batch=4, dtype="float64", **settings)
    return sweeps.run(Sweep(training, {"eta_y": RATES, "eta_z": RATES}, record=RECORD)).load()


def assert_right(dataset: Any) -> None:
    ok = dataset.status == Status.OK
    assert dataset.status.isin([Status.OK, Status.DIVERGED]).all()
    for name in RECORD:
        assert np.isfinite(dataset[name].where(ok, 0)).all(), name
    np.testing.assert_array_equal(dataset.first_bad_step == -1, ok)
    # Nothing moves at such rates, whatever the gradients are.
    assert ok.sel(eta_y=1e-300, eta_z=1e-300)


@pytest.mark.parametrize(
    ("name", "optimizer", "length"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.full)
        for case in itertools.product(TASKS, OPTIMIZERS, [2, 4, float("inf")])
    ],
)
@pytest.mark.more
def test_rates_from_1e_300_to_1e300_end_well_or_say_that_they_did_not(
    name: str, optimizer: str, length: float, rare: str
) -> None:
    task = TASKS[name] or {"task": rare}
    dataset = found(task, length=length, **OPTIMIZERS[optimizer])
    assert_right(dataset)
    if (name, optimizer, length) == QUICK[0]:
        # A step of 1e300 overflows the logits' products in the next one.
        assert (dataset.status == Status.DIVERGED).sel(eta_y=1e300, eta_z=1e300)


@pytest.mark.more
def test_results_that_no_memory_holds_are_an_error_before_any_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Work, "compute", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(budget, "memory", lambda: 2**20)
    axis = np.linspace(0.1, 1, 10**4)
    training = experiment(steps=2, batch=4, length=8)
    large = Sweep(training, {"eta_y": axis, "eta_z": axis}, record=("loss",))
    # Of each run loss, status and the first bad step; kept twice.
    needed = f"{2 * 10**8 * (4 + 1 + 4) / 2**30:.4g} GiB of memory, of 0.0009766 GiB; choose out"
    with pytest.raises(ValueError, match=f"axes, .*: 100000000 runs would take {needed}"):
        sweeps.run(large)
    with pytest.raises(ValueError, match=r"a chunk of \d+ runs would .*; choose a smaller chunk"):
        sweeps.run(large, tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.more
def test_memory_counts_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {"wide": lambda task, s: jnp.broadcast_to(s.logits.sum(), (1000,))}
    sweep = Sweep(experiment(steps=2, batch=4, length=8), {"seed": [0, 1]}, record=(wide,))
    needed = 2 * 2 * (4 * 1000 + 1 + 4)
    for memory, allowed in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(budget, "memory", lambda memory=memory: memory)
        if allowed:
            assert sweeps.run(sweep).wide.shape == (2, 1000)
        else:
            with pytest.raises(ValueError, match="2 runs would take"):
                sweeps.run(sweep)
