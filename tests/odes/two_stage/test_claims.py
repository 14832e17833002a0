"""Verdicts on the claims of the two stages, on made-up numbers."""

import jax
import numpy as np
import pytest

from dynsim import Prompts
from dynsim.two_stage.model import PQ, logistic, outputs
from dynsim.two_stage.observables import RankCurves
from dynsim.two_stage.task import sample_prompts
from odes.two_stage import claims
from odes.two_stage.loss import JENSEN_FLOOR

GOOD = {
    "W_signal_norm": [[0.0, 2.0, 2.2]],
    "V_signal_norm": [[0.0, 0.2, 2.5]],
    "K2_signal": [[0.693, 0.692, 0.5]],
    "K1": [[0.3, 0.09, 0.05]],
    "K2": [[0.72, 0.72, 0.51]],
    "auc_Q": [[0.5, 0.5, 1.0]],
    "accuracy_Q": [[0.5, 0.5, 0.75]],
    "accuracy_P": [[0.5, 0.996, 1.0]],
    "best_accuracy_Q": [[0.51, 0.51, 0.999]],
    "W_trace": [[0.0, 1.95, 2.2]],
    "V_trace_abs": [[0.0, 0.1, 2.4]],
    "eta_time": [[0.0, 10.0, 130.0]],
}
"""A run with three records, the second at the end of the first stage."""
THEORY = {"W_trace": [0.0, 1.95, 2.2], "K2": [0.72, 0.72, 0.515]}


def failing(**changes):
    return {c.name for c in claims.stages(GOOD | changes, 1, THEORY) if not c.holds}


def test_verdicts_follow_the_numbers():
    assert not failing()
    assert all(c.holds for c in claims.traces(GOOD, 1))
    for name, values, claim in (
        ("V_signal_norm", [0.0, 0.5, 2.6], "a.1"),
        ("auc_Q", [0.5, 0.6, 1.0], "a.2"),
        ("W_trace", [0.0, 1.5, 1.6], "b.1"),
        ("K1", [0.9, 0.13, 0.05], "b.2"),
        ("V_signal_norm", [0.0, 0.2, 0.9], "c.1"),
        ("K2", [0.72, 0.72, JENSEN_FLOOR - 0.01], "c.2"),
        ("K1", [0.9, 0.05, 0.07], "d.1"),
    ):
        assert claim in failing(**{name: [values]}), name
    within = [claims.Claim("a", "", x, 0.2, 0.5).holds for x in (0.2, 0.5, 0.19, 0.51, np.nan)]
    assert within == [True, True, False, False, False]
    late = {"V_trace_abs": [[0.0, 0.1, 2.4], [0.0, 0.1, 2.0]], "W_trace": [[0.0, 2.0, 2.2]] * 2}
    assert claims.traces(late, 1)[3].measured == 0.5


def test_each_number_is_in_its_own_claim():
    """Means of two runs."""
    first_end = {
        "W_signal_norm": (2.0, 3.0),
        "V_signal_norm": (0.5, 2.0),
        "K2_signal": (0.7, 0.5),
        "K1": (0.25, 0.125),
        "K2": (0.75, 0.625),
        "auc_Q": (0.5, 0.875),
        "accuracy_Q": (0.53, 0.75),
        "accuracy_P": (0.9, 0.95),
        "best_accuracy_Q": (0.5, 0.8),
        "W_trace": (1.5, 2.0),
        "V_trace_abs": (0.5, 2.25),
    }
    apart = np.array([[0, -0.01, -0.01], [0, 0.01, 0.01]])
    runs = {name: np.array([1.0, *means]) + apart for name, means in first_end.items()}
    runs["eta_time"] = np.array(2 * GOOD["eta_time"])
    theory = {"W_trace": [0, 1.2, 9], "K2": [9, 9, 0.6]}
    wanted = [
        *(0.25, 0.7, 0.75 - np.log(2), 0.5, 0.53, 1.25, 0.25, 0.9, 4, 0.025),
        *(0.615 - JENSEN_FLOOR, 0.875, 0.8, -0.125, 0.95, 1 / 3),
    ]
    found = claims.stages(runs, 1, theory)
    assert [claim.measured for claim in found[:-1]] == pytest.approx(wanted)
    measured = [claim.measured for claim in claims.traces(runs, 1)]
    assert measured == pytest.approx([1, 1, -0.25, 1])
    auc, K1 = claims.large_rate_alone(runs)
    assert (auc.measured, K1.measured) == pytest.approx((0.875, 0.125))
    assert (auc.low, auc.high, K1.low, K1.high) == (0.45, 0.57, 0, 0.12)
    runs["K1"] = np.array([[1.0, 0.6, 0.1], [1.0, 0.1, 0.1]])
    runs["K2"] = np.array([[0.7, 0.65, 0.5], [0.7, 0.65, 0.55]])
    # Linear in time.
    of_P = [10 + 120 * 0.4 / 0.5, 10 * 0.8 / 0.9]
    of_Q = [10 + 120 * 0.05 / 0.15, 10 + 120 * 0.05 / 0.1]
    np.testing.assert_allclose(claims.learning_times(runs, "P"), of_P)
    gap = claims.stages(runs, 1, theory)[-1].measured
    assert gap == pytest.approx(np.median(of_Q) / np.median(of_P))


