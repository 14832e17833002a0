"""Training: the authors' recorded run, an accelerator's program, batching, divergence."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim.precision import compiled_for
from dynsim.yz import sampling
from tests.systems.layers import simulate

TASK = dynsim.SynSmall().build()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.more
def test_the_authors_recorded_run_is_reproduced(dtype: str, data_folder: Path) -> None:
    with np.load(data_folder / "authors_fig4_sgd.npz") as file:
        run = dict(file)
    data = sampling.examples_from_tokens(TASK, run["x"], run["label"])
    suffix, tolerance = ("f32", 1e-5) if dtype == "float32" else ("f64", 1e-9)
    rows = np.asarray(TASK.queries)
    start = dynsim.YZ(run["K1_init"].T, run["K2_init"][rows])
    # After the first step and the last one; the losses are those of every step between.
    for steps in (1, 20):
        result = simulate(
            TASK,
            dynsim.sgd(float(run["lr_y"]), float(run["lr_z"]), momentum=float(run["momentum"])),
            steps=steps,
            times=np.arange(steps),
            init=start,
            data=jax.tree.map(lambda x, steps=steps: x[:steps], data),
            record="loss",
            dtype=dtype,
        )
        assert result.params.Y.dtype == dtype
        for got, want in (
            (result.params.Y, run[f"K1_after{steps}_{suffix}"].T),
            (result.params.Z, run[f"K2_after{steps}_{suffix}"][rows]),
        ):
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())
        # Relative to the exact losses: the recorded float32 ones are themselves up to 2.8e-5
        # away from the recorded float64 ones, late in the run, where they are 4e-4.
        losses = result["batch_loss"]
        np.testing.assert_allclose(losses, run["loss_f64"][:steps], rtol=tolerance)
        np.testing.assert_allclose(losses, run[f"loss_{suffix}"][:steps], rtol=tolerance, atol=1e-6)


@pytest.mark.more
def test_an_accelerators_program_is_that_of_a_cpu() -> None:
    """Written with products and long legs, and run on a CPU here."""
    run = functools.partial(
        simulate,
        TASK,
        dynsim.adam(0.01, 0.01),
        jax.random.key(0),
        steps=12,
        batch=16,
        length=16,
        init="uniform",
        times=[0, 1, 6, 12],
        dtype="float64",
    )
    want = run()
    with compiled_for("gpu"):
        found = run()
    for name, values in want.observables.items():
        # Rounding, by which sums in another order differ.
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.more
def test_vmap_over_seeds_and_rates_is_the_loop_with_one_compilation() -> None:
    def run(key: jax.Array, eta: jax.Array) -> dynsim.Trajectory:
        rule, options = dynsim.sgd(eta, 2 * eta, momentum=eta), {"length": 32, "batch": 16}
        return simulate(TASK, rule, key, steps=12, record=["loss", "entropy", "z"], **options)

    grid = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))
    keys = jax.random.split(jax.random.key(2), 3)
    for etas in (jnp.array([0.1, 0.9]), jnp.array([0.2, 0.5])):
        both = grid(keys, etas)
        assert both.status.shape == (3, 2)
    assert grid._cache_size() == 1
    for i, j in np.ndindex(3, 2):
        alone = run(keys[i], etas[j])
        # Batched matrix products add up in another order; twelve steps amplify that a little.
        for name in alone.observables:
            np.testing.assert_allclose(
                both[name][i, j], alone[name], rtol=2e-4, atol=2e-5, err_msg=name
            )


def test_divergence_is_a_status_with_its_step() -> None:
    def run(eta: jax.Array) -> dynsim.Trajectory:
        # With three contextual tokens some sequences fit both classes, so the loss never
        # settles at 0 and stays proportional to the rate.
        settings = {"steps": 20, "length": 4, "init": "uniform", "record": "loss"}
        return simulate(TASK, dynsim.sgd(eta, eta), jax.random.key(0), **settings)

    result = jax.vmap(run)(jnp.array([1.0, 1e6, jnp.inf]))
    np.testing.assert_array_equal(result.status, [0, 1, 1])
    np.testing.assert_array_equal(result.first_bad_step, [-1, 1, 1])
    loss = np.asarray(result["batch_loss"])
    assert loss[0].max() < 10 * np.log(34) < loss[1, -1] < np.inf
    assert np.isnan(loss[2, -1])


def test_one_class_one_token_kind_runs() -> None:
    task = dynsim.sequence_classes([[0.5, 0.5, 0]], query=[2])
    result = simulate(task, dynsim.sgd(1.0, 1.0), jax.random.key(0), steps=5)
    assert result.status == dynsim.Status.OK
    assert np.isnan(result["z_top_common"]).all()
