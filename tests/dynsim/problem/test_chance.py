"""Random numbers without the key are errors in training, as they are in sweeps."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
import odes

KEY = jax.random.key(0)
GENERATOR = np.random.default_rng(0)
COUNTER = itertools.count()


class Mean(dynsim.Problem):
    """w is drawn to examples that `drawn` draws, from a start that `begun` makes."""

    drawn: Callable[[Any, int], Any]
    begun: Callable[[Any], Any] = jax.random.normal

    def init(self, key: Any) -> Any:
        return self.begun(key)

    def draw(self, key: Any, batch: int) -> Any:
        return self.drawn(key, batch)

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.mean((params - data) ** 2)

    def population_loss(self, params: Any) -> Any:
        return params**2


def normal(key: Any, batch: int) -> Any:
    return jax.random.normal(key, (batch,))


def in_a_loop(key: Any, batch: int) -> Any:
    add = lambda i, x: x + jnp.asarray(np.random.normal(size=batch), x.dtype)  # noqa: NPY002
    return jax.lax.fori_loop(0, 2, add, normal(key, batch))


def in_a_function(key: Any, batch: int) -> Any:
    add = jax.jit(lambda x: x + jnp.asarray(GENERATOR.normal(size=batch), x.dtype))
    return add(normal(key, batch))


CHANCE = {
    "global": lambda key, batch: np.random.normal(size=batch),  # noqa: NPY002
    "generator": lambda key, batch: jnp.asarray(GENERATOR.normal(size=batch)),
    "unseeded": lambda key, batch: jnp.asarray(np.random.default_rng().normal(size=batch)),
    "factor": lambda key, batch: normal(key, batch) * random.random(),
    "counter": lambda key, batch: normal(key, batch) + next(COUNTER),
    "loop": in_a_loop,
    "function": in_a_function,
}


@pytest.mark.parametrize("name", CHANCE)
def test_examples_that_differ_between_traces_are_an_error(name: str) -> None:
    message = r"Mean\.draw: .* draw with jax.random and the key"
    with pytest.raises(ValueError, match=message) as caught:
        dynsim.train(Mean(CHANCE[name]), dynsim.sgd(0.1), KEY, steps=3, batch=4)
    assert "\n" not in str(caught.value)


def test_examples_from_a_key_of_their_own_are_an_error() -> None:
    problem = Mean(lambda key, batch: normal(jax.random.key(0), batch))
    with pytest.raises(ValueError, match=r"Mean\.draw: .* whatever its key"):
        dynsim.train(problem, dynsim.sgd(0.1), KEY, steps=3, batch=4)


def test_a_start_without_its_key_is_an_error_in_training_and_theory() -> None:
    problem = Mean(normal, lambda key: jnp.asarray(np.random.normal()))  # noqa: NPY002
    with pytest.raises(ValueError, match=r"Mean\.init: .* draw with jax.random and the key"):
        dynsim.train(problem, dynsim.sgd(0.1), KEY, steps=3, batch=float("inf"))
    with pytest.raises(ValueError, match=r"Mean\.init: .* draw with jax.random and the key"):
        odes.flow(problem, dynsim.sgd(0.1), [0, 3], key=KEY)


def doubled(key: Any, batch: int) -> Any:
    like = jax.ShapeDtypeStruct((batch,), "f4")
    return jax.pure_callback(lambda x: 2 * np.asarray(x), like, normal(key, batch))


@pytest.mark.more
def test_functions_of_the_key_are_no_chance() -> None:
    # A callback is another object in each trace.
    steps, batch = 3, 4
    options: Any = {"steps": steps, "batch": batch, "init": jnp.zeros(())}
    run = dynsim.train(Mean(doubled), dynsim.sgd(0.0), KEY, **options)
    once = dynsim.train(Mean(normal), dynsim.sgd(0.0), KEY, **options)
    np.testing.assert_allclose(run["batch_loss"], 4 * once["batch_loss"], rtol=1e-6)
    fixed = np.array([1.0, 2.0, 4.0, 5.0], "f4")
    still = Mean(lambda key, batch: fixed[:batch] if batch <= 4 else np.ones(batch, "f4"))
    run = dynsim.train(still, dynsim.sgd(0.0), KEY, **options)
    np.testing.assert_allclose(run["batch_loss"], np.mean(fixed**2), rtol=1e-6)
