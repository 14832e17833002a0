"""What sweeps are told of each theory: which of them train, go on, draw, and are left out."""

import importlib.metadata
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import dynsim
from dynsim import Status, Trajectory, plugins
from dynsim.precision import precision
from dynsim.problem.sharpness import SHARPNESS
from dynsim.training import loop
from dynsim.training.recording import PRECONDITIONED
from sweeps.runner.spec import Sweep
from sweeps.systems import registry, yz
from sweeps.systems.base import described
from sweeps.systems.experiment import experiment

SYMMETRIC = {"symmetric-descent-finite-t", "symmetric-descent", "symmetric-noise"}
SPREAD = {"spread", "spread-squares"}
GENERAL = {
    "descent",
    "rescaled",
    "heavy-ball",
    "corrected-adam",
    "adam",
    "rmsprop",
    "central",
    "flow",
}
"""Less exact theories of any problem, and those that any problem has besides its own."""
VARIANTS = {
    "yz": SYMMETRIC
    | {"spread-squares"}
    | {"corrected-finite-t", "corrected", "symmetric-finite-t", "symmetric", "flow", "lemma3"}
    | {"corrected-adam-finite-t", "corrected-adam", "eq10-finite-m", "eq10-remark-1", "theorem4"}
    | {"fixed_attention", "fixed_attention-discrete", "central"},
    "two_stage": set(),
    "transformer": {"linear-noise", "sde", "corrected-sde"},
}
NOISY = {
    "yz": {"symmetric-noise"},
    "two_stage": {"sde", "seeds"},
    "transformer": {"sde", "corrected-sde"},
}
STEPS = {"simulation", "descent", "descent-finite-t", "central", "linear-noise", "fixed_attention"}
STEPS |= {"fixed_attention-discrete", "sde", "corrected-sde", "seeds", *SYMMETRIC, *SPREAD}
CLOSED = {"escape", "erf", "scalar", "plateaus", "sigmoid"}
"""No solver chooses the steps of these, so that no run waits for another one."""
SEEDED = {
    "two_stage": {"simulation", "anchored", "sde", "seeds"},
    "sparse_attention": {"simulation", "descent", "central", "flow"},
}
"""Theories that start from drawn weights; in other systems all but some."""
SEEDLESS = {
    "yz": {"symmetric-finite-t", "symmetric"},
    "qkv": set(),
    "transformer": set(),
    "linear_icl": set(),
    "joma": {"erf"},
}
TILES = {"yz": 16, "qkv": 8, "two_stage": 1, "linear_icl": 256, "sparse_attention": 8, "joma": 32}
TILES |= {"transformer": 1}
OTHER_TILES = {"symmetric-descent-finite-t": 4096, "symmetric-descent": 4096, "flow": 1}
OTHER_TILES |= {"symmetric-noise": 1024}


@pytest.mark.parametrize("system", registry.BUILT_IN)
def test_theories_are_known_for_what_they_do(system: str) -> None:
    theories = registry.system(system).theories
    which = lambda flag: {name for name, theory in theories.items() if getattr(theory, flag)}
    assert which("trains") == {"simulation", *SYMMETRIC} & {*theories}
    assert which("batched") == SYMMETRIC & {*theories}
    assert which("variant") == VARIANTS.get(system, GENERAL)
    assert which("drawn") == NOISY.get(system, set())
    resumed = {"simulation", "descent", "descent-finite-t"} & {*theories}
    assert which("resumes") == (set() if system == "two_stage" else resumed)
    assert which("adaptive") == {*theories} - STEPS - CLOSED
    seeded = {*theories} - SEEDLESS[system] if system in SEEDLESS else SEEDED[system]
    assert which("seeded") == seeded
    run = experiment(system, **({"corpus": "synthetic"} if system == "transformer" else {}))
    drawing = {name for name, each in theories.items() if each.draws(run.training())}
    assert drawing == ({"simulation"} if system in ("yz", "two_stage", "transformer") else set())
    for name, theory in theories.items():
        trained = name in ("simulation", "descent", "descent-finite-t", *SPREAD)
        sampled = {"two_stage": 32, "transformer": 1 if name == "linear-noise" else 16}
        usual = TILES[system] if trained else sampled.get(system, 64)
        assert theory.at_once == OTHER_TILES.get(name, usual), name
        assert theory.title
        assert trained or theory.assumes


class Sampled(dynsim.Problem):
    """A loss of batches alone."""

    def init(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.ones(())

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, " B"]:
        return jax.random.normal(key, (batch,))

    def loss(self, params: Float[Array, ""], data: Float[Array, " B"]) -> Float[Array, ""]:
        return jnp.mean((params - data) ** 2)


