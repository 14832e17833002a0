"""Divergence is relative to a loss, which the start of a run may not have."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Status
from dynsim.problem.train import highest_loss

KEY = jax.random.key(0)


class Bowl(dynsim.Problem):
    """(w_0^2 + w_1^2 / 2) / 2, from `start` times (1, 2)."""

    start: float = 1.0

    def init(self, key: Any) -> Any:
        return self.start * jnp.array([1.0, 2.0])

    def population_loss(self, params: Any) -> Any:
        return (params[0] ** 2 + params[1] ** 2 / 2) / 2


def ended(problem: Any, rule: Any, steps: int, **options: Any) -> tuple[int, float]:
    options |= {"steps": steps, "times": [steps], "batch": float("inf")}
    run = dynsim.train(problem, rule, KEY, **options)
    return int(run.status), float(run["loss"][-1])


@pytest.mark.parametrize("start", [0.0, 1e-7])
@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (dynsim.sgd(0.1, noise=1.0), 60),
        (dynsim.sgd(1e-4, noise=1e-2), 400),
        (dynsim.sgd(dynsim.schedules.warmup_cosine(0.1, 20, 50), noise=1.0), 50),
        (dynsim.sgd(0.1, momentum=0.9, noise=1.0), 60),
    ],
)
@pytest.mark.more
def test_noise_around_a_minimum_is_no_divergence(rule: Any, steps: int, start: float) -> None:
    # The usual loss, 1.5, must not matter: the problem knows only its minimum.
    status, loss = ended(Bowl(start), rule, steps)
    assert status == Status.OK
    assert loss > 1e3 * Bowl(start).population_loss(start * np.array([1, 2]))


@pytest.mark.parametrize("rule", [dynsim.sgd(0.1, noise=1.0), dynsim.adam(0.01), dynsim.sgd(2.2)])
def test_a_warm_start_may_lose_its_advantage(rule: Any) -> None:
    # At rate 2.2 the loss grows by 1.44 in each step: 5e-15 * 1.44^50 is 4e-7.
    status, loss = ended(Bowl(), rule, 50, init=jnp.array([1e-7, 0.0]))
    assert (status, loss > 1e3 * 5e-15) == (Status.OK, True)


def test_what_grows_beyond_every_reference_diverged() -> None:
    # (1 - 2.2)^2 = 1.44: the loss of the steep direction is 1.44^k / 2 from the usual start, so
    # it passes a thousand times the loss 1.0 of that start at k = 21.
    assert ended(Bowl(), dynsim.sgd(2.2), 20) == (Status.OK, pytest.approx(1.44**20 / 2, rel=1e-3))
    assert ended(Bowl(), dynsim.sgd(2.2), 22)[0] == Status.DIVERGED
    warm = {"init": jnp.array([1e-3, 0.0])}
    # From a loss of 5e-7, the same limit is passed 38 steps later.
    assert ended(Bowl(), dynsim.sgd(2.2), 58, **warm)[0] == Status.OK
    assert ended(Bowl(), dynsim.sgd(2.2), 61, **warm)[0] == Status.DIVERGED
    assert ended(Bowl(0.0), dynsim.sgd(2.2, noise=1.0), 100)[0] == Status.DIVERGED


def test_the_start_is_the_reference_unless_its_multiple_is_below_another_loss() -> None:
    def limit(*losses: float) -> float:
        return float(highest_loss(*map(jnp.float32, losses)))

    assert limit(2.0) == limit(2.0, 1999.0) == 2000
    assert limit(2.0, 2001.0, 5.0) == pytest.approx(2001e3)
    assert limit(2.0, np.inf) == limit(2.0, np.nan) == 2000
    assert limit(0.0, 0.0) == np.finfo(np.float32).max
    assert np.isnan(limit(np.nan))
