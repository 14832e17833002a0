"""Descent with one rate against its formulas, written out in NumPy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import dynsim

GRADIENTS = [(np.array([1.0, -2.0]), np.array([0.5])), (np.array([3.0, 0.5]), np.array([-4.0]))]
MU, B1, B2, EPS = 0.8, 0.7, 0.9, 1e-3


def moved(rule: dynsim.Rule) -> list[np.ndarray]:
    """How far both parts move in all steps together."""
    trees = [(jnp.asarray(y), jnp.asarray(z)) for y, z in GRADIENTS]

    @jax.jit
    def run(rule: dynsim.Rule) -> Array:
        total = jax.tree.map(jnp.zeros_like, trees[0])
        memory = rule.init(total)
        for k, gradient in enumerate(trees):
            updates, memory = rule.update(gradient, memory, total, jnp.int32(k))
            total = jax.tree.map(jnp.add, total, updates)
        return total

    return [np.asarray(leaf) for leaf in jax.tree.leaves(run(rule.astype("float32")))]


def direction(kind: str, gradients: list[np.ndarray]) -> np.ndarray:
    """Sum of the directions of all steps, by the formula of the rule."""
    v, m, s, total = 0.0, 0.0, 0.0, 0.0
    for step, g in enumerate(gradients, 1):
        v = MU * v + g
        m, s = B1 * m + (1 - B1) * g, B2 * s + (1 - B2) * g**2
        adam = (m / (1 - B1**step)) / (np.sqrt(s / (1 - B2**step)) + EPS)
        total = total + {"sgd": g, "momentum": v, "adam": adam}[kind]
    return total


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_rules_follow_their_formulas(kind: str) -> None:
    rule = {
        "sgd": dynsim.sgd(0.2),
        "momentum": dynsim.sgd(0.2, momentum=MU),
        "adam": dynsim.adam(0.2, b1=B1, b2=B2, eps=EPS),
    }[kind]
    by_part = [direction(kind, list(part)) for part in zip(*GRADIENTS, strict=True)]
    for got, want in zip(moved(rule), by_part, strict=True):
        np.testing.assert_allclose(got, -0.2 * want, rtol=2e-6)


def test_long_gradients_are_clipped_before_anything_else() -> None:
    clip = 2.0
    clipped = []
    for y, z in GRADIENTS:
        factor = min(1.0, clip / np.sqrt(np.sum(y**2) + np.sum(z**2)))
        clipped.append((factor * y, factor * z))
    rule = dynsim.sgd(0.2, momentum=MU, clip=clip)
    for got, part in zip(moved(rule), zip(*clipped, strict=True), strict=True):
        np.testing.assert_allclose(got, -0.2 * direction("momentum", list(part)), rtol=2e-6)


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (dynsim.sgd, {"momentum": 1.0}, "momentum = 1.0"),
        (dynsim.adam, {"b2": -0.1}, "b2 = -0.1"),
        (dynsim.adam, {"eps": 0.0}, "eps = 0.0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_numbers_out_of_range_are_refused(
    rule: Callable[..., dynsim.Rule], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rule(0.1, **changes)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("eta", ["1", True, [0.1, "2"], np.datetime64("2020-01-01")])
def test_what_reads_as_a_number_and_is_none_is_refused(eta: Any) -> None:
    with pytest.raises(ValueError, match=r"eta_y = .*: must be a real number"):
        dynsim.sgd(eta, 0.1)


@pytest.mark.more
def test_ratio_of_rates() -> None:
    """Y moves by the ratio times the scheduled rate of Z."""
    layer, key = dynsim.Layer(dynsim.SynSmall()), jax.random.key(0)
    rates = dynsim.schedules.cosine(0.1, 20)
    of_Y = dynsim.schedules.cosine(0.1 * 3.0, 20)
    by_ratio = dynsim.sgd(dynsim.Ratio(rates, ratio=3.0), momentum=0.5)
    by_group = dynsim.sgd({"Y": of_Y, "Z": rates}, momentum=0.5)
    for found, expected in (
        [dynsim.train(layer, r, key, steps=20, batch=8)["loss"] for r in (by_ratio, by_group)],
        [r.flow_rate(2.5)["Y"] for r in (by_ratio, by_group)],
        [r.rate(7)["Y"] for r in (by_ratio, by_group)],
    ):
        np.testing.assert_array_equal(found, expected)
    assert by_ratio.of_groups("Y", "Z").schedules.keys() == {"Y", "Z"}
    with pytest.raises(ValueError, match="ratio"):
        dynsim.Ratio(0.1, ratio=-1.0)
    with pytest.raises(ValueError, match="Z"):
        dynsim.Ratio(-0.1)
