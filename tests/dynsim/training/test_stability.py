"""Thresholds of the sharpness against the spectral radius of each rule's step on a quadratic."""

from typing import Any

import numpy as np
import pytest
from jaxtyping import Float
from scipy.optimize import root_scalar

import dynsim
from dynsim import schedules

MU, B1 = 0.7, 0.9
Matrix = Float[np.ndarray, "W W"]


def radius(rule: dynsim.Rule, eta: float, decay: float, H: Matrix, P: np.ndarray) -> float:
    """Largest modulus of the eigenvalues of a step on p H p / 2, written out, with the
    preconditioner P."""
    inside, outside = (0.0, decay) if rule.decoupled else (decay, 0.0)
    one = np.eye(len(H))
    g = H + inside * one
    old, new = {"momentum": (MU, 1), "nesterov": (MU, 1), "adam": (B1, 1 - B1)}.get(
        rule.name.removesuffix("w"), (0, 1)
    )
    # Rows of (velocity after, weights after) in (velocity, weights) before.
    velocity = np.hstack([old * one, new * g])
    direction = velocity / P[:, None]
    if rule.name == "nesterov":
        direction = MU * velocity + np.hstack([0 * one, g])
    weights = np.hstack([0 * one, one]) - eta * (direction + np.hstack([0 * one, outside * one]))
    return float(np.abs(np.linalg.eigvals(np.vstack([velocity, weights]))).max())


RULES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (dynsim.sgd, {}),
    (dynsim.sgd, {"momentum": MU}),
    (dynsim.sgd, {"momentum": MU, "nesterov": True}),
    (dynsim.rmsprop, {}),
    (dynsim.adam, {"b1": B1}),
)


@pytest.mark.parametrize("P", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("decay", [None, 0.1, 0.7])
@pytest.mark.parametrize("eta", [0.02, 0.4])
@pytest.mark.parametrize(("make", "options"), RULES)
def test_the_threshold_is_where_the_step_begins_to_grow(make, options, eta, decay, P) -> None:
    P = P if make in (dynsim.rmsprop, dynsim.adam) else 1.0
    lost = decay or 0.0
    for decoupled in (False, True) if decay else (False,):
        rule = make(eta, **options, decay=decay, decoupled=decoupled)
        past = lambda h: radius(rule, eta, lost, np.array([[h]]), np.array([P])) - 1  # noqa: B023
        # Beside the saddle at -decay, or 0, steps are slow and stable.
        saddle = 0.0 if decoupled else -lost
        want = root_scalar(past, bracket=(saddle + 1e-4, 1e6), xtol=1e-13).root / P
        found = float(dynsim.sharpness_threshold(rule, preconditioner=P))
        # Of a difference in float32, of numbers of the size of the larger one.
        assert found == pytest.approx(want, rel=1e-5, abs=1e-6 * lost / P)


def test_where_preconditioners_differ_thresholds_of_the_smallest_and_largest_are_bounds() -> None:
    rng, eta, decay = np.random.default_rng(0), 0.4, 0.7
    sides = set()
    for make, options in RULES[3:]:
        rule = make(eta, **options, decay=decay)
        for _ in range(50):
            root = rng.normal(size=(4, 4))
            H, P = rng.uniform(0, 40) * root @ root.T, rng.uniform(0.3, 3, 4)
            sharpness = np.linalg.eigvals(H / P[:, None]).real.max()
            grows = radius(rule, eta, decay, H, P) > 1
            low, high = (
                float(dynsim.sharpness_threshold(rule, preconditioner=p))
                for p in (P.min(), P.max())
            )
            side = "below" if sharpness < low else "above" if sharpness > high else "between"
            assert side == "between" or grows == (side == "above")
            sides.add((side, grows))
    assert {("below", False), ("above", True)} <= sides


def test_the_threshold_follows_a_schedule() -> None:
    rule = dynsim.sgd(schedules.steps(0.1, [4], [0.5]))
    np.testing.assert_allclose(dynsim.sharpness_threshold(rule, np.array([3, 4])), [20, 40], 1e-6)
    at_once = dynsim.sgd(schedules.steps(0.1, [1], [0.5]))
    np.testing.assert_allclose(dynsim.sharpness_threshold(at_once), 20, rtol=1e-6)
    warm = dynsim.sgd(schedules.warmup_cosine(1.0, 10, 100))
    assert dynsim.sharpness_threshold(warm, 0) > 10
