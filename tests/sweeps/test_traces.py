"""Traces have one form exactly where JAX lowers them to one text."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.runner import traces

X = np.ones((3, 3), np.float32)
A = np.arange(9, dtype=np.float32).reshape(3, 3)


def of(value: Any) -> Callable[[Any], Any]:
    return lambda x: x * value


def looped(turns: int) -> Callable[[Any], Any]:
    return lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=turns)[0]


def inner(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jit(lambda y: function(y) + 1)(x)


def named(name: str) -> Callable[[Any], Any]:
    return lambda x: {name: x + 1}


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "two": of(2.0),
    "two of int": of(2),
    "zero": of(0.0),
    "minus zero": of(-0.0),
    "one zero": lambda x: x[0, 0] * 0.0,
    "one minus zero": lambda x: x[0, 0] * -0.0,
    "array": of(A),
    "other array": of(2 * A),
    "transposed array": of(A.T),
    "row": of(A[:1]),
    "of jax": of(jnp.asarray(A)),
    "three turns": looped(3),
    "four turns": looped(4),
    "inner sine": inner(jnp.sin),
    "inner cosine": inner(jnp.cos),
    "inner turns": inner(looped(3)),
    "relu": jax.nn.relu,
    "relu of relu": lambda x: jax.nn.relu(jax.nn.relu(x)),
    "first": named("first"),
    "second": named("second"),
    "order": lambda x: jnp.sin(x) - jnp.cos(x),
    "other order": lambda x: jnp.cos(x) - jnp.sin(x),
    "product": lambda x: x @ x,
    "exact product": lambda x: jnp.dot(x, x, precision="highest"),
    "transposed": lambda x: x.T @ x,
    "branch": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "other branch": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
    "drawn": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "drawn otherwise": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "slope": jax.grad(lambda x: jax.nn.gelu(x).sum()),
}


def traced(name: str) -> jax.stages.Traced:
    """A trace that JAX has not seen."""
    return jax.jit(lambda x: PROGRAMS[name](x)).trace(X)


@functools.cache
def found(name: str) -> tuple[Any, str]:
    made = traced(name)
    return traces.form(made), made.lower().as_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_traced_again_has_the_same_form(name: str) -> None:
    form, _ = found(name)
    assert form is not None
    again = traces.form(traced(name))
    assert (again, hash(again)) == (form, hash(form))


def test_programs_of_one_form_have_one_text() -> None:
    for one, other in itertools.combinations(PROGRAMS, 2):
        (form, text), (form_2, text_2) = found(one), found(other)
        assert (form == form_2) <= (text == text_2), (one, other)
    assert len({found(name)[0] for name in PROGRAMS}) > len(PROGRAMS) - 3


def test_options_of_jax_that_are_read_later_belong_to_the_form() -> None:
    """Random bits are made in another way where arrays are divided among devices."""
    with jax.threefry_partitionable(not jax.config.values["jax_threefry_partitionable"]):
        other = traced("drawn")
    assert traces.form(other) != found("drawn")[0]
