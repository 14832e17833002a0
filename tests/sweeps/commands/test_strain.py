"""What `dynsim explain` says of steps and batches, at both sides of its bounds, and their numbers
against those of gradients written out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import dynsim
from dynsim import Status
from dynsim.training.recording import BATCH_LOSS
from sweeps.commands import strain
from sweeps.commands.strain import Noise

KEY = jax.random.key(3)


def made(**given: Any) -> Noise:
    """At both bounds: a mean that is moved by 5 % of its fall, a deviation 1.2 times as large."""
    settings = {"fall": -2.0, "mean": 3.0, "std": 0.5, "wider": 1.2, "moved": 0.1}
    return Noise("loss", 10, **settings | given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"moved": -0.1}, []),
        ({"wider": 1.21}, ["the next order in 1/B makes that of the loss 1.2 times as large"]),
        ({"wider": math.nan}, ["the next order in 1/B makes that of the loss nan times as large"]),
        ({"moved": -0.11}, ["noise moves the mean of the loss by -0.11, above 5 % of its fall"]),
        ({"moved": 1e-9, "fall": 0.0}, ["noise moves the mean of the loss by 1e-09"]),
        ({"wider": 2.0, "moved": 1.0}, ["2 times as large, above 1.2", "by 1, above 5 %"]),
    ],
)
def test_noise_is_strained_beyond_its_bounds(given: dict[str, float], words: list[str]) -> None:
    found = made(**given).strained
    assert len(found) == len(words)
    for each, part in zip(found, words, strict=True):
        assert part in each
        assert "at step 10" in each


def test_noise_is_told_as_a_share_of_the_fall() -> None:
    assert str(made()) == (
        "Linear noise: at step 10 loss is 3 with a standard deviation of 0.5 across seeds, 25 % of "
        "the fall. Noise moves the mean by 0.1."
    )
    assert "of the fall" not in str(made(fall=0.0))


class Curves(dict):
    """What of a `Trajectory` is read here."""

    def __init__(self, status: Status = Status.OK, **curves: Any) -> None:
        super().__init__({name: np.asarray(values) for name, values in curves.items()})
        self.status = status
        self.std = self


class Sampled(dynsim.Problem):
    """Three weights, of which each example pulls two."""

    def init(self, key: PRNGKeyArray) -> Float[Array, "3"]:
        return jnp.array([1.0, -2.0, 0.5])

    def draw(self, key: PRNGKeyArray, batch: int) -> Float[Array, "B 3"]:
        return jax.random.normal(key, (batch, 3)) * jnp.array([[1.0, 0.3, 0.0]])

    def loss(self, params: Float[Array, "3"], data: Float[Array, "B 3"]) -> Float[Array, ""]:
        return jnp.sum(params**2) / 2 - jnp.mean(data, axis=0) @ params


class Few(Sampled):
    """The same with the mean over all examples."""

    def population_loss(self, params: Float[Array, "3"]) -> Float[Array, ""]:
        return jnp.sum(params**2) / 2


def test_noise_at_the_start_is_that_of_the_batches_written_out() -> None:
    steps, batch = 40, 5
    weights = np.array([1.0, -2.0, 0.5])
    batches = Few().batches(KEY, steps, batch)
    gradients = np.array(
        [weights - np.asarray(batches(jnp.int32(k)), float).mean(axis=0) for k in range(32)]
    )
    # Batches are float32, of which one more rounding may differ.
    share = np.linalg.norm(gradients[0] - weights) / np.linalg.norm(weights)
    assert strain.batch_noise(Few(), KEY, steps, batch) == pytest.approx(share, rel=1e-5)
    squares = gradients**2
    relative = squares.var(axis=0, ddof=1) / squares.mean(axis=0) ** 2
    found = strain.variance_of_squares(Few(), KEY, steps, batch)
    assert found == pytest.approx(relative.mean(), rel=1e-5)


def told(
    monkeypatch: pytest.MonkeyPatch,
    descended: list[float],
    status: Status = Status.OK,
    curvature: float = 0.0,
    momentum: float | None = None,
) -> list[str]:
    """What is strained if descent has these losses, and the theory 4, 3, 2 and then 0."""
    asked: list[Any] = []

    def descent(*given: Any, **more: Any) -> Curves:
        asked.append((given, more))
        return Curves(status, loss=descended)

    monkeypatch.setattr(strain.odes, "descent", descent)
    monkeypatch.setattr(strain, "largest_curvature", lambda *given: curvature)
    rule = dynsim.sgd(0.1) if momentum is None else dynsim.sgd(0.1, momentum=momentum)
    times, loss = np.array([0.0, 10.0, 1000.0, 1001.0]), np.array([4.0, 3.0, 2.0, 0.0])
    found = strain.too_coarse(Few(), rule, KEY, 2000, "flow", times, loss)
    ((_, _, compared), more), *_ = asked
    np.testing.assert_array_equal(compared, times[:3])
    assert (more["record"], more["checkpoint"]) == ("loss", True)
    return found


def test_steps_are_strained_by_the_curvature(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = [4.0, 3.0, 2.0]
    assert told(monkeypatch, flow, curvature=0.2) == []
    start = "eta -> 0 (all flows): eta times the largest curvature at the start is 0.21, above 0.2"
    plain = told(monkeypatch, flow, curvature=0.21)
    assert plain == [f"{start}; descent is unstable above 2"]
    assert told(monkeypatch, flow, curvature=0.21, momentum=0.5) == [start]


def test_steps_are_strained_by_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss falls by 4, also where it is not compared; 5 % of it is 0.2."""
    assert told(monkeypatch, [4.0, 2.8125, 2.0]) == []
    (far,) = told(monkeypatch, [4.0, 2.75, 2.0])
    assert far == (
        "eta -> 0 (flow): over the first 1000 steps the loss of descent at these rates deviates by "
        "up to 6.2 % of its decrease, above 5 %"
    )
    (lost,) = told(monkeypatch, [4.0, 2.75, math.inf], Status.DIVERGED)
    assert lost == "eta -> 0 (all flows): over the first 1000 steps descent at these rates diverges"