def test_the_sharpness_is_that_of_the_loss_there_is() -> None:
    for problem, loss in (
        (dynsim.Regression(D=2, N=7), "population loss"),
        (Sampled(), "loss of the next batch"),
    ):
        found = described(problem)
        assert found[SHARPNESS] == (f"largest eigenvalue of the Hessian of the {loss}", "1")
        text = f"sharpness of the {loss} in units in which the edge is 2"
        assert found[PRECONDITIONED] == (text, "1")


def test_times_of_a_run_are_its_steps_unless_its_rule_sets_them() -> None:
    run = experiment("yz", steps=9)
    assert run.steps_recorded((0, 9)) == (0, 9)
    assert run.steps_recorded("end") == (9,)
    with pytest.raises(ValueError, match="times"):
        run.steps_recorded((0, 10))
    annealed = experiment("two_stage")
    assert annealed.steps is None
    assert annealed.steps_recorded((0, 10**6)) == (0, 10**6)
    assert (annealed.steps_recorded("end"), annealed.steps_recorded(7)) == (1, 7)
    with pytest.raises(ValueError, match="times"):
        annealed.steps_recorded((0, 2**31))


@pytest.mark.parametrize("squares", [False, True])
def test_the_spread_of_a_sweep_is_that_of_the_layer(
    squares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean, standard deviation and drift of what is asked for; draws are those of the batches."""
    run = experiment("yz", steps=9, batch=4, length=32, rule="adam" if squares else "sgd")
    record = ("speed", "loss_std", "loss_drift")
    sweep = Sweep(run, {"seed": [0]}, "spread-squares" if squares else "spread", record, (0, 9))
    runs = sweep.runs({})
    asked: list[dict[str, Any]] = []
    codes = jnp.int32(Status.OK), jnp.int32(-1)

    def solve(task: object, rule: object, times: np.ndarray, **given: Any) -> Trajectory:
        asked.append(given | {"times": tuple(times)})
        values = {"loss": jnp.full(2, 2.0), "speed": jnp.full(2, 1.0)}
        # Standard deviations 0.2 and 0.3 of the loss and the speed, which depend on each other.
        covariance = jnp.array([[[0.04, 0.01], [0.01, 0.09]]] * 2)
        return Trajectory(jnp.array([0.0, 9.0]), values, None, *codes, covariance=covariance)

    def drift(task: object, rule: object, times: np.ndarray, key: Any, **given: Any) -> Trajectory:
        asked.append(given | {"times": tuple(times), "key": jax.random.key_data(key)})
        values = {"loss": jnp.full(2, 60.0), "speed": jnp.full(2, 30.0)}
        return Trajectory(jnp.array([0.0, 9.0]), values, None, *codes)

    monkeypatch.setattr(yz, "spread", SimpleNamespace(solve=solve, drift=drift))
    key = jax.random.key(5)
    with precision("float64"):
        found = runs.call.run(runs.numbers, runs.arrays, key)
    numbers = {name: float(value[0]) for name, value in found.observables.items()}
    assert numbers == pytest.approx({"speed": 1.0, "loss_std": 0.2, "loss_drift": 60.0})
    assert found.covariance is None
    first, second = asked
    assert first["record"] == second["record"] == ("speed", "loss")
    assert (first["batch"], first["length"], first["times"]) == (4, 32, (0, 9))
    assert first["squares"] == second["squares"] == squares
    np.testing.assert_array_equal(second["key"], jax.random.key_data(loop.split_key(key)[1]))
    assert second["draws"] == 1


def test_weights_of_very_many_classes_are_not_recorded() -> None:
    run = experiment("yz", task="overlapping", K=10**6, steps=3, length=math.inf)
    theory = registry.system("yz").theories["symmetric"]
    task = yz.classes_of(run)
    assert theory.reduce is not None
    assert theory.reduce(task, ("loss", "speed")).task is task
    with pytest.raises(ValueError, match=r"^record: z, attention need all weights, .* K = 1000000"):
        theory.reduce(task, ("loss", "z", "attention"))


def test_a_broken_system_of_the_package_of_a_problem_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = {
        name: importlib.metadata.EntryPoint(name, f"{package}.nowhere:Broken", registry.GROUP)
        for name, package in (("broken", "tests"), ("other", "elsewhere"))
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    with pytest.warns(UserWarning, match="broken.*it is left out") as told:
        found = registry.system_of(experiment(Sampled(), eta=0.1, steps=3, batch=2))
    assert found.name == f"{__name__}:Sampled"
    assert len(told) == 1
