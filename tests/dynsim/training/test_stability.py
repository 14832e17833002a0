"""Thresholds of the sharpness against the spectral radius of each rule's step on a quadratic."""

import numpy as np
import pytest
from scipy.optimize import brentq

import dynsim
from dynsim import schedules

ETA, DECAY, MU = 0.3, 0.4, 0.7


def radius(rule: dynsim.Rule, h: float) -> float:
    """Largest modulus of the eigenvalues of a step on h p^2/2, written out; Adam and RMSProp with
    the preconditioner 1."""
    inside, outside = (0.0, DECAY) if rule.decoupled else (DECAY, 0.0)
    if rule.decay is None:
        inside = outside = 0.0
    g = h + inside
    # Rows of (velocity after, weight after) in (velocity, weight) before.
    rows = {"momentum": (MU, g), "nesterov": (MU, g), "adam": (0.9, 0.1 * g)}
    velocity = np.array(rows.get(rule.name.removesuffix("w"), (0, g)))
    direction = velocity + np.array([0, outside])
    if rule.name == "nesterov":
        direction = MU * velocity + np.array([0, g + outside])
    weight = np.array([0, 1]) - ETA * direction
    return float(np.abs(np.linalg.eigvals([velocity, weight])).max())


@pytest.mark.parametrize("decay", [{}, {"decay": DECAY}, {"decay": DECAY, "decoupled": True}])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (dynsim.sgd, {}),
        (dynsim.sgd, {"momentum": MU}),
        (dynsim.sgd, {"momentum": MU, "nesterov": True}),
        (dynsim.rmsprop, {}),
        (dynsim.adam, {"b1": 0.9}),
    ],
)
def test_the_threshold_is_where_the_step_begins_to_grow(make, options, decay) -> None:
    rule = make(ETA, **options, **decay)
    want = brentq(lambda h: radius(rule, h) - 1, 0.5, 1e4)
    # In float32.
    np.testing.assert_allclose(dynsim.sharpness_threshold(rule), want, rtol=1e-5)


def test_the_known_thresholds() -> None:
    """Those of the papers: 2 (1 + mu), (2 + 2 mu)/(1 + 2 mu), and 38 for Adam, over eta."""
    for rule, want in (
        (dynsim.sgd(ETA, momentum=0.9), 3.8),
        (dynsim.sgd(ETA, momentum=0.9, nesterov=True), 3.8 / 2.8),
        (dynsim.adam(ETA), 38.0),
    ):
        np.testing.assert_allclose(dynsim.sharpness_threshold(rule), want / ETA, rtol=1e-5)


def test_the_threshold_follows_a_schedule() -> None:
    rule = dynsim.sgd(schedules.steps(0.1, [4], [0.5]))
    np.testing.assert_allclose(dynsim.sharpness_threshold(rule, np.array([3, 4])), [20, 40], 1e-6)
    warm = dynsim.sgd(schedules.warmup_cosine(1.0, 10, 100))
    assert dynsim.sharpness_threshold(warm, 0) > 10


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (dynsim.sign(0.1), "rule = sign"),
        (dynsim.sgd({"Y": 1.0, "Z": 0.1}), "rates or decay by group"),
        (dynsim.sgd(0.1, decay={"Y": 1.0}), "rates or decay by group"),
    ],
)
def test_rules_without_a_threshold_are_refused(rule: dynsim.Rule, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dynsim.sharpness_threshold(rule)