@pytest.mark.parametrize(
    ("factor", "strained"),
    # A loss of zero is no factor away.
    [(1.19, False), (1 / 1.19, False), (1.21, True), (1 / 1.21, True), (0.0, False)],
)
def test_a_small_loss_may_be_off_by_a_fifth(
    monkeypatch: pytest.MonkeyPatch, factor: float, strained: bool
) -> None:
    loss = np.array([4.0, 1e-3])
    monkeypatch.setattr(strain.odes, "descent", lambda *_, **__: Curves(loss=loss * [1, factor]))
    monkeypatch.setattr(strain, "largest_curvature", lambda *given: 0.0)
    given = (Few(), dynsim.sgd(0.1), KEY, 9, "flow", np.array([0.0, 9.0]), loss)
    sentence = (
        f"eta -> 0 (flow): at step 9 descent at these rates has a loss of {1e-3 * factor:.3g} "
        "where the theory has 0.001"
    )
    assert strain.too_coarse(*given) == [sentence] * strained


def noise(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[Noise | None, dict[str, Any]]:
    """The noise of a run whose theory gives made-up numbers, and what the theory is asked."""
    settings = {"problem": Few(), "rule": dynsim.sgd(0.1), "steps": 9, "batch": 3, "size": 3}
    settings |= {"status": Status.OK, "std": 0.5, "whole": 0.8, "last": 1.5, "moved": 1.75} | given
    asked: dict[str, Any] = {}

    def orders(problem: Any, rule: Any, times: Any, batch: Any, key: Any, **more: Any) -> Any:
        asked.update(more, times=times, batch=batch)
        name = more["record"]
        linear = Curves(settings["status"], **{name: [4.0, settings["last"]]})
        linear.std = {name: [0.0, settings["std"]]}
        second = Curves(**{name: [4.0, settings["moved"]]})
        second.std = {name: [0.0, settings["whole"]]}
        return linear, second

    monkeypatch.setattr(strain, "orders", orders)
    monkeypatch.setattr(strain, "size_of", lambda problem: settings["size"])
    names = ("problem", "rule", "steps", "batch")
    run = {name: settings[name] for name in names}
    return strain.measured(key=KEY, **run), asked


def test_noise_has_the_numbers_of_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = noise(monkeypatch)
    assert found == Noise("loss", 9, 2.5, 1.5, 0.5, 1.6, 0.25)
    assert (asked["times"], asked["steps"], asked["batch"]) == ([0, 9], (0, 9), 3)
    assert (asked["draws"], asked["squares"], asked["passes"], asked["starts"]) == (16, True, 2, 1)
    found, asked = noise(monkeypatch, problem=Sampled())
    assert found is not None
    assert (found.name, asked["record"]) == (BATCH_LOSS, BATCH_LOSS)
    assert noise(monkeypatch, status=Status.DIVERGED)[0] is None
    assert noise(monkeypatch, batch=math.inf)[0] is None


@pytest.mark.parametrize(
    ("std", "whole", "wider"),
    # Below 1e-9 of the largest loss, which is 4, is rounding.
    [(1e-9, 3.9e-9, 1.0), (1e-9, 4.1e-9, 4.1), (0.0, 1.0, math.inf), (0.0, 0.0, 1.0)],
)
def test_rounding_is_no_wider(
    monkeypatch: pytest.MonkeyPatch, std: float, whole: float, wider: float
) -> None:
    found, _ = noise(monkeypatch, std=std, whole=whole)
    assert found is not None
    assert found.wider == pytest.approx(wider)


@pytest.mark.parametrize(
    ("steps", "size", "end"),
    # At most 300 steps, and 300 000 steps times weights.
    [(299, 3, 299), (301, 3, 300), (301, 1003, 299), (2, 1003, 2), (9, 10**6, 1)],
)
def test_noise_is_propagated_over_the_first_steps(
    monkeypatch: pytest.MonkeyPatch, steps: int, size: int, end: int
) -> None:
    found, asked = noise(monkeypatch, steps=steps, size=size)
    assert found is not None
    assert (found.step, asked["steps"], asked["times"]) == (end, (0, end), [0, end])


@pytest.mark.parametrize(("batch", "examples"), [(7, 32), (9, 36), (31, 124), (33, 128)])
def test_noise_is_that_of_four_batches_within_limits(
    monkeypatch: pytest.MonkeyPatch, batch: int, examples: int
) -> None:
    assert noise(monkeypatch, batch=batch)[1]["examples"] == examples


@pytest.mark.parametrize(
    ("adam", "size", "known"),
    [(True, 300, True), (True, 301, False), (False, 301, True), (False, 300, True)],
)
def test_averages_of_squares_are_measured_in_few_weights(
    monkeypatch: pytest.MonkeyPatch, adam: bool, size: int, known: bool
) -> None:
    rule = dynsim.adam(0.1) if adam else dynsim.sgd(0.1)
    assert (noise(monkeypatch, rule=rule, size=size)[0] is not None) == known


@pytest.mark.parametrize(
    ("b2", "variance"),
    [(0.99, 1.5), (0.99, 0.9), (0.999, 1.5), (0.9, 0.07), (0.9, 0.1001), (0.0, 0.2), (0.0, 0.05)],
)
def test_few_squares_are_counted_by_their_weights(
    monkeypatch: pytest.MonkeyPatch, b2: float, variance: float
) -> None:
    """The variance of an average is that of a square times the sum of its squared weights, which
    fall from 1 to (1 - b2) / (1 + b2); it is averaged over the steps so far."""
    monkeypatch.setattr(strain, "variance_of_squares", lambda *given: variance)
    found = strain.few_squares(Few(), dynsim.adam(0.1, b2=b2), KEY, 300, 4)

    total, last = 0.0, 0
    for k in range(1, 301):
        weights = b2 ** np.arange(k)
        total += variance * np.sum(weights**2) / np.sum(weights) ** 2
        last = k if total / k > 0.1 else last
    if not last:
        assert found == []
        return
    (sentence,) = found
    assert f"up to step {last} the average square of adam has varied by more than 32 % " in sentence
    assert sentence.endswith("expect errors above 5 %")
