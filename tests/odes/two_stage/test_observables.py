"""What is recorded of the seven numbers, and the noise of single prompts: on grids in NumPy."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy.special import erf, ndtr

from dynsim import Prompts
from odes.two_stage import field, thresholds
from odes.two_stage.loss import ReducedState, losses
from tests.systems.two_stage import DENSITY, NORMAL, RULE, folded, on_grids

pytestmark = pytest.mark.usefixtures("x64")

TASK = Prompts(12, 33, r=2.0, gamma0=0.8, s1=1.1, s2=0.9, coupling=0.3)
STATE = np.array([0.3, 0.6, 0.03, 0.02, 0.04, 0.015, 0.01])
P, POS, NEG = on_grids(TASK, STATE)
KAPPA = 1 - 1 / 33


@jax.jit
def recorded(state: ReducedState) -> tuple[dict[str, jax.Array], tuple[jax.Array, ...]]:
    """All observables, and the mean squares of losses."""
    model = field.checked_model(TASK, True, RULE)
    found = losses(state, TASK, **model.numerics)
    snapshot = field.Snapshot(state, TASK, found, model)
    squares = losses(state, TASK, power=2, **model.numerics)
    return {name: of(snapshot) for name, of in field.OBSERVABLES.items()}, squares


def test_observables_are_those_of_the_equations() -> None:
    found, squares = recorded(ReducedState(*STATE))
    K1, pos, neg = (each.mean_of(np.logaddexp) for each in (P, POS, NEG))
    J = 0.0
    for q in (POS, NEG):
        # Half of the tokens of the context are of the class of Q's signal.
        of_Q = (folded(0 * q.m, q.s) + folded(q.m, q.s)) / 2
        covariance = KAPPA / 33 * folded(P.m, P.s)[..., None] * of_Q / 4
        variance = P.variance[..., None] + q.variance + 2 * covariance
        for f, share in zip(NORMAL[::2], DENSITY[::2] / DENSITY[::2].sum(), strict=True):
            score = P.mean[..., None] + q.mean + np.sqrt(variance) * f
            J += share * np.einsum("gh,e,ghe->", P.weight, q.weight, np.logaddexp(0, -score)) / 2
    gap = POS.mean[:, None] + NEG.mean
    auc = DENSITY @ ndtr(gap / np.sqrt(POS.variance[:, None] + NEG.variance)) @ DENSITY
    a, b, h, W, e, u, M = STATE
    rest_W, rest_V = 11 * h + 12 * 11 * W, 11 * e + 11 * u + 121 * M
    want = {
        "K1": K1,
        "K2": (pos + neg) / 2,
        "K2_pos": pos,
        "K2_neg": neg,
        "J": J,
        "loss": 0.7 * (K1 + (pos + neg) / 2) + 0.3 * J,
        "auc_Q": auc,
        "W_norm": np.sqrt(a**2 + rest_W),
        "V_norm": np.sqrt(b**2 + rest_V),
        "W_trace": a,
        "V_trace": b,
        "V_trace_abs": b,
        "V_rms": np.sqrt(rest_V / 143),
        "state": STATE,
    }
    assert found.keys() == want.keys()
    for name, value in want.items():
        # The grid of |g| errs by 2e-4 of what moves.
        np.testing.assert_allclose(found[name], value, rtol=2e-4, err_msg=name)
    # What the outputs share counts.
    assert abs(J / (K1 + (pos + neg) / 2) - 1) > 0.05
    of_squares = [each.mean_of(lambda *x: np.logaddexp(*x) ** 2) for each in (P, POS, NEG)]
    got = squares.K1, squares.K2_pos, squares.K2_neg
    np.testing.assert_allclose(got, of_squares, rtol=5e-4)


def test_the_variance_of_the_gradient_is_that_of_the_equations() -> None:
    """Margins and their slopes are jointly normal; slopes of mean and deviation by differences."""
    task = dataclasses.replace(TASK, coupling=0.0)
    pbar = 0.8 + 1.1 * np.sqrt(2 / np.pi)
    p2 = 0.8**2 + 2 * 0.8 * 1.1 * np.sqrt(2 / np.pi) + 1.1**2
    p = (0.8 + 1.1 * np.linspace(0, 6, 81))[:, None]
    of_a = KAPPA / 33 * p**2 * (p2 / 2 - pbar**2 / 4)
    of_b = KAPPA / 33 * 2.0**4 * (1 / 4 - erf(NEG.m / NEG.s / 2**0.5) ** 2 / 16)
    want = []
    for place, output, variance, share in ((0, 0, of_a, 1.0), (1, 2, of_b, 0.5)):
        step = 1e-5 * np.eye(7)[place]
        up, down = (on_grids(TASK, STATE + sign * step)[output] for sign in (1, -1))
        now = on_grids(TASK, STATE)[output]
        by_mean = (up.mean - down.mean)[..., None] / 2e-5
        by_std = (np.sqrt(up.variance) - np.sqrt(down.variance))[..., None] / 2e-5
        margin = now.mean[..., None] + np.sqrt(now.variance)[..., None] * NORMAL
        gate, along = 1 / (1 + np.exp(margin)), by_mean + by_std * NORMAL
        square = gate**2 * (along**2 + variance[..., None] - by_std**2)
        # Of the share of queries that have a gradient.
        mean = share * np.sum(now.weight * ((gate * along) @ DENSITY))
        want.append(share * np.sum(now.weight * (square @ DENSITY)) - mean**2)
    found = thresholds.gradient_variance(ReducedState(*STATE), task, rule=RULE)
    # Trapezoids over |g| have an error of the square of their width, 0.1 % of p^2 here.
    np.testing.assert_allclose(found, want, rtol=2e-3)