def test_spectral_claims_are_about_the_largest_directions():
    """Curves of four runs, others at each end."""
    rng = np.random.default_rng(0)

    def curves(top):
        kept, dropped = ({n: rng.uniform(size=3) for n in ("K1", "K2", "auc_Q")} for _ in range(2))
        return RankCurves(rng.uniform(size=2), np.array([top, 1 - top]), kept, dropped)

    first, last = ([curves(top) for top in tops] for tops in ((0, 0, 1, 0), (1, 0, 1, 1)))
    medians = [
        [c.dropped["K2"][1] for c in last],
        [c.dropped["auc_Q"][1] for c in last],
        [c.dropped["K1"][1] - c.dropped["K1"][0] for c in last],
        *([c.kept[n][k] for c in last] for k in (1, 2) for n in ("K1", "auc_Q")),
    ]
    wanted = [3 / 4, np.median([c.dropped["K1"][1] for c in first]), 3 / 4]
    wanted += [np.median(each) for each in medians]
    found = claims.directions(first, last)
    assert [claim.measured for claim in found] == pytest.approx(wanted)


@pytest.mark.parametrize("learned", [True, False])
def test_spectral_claims_hold_where_p_is_learned_first_and_q_after_it(learned):
    """K1 is at chance without W's direction and K2 without V's, or neither."""
    chance, none, auc = (np.log(2), 0.0, 1.0) if learned else (0.0, 0.3, 0.5)
    kept = {"K1": [np.log(2), chance, 0.1 + none], "auc_Q": [0.5, auc, auc]}
    dropped = {"K1": [chance, chance + none], "K2": [0, chance], "auc_Q": [0, 1.5 - auc]}
    curves = lambda top: [RankCurves(np.ones(2), np.array([top, 1 - top]), kept, dropped)] * 2
    found = claims.directions(curves(1 - learned), curves(int(learned)))
    assert [claim.holds for claim in found] == [learned] * 10


@pytest.mark.more
def test_truncations_are_those_of_the_signal_of_each_run_at_its_time():
    task, weights = Prompts(3, 5), np.random.default_rng(0).normal(size=(2, 2, 3, 3, 3))
    runs = {"W_signal": weights[0], "V_signal": weights[1]}
    for run, curves in enumerate(claims.truncations(task, runs, 2)):
        W, V = weights[:, run, 2]
        both = np.concatenate([np.linalg.svd(x, compute_uv=False) for x in (W, V)])
        np.testing.assert_allclose(curves.singular, np.sort(both)[::-1], rtol=1e-5)
        batch = sample_prompts(task, jax.random.key(run), 2048)
        all_directions = logistic(batch.labels[:, -1] * outputs(PQ(W, V), batch).P).mean()
        assert curves.kept["K1"][-1] == pytest.approx(float(all_directions), rel=1e-5)
