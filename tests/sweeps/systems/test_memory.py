"""Estimates of the memory of a run, counted by hand, and limits. Theories are solved in float64."""

import jax
import jax.numpy as jnp
import pytest

import dynsim
from sweeps.runner.spec import Sweep
from sweeps.systems import budget, registry
from sweeps.systems.experiment import Experiment, experiment
from tests.doors import refuses


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


class Shared(Line):
    """A line whose runs of a seed share eleven numbers."""

    def prepare(self, key, shared=None):
        return self, jax.random.normal(key, (11,)) if shared is None else shared


def bytes_of(run, theory, *record, times=(0, 5, 10)):
    """Bytes of a run of the sweep."""
    return Sweep(run, {"seed": [0]}, theory, record, times).runs({}).bytes_per_run


LINE, SHARED = (experiment(problem(), eta=0.1, steps=10, batch=7) for problem in (Line, Shared))
# Six classes of three queries over ten tokens, of which each class has one of its own and two more.
LAYER = experiment(
    "yz", task="syn", num_queries=3, classes_per_query=2, num_distinct=2, num_common=1, steps=10,
    batch=8, length=16,
)  # fmt: skip
K, Q = 6, 3
M = LAYER.built[0].classes.M
LARGE = experiment("yz", task="overlapping", K=10**5, steps=10)
REDUCED = 8 * 8 * 4 * 3 + 8 * 3 * K
ESTIMATES = [
    # Eight copies of weights and batch; three of what runs share.
    (LINE, "simulation", ("loss",), 4 * 8 * (5 + 7 * 3) + 2**14),
    (SHARED, "simulation", ("loss",), 4 * (8 * (5 + 7 * 3) + 3 * 11) + 2**14),
    # A derivative of two observables, two times three states of ten steps, and 512 examples.
    (
        LINE, "linear-noise", ("loss", "first"),
        (2 + 6) * (8 * 8 * 5 + 2**14) + 8 * (8 * 8 * (5 + 512 * 3) + 2**14),
    ),
    # Arrays of classes by tokens, and three times of two observables of each class.
    *(
        (LAYER, theory, ("loss", "speed"), 8 * (arrays * K * M + 3 * 2 * K))
        for theory, arrays in
        (("lemma3", 24), ("eq10", 12), ("theorem4", 3), ("fixed_attention", 1))
    ),
    # Four numbers a token, and full weights where they are recorded.
    (LAYER, "symmetric", ("loss",), REDUCED),
    (LAYER, "symmetric", ("z",), REDUCED + 8 * 8 * (M + Q) * M),
    (LARGE, "symmetric", ("loss",), 8 * 8 * 4 * 2 + 8 * 3),
    # A derivative of every class, and states.
    (LAYER, "spread", ("loss", "entropy"), 8 * 8 * (2 * K + 2 * 3) * (M + Q) * M),
    (experiment("two_stage"), "ode", ("loss",), 2**15),
]  # fmt: skip


@pytest.mark.parametrize(("run", "theory", "record", "expected"), ESTIMATES)
def test_estimates_are_those_counted_by_hand(run, theory, record, expected):
    assert bytes_of(run, theory, *record) == expected


def test_theories_hold_the_rates_of_a_schedule():
    """Rates at the start, in the middle and at the end of a step, their sum, and stops."""
    decays, constant = (
        bytes_of(Experiment(Line(), dynsim.sgd(eta), steps=1000), "linear-noise", "loss")
        for eta in (dynsim.schedules.cosine(0.1, 1000), 0.1)
    )
    assert 5 * 8 * 1000 <= decays - constant <= 8 * 8 * 1000


@pytest.mark.parametrize(("steps", "kept"), [(1023, True), (1024, False)])
def test_batches_of_16_megabytes_are_drawn_once(steps, kept):
    # Of 16 KiB each, and one more for what is recorded after the last step.
    class Wide(Line):
        def draw(self, key, batch):
            return jax.random.normal(key, (batch, 4))

    run = experiment(Wide(), eta=0.1, steps=steps, batch=1024)
    runs = Sweep(run, {"seed": [0]}, record="loss").runs({})
    assert runs.call.draws
    drawn = jax.eval_shape(lambda: runs.call.draw(runs.arrays, jax.random.key(0)))
    assert (drawn is not None) == kept


@pytest.mark.parametrize(("classes", "followed"), [(3, 3), (9, 8)])
def test_noisy_descent_follows_eight_classes(classes, followed):
    theory = registry.system("yz").theories["symmetric-noise"]
    assert theory.reduce(dynsim.Layer(dynsim.Overlapping(classes)), ()).classes == followed


# Runs, programs, numbers of each, steps: what is possible, and what one more is.
LIMITS = [
    ((1, 2**16, 1, 1), (1, 2**16 + 1, 1, 1), "65537", "65536"),
    # Four bytes each, of 2^50.
    ((2**30, 1, 2**18, 1), (2**30, 1, 2**18 + 1, 1), "1024 TiB"),
    # 1e-8 s a step, of 3.2e8 s.
    ((1000, 1, 1, 31 * 10**12), (1000, 1, 1, 33 * 10**12), "1000 runs", "10.3 years"),
]


@pytest.mark.parametrize(("most", "more", "named"), [(*row[:2], row[2:]) for row in LIMITS])
def test_sweeps_end_at_limits_of_any_machine(most, more, named):
    budget.check_size(*most)
    refuses(lambda: budget.check_size(*more), *named)


def test_results_end_at_the_memory_of_this_machine():
    memory = budget.memory()
    assert 2**27 < memory < 2**50
    # All runs twice; of a chunk, its runs and 64 bytes of each.
    budget.check_results(5, 2, memory // 10, stored=False)
    budget.check_results(10**9, 5, memory // 5 - 64, stored=True)
    beyond = memory // 10 + 1
    refuses(lambda: budget.check_results(5, 2, beyond, stored=False), "5 runs", "choose out")
    beyond = memory // 5 - 63
    refuses(
        lambda: budget.check_results(10**9, 5, beyond, stored=True), "of 5 runs", "smaller chunk"
    )
    # Estimates may be twice too high.
    budget.check_memory(2 * memory)
    refuses(lambda: budget.check_memory(2 * memory + 1), "run", f"{memory / 2**30:.4g} GiB")
    # A table of eight bytes for each of K classes and 5 (K + 1) tokens ends at a GiB.
    assert not budget.is_large(dynsim.Overlapping(5180))
    assert budget.is_large(dynsim.Overlapping(5181))
    assert not budget.is_large(dynsim.SynSmall().build())
