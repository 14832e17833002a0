"""Estimates of the memory of a run, counted by hand. Theories are solved in float64."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import dynsim
from sweeps.runner.spec import Sweep
from sweeps.systems import budget
from sweeps.systems.experiment import experiment


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


def estimated(run: Any, engine: str, record: tuple[str, ...], times: Any = (0, 5, 10)) -> int:
    """Bytes of a run of the sweep."""
    sweep = Sweep(run, {"seed": [0]}, engine, record, times)
    problem = sweep.problem({})
    return sweep.rules.bytes_per_run(problem.task, problem.settings)


def test_training_holds_eight_copies_of_weights_and_batch() -> None:
    run = experiment(Line(), eta=0.1, steps=10, batch=7)
    assert estimated(run, "simulation", ("loss",)) == 4 * 8 * (5 + 7 * 3) + 2**14


def test_linear_noise_holds_a_derivative_of_each_observable_states_and_examples() -> None:
    run = experiment(Line(), eta=0.1, steps=10, batch=7)
    # Two observables, and two times three states of ten steps; 512 examples.
    found = estimated(run, "linear-noise", ("loss", "first"))
    assert found == (2 + 6) * (8 * 8 * 5 + 2**14) + 8 * (8 * 8 * (5 + 512 * 3) + 2**14)


# Six classes of three queries over ten tokens, of which each class has one of its own and two more.
TASK = {"task": "syn", "num_queries": 3, "classes_per_query": 2, "num_distinct": 2, "num_common": 1}
LAYER = experiment("yz", **TASK, steps=10, batch=8, length=16)
K, Q = 6, 3
M = LAYER.built[0].M


@pytest.mark.parametrize(
    ("engine", "arrays"), [("lemma3", 24), ("eq10", 12), ("theorem4", 3), ("fixed_attention", 1)]
)
def test_theories_of_classes_hold_arrays_of_classes_by_tokens(engine: str, arrays: int) -> None:
    # Three times of two observables of each class.
    assert estimated(LAYER, engine, ("loss", "speed")) == 8 * (arrays * K * M + 3 * 2 * K)


def test_the_reduction_holds_four_numbers_a_token_and_full_weights_where_they_are_asked() -> None:
    found = 8 * 8 * 4 * 3 + 8 * 3 * K
    assert estimated(LAYER, "symmetric", ("loss",)) == found
    assert estimated(LAYER, "symmetric", ("z",)) == found + 8 * 8 * (M + Q) * M


def test_the_spread_holds_a_derivative_of_every_class_and_states() -> None:
    found = estimated(LAYER, "spread", ("loss", "entropy"))
    assert found == 8 * 8 * (2 * K + 2 * 3) * (M + Q) * M


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
