"""Retrieval: the reduction against descent on all weights, the plateau, what is printed."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import solve_ivp

import dynsim
import odes
from dynsim import Status
from dynsim.problem.base import narrowed
from dynsim.sparse_attention import Scored
from odes import sparse_attention

pytestmark = pytest.mark.usefixtures("x64")
# A statistical test fails by chance with this probability; with fixed keys for ever, or never.
P_VALUE = 1e-6
THEORIES = odes.hierarchy.of_class(dynsim.Retrieval)
SMALL = dynsim.Retrieval(12, 5, 3, 0.2)
TIMES = [0, 10, 40, 120, 300]
KEY = jax.random.key(0)


def falls(times: np.ndarray, loss: np.ndarray) -> float:
    """When a loss is at 0.8 of its start."""
    at = int(np.argmax(loss < 0.4))
    return float(np.interp(-0.4, -loss[at - 1 : at + 1], times[at - 1 : at + 1]))


@pytest.mark.full("test_a_step_has_the_law_of_its_tokens")
def test_the_population_loss_is_the_mean_over_sequences() -> None:
    rng = np.random.default_rng(0)
    params = Scored(rng.normal(size=(5, 5)), rng.normal(size=12))
    target = SMALL.target("float64")
    np.testing.assert_allclose((np.asarray(target) ** 2).sum(0), 1)
    drawn = narrowed(SMALL.draw(jax.random.key(1), 40_000), "float64")
    x = np.asarray(drawn)
    weight = np.exp(params.a) / np.exp(params.a).sum()
    y = sum(w * tokens @ params.W.T for w, tokens in zip(weight, x.transpose(1, 0, 2), strict=True))
    each = ((y - x[:, -1] @ np.asarray(target).T) ** 2).sum(1) / 2
    assert float(SMALL.loss(params, drawn)) == pytest.approx(each.mean(), rel=1e-12)
    sampling = each.std() / len(each) ** 0.5
    assert abs(each.mean() - float(SMALL.population_loss(params))) < 5 * sampling
    # One in five last tokens is the fixed one, and all B copies are alike.
    assert (x[:, -1, 0] == 1).mean() == pytest.approx(0.2, abs=5 * 0.4 / 200)
    np.testing.assert_array_equal(x[:, -1], x[:, -3])


@pytest.mark.more
def test_a_step_has_the_law_of_its_tokens() -> None:
    """Loss and gradient of batches drawn by what they read, and drawn as tokens."""
    task, number = dynsim.Retrieval(5, 3, 2, 0.3), 10_000
    W = np.random.default_rng(1).normal(size=(3, 3))
    # One of the others has most of the attention, so that slopes hang together.
    params = Scored(W, np.array([3.0, 0.0, 0.5, 1.0, 1.0]))

    def fast(key):
        drawn = task.batches(key, 1, 2)(jnp.int32(0))
        return task.loss_and_gradient(params, drawn)

    def slow(key):
        return task.loss_and_gradient(params, task.draw(key, 2))

    found, want = (
        jax.jit(jax.vmap(each))(jax.random.split(jax.random.key(seed), number))
        for seed, each in enumerate((fast, slow))
    )
    for read in (
        lambda loss, slope: loss,
        lambda loss, slope: slope.a[:, 0],
        lambda loss, slope: slope.a[:, 1],
        lambda loss, slope: slope.a[:, 4],
        lambda loss, slope: slope.W[:, 0, 1],
        lambda loss, slope: slope.a[:, 0] * slope.a[:, 1],
        lambda loss, slope: slope.a[:, 0] * slope.W[:, 0, 0],
        lambda loss, slope: (slope.a[:, :3] ** 2).sum(1),
    ):
        assert stats.ks_2samp(read(*found), read(*want)).pvalue > P_VALUE


@pytest.mark.parametrize(
    ("optimizer", "theory", "rtol"),
    [
        # Descent is eta^2 from the corrected flow: eta = 1 is 1 % of a growth time here, and the
        # plain flow is off by eta times the slope, which the last two cases' rates make small.
        pytest.param(dynsim.sgd(0.5), "corrected", 2e-3, marks=pytest.mark.full),
        pytest.param(dynsim.sgd(0.05, momentum=0.9), "matched", 0.02, marks=pytest.mark.full),
        (dynsim.adam(0.01), "matched-adam", 0.02),
    ],
)
@pytest.mark.more
def test_descent_on_all_weights_is_the_flow_of_four_numbers(
    optimizer: dynsim.Rule, theory: str, rtol: float
) -> None:
    run = dynsim.train(
        SMALL, optimizer, KEY, steps=300, batch=math.inf, times=TIMES, dtype="float64"
    )
    flow = THEORIES[theory].solve(SMALL, optimizer, TIMES)
    assert (run.status, flow.status) == (Status.OK, Status.OK)
    for name in ("loss", "attention", "readout"):
        np.testing.assert_allclose(flow[name], run[name], rtol=rtol, atol=2e-3)
    assert run["loss"][-1] < 0.2 * run["loss"][0]
    # All weights of a kind have moved alike, which is what the four numbers stand for.
    W, target = np.asarray(run.params.W), np.asarray(SMALL.target("float64"))
    np.testing.assert_allclose((W / target).std(0), 0, atol=1e-12)


def test_the_gradient_of_four_numbers_is_that_of_all_weights() -> None:
    """Weight by weight, at a point where the four numbers and both moments differ; and what is
    measured there."""
    state = sparse_attention.Alike(*map(jnp.asarray, (0.3, 0.7, 1.1, -0.4)))
    fixed, sign = np.arange(5) == 0, np.sign(SMALL.target("float64"))
    copy = np.arange(12) >= 9
    params = Scored(
        np.where(fixed, state.fixed, state.rest) * sign, np.where(copy, state.copy, state.other)
    )
    slope = jax.jit(jax.grad(lambda p: SMALL.population_loss(p)))(params)
    got = jax.jit(lambda at: sparse_attention.gradient(SMALL, at))(state)
    np.testing.assert_allclose(slope.W, np.where(fixed, got.fixed, got.rest) * sign, rtol=1e-12)
    np.testing.assert_allclose(slope.a, np.where(copy, got.copy, got.other), rtol=1e-12)
    found, (want,) = sparse_attention.measure(state, SMALL), SMALL.snapshot(params)
    np.testing.assert_allclose(found, want, rtol=1e-12)


@pytest.mark.parametrize("B", [1, 3])
def test_eqs_13_and_14_are_the_reduction_but_for_how_copies_share_the_pull(B: int) -> None:
    """Without a fixed token W = w sign(W*)/d, whose rate is eq. 13. Eq. 14 is the slope of the loss
    by Da, to which B copies and T - B others add 1/B and 1/(T - B) of it."""
    task, w, gap = dynsim.Retrieval(12, 5, B), 1.7, 0.9
    state = sparse_attention.Alike(*map(jnp.asarray, (w / 5, w / 5, gap, 0.0)))
    printed = tuple(map(jnp.asarray, (w, gap)))
    slope = sparse_attention.gradient(task, state)
    w_rate, gap_rate = sparse_attention.field(task, printed)
    assert float(w_rate) == pytest.approx(-5 * float(slope.rest), rel=1e-12)
    pulled = float(slope.other - slope.copy)
    assert float(gap_rate) * (1 / B + 1 / (12 - B)) == pytest.approx(pulled, rel=1e-12)
    np.testing.assert_allclose(
        sparse_attention.printed_snapshot(printed, task),
        sparse_attention.measure(state, task),
        rtol=1e-12,
    )


@pytest.mark.parametrize(("B", "p", "mu"), [(1, 0.0, 0.0), (3, 0.3, 0.8)])
def test_the_closed_form_solves_the_early_equations_and_blows_up_in_time(
    B: int, p: float, mu: float
) -> None:
    """|W|' = (B r/T) e^Da, Da' = (r/T) |W| e^Da in SciPy, with W along the moments of the last
    token, and the loss of all weights there."""
    T, d, eta = 12, 5, 0.1
    task, rule = dynsim.Retrieval(T, d, B, p), dynsim.sgd(eta, momentum=mu or None)
    moments = (1 - p) / d + p * (np.arange(d) == 0)
    r = np.linalg.norm(moments)
    end = math.sqrt(math.pi / 2) * T / (math.sqrt(B) * r) * (1 - mu) / eta
    times = end * np.array([0.3, 0.9])
    rate = eta / (1 - mu) * r / T * np.array([B, 1.0])
    early_equations = solve_ivp(
        lambda t, x: rate * np.exp(x[1]) * [1, x[0]], (0, times[-1]), (0, 0), t_eval=times,
        rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    found = THEORIES["escape"].solve(task, rule, [*times, 1.001 * end])
    target, copy = task.target("float64"), np.arange(T) >= T - B
    for i, (size, gap) in enumerate(early_equations.y.T):
        W = size / (r * d**0.5) * moments * np.sign(target)
        (want,) = task.snapshot(Scored(W, gap * copy))
        for name in ("loss", "attention", "readout"):
            assert found[name][i] == pytest.approx(float(getattr(want, name)), rel=1e-8)
    assert (found["loss"][2], found["attention"][2]) == (0, 1)


def full_flow(T: int, d: int, B: int) -> float:
    """Time to 0.8 of the loss on all T scores and w, each score by its own equation."""

    def field(t: float, state: np.ndarray) -> np.ndarray:
        w, a = state[0], state[1:]
        c = np.exp(a - a.max())
        c /= c.sum()
        A, others = c[-B:].sum(), (c[:-B] ** 2).sum()
        by_c = np.r_[c[:-B] * w**2 / d, np.full(B, (A * w / d - 1 / d**0.5) * w)]
        return np.r_[-(others * w / d + A * (A * w - d**0.5) / d), -c * (by_c - c @ by_c)]

    def fallen(t: float, state: np.ndarray) -> float:
        c = np.exp(state[1:]) / np.exp(state[1:]).sum()
        A, w = c[-B:].sum(), state[0]
        return ((c[:-B] ** 2).sum() * w**2 + (A * w - d**0.5) ** 2) / (2 * d) - 0.4

    fallen.terminal = True
    found = solve_ivp(field, (0, 1e4), np.zeros(T + 1), events=fallen, rtol=1e-9, atol=1e-12)
    return float(found.t[-1])


@pytest.mark.full(
    "test_the_gradient_of_four_numbers_is_that_of_all_weights",
    "test_eqs_13_and_14_are_the_reduction_but_for_how_copies_share_the_pull",
)
@pytest.mark.parametrize(("B", "printed"), [(1, 1.002), (4, 0.509)])
def test_repetition_speeds_up_like_the_root_of_its_number(B: int, printed: float) -> None:
    """Against every score on its own, in NumPy: the flow agrees, eqs. 13 and 14 for B = 1 only.
    Their ratios to it at T = 256, d = 64 are known: 2652.9/2647.7 and 668.3/1312.1."""
    task, times = dynsim.Retrieval(256, 64, B), np.arange(0.0, 2800, 4)
    want = full_flow(256, 64, B)
    flow, wrong = (
        falls(times, np.asarray(THEORIES[name].solve(task, dynsim.sgd(1.0), times)["loss"]))
        for name in ("plain", "printed")
    )
    assert want == pytest.approx({1: 2647.7, 4: 1312.1}[B], abs=0.1)
    # Linear between records 4 steps apart, on a steep curve.
    assert flow == pytest.approx(want, abs=1)
    assert wrong / want == pytest.approx(printed, abs=0.003)
    # The closed form leaves out 1/T, and what the loss is when the attention blows up.
    assert float(sparse_attention.escape_time(task)) == pytest.approx(want, rel=0.04)


def test_a_rate_that_is_too_large_is_diverged() -> None:
    run = dynsim.train(SMALL, dynsim.sgd(1e6), KEY, steps=200, batch=math.inf)
    assert run.status == Status.DIVERGED


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dynsim.Retrieval(8, 4, 8), "B = 8: must be less than length = 8"),
        (lambda: dynsim.Retrieval(8, 1), "d = 1: must be an integer >= 2"),
        (lambda: dynsim.Retrieval(p=1.5), "p = 1.5: must be finite and in [0, 1]"),
        (
            lambda: THEORIES["printed"].solve(SMALL, dynsim.sgd(1.0), [1.0]),
            "p = 0.2: must be 0; eqs. 13 and 14 describe no fixed token",
        ),
        (
            lambda: THEORIES["escape"].solve(SMALL, dynsim.adam(1.0), [1.0]),
            "optimizer = adam: this theory describes gradient descent only",
        ),
        (
            lambda: THEORIES["escape"].solve(SMALL, dynsim.sgd(1.0, decay=0.1), [1.0]),
            "decay = 0.1: this theory needs plain gradients",
        ),
        (
            lambda: THEORIES["escape"].solve(SMALL, dynsim.sgd(1.0), [1.0], record="gap"),
            "record = 'gap': it is infinite in the closed form",
        ),
        (
            lambda: sparse_attention.linear_escape_time(SMALL, 1.0),
            "eps = 1.0: must be finite and in (0, 1)",
        ),
        (
            lambda: sparse_attention.linear_escape_time(SMALL, 0.0),
            "eps = 0.0: must be finite and in (0, 1)",
        ),
        (
            lambda: THEORIES["plain"].solve(3, dynsim.sgd(1.0), [1.0]),
            "problem = 3: must be of type dynsim.Problem",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# Last, because the fixture stays for the rest of the file.
@pytest.mark.usefixtures("quick_theory")
def test_the_plateau_is_the_closed_form_as_tokens_grow() -> None:
    """Before the escape, at T = 2^14, from d = 64 to 4096: the difference to the flow is of first
    order in 1/sqrt(d)."""
    errors = []
    for d in (64, 4096):
        task = dynsim.Retrieval(2**14, d, 2)
        times = np.array([0.3, 0.6, 0.8]) * float(sparse_attention.escape_time(task))
        found = {
            name: THEORIES[name].solve(task, dynsim.sgd(1.0), times, record=("readout",))
            for name in ("plain", "escape")
        }
        errors.append(np.abs(found["escape"]["readout"] / found["plain"]["readout"] - 1))
    assert (errors[1] < 0.02).all()
    np.testing.assert_allclose(errors[0] / errors[1], 8, rtol=0.3)
    # Eq. 6 is later, by more than a factor of 2 at T = 256, d = 64.
    task = dynsim.Retrieval(256, 64)
    assert float(sparse_attention.linear_escape_time(task, 0.2)) == pytest.approx(6869.3, abs=0.1)


@pytest.mark.full("test_the_plateau_is_the_closed_form_as_tokens_grow")
@pytest.mark.usefixtures("quick_theory")
def test_the_plateau_under_momentum_has_the_length_of_its_theories() -> None:
    """Eqs. 13, 14 and the closed form, at the rate eta/(1 - mu), against descent on all weights."""
    task, momentum = dynsim.Retrieval(64, 64), dynsim.sgd(0.025, momentum=0.9)
    end = float(sparse_attention.escape_time(task)) / 0.25
    times = np.arange(0, int(1.2 * end), 20)
    run = dynsim.train(
        task, momentum, KEY, steps=int(times[-1]), times=times, batch=math.inf, dtype="float64"
    )
    printed, closed = (
        THEORIES[name].solve(task, momentum, times, record=("loss", "readout"))
        for name in ("printed", "escape")
    )
    measured = falls(times, np.asarray(run["loss"]))
    # Of first order in eta, 1.3 % here, and 1/T, by which eq. 14 is off for a single copy.
    assert falls(times, np.asarray(printed["loss"])) == pytest.approx(measured, rel=0.03)
    # The closed form is of lowest order in 1/sqrt(d), before its end and for its end.
    assert end == pytest.approx(measured, rel=1 / 8)
    half = times.size // 2
    assert closed["readout"][half] == pytest.approx(run["readout"][half], rel=1 / 8)


@pytest.mark.usefixtures("quick_theory")
@pytest.mark.parametrize("rule", [dynsim.sgd(0.5), dynsim.sgd(0.05, momentum=0.9)], ids=str)
def test_what_is_printed_is_integrated_as_printed(rule: dynsim.Rule) -> None:
    """By SciPy, and with momentum at the rate eta / (1 - mu), which is the same in both rules."""
    task, times = dynsim.Retrieval(12, 5, 2), [20.0, 60.0]
    field = jax.jit(lambda state: jnp.stack(sparse_attention.field(task, tuple(state))))
    solved = solve_ivp(
        lambda t, x: 0.5 * np.asarray(field(x)),
        (0, 60),
        (0, 0),
        t_eval=times,
        rtol=1e-9,
        atol=1e-12,
    )
    found = THEORIES["printed"].solve(task, rule, times)
    assert (found.status, found.source) == (Status.OK, "printed")
    for i, state in enumerate(solved.y.T):
        want = sparse_attention.printed_snapshot(tuple(map(jnp.asarray, state)), task)
        for name, value in want._asdict().items():
            # Equal steps of at most a unit of time, to the fourth order.
            np.testing.assert_allclose(found[name][i], value, rtol=1e-4, err_msg=name)
    assert found["gap"][-1] > 0.2
