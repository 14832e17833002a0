"""Theories in sweeps: which of them train, resume, draw and are left out by default; they are the
functions of `odes`; what `dynsim explain` says about two-stage training."""

import importlib.metadata
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes
import sweeps
from dynsim import Annealed, Prompts, plugins, sgd
from dynsim.precision import precision
from dynsim.training import loop
from dynsim.two_stage.annealing import Annealing
from odes import two_stage as reduced
from odes.theory import Training
from odes.two_stage import thresholds
from sweeps.runner.config import config_of, from_config
from sweeps.runner.spec import Sweep, load
from sweeps.systems import prompts, reduction, registry, yz
from sweeps.systems.base import Prediction
from sweeps.systems.experiment import experiment
from tests.doors import refuses

SYMMETRIC = {"symmetric-descent-finite-t", "symmetric-descent", "symmetric-noise"}
GENERAL = {"descent", "rescaled", "heavy-ball", "corrected-adam", "adam", "rmsprop"}
GENERAL |= {"central", "flow"}
"""Less exact theories of any problem, and those that any problem has besides its own."""
VARIANTS = {
    "yz": SYMMETRIC
    | {"spread-squares", "corrected-finite-t", "corrected", "symmetric-finite-t", "symmetric"}
    | {"flow", "lemma3", "corrected-adam-finite-t", "corrected-adam", "eq10-finite-m"}
    | {"eq10-remark-1", "theorem4", "fixed_attention", "fixed_attention-discrete", "central"},
    "two_stage": set(),
    "transformer": {"linear-noise", "sde", "corrected-sde"},
}
NOISY = {"yz": {"symmetric-noise"}, "two_stage": {"sde", "seeds"}}
NOISY["transformer"] = {"sde", "corrected-sde"}
EQUAL_STEPS = SYMMETRIC | {"simulation", "descent", "descent-finite-t", "central", "linear-noise"}
EQUAL_STEPS |= {"fixed_attention", "fixed_attention-discrete", "sde", "corrected-sde", "seeds"}
EQUAL_STEPS |= {"spread", "spread-squares", "escape", "erf", "scalar", "plateaus", "sigmoid"}
"""Steps and closed forms: no solver chooses the steps of these, so that no run waits for others."""
SEEDED = {
    "two_stage": {"simulation", "anchored", "sde", "seeds"},
    "sparse_attention": {"simulation", "descent", "central", "flow"},
}
"""Theories that start from drawn weights; in other systems all but some."""
SEEDLESS = {"yz": {"symmetric-finite-t", "symmetric"}, "joma": {"erf"}}


@pytest.mark.parametrize("system", registry.BUILT_IN)
def test_theories_are_known_for_what_they_do(system):
    theories = registry.system(system).theories
    which = lambda flag: {name for name, theory in theories.items() if getattr(theory, flag)}
    assert which("trains") == {"simulation", *SYMMETRIC} & {*theories}
    assert which("batched") == SYMMETRIC & {*theories}
    assert which("variant") == VARIANTS.get(system, GENERAL)
    assert which("drawn") == NOISY.get(system, set())
    resumed = {"simulation", "descent", "descent-finite-t"} & {*theories}
    assert which("resumes") == (set() if system == "two_stage" else resumed)
    assert which("adaptive") == {*theories} - EQUAL_STEPS
    assert which("seeded") == SEEDED.get(system, {*theories} - SEEDLESS.get(system, set()))
    run = experiment(system, **({"corpus": "synthetic"} if system == "transformer" else {}))
    drawing = {name for name, each in theories.items() if each.draws(run.training())}
    assert drawing == ({"simulation"} if system in ("yz", "two_stage", "transformer") else set())
    assert all(each.title for each in theories.values())


