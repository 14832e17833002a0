"""What `dynsim explain` calls strained, at both sides of every bound, and the numbers it tells."""

import math
from typing import Any

import numpy as np
import pytest

import dynsim
from odes import symmetric
from sweeps.commands.views.live import symmetric_noise
from sweeps.systems import layer

M = 15
"""Tokens of two classes of ten, of which five are common."""


def strained(overlap: float = 0.2, length: float = math.inf, **rule: Any) -> list[str]:
    task = dynsim.Overlapping(2, overlap).build()
    rates = dynsim.sgd(**{"eta_y": 0.1, "eta_z": 0.01, "momentum": 0.5} | rule)
    stages = layer.stages_of(task, rates)
    # Momentum is named whatever the sizes are.
    rows = layer.strained(length, task, rates, stages)
    return [row.strained for row in rows if row.quantity != "momentum"]


LIMIT = 0.1 * math.log(M)
"""Of a kick, the logit by which a step moves the class of one half of all examples."""


@pytest.mark.parametrize(
    ("within", "beyond", "words"),
    [
        ({"overlap": 0.299}, {"overlap": 0.301}, "is 0.30, above 0.3"),
        # The effective rate is twice the rate, and the prior a half.
        (
            {"eta_y": 0.999 * LIMIT},
            {"eta_y": 1.001 * LIMIT},
            f"by up to {LIMIT:.2g}, above 0.1 ln M = {LIMIT:.2g}; gamma peaks after",
        ),
        ({"eta_z": 0.05}, {"eta_z": 0.0501}, "eta_Y / eta_Z = 2, below 2"),
        ({"length": 101}, {"length": 100}, "T = 100 tokens sample 10 possible ones"),
    ],
)
def test_a_run_is_strained_beyond_each_bound(
    within: dict[str, float], beyond: dict[str, float], words: str
) -> None:
    assert strained(**within) == []
    (sentence,) = strained(**beyond)
    assert words in sentence


def test_attention_that_stands_still_is_no_reason() -> None:
    assert strained(eta_z=0.0) == []


def test_without_the_closed_form_overlap_and_length_are_looked_at() -> None:
    task = dynsim.Overlapping(2, 0.4).build()
    found = layer.strained(50, task, dynsim.adam(10.0, 10.0), None)
    assert [row.strained.split(" (")[0] for row in found] == ["weak overlap", "T -> infinity"]


STAGES = {"rise_end": 10.0, "peak": 15.0, "snap": 40.0}


@pytest.mark.parametrize(
    ("steps", "apart", "words"),
    [
        (10, 1.0, "scanning at the end"),
        (11, 1.0, "in transition at the end"),
        (39, 1.0, "in transition at the end"),
        (40, 0.05, "snapped"),
        (40, -0.05, "snapped"),
        (40, 0.049, "decoder learned, attention unmoved: its logits are 0.049 apart"),
    ],
)
def test_a_run_ends_in_one_of_four_regimes(steps: int, apart: float, words: str) -> None:
    final = {"z_top_distinct": apart, "z_top_common": 0.0}
    assert layer.regime(steps, STAGES, final) == words


def test_a_class_that_never_snaps_stays_in_transition() -> None:
    final = {"z_top_distinct": 1.0, "z_top_common": 0.0}
    assert layer.regime(99, STAGES | {"snap": math.nan}, final) == "in transition at the end"
    assert layer.regime(99, None, final) is None


@pytest.mark.parametrize(("K", "overlap"), [(2, 0.2), (5, 0.4), (3, 0.0)])
def test_noise_of_symmetric_classes_is_that_of_the_matrices(K: int, overlap: float) -> None:
    """An example of a class has the gradient f u^T; all of them written out."""
    task = dynsim.Overlapping(K, overlap).build()
    f = np.asarray(task.probs) / np.linalg.norm(task.probs, axis=1, keepdims=True)
    u = np.eye(task.M)[np.asarray(task.next_token)] - 1 / task.M
    each = f[:, :, None] * u[:, None]
    mean = each.mean(0)
    want = ((each - mean) ** 2).sum((1, 2)).mean() / (mean**2).sum() / 7
    found = symmetric_noise(symmetric.merged(symmetric.symmetric_task(task)), 7)
    # Probabilities of a table are float32.
    assert found == pytest.approx(want**0.5, rel=1e-5)
