"""The study of finite lengths and batches: its arithmetic, and what it asks for and keeps."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import expit

from dynsim import Prompts
from dynsim.precision import precision
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ
from dynsim.two_stage.task import sample_prompts
from odes.two_stage.loss import ReducedState, losses
from sweeps.studies.two_stage import finite
from sweeps.studies.two_stage.finite import Remainder, TwoStageFinite
from sweeps.systems.experiment import experiment

LENGTHS = (9, 33)


@pytest.mark.parametrize("loss", ["K1", "K2"])
@pytest.mark.more
def test_remainders_are_means_of_losses_of_drawn_contexts(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without terms of mean zero, up to the sampling error of these; and with them, of the contexts
    that were drawn, to rounding."""
    samples, d, drawn = 4_000, 5, []
    monkeypatch.setattr(finite, "LENGTHS", LENGTHS)

    def noted(*given: Any) -> np.ndarray:
        drawn.append(contexts(*given))
        return drawn[-1]

    contexts = finite.contexts
    monkeypatch.setattr(finite, "contexts", noted)
    task = Prompts(d, 7, gamma0=0.8, s1=0.6, r=1.4, s2=0.7)
    U = finite.weights(ReducedState(2.0, 1.5, *np.full(5, 0.3)), d, np.random.default_rng(0))
    found = finite.remainders(task, U, loss, samples, np.random.default_rng(1))
    outputs = np.concatenate(drawn).reshape(len(LENGTHS), samples)
    query = sample_prompts(dataclasses.replace(task, length=2), jax.random.key(0), samples)
    on_P = loss == "K1"
    x, matrix = (query.P, U.W) if on_P else (query.Q, U.V)
    y = np.asarray(query.labels[:, -1], float)
    score = np.asarray(x[:, -1], float) @ np.asarray(matrix).T
    across = (0.6 if on_P else 0.7) * np.linalg.norm(score[:, 1:], axis=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    W, V = (np.asarray(each, float) for each in (U.W, U.V))
    blocks = W[0, 1:], W[1:], V[0, 1:], V[1:, 0], V[1:, 1:]
    state = ReducedState(W[0, 0], V[0, 0], *((block**2).mean() for block in blocks))
    for place, length in enumerate(LENGTHS):
        here = dataclasses.replace(task, length=length)
        mean, sd = finite.moments(here, score[:, 0], across, on_P)
        shift = outputs[place] - mean
        true, infinite = (np.logaddexp(0, -y * each) for each in (outputs[place], mean))
        each = np.logaddexp(0, -y[:, None] * (mean[:, None] + sd[:, None] * nodes))
        gaussian = each @ weights / weights.sum()
        # The loss to second order in the output, about its mean, less the mean of that.
        slope, curvature = -y * expit(-y * mean), expit(mean) * expit(-mean)
        terms = slope * shift + curvature * (shift**2 - sd**2) / 2
        exact = (true - terms).mean()
        got = np.array([each[place] for each in found])
        # float32 queries.
        want = infinite.mean() / exact - 1, gaussian.mean() / exact - 1
        np.testing.assert_allclose(got[:2], want, rtol=1e-4, atol=1e-7)
        error = (gaussian - true + terms).std() / samples**0.5 / exact
        np.testing.assert_allclose(got[3], error, rtol=1e-4)
        with precision("float64"):
            known = [
                float(getattr(losses(state, here, finite_length=each), loss))
                for each in (True, False)
            ]
        np.testing.assert_allclose(got[2], want[0] + (known[0] - known[1]) / exact, rtol=1e-3)
        # Four standard errors of the terms, whose mean is zero.
        assert abs(terms.mean()) < 4 * terms.std() / samples**0.5
        assert error < 0.3 * true.std() / samples**0.5 / exact


def test_the_study_asks_along_the_reduced_ode_and_keeps_what_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = experiment("two_stage", d=4, length=7, batch=8, decay=0.2, stage_2=0.5)
    stages = Annealing.of(run.rule.build())
    states = np.arange(1.0, 22).reshape(3, 7)
    asked: list[Any] = []

    def solve(task: Any, rule: Any, times: np.ndarray, record: str) -> dict[str, np.ndarray]:
        asked.append((times.tolist(), record))
        return {"state": states}

    def remainders(task: Any, U: Any, loss: str, samples: int, rng: Any) -> Remainder:
        asked.append((loss, samples, rng.random()))
        return Remainder(*np.full((4, 5), float(U.W[0, 0])))

    monkeypatch.setattr(finite, "experiment", lambda name: run)
    monkeypatch.setattr(finite.two_stage, "solve", solve)
    monkeypatch.setattr(finite, "weights", lambda state, d, rng: PQ(state.a * np.eye(d), np.eye(d)))
    monkeypatch.setattr(finite, "remainders", remainders)
    monkeypatch.setattr(finite, "variance", lambda task, U, n: n * U.W[0, 0] * np.arange(1, 8.0))
    monkeypatch.setattr(finite, "projected", lambda U: U)
    monkeypatch.setattr(finite, "gradient_variance", lambda U, task: U.W[0, 0] * np.array([3, 4.0]))
    monkeypatch.setattr(finite, "draw", lambda found: Figure())
    monkeypatch.setattr(finite.output, "write", lambda out, name, **kept: kept)
    kept: Any = finite.run(TwoStageFinite(samples=50, prompts=10))
    ends = [0, float(stages.first), float(stages.last)]
    draws = np.random.default_rng(0).random(4)
    losses = ("K1", "K2", "K1", "K2")
    pairs = [(n, 50, r) for n, r in zip(losses, draws, strict=True)]
    assert asked == [(ends, "state"), *pairs]
    report = kept["report"]
    assert {name: each["infinite"][0] for name, each in report.items()} == {
        f"{loss}, end of stage {stage}": a
        for stage, a in ((1, 8), (2, 15))
        for loss in ("K1", "K2")
    }
    want = 10 * np.array([[1], [8], [15]]) * np.arange(1, 8)
    np.testing.assert_array_equal(kept["arrays"]["variance"], want)
    closed = np.array([[1], [8], [15]]) * np.array([3, 4])
    np.testing.assert_array_equal(kept["arrays"]["closed_form"], closed)
    # In percent of the noise that is added: batch times its variance.
    scale = 8 * float(stages.noise) ** 2
    rows = capsys.readouterr().out.splitlines()
    assert f"{10:.3g} ; {100 * 10 / scale:.2g} %" in next(row for row in rows if row[:2] == "a ")
