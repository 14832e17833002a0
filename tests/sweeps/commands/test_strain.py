"""What `dynsim explain` says of the noise of batches, at both sides of its bounds."""

import math
from typing import Any

import pytest

from sweeps.commands.strain import Noise


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
