"""A problem whose training takes no sums over long axes, so that it is the same to the bit in any
batch, with numbers, sizes, parts of two kinds, and a theory."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import dynsim


class Form(eqx.Module):
    @abc.abstractmethod
    def value(self, x: Any) -> Any: ...


class Square(Form):
    def value(self, x: Any) -> Any:
        return x**2


class Power(Form):
    exponent: float = 4.0

    def value(self, x: Any) -> Any:
        return jnp.abs(x) ** self.exponent


class Curve(dynsim.Problem):
    form: Form = Square()
    shift: float = 0.5
    width: int = 2

    def init(self, key: Any) -> Any:
        return jax.random.normal(key, (self.width,))

    def draw(self, key: Any, batch: int) -> Any:
        return jax.random.normal(key, (batch, self.width))

    def loss(self, params: Any, data: Any) -> Any:
        return jnp.mean(self.form.value(params[None] - data - self.shift))

    def population_loss(self, params: Any) -> Any:
        return jnp.mean(self.form.value(params - self.shift)) + jnp.sum(params**4)

    def observables(self) -> Any:
        return {"w": lambda problem, w: w, "first": lambda problem, w: w[0]}
