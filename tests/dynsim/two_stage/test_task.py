"""Prompts, normalised-ReLU attention and what is measured on them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Annealed, Prompts
from dynsim.two_stage import model as relu_prompt
from dynsim.two_stage import observables as prompt_observables
from dynsim.two_stage.model import PQ, Split, attend
from dynsim.two_stage.observables import rank_curves
from dynsim.two_stage.task import PromptBatch, sample_prompts

sample = jax.jit(sample_prompts, static_argnums=(2, 3))


def numpy_outputs(U, x, labels):
    """N_U by loops over prompts and tokens."""
    found = np.zeros(len(x))
    for n, (tokens, y) in enumerate(zip(x, labels, strict=True)):
        for token, label in zip(tokens[:-1], y[:-1], strict=True):
            found[n] += label * max(token @ U @ tokens[-1], 0) / len(tokens)
    return found


@pytest.mark.usefixtures("x64")
def test_tokens_have_the_moments_of_their_law() -> None:
    task = Prompts(4, 50, gamma0=0.7, s1=1.3, s2=0.6, r=1.7)
    batch = sample(task, jax.random.key(0), 8000, "float64")
    y = np.asarray(batch.labels).ravel()
    P, Q = (np.asarray(x).reshape(-1, 4) for x in (batch.P, batch.Q))
    assert set(y) == {-1, 1}
    margin = P[:, 0] * y
    half = math.sqrt(2 / math.pi)
    assert margin.min() >= 0.7
    # Five standard errors here and below.
    for values, want in (
        (y, 0),
        (margin, 0.7 + 1.3 * half),
        (margin**2, 0.49 + 2 * 0.7 * 1.3 * half + 1.69),
    ):
        assert values.mean() == pytest.approx(want, abs=5 * values.std() / y.size**0.5)
    assert float(task.mean_margin) == pytest.approx(0.7 + 1.3 * half)
    assert float(task.mean_square_margin) == pytest.approx(0.49 + 1.82 * half + 1.69)
    few = 5 * (2 / y.size) ** 0.5
    np.testing.assert_allclose(np.cov(P[:, 1:].T) / 1.69, np.eye(3), atol=few)
    np.testing.assert_allclose(np.cov(Q[:, 1:].T) / 0.36, np.eye(3), atol=few)
    np.testing.assert_array_equal(Q[y > 0, 0], 0)
    sides, counts = np.unique(Q[y < 0, 0], return_counts=True)
    np.testing.assert_allclose(sides, [-1.7, 1.7])
    assert counts[0] / counts.sum() == pytest.approx(0.5, abs=2.5 / counts.sum() ** 0.5)


def test_the_fixed_core_is_one_vector() -> None:
    batch = sample(Prompts(5, 4, s2=1.5, core="fixed"), jax.random.key(1), 6)
    core = np.asarray(batch.Q)[..., 1:].reshape(-1, 4)
    np.testing.assert_allclose(core, np.tile([3.0, 0, 0, 0], (24, 1)))


@pytest.mark.usefixtures("x64")
def test_outputs_and_loss_are_those_of_numpy() -> None:
    task = Prompts(3, 6, r=1.2, coupling=0.3)
    batch = sample(task, jax.random.key(2), 5, "float64")
    rng = np.random.default_rng(0)
    W, V, gates = rng.normal(size=(3, 3, 3))
    params = PQ(jnp.asarray(W), jnp.asarray(V), jnp.asarray(0.4))
    P, Q, labels = (np.asarray(x) for x in batch)

    n_w, n_v = numpy_outputs(W, P, labels), numpy_outputs(V, Q, labels) + 0.4
    k1, k2, j = (np.log1p(np.exp(-labels[:, -1] * n)) for n in (n_w, n_v, n_w + n_v))
    loss = np.mean(0.7 * (k1 + k2) + 0.3 * j)
    found = jax.jit(relu_prompt.outputs)(params, batch)
    np.testing.assert_allclose(found.P, n_w, rtol=1e-12)
    np.testing.assert_allclose(found.Q, n_v, rtol=1e-12)
    value = jax.jit(relu_prompt.data_loss)(params, 0.3, batch)
    assert float(value) == pytest.approx(loss, rel=1e-12)
    gated = jax.jit(relu_prompt.attend)(V, batch.Q, batch.labels, gates=gates)
    want = [
        sum(y[i] * (x[i] @ V @ x[-1]) * (x[i] @ gates @ x[-1] > 0) for i in range(5)) / 6
        for x, y in zip(Q, labels, strict=True)
    ]
    np.testing.assert_allclose(gated, want, rtol=1e-12)
    # A gate at zero is closed.
    assert not jax.jit(relu_prompt.attend)(V, batch.Q, batch.labels, gates=0 * gates).any()


@pytest.mark.parametrize("distinct", [1, 3, 1000])
def test_separation_against_all_pairs_and_all_thresholds(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    scores = rng.integers(0, distinct, 60) / 7
    positive = rng.random(60) < 0.4
    pairs = scores[positive][:, None] - scores[~positive][None]
    area = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    best = max(
        ((scores[positive] > t).mean() + (scores[~positive] <= t).mean()) / 2
        for t in [-np.inf, *scores]
    )
    found = jax.jit(prompt_observables.separation)(scores, positive)
    np.testing.assert_allclose(found, (area, best), rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_observables_against_numpy() -> None:
    rng = np.random.default_rng(1)
    signal, noise = (PQ(*map(jnp.asarray, rng.normal(size=(2, 3, 3)))) for _ in range(2))
    batch = sample(Prompts(3, 9), jax.random.key(4), 40, "float64")

    @jax.jit
    def observed(weights: Split, batch: PromptBatch) -> dict[str, jax.Array]:
        s = prompt_observables.measure(weights, batch)
        return {n: f(s) for n, f in prompt_observables.OBSERVABLES.items()}

    found = observed(Split(signal, noise), batch)
    W, V = (np.asarray(getattr(signal, n) + getattr(noise, n)) for n in "WV")
    y = np.asarray(batch.labels)[:, -1]
    n_w = numpy_outputs(W, np.asarray(batch.P), np.asarray(batch.labels))
    n_v = numpy_outputs(V, np.asarray(batch.Q), np.asarray(batch.labels))
    s_w = numpy_outputs(np.asarray(signal.W), np.asarray(batch.P), np.asarray(batch.labels))
    s_v = numpy_outputs(np.asarray(signal.V), np.asarray(batch.Q), np.asarray(batch.labels))
    gated = [
        sum(
            z * (x @ signal.V @ Q[-1]) * (x @ V @ Q[-1] > 0)
            for x, z in zip(Q[:-1], labels[:-1], strict=True)
        )
        / 9
        for Q, labels in zip(np.asarray(batch.Q), np.asarray(batch.labels), strict=True)
    ]
    loss = lambda margin: np.log1p(np.exp(-margin))
    pairs = lambda scores: (scores[y > 0][:, None] > scores[y < 0]).mean()
    ends = lambda scores, t: ((scores[y > 0] > t).mean() + (scores[y < 0] <= t).mean()) / 2
    want = {
        "K1": loss(y * n_w).mean(),
        "K1_signal": loss(y * s_w).mean(),
        "K2": loss(y * n_v).mean(),
        "K2_signal": loss(y * s_v).mean(),
        "K2_gated": loss(y * gated).mean(),
        "K2_pos": loss(n_v[y > 0]).mean(),
        "K2_neg": loss(-n_v[y < 0]).mean(),
        "J": loss(y * (n_w + n_v)).mean(),
        "accuracy_P": (y * n_w > 0).mean(),
        "accuracy_Q": (y * n_v > 0).mean(),
        "best_accuracy_Q": max(ends(n_v, t) for t in n_v),
        "auc_Q": pairs(n_v),
        "auc_Q_signal": pairs(s_v),
        "V_trace_abs": abs(np.trace(signal.V)),
        "state": [
            W[0, 0],
            V[0, 0],
            (W[0, 1:] ** 2).mean(),
            (W[1:] ** 2).mean(),
            (V[0, 1:] ** 2).mean(),
            (V[1:, 0] ** 2).mean(),
            (V[1:, 1:] ** 2).mean(),
        ],
    }
    for n, U, moved, still in (("W", W, signal.W, noise.W), ("V", V, signal.V, noise.V)):
        norms = {"norm": U, "signal_norm": moved, "noise_norm": still}
        want |= {f"{n}_{name}": np.linalg.norm(part) for name, part in norms.items()}
        want |= {f"{n}_trace": np.trace(moved), f"{n}_signal": moved}
        want[f"{n}_singular"] = np.linalg.svd(moved, compute_uv=False)
    assert {*found} == {*want}
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, err_msg=name)


def test_a_run_is_summed_up_by_the_steps_at_which_it_learns() -> None:
    """K1 falls below 0.2 halfway from step 10 to step 50, K2 below 0.6 never."""
    times = np.array([0.0, 10, 50])
    recorded = {"K1": np.array([0.7, 0.3, 0.1]), "K2": np.array([0.7, 0.6, 0.6])}
    found = dynsim.Prompts().summary(times, recorded)
    steps = {"P is learned at step": 30.0, "Q is learned at step": math.inf}
    assert found == pytest.approx(steps)


def test_records_are_spread_evenly_in_eta_time() -> None:
    """A third of them over the first stage, of 10 units, and the rest over the second, of 60."""
    optimizer = Annealed(0.5, 0.1, decay=0.025, stage_2=1.5)
    times = optimizer.stages.spread(9)
    np.testing.assert_allclose(times, [0, 20 / 3, 40 / 3, 20, 140, 260, 380, 500, 620], rtol=1e-6)
    want = [0, 10 / 3, 20 / 3, 10, 22, 34, 46, 58, 70]
    np.testing.assert_allclose(optimizer.build().eta_time(times), want, rtol=1e-6)
    np.testing.assert_allclose(optimizer.stages.flow_time(times), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("num", "times"),
    [
        # If there is no room, the end of the run goes first, and then the end of the first stage.
        (1, [620]),
        (2, [20, 620]),
        (3, [0, 20, 620]),
        (4, [0, 20, 320, 620]),
        (6, [0, 10, 20, 220, 420, 620]),
    ],
)
def test_few_records_have_the_ends_of_the_stages(num: int, times: list[int]) -> None:
    stages = Annealed(0.5, 0.1, decay=0.025, stage_2=1.5).stages
    np.testing.assert_allclose(stages.spread(num), times, rtol=1e-6)
    assert stages.times(num).tolist() == times
    np.testing.assert_array_equal(stages.times(), stages.times(128))


def test_first_time_below_a_level() -> None:
    times = np.array([0.0, 1.0, 3.0, 4.0])
    values = np.array([[2.0, 1.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0], [0.0, 5.0, 5.0, 5.0]])
    found = prompt_observables.first_below(times, values, 0.5)
    np.testing.assert_allclose(found, [2.0, np.inf, 0.0])
    np.testing.assert_allclose(prompt_observables.first_below(times, values[0], 0.5), 2.0)
    # A curve that touches the level is not below it.
    touches = np.array([2.0, 1.0, 2.0, 0.0])
    np.testing.assert_allclose(prompt_observables.first_below(times, touches, 1.0), 3.5)
    # Between any two records, at numbers that are neither 0 nor 1.
    times, curve = np.array([0.5, 2.5, 3.2]), np.array([3.0, 0.4, 0.1])
    want = [0.5 + 2.0 * 2.5 / 2.6, 2.5 + 0.7 * 0.2 / 0.3]
    for level, time in zip((0.5, 0.2), want, strict=True):
        np.testing.assert_allclose(prompt_observables.first_below(times, curve, level), time)


@pytest.mark.usefixtures("x64")
def test_directions_are_kept_and_dropped_in_the_order_of_their_singular_values() -> None:
    """W = diag(3, 1), V = diag(2, 0.5) in turned bases: the order is W, V, W, V."""
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(2, 2)))[0] for _ in range(4)]
    parts = {
        "W": [s * np.outer(bases[0][:, i], bases[1][:, i]) for i, s in enumerate((3.0, 1.0))],
        "V": [s * np.outer(bases[2][:, i], bases[3][:, i]) for i, s in enumerate((2.0, 0.5))],
    }
    weights = PQ(jnp.asarray(sum(parts["W"])), jnp.asarray(sum(parts["V"])))
    sample = jax.jit(lambda key: sample_prompts(Prompts(2, 7), key, 50, "float64"))
    batch, attended = sample(jax.random.key(0)), jax.jit(attend)
    found = rank_curves(weights, batch, ("K1", "K2"))
    np.testing.assert_allclose(found.singular, [3, 2, 1, 0.5], rtol=1e-12)
    np.testing.assert_array_equal(found.block, [0, 1, 0, 1])
    y = np.asarray(batch.labels)[:, -1]

    def loss(name: str, kept: list[int]) -> float:
        U = sum((parts[name][i] for i in kept), np.zeros((2, 2)))
        x = batch.P if name == "W" else batch.Q
        return np.log1p(np.exp(-y * np.asarray(attended(U, x, batch.labels)))).mean()

    kept_W, kept_V = [[], [0], [0], [0, 1], [0, 1]], [[], [], [0], [0], [0, 1]]
    left_W, left_V = [[0, 1], [1], [1], [], []], [[0, 1], [0, 1], [1], [1], []]
    for k in range(5):
        assert found.kept["K1"][k] == pytest.approx(loss("W", kept_W[k]), rel=1e-10)
        assert found.kept["K2"][k] == pytest.approx(loss("V", kept_V[k]), rel=1e-10)
        assert found.dropped["K1"][k] == pytest.approx(loss("W", left_W[k]), rel=1e-10)
        assert found.dropped["K2"][k] == pytest.approx(loss("V", left_V[k]), rel=1e-10)
