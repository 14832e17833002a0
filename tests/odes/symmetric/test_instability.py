"""Ties between tokens of equal probability: against the noise and the slopes of the full layer."""

import jax
import numpy as np
import pytest
from scipy.special import softmax

import dynsim
from dynsim import schedules
from odes import symmetric
from odes.symmetric import tie

# Four classes, two to a query: two common tokens and two distinct ones of equal probability each.
SHARED = np.zeros((4, 10))
SHARED[:, :2] = 0.15
SHARED[np.arange(8) // 2, 2 + np.arange(8)] = 0.35
QUERY = np.array([0, 0, 1, 1])
PAIRS = symmetric.merged(symmetric.symmetric_task(dynsim.sequence_classes(SHARED, QUERY)))
MU, BATCH = 0.7, 16
FALLING = dynsim.sgd(schedules.linear(2.0, 8, 0.5), schedules.linear(9.0, 5, 0.1), momentum=MU)
RATES = [(2.0 * (1 - k / 16), 9.0 * (1 - 0.9 * k / 5)) for k in range(6)]


def pulls(Y, Z, counts):
    """Minus the gradients of runs (R, ...) of the layer whose classes have frequencies `counts`."""
    c = counts * np.exp(Z[:, QUERY])
    f = c / np.linalg.norm(c, axis=2, keepdims=True)
    residual = (np.eye(4, 10) - softmax(f @ Y, axis=2)) / 4
    g = residual @ Y.transpose(0, 2, 1)
    of_class = f * (g - f * (f * g).sum(2, keepdims=True))
    return f.transpose(0, 2, 1) @ residual, of_class.reshape(-1, 2, 2, 10).sum(2)


def test_several_queries_and_falling_rates_have_the_noise_of_the_counts_of_every_class():
    """Every token of every class occurs a little more often in one of the steps of the layer, in
    NumPy; frequencies scatter by one over the number of such tokens in a batch."""
    steps, length, small = 5, 1e9, 1e-4
    # Unit vectors that tell two tokens of a kind apart.
    distinct, common = apart = np.zeros((2, 2, 10))
    distinct[0, 2:4] = np.array([1, -1]) / np.sqrt(2)
    common[:, :2] = np.array([1, -1]) / 2
    places = [(k, n, i) for k in range(steps) for n in range(4) for i in np.flatnonzero(SHARED[n])]
    counts = np.tile(SHARED, (steps + 1, 2 * len(places), 1, 1))
    for run, (k, n, i) in enumerate(places):
        counts[k, 2 * run : 2 * run + 2, n, i] *= 1 + small * np.array([1, -1])
    variance = np.array([4 / (BATCH * length * SHARED[n, i]) for _, n, i in places])
    Y, Z, v_y, v_z = np.zeros((len(counts[0]), 10, 10)), np.zeros((len(counts[0]), 2, 10)), 0, 0
    stds, steep = [], []
    for now, (eta_y, eta_z) in zip(counts, RATES, strict=True):
        response = np.stack([np.tensordot(Z[::2] - Z[1::2], u, 2) for u in apart])
        stds.append(np.sqrt((response / 2 / small) ** 2 @ variance))
        # Run 0 is 1e-4 away from one with the counts of the population.
        ends = [pulls(Y[[0, 0]], Z[0] + small * np.stack([u, -u]), SHARED)[1] for u in apart]
        h = [np.vdot(down - up, u) / 2 / small for (up, down), u in zip(ends, apart, strict=True)]
        steep.append(eta_z * np.array(h) / (2 + 2 * MU))
        of_y, of_z = pulls(Y, Z, now)
        v_y, v_z = MU * v_y + of_y, MU * v_z + of_z
        Y, Z = Y + eta_y * v_y, Z + eta_z * v_z
    asked = {"steps": steps, "length": length, "path": "descent"}
    found = symmetric.instability(PAIRS, FALLING, batch=BATCH, **asked)
    # Differences miss by the square of 1e-4.
    np.testing.assert_allclose(np.exp(found), stds, rtol=1e-5, atol=1e-12)
    found = symmetric.overshoot(PAIRS, FALLING, **asked)
    # By how much run 0 is off.
    np.testing.assert_allclose(found, steep, rtol=1e-3, atol=1e-6)


def test_a_short_sequence_has_as_many_tokens_as_it_has_besides_the_query():
    asked = {"steps": 5, "length": 7}
    blocks = symmetric.descend(PAIRS, FALLING, times=range(6), record={"tie": tie}, **asked)["tie"]
    found = symmetric.instability(PAIRS, FALLING, batch=BATCH, path="descent", **asked)
    for kind, tokens in enumerate((6 * BATCH * 0.35 / 4, 6 * BATCH * 0.15 / 2)):
        # Rows of x and v begin with a kick in each of the steps.
        x, v = np.zeros((2, 5, 4))
        for (eta_y, eta_z), block, kick in zip(RATES, blocks[..., kind], np.eye(5), strict=False):
            H = np.zeros((4, 4))
            H[0], H[:, 0] = block, block
            v = MU * v + (x + kick[:, None] * np.eye(4)[0]) @ H
            x = x - np.array([eta_z, eta_y, eta_y, eta_y]) * v
        # Rounding.
        np.testing.assert_allclose(np.exp(2 * found[5, kind]), (x[:, 0] ** 2).sum() / tokens)


@pytest.mark.more
def test_flow_and_descent_agree_where_steps_are_small():
    task = symmetric.merged(symmetric.symmetric_task(dynsim.SynSmall().build()))
    run = lambda batch, **path: symmetric.instability(
        task, dynsim.sgd(0.1, 1.0), steps=60, batch=batch, length=128, **path
    )[30:]
    # The paths differ by the order of a step.
    np.testing.assert_allclose(run(128), run(128, path="descent"), atol=0.05)
    np.testing.assert_allclose(run(128) - run(512), np.log(2), rtol=1e-9)


def test_noise_vanishes_with_the_batch_and_breaks_ties():
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    rule = dynsim.sgd(1.0, 20.0, momentum=0.9)
    run = lambda **noise: symmetric.descend(
        task, rule, steps=20, length=128, times=[20], record=["z_common", "loss"], **noise
    )
    still, quiet, loud = run(), *(run(batch=B, key=jax.random.key(0)) for B in (1e12, 128))
    assert (still.source, quiet.source) == ("symmetric-descent-finite-t", "symmetric-noise")
    # Noise of 1e-6 in a logit of order one.
    np.testing.assert_allclose(quiet["loss"], still["loss"], rtol=1e-4)
    assert np.ptp(still["z_common"]) == 0 < np.ptp(quiet["z_common"]) < 1e-5
    assert np.ptp(loud["z_common"]) > 1e-3
