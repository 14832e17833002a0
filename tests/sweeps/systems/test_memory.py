"""Estimates of the memory of a run, counted by hand. Theories are solved in float64."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
from sweeps.runner.spec import Sweep
from sweeps.systems import budget, built_in, registry, training
from sweeps.systems.experiment import Experiment, experiment


class Line(dynsim.Problem):
    """Five weights, of which an example is three numbers."""

    def init(self, key):
        return jnp.zeros(5)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))

    def loss(self, params, data):
        return jnp.mean(data @ params[:3]) + jnp.sum(params**2)

    def observables(self):
        return {"first": lambda self, params: params[0]}


def estimated(run: Any, theory: str, record: tuple[str, ...], times: Any = (0, 5, 10)) -> int:
    """Bytes of a run of the sweep."""
    sweep = Sweep(run, {"seed": [0]}, theory, record, times)
    return sweep.runs({}).bytes_per_run


def test_training_holds_eight_copies_of_weights_and_batch() -> None:
    run = experiment(Line(), eta=0.1, steps=10, batch=7)
    assert estimated(run, "simulation", ("loss",)) == 4 * 8 * (5 + 7 * 3) + 2**14


def test_linear_noise_holds_a_derivative_of_each_observable_states_and_examples() -> None:
    run = experiment(Line(), eta=0.1, steps=10, batch=7)
    # Two observables, and two times three states of ten steps; 512 examples.
    found = estimated(run, "linear-noise", ("loss", "first"))
    assert found == (2 + 6) * (8 * 8 * 5 + 2**14) + 8 * (8 * 8 * (5 + 512 * 3) + 2**14)


def test_theories_hold_the_rates_of_a_schedule() -> None:
    """Rates at the start, in the middle and at the end of a step, their sum, and stops."""
    decays, constant = (
        estimated(Experiment(Line(), dynsim.sgd(eta), steps=1000), "linear-noise", ("loss",))
        for eta in (dynsim.schedules.cosine(0.1, 1000), 0.1)
    )
    assert 5 * 8 * 1000 <= decays - constant <= 8 * 8 * 1000


# Six classes of three queries over ten tokens, of which each class has one of its own and two more.
TASK = {"task": "syn", "num_queries": 3, "classes_per_query": 2, "num_distinct": 2, "num_common": 1}
LAYER = experiment("yz", **TASK, steps=10, batch=8, length=16)
K, Q = 6, 3
M = LAYER.built[0].classes.M


@pytest.mark.parametrize(
    ("theory", "arrays"), [("lemma3", 24), ("eq10", 12), ("theorem4", 3), ("fixed_attention", 1)]
)
def test_theories_of_classes_hold_arrays_of_classes_by_tokens(theory: str, arrays: int) -> None:
    # Three times of two observables of each class.
    assert estimated(LAYER, theory, ("loss", "speed")) == 8 * (arrays * K * M + 3 * 2 * K)


def test_the_reduction_holds_four_numbers_a_token_and_full_weights_where_they_are_asked() -> None:
    found = 8 * 8 * 4 * 3 + 8 * 3 * K
    assert estimated(LAYER, "symmetric", ("loss",)) == found
    assert estimated(LAYER, "symmetric", ("z",)) == found + 8 * 8 * (M + Q) * M


def test_the_spread_holds_a_derivative_of_every_class_and_states() -> None:
    found = estimated(LAYER, "spread", ("loss", "entropy"))
    assert found == 8 * 8 * (2 * K + 2 * 3) * (M + Q) * M


def test_a_reduction_without_a_table_has_one_class_of_two_kinds_of_tokens() -> None:
    large = experiment("yz", task="overlapping", K=10**5, steps=10)
    assert estimated(large, "symmetric", ("loss",)) == 8 * 8 * 4 * 2 + 8 * 3


def test_reduced_equations_hold_32_kilobytes() -> None:
    assert estimated(experiment("two_stage"), "ode", ("loss",)) == 2**15


class Shared(Line):
    """A line whose runs of a seed share eleven numbers."""

    def prepare(self, key: Any, shared: Any = None) -> Any:
        return self, jax.random.normal(key, (11,)) if shared is None else shared


def test_data_that_runs_share_are_held_three_times() -> None:
    run = experiment(Shared(), eta=0.1, steps=10, batch=7)
    assert estimated(run, "simulation", ("loss",)) == 4 * (8 * (5 + 7 * 3) + 3 * 11) + 2**14


@pytest.mark.parametrize(("size", "kept"), [(2**24, True), (2**24 + 1, False)])
def test_batches_of_16_megabytes_are_drawn_once(
    size: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(problem: Any, key: Any, steps: int, batch: int) -> Any:
        assert (steps, batch) == (10, 7)
        return jnp.zeros(size, jnp.uint8)

    monkeypatch.setattr(training, "batches_of", drawn)
    sweep = Sweep(experiment(Line(), eta=0.1, steps=10, batch=7), {"seed": [0]}, record="loss")
    runs = sweep.runs({})
    assert runs.call.draws
    found = runs.call.draw(runs.arrays, jax.random.key(0))
    assert (found is not None) == kept
    if kept:
        assert found["data"].size == size


def test_of_many_runs_a_theory_looks_at_a_thousand() -> None:
    rates, seen = np.linspace(0.1, 3.0, 3000), []

    def why_not(problem: Any, rule: Any, *given: Any) -> str:
        return "too fast" if rule.eta.peak > 1 else ""

    def check(problem: Any, rule: Any, *given: Any) -> None:
        seen.append(float(rule.eta.peak))

    theory = SimpleNamespace(name="own", why_not=why_not, check=check)
    runs = odes.Training(Line(), dynsim.sgd(rates), 7, 10)
    training.check_runs(theory, runs)  # pyright: ignore
    assert (seen[0], seen[-1], len({*seen})) == (rates[0], rates[-1], 1000)
    assert np.ptp(np.diff(np.searchsorted(rates, seen))) <= 1


@pytest.mark.parametrize(("K", "followed"), [(3, 3), (9, 8)])
def test_noisy_descent_follows_eight_classes(K: int, followed: int) -> None:
    theory = registry.system("yz").theories["symmetric-noise"]
    assert theory.reduce is not None
    assert theory.reduce(dynsim.Layer(dynsim.Overlapping(K)), ()).classes == followed


def test_the_smallest_classes_are_one_class_of_two_tokens() -> None:
    """But for the owner of the token that is not there."""
    want, found = dynsim.sequence_classes([[1.0, 0.0]], query=[0]), built_in.CLASSES
    for name in found.__dataclass_fields__:
        ours, theirs = (np.asarray(getattr(each, name)) for each in (found, want))
        if name == "owner":
            assert (ours.shape, ours[0]) == (theirs.shape, theirs[0])
        else:
            np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2**40, 1, 1, 1), None),
        ((2**40 + 1, 1, 1, 1), "axes: give 1099511627777 runs; at most 1099511627776 are possible"),
        ((1, 2**16, 1, 1), None),
        ((1, 2**16 + 1, 1, 1), "axes: 65537 combinations of values change shapes"),
        # Four bytes each, of 2^50.
        ((2**30, 1, 2**18, 1), None),
        ((2**30, 1, 2**18 + 1, 1), "1073741824 runs would record 1.02e+03 TiB, at most 1024 TiB"),
        # 1e-8 s a step, of 3.2e8 s.
        ((1000, 1, 1, 31 * 10**12), None),
        ((1000, 1, 1, 33 * 10**12), "1000 runs would take 10.3 years at 1e-08 s a step"),
    ],
)
def test_sweeps_end_at_limits_of_any_machine(
    given: tuple[int, int, int, int], message: str | None
) -> None:
    if message is None:
        budget.check_runs(*given)
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        budget.check_runs(*given)


def test_results_that_this_machine_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "memory", lambda: 1000)
    # All runs twice; of a chunk, its runs and 64 bytes of each.
    budget.check_held(5, 2, 100, stored=False)
    budget.check_held(10**9, 5, 136, stored=True)
    with pytest.raises(ValueError, match=r"5 runs would take .*; choose out, a folder"):
        budget.check_held(5, 2, 101, stored=False)
    with pytest.raises(ValueError, match=r"chunk of 5 runs would take .*; choose a smaller chunk"):
        budget.check_held(10**9, 5, 137, stored=True)
    monkeypatch.setattr(budget, "memory", lambda: 2**31)
    message = "would take 4 GiB of memory, of 2 GiB"
    with pytest.raises(ValueError, match=message):
        budget.check_held(2, 1, 2**30, stored=False)
    budget.check_memory(2**40)
    with pytest.raises(ValueError, match="run: would take 1025 GiB of memory, more than 1024 GiB"):
        budget.check_memory(1025 * 2**30)


def test_the_memory_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 100}
    monkeypatch.setattr(budget.os, "sysconf", known.__getitem__)
    assert budget.memory() == 409_600

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(budget.os, "sysconf", unknown)
    assert budget.memory() == 64 * 2**30


def test_tables_end_at_a_gibibyte() -> None:
    """Eight bytes for each of K classes and 5 (K + 1) tokens."""
    assert not budget.is_large(dynsim.Overlapping(5180))
    assert budget.is_large(dynsim.Overlapping(5181))
