"""Random keys in the state of an optimiser: each run draws its own numbers.

Descent by (1 - eta a) w - eta xi on a w^2 / 2 with normal numbers xi, and no other noise, has the
variance eta^2 (1 - r^(2 k)) / (1 - r^2) after k steps, where r = 1 - eta a.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, PRNGKeyArray, PyTree

import dynsim
import sweeps

ETA, STEPS, SEEDS = 0.1, 60, 512


class Quadratic(dynsim.Problem):
    """The losses w0^2 / 2 and w1^2 / 4, without batch noise."""

    def init(self, key: PRNGKeyArray) -> Array:
        return jnp.array([1.0, 2.0])

    def draw(self, key: PRNGKeyArray, batch: int) -> Array:
        return jnp.zeros(batch)

    def loss(self, w: Array, data: Array) -> Array:
        return self.population_loss(w) + 0 * data.mean()

    def population_loss(self, w: Array) -> Array:
        return w @ (jnp.array([0.5, 0.25]) * w)


RATES = 1 - ETA * np.array([1.0, 0.5])
STD = ETA * np.sqrt((1 - RATES ** (2 * STEPS)) / (1 - RATES**2))
MEAN = np.array([1.0, 2.0]) * RATES**STEPS


class Keyed(dynsim.Rule):
    """Adds a normal number to every derivative, with a key of the older kind in a dict."""

    def direction(self) -> optax.GradientTransformation:
        def init(params: PyTree) -> Any:
            return {"rng": [jax.random.PRNGKey(3)], "data": jnp.array([1, 2], jnp.uint32)}

        def update(g: PyTree, state: Any, params: PyTree = None) -> Any:
            draw, left = jax.random.split(state["rng"][0])
            noise = optax.tree.random_like(draw, g, jax.random.normal)
            # Only keys change from run to run.
            noise = jax.tree.map(lambda x: jnp.where(state["data"][1] == 2, x, jnp.nan), noise)
            return jax.tree.map(jnp.add, g, noise), {**state, "rng": [left]}

        return optax.GradientTransformation(init, update)

    def flow(self, gradient: PyTree, averages: PyTree, t: Array) -> tuple[PyTree, PyTree]:
        return gradient, averages


class Counted(NamedTuple):
    count: Array
    streams: Array


def by_count(impl: str) -> optax.GradientTransformation:
    """Draws with keys of another generator, one for each weight, and the number of the step."""

    def init(params: PyTree) -> Counted:
        return Counted(jnp.zeros((), jnp.int32), jax.random.split(jax.random.key(0, impl=impl), 2))

    def update(g: Array, state: Counted, params: PyTree = None) -> tuple[Array, Counted]:
        keys = jax.vmap(jax.random.fold_in, (0, None))(state.streams, state.count)
        return g + jax.vmap(jax.random.normal)(keys), Counted(state.count + 1, state.streams)

    return optax.GradientTransformation(init, update)


def noisy(learning_rate: float, key: int = 0) -> optax.GradientTransformation:
    return optax.noisy_sgd(learning_rate, 1.0, 0.0, key)


def halved(learning_rate: float) -> optax.GradientTransformation:
    """Two kinds of noise of variance 1/2, whose keys are equal before the run begins."""
    twice = [optax.add_noise(0.5, 0.0, key=0) for _ in range(2)]
    return optax.chain(*twice, optax.sgd(learning_rate))


RULES: dict[str, dynsim.Rule] = {
    "noisy_sgd": dynsim.from_optax(noisy, learning_rate=ETA),
    "two of one key": dynsim.from_optax(halved, learning_rate=ETA),
    "rbg": dynsim.from_optax(lambda rate: optax.chain(by_count("rbg"), optax.sgd(rate)), rate=ETA),
    "own, PRNGKey": Keyed(ETA),
}


@pytest.mark.parametrize("name", RULES)
def test_runs_scatter_by_the_noise_of_their_optimiser(name: str) -> None:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(SEEDS))
    train = lambda key: dynsim.train(Quadratic(), RULES[name], key, steps=STEPS, batch=1).params
    last = np.asarray(jax.vmap(train)(keys))
    # Four standard errors.
    np.testing.assert_allclose(last.std(axis=0), STD, rtol=4 / math.sqrt(2 * SEEDS))
    assert (np.abs(last.mean(axis=0) - MEAN) < 4 * STD / math.sqrt(SEEDS)).all()
    # Weights have independent noise.
    assert abs(np.corrcoef(last.T)[0, 1]) < 4 / math.sqrt(SEEDS)


def test_a_sweep_has_the_runs_of_train_and_resumes_them(tmp_path) -> None:
    """The state has keys of two generators, and a truth value: whether the last gradient was
    finite."""
    keyed = lambda rate: optax.chain(by_count("rbg"), noisy(rate))
    rule = dynsim.from_optax(lambda rate: optax.apply_if_finite(keyed(rate), 3), rate=ETA)

    def sweep(steps: int, times: tuple[int, ...], checkpoint: bool) -> sweeps.Sweep:
        run, axes = sweeps.Experiment(Quadratic(), rule, steps=steps, batch=2), {"seed": range(3)}
        return sweeps.Sweep(run, axes, times=times, record=["loss"], checkpoint=checkpoint)

    whole = sweeps.run(sweep(20, (10, 20), checkpoint=False))
    sweeps.run(sweep(10, (10,), checkpoint=True), tmp_path / "half")
    resumed = sweeps.run(
        sweep(20, (10, 20), checkpoint=True), tmp_path / "whole", reuse=[tmp_path / "half"]
    )
    assert np.array_equal(resumed.loss, whole.loss)
    key = jax.random.fold_in(jax.random.key(0), 2)
    alone = dynsim.train(Quadratic(), rule, key, steps=20, batch=2)
    np.testing.assert_allclose(whole.loss[2, 1], alone["loss"][-1], rtol=1e-5)