TWO_STAGE = {"d": 4, "length": 7, "batch": 8, "pool": 16, "num_test": 8, "stage_2": 0.5}
TWO_STAGE |= {"decay": 0.2, "eta_2": 0.1}


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize(
    ("theory", "coupling"),
    [
        ("infinite", 0.0),
        pytest.param("ode", 0.5, marks=pytest.mark.full),
        pytest.param("anchored", 0.0, marks=pytest.mark.full),
    ],
)
@pytest.mark.more
def test_theories_of_two_stages_are_those_of_odes(theory, coupling):
    run = experiment("two_stage", coupling=coupling, **TWO_STAGE)
    record = ("K1", "K2", "state")
    found = sweeps.run(Sweep(run, {"tau": [0.1, 0.5], "seed": [3]}, theory, record, 4))
    problem, rule = run.at({"tau": 0.5}).built
    times, key = np.rint(Annealing.of(rule).spread(4)), jax.random.fold_in(jax.random.key(0), 3)
    if theory == "anchored":
        alone = reduced.solve_anchored(problem, rule, times, key=key, batch=8, record=record)
        # The first stage has six steps.
        options = {"steps": None, "batch": 8, "times": [0, 6], "record": "state"}
        kept = dynsim.train(problem, rule, key, **options)["state"]
        here = found["state"].sel(tau=0.5).values[0, np.searchsorted(times, [0, 6])]
        np.testing.assert_array_equal(here, kept)
    else:
        finite = theory == "ode"
        alone = reduced.solve(problem, rule, times, finite_length=finite, record=record)
    for name in record:
        # Rounding alone: the same steps in a batch.
        np.testing.assert_allclose(found[name].sel(tau=0.5)[0], alone[name], rtol=1e-9)


@pytest.mark.parametrize(
    ("squares", "more"),
    [(False, ()), pytest.param(True, ("speed", "loss_drift"), marks=pytest.mark.full)],
)
@pytest.mark.more
def test_the_spread_of_a_sweep_is_that_of_the_layer(squares, more):
    """Mean, standard deviation and drift of what is recorded; draws are those of the batches."""
    task = {"kind": "syn", "num_queries": 1, "num_distinct": 1, "num_common": 1}
    run = experiment("yz", steps=3, batch=4, length=32, rule="adam", task=task)
    record = ("loss_std", *more)
    name = "spread-squares" if squares else "spread"
    found = sweeps.run(Sweep(run, {"seed": [5]}, name, record, (0, 3))).isel(seed=0)
    names = tuple(dict.fromkeys(name.partition("_")[0] for name in record))
    options = {"batch": 4, "length": 32, "record": names, "squares": squares}
    layer, rule = run.built
    with precision("float64"):
        want = odes.spread.solve(layer, rule, (0, 3), **options)
        np.testing.assert_allclose(found.loss_std, want.std["loss"], rtol=1e-9, atol=1e-15)
        if more:
            np.testing.assert_allclose(found.speed, want["speed"], rtol=1e-9)
            key = loop.split_key(jax.random.fold_in(jax.random.key(0), 5))[1]
            drift = odes.spread.drift(layer, rule, (0, 3), key, draws=yz.DRAWS, **options)
            np.testing.assert_allclose(found.loss_drift, drift["loss"], rtol=1e-9, atol=1e-15)


def test_weights_of_very_many_classes_are_not_recorded():
    run = experiment("yz", task="overlapping", K=10**6, steps=3, length=math.inf)
    theory = registry.system("yz").theories["symmetric"]
    task = reduction.classes_of(run)
    assert theory.reduce(task, ("loss", "speed")).task is task
    record = "loss", "z", "attention"
    refuses(lambda: theory.reduce(task, record), "record", "z, attention", "K = 1000000")


class Sampled(dynsim.Problem):
    """A loss of batches alone."""

    def init(self, key):
        return jnp.ones(())

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, params, data):
        return jnp.mean((params - data) ** 2)


def test_times_of_a_run_are_its_steps_unless_its_rule_sets_them():
    run, annealed = experiment("yz", steps=9), experiment("two_stage")
    assert (run.steps_recorded((0, 9)), run.steps_recorded("end")) == ((0, 9), (9,))
    assert annealed.steps is None
    assert annealed.steps_recorded((0, 10**6)) == (0, 10**6)
    assert (annealed.steps_recorded("end"), annealed.steps_recorded(7)) == (1, 7)


def test_a_broken_system_of_the_package_of_a_problem_is_left_out(monkeypatch):
    points = {
        name: importlib.metadata.EntryPoint(name, f"{package}.nowhere:Broken", registry.GROUP)
        for name, package in (("broken", "tests"), ("other", "elsewhere"))
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    with pytest.warns(UserWarning, match="broken") as warned:
        found = registry.system_of(experiment(Sampled(), eta=0.1, steps=3, batch=2))
    assert (found.name, len(warned)) == (f"{__name__}:Sampled", 1)


def test_a_task_is_known_by_what_it_holds(tmp_path):
    table, out = tmp_path / "mix.npz", tmp_path / "run"
    first, second = (dynsim.Syn(1, 2, num_common=n, num_distinct=2).build() for n in (2, 3))
    sweep = lambda task: Sweep(
        experiment(task=task, steps=3), {"eta_z": [0.1, 0.2]}, "descent", ("loss",)
    )
    dynsim.save_task(table, first)
    found = sweeps.run(sweep(str(table)), out)
    # A task in memory needs no file.
    np.testing.assert_array_equal(sweeps.run(sweep(first)).loss, found.loss)
    assert config_of(sweep(first))["run"] != config_of(sweep(second))["run"]
    config = config_of(sweep(str(table)))
    assert config_of(from_config(config)) == config
    dynsim.save_task(table, second)
    refuses(
        lambda: sweeps.run(sweep(str(table)), out), "arrays of the task", error=sweeps.StoreError
    )
    refuses(lambda: from_config(config), "changed since the store was made")


def test_a_setting_that_is_left_out_is_the_default_of_what_reads_it():
    given = experiment(task="syn", num_queries=3, classes_per_query=2, eta_y=1.0)
    left_out = experiment(task="syn")
    axes = {"eta_z": [0.5, 1.0]}
    assert config_of(Sweep(left_out, axes)) == config_of(Sweep(given, axes))
    assert left_out.built[0].classes.K == 6
    assert experiment(eta="ratio", ratio=4.0, eta_z=0.5).built[1].schedules["Y"].peak == 2.0


BEST = [
    (("theory=best", "run.steps=5", "record=[loss, entropy]"), "plain-finite-t"),
    # Some of the sequences are infinitely long.
    (("theory=best", "axes.length=[16, inf]"), "plain"),
    (("theory=best", "run.rule=adam"), "matched-adam-finite-t"),
    (("theory=",), "simulation"),
]


@pytest.mark.parametrize(("words", "theory"), BEST)
def test_the_best_is_the_most_exact_theory_of_all_runs(words, theory, tmp_path):
    file = 'theory = "matched"\n[run]\nproblem = "yz"\n[axes]\neta_z = [0.1]\n'
    (tmp_path / "mine.toml").write_text(file)
    sweep = load(Path(tmp_path / "mine.toml"), words)
    assert sweep.theory == theory
    if len(words) == 3:
        assert (sweep.record, sweep.first.steps) == (("loss", "entropy"), 5)


def rows(rule, **settings):
    problem = Prompts(d=8, length=17, tau_0=0.3, **settings)
    made = Prediction("", Training(problem, rule.build()), None)
    with precision("float64"):
        return {row.quantity: row for row in prompts.rows(None, made)}


def test_what_keeps_a_component_of_two_stages_from_being_learned_is_named():
    good = Annealed()
    found = rows(good)
    assert not any(row.strained for row in found.values())
    # tau(eta) is stationary; critical where nothing grows, by its own formula.
    assert found["noise tau_1 of stage 1"].prediction == pytest.approx(good.tau, rel=1e-12)
    critical = found["critical noise tau_c"].prediction
    with precision("float64"):
        grows = float(thresholds.growth_rate(Prompts(d=8, length=17), critical, good.decay))
        assert grows == pytest.approx(0, abs=1e-12)
    g_2 = found["growth rate g_2 of Q in stage 2"]
    assert 0 < g_2.error < 0.2 * g_2.prediction
    short, slow = rows(Annealed(stage_2=0.1)), rows(Annealed(decay=0.9, eta_1=0.2, tau=0.01))
    for strained, row, named in (
        (rows(Annealed(eta_2=good.eta_1, tau=3 * critical)), "noise tau_2 of stage 2", "tau_c"),
        (short, "eta-time in which Q outgrows the noise", "stage_2"),
        (slow, "margin of P after stage 1, unsaturated", "decay"),
        (rows(good, coupling=0.5), "coupling", "Q"),
    ):  # fmt: skip
        assert named in strained[row].strained
    needed = (short[f"eta-time in which {n}"] for n in ("the noise decays", "Q outgrows the noise"))
    assert sum(float(row.prediction) for row in needed) > 0.1 / good.decay
    assert all(math.isfinite(float(row.prediction)) for row in found.values())
    # Other rules have no stages.
    assert rows(sgd(0.1)) == {}
