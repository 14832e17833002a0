"""Two-stage noisy SGD: the algorithm against NumPy, the law of its noise, its schedule."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynsim
from dynsim import Annealed, Prompts, train
from dynsim.problem.build import split
from dynsim.two_stage import model
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ
from dynsim.two_stage.task import sample_prompts

RECORD = ("W_signal", "V_signal", "state", "K1")
KEY = jax.random.key(0)


def numpy_grads(W, V, batch, coupling, beta=0.0):
    """Gradient of the data loss by W, V and the bias, written from the sums."""
    P, Q, labels = (np.asarray(x) for x in batch)
    y = labels[:, -1]
    found, inner = [], []
    for U, x in ((W, P), (V, Q)):
        scores = np.einsum("nld,de,ne->nl", x[:, :-1], U, x[:, -1])
        weight = labels[:, :-1] * (scores > 0) / x.shape[1]
        inner.append(np.einsum("nl,nld,ne->nde", weight, x[:, :-1], x[:, -1]))
        found.append((weight * scores).sum(1))
    found[1] = found[1] + beta
    slope = lambda n: -y / (1 + np.exp(y * n))
    both = coupling * slope(found[0] + found[1])
    by = [((1 - coupling) * slope(n) + both) / len(y) for n in found]
    grads = [np.einsum("n,nde->de", *each) for each in zip(by, inner, strict=True)]
    return *grads, by[1].sum()


@pytest.mark.usefixtures("x64")
def test_a_run_is_the_algorithm_step_by_step() -> None:
    """The draws are those of the run's key; everything done with them is NumPy's. The weights are
    updated as a whole, so that signal + noise being U is tested as well. The bias alone neither
    decays nor feels noise. The run is one of two, whose stages have other numbers of steps."""
    task = Prompts(4, 6, r=1.3, coupling=0.4, tau_0=0.5, pool=16, num_test=4, bias=True)
    rule = lambda eta: Annealed(eta, 0.05, 0.2, 0.3, stage_2=0.05)
    t_1, t_2 = Annealing.of(rule(0.25)).steps
    assert (t_1, t_2) == (5, 5)
    key, steps = jax.random.key(7), t_1 + t_2
    run = lambda eta: train(
        task,
        rule(eta),
        key,
        steps=None,
        batch=8,
        times=np.arange(steps + 1),
        record=(*RECORD, "eta_time"),
        dtype="float64",
    )
    found = jax.tree.map(lambda leaf: leaf[1], jax.vmap(run)(jnp.array([0.125, 0.25])))
    init_key, pool_key, _, step_key = jax.random.split(key, 4)
    draw = functools.partial(jax.random.normal, shape=(2, 4, 4), dtype="float64")
    # What a run draws before it begins has 32 bits.
    with jax.enable_x64(False):
        drawn = task.draw_numbers(pool_key, 16)
        W, V = np.asarray(jax.random.normal(init_key, (2, 4, 4)) * 0.5, np.float64)
    drawn = jax.tree.map(lambda leaf: leaf.astype("float64"), drawn)
    data = [np.asarray(leaf) for leaf in task.prompts(drawn)]
    signal, beta = np.zeros((2, 4, 4)), 0.0
    for k in range(steps):
        # Rounding of ten steps in float64.
        np.testing.assert_allclose(found["W_signal"][k], signal[0], atol=1e-13)
        np.testing.assert_allclose(found["V_signal"][k], signal[1], atol=1e-13)
        assert found["state"][k][0] == pytest.approx(W[0, 0], rel=1e-10)
        assert found["state"][k][6] == pytest.approx((V[1:, 1:] ** 2).mean(), rel=1e-10)
        batch_key, noise_key = jax.random.split(jax.random.fold_in(step_key, k))
        chosen = np.asarray(jax.random.randint(batch_key, (8,), 0, 16, np.int32))
        batch = [np.asarray(leaf)[chosen] for leaf in data]
        *grads, by_beta = numpy_grads(W, V, batch, 0.4, beta)
        xi = 0.3 * np.sqrt(1 - (1 - 0.25 * 0.2) ** 2) / 0.25 * np.asarray(draw(noise_key))
        eta = 0.25 if k < t_1 else 0.05
        W = (1 - eta * 0.2) * W - eta * (grads[0] + xi[0])
        V = (1 - eta * 0.2) * V - eta * (grads[1] + xi[1])
        signal = (1 - eta * 0.2) * signal - eta * np.stack(grads)
        beta -= eta * by_beta
    np.testing.assert_allclose(found.params.total.W, W, rtol=1e-10)
    np.testing.assert_allclose(found.params.total.V, V, rtol=1e-10)
    np.testing.assert_allclose(found.params.total.beta, beta, rtol=1e-10)
    assert abs(beta) > 1e-3
    np.testing.assert_allclose(found["eta_time"][::5], [0, 1.25, 1.5], rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("d", "length", "shape"),
    [
        (4, 9, (4, 1, 1, 8)),
        pytest.param(6, 18, (2, 3, 3, 8), marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.more
def test_a_batch_taken_in_parts_has_the_gradient_of_the_whole(
    d: int, length: int, shape: tuple[int, ...], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts whose tokens fill up their groups, and of such that do not."""
    task = Prompts(d, length, r=1.3, coupling=0.4)
    pool = jax.jit(lambda key: sample_prompts(task, key, 16, "float64"))(jax.random.key(0))
    laid = model.cpu_layout(pool)
    assert isinstance(laid, model.CpuLayout)
    assert laid.context.shape == (16, 2, *shape)
    monkeypatch.setattr(model, "CACHE_BYTES", size * laid.context[0].nbytes)
    W, V = jax.random.normal(jax.random.key(1), (2, d, d), "float64")
    chosen = np.array([3, 0, 15, 3, 7, 8, 1, 2, 9, 11, 5, 14])
    of = jax.jit(functools.partial(model.loss_and_gradient, coupling=0.4, length=length))
    batch = type(pool)(*(jnp.asarray(leaf)[chosen] for leaf in pool))
    weights = PQ(W, V, jnp.array(0.3))
    want = numpy_grads(W, V, batch, 0.4, 0.3)
    want_loss = jax.jit(model.data_loss)(weights, 0.4, batch)
    for given in (laid, pool):
        loss, found = of(weights, pool=given, chosen=jnp.asarray(chosen))
        assert float(loss) == pytest.approx(float(want_loss), rel=1e-12)
        for one, other in zip((found.W, found.V, found.beta), want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-16)
    # Closed gates, as those of zero weights, have no gradient.
    _, closed = of(PQ(0 * W, 0 * V), pool=laid, chosen=jnp.asarray(chosen))
    assert not np.any([closed.W, closed.V])


def test_parts_divide_the_batch_and_fit_the_cache() -> None:
    assert model.part_size(128, model.CACHE_BYTES) == 1
    assert model.part_size(128, 2 * model.CACHE_BYTES) == 1
    assert model.part_size(12, model.CACHE_BYTES // 5) == 4
    assert model.part_size(13, 1) == 1
    assert model.part_size(128, 1) == 64
    assert model.part_size(1, 1) == 1


@pytest.mark.parametrize(("d", "length"), [(model.MAX_TERMS + 1, 3), (2, 8 * model.MAX_TERMS + 2)])
def test_large_prompts_are_taken_as_they_are(d: int, length: int) -> None:
    sample = jax.jit(sample_prompts, static_argnums=2)
    pool = sample(Prompts(d, length), jax.random.key(0), 2)
    assert model.cpu_layout(pool) is pool
    most = sample(Prompts(2, 8 * model.MAX_TERMS + 1), jax.random.key(0), 2)
    assert isinstance(model.cpu_layout(most), model.CpuLayout)


def test_schedules_and_controls() -> None:
    # The first stage takes 1 step, the second 4 for each `stage_2`.
    assert Annealed(1.0, 1.0, 0.25, stage_2=2**29 - 1 / 2).ends == (1, 2**31 - 1)
    # 0.6 / lambda = 12 at rates of 0.5, then 0.4 / lambda = 8 at 0.25.
    assert Annealed(0.5, 0.25, 0.05, stage_1=0.6, stage_2=0.4).ends == (24, 24 + 32)
    stages = dynsim.two_stage("default").optimizer.stages
    assert stages.steps == (50, 12000)
    assert float(stages.noise) == pytest.approx(0.12484, abs=5e-6)
    # Of an AR(1) process, where its step keeps the variance.
    kept = (1 - 0.05 * float(stages.decay)) ** 2
    forever = 0.05 * float(stages.noise) / (1 - kept) ** 0.5
    assert float(stages.stationary(0.05)) == pytest.approx(forever, rel=1e-6)
    assert float(stages.flow_time(12050)) == pytest.approx(130)
    assert dynsim.two_stage("fast").optimizer.stages.steps == (100, 4000)
    times = stages.times(60)
    assert {0, 50, 12050} <= set(times.tolist())
    for name, rates, start in (
        ("forever", (0.2, 0.2), 0.25),
        ("small", (0.01, 0.01), 0.25),
        # tau ~ sqrt(eta), but for the terms eta lambda of discrete steps.
        ("smallinit", (0.01, 0.01), 0.25 * (0.01 / 0.2 * (2 - 0.005) / (2 - 0.00025)) ** 0.5),
    ):
        task, rule, _ = dynsim.two_stage("default", name)
        control = Annealing.of(rule)
        assert (control.eta_1, control.eta_2) == rates
        assert float(task.tau_0) == pytest.approx(start, rel=1e-9)
        assert control.noise == stages.noise
        assert float(control.flow_time(control.last)) == pytest.approx(130)
        assert float(rule.build().eta_time(control.last)) == pytest.approx(130)


@pytest.mark.more
def test_starting_weights_are_stationary_under_the_rule() -> None:
    """Unless their deviation is given, which may be an integer."""
    sizes = {"d": 3, "length": 5, "pool": 8, "num_test": 8}
    task, given = Prompts(**sizes), Prompts(**sizes, tau_0=1)
    assert split(given)[0].tau_0 == 1.0
    fixed = [dynsim.full_batch(each, jax.random.key(1), 6) for each in (task, given)]
    options = {"steps": None, "times": [0, 3], "batch": 4, "record": "params"}
    for described, built in ((task, given), fixed):
        run = train(described, Annealed(tau=1.0), KEY, **options)
        same = train(built, Annealed(tau=1.0).build(), KEY, **options)
        assert eqx.tree_equal(run, same)


def test_rates_of_many_runs_build_the_rules_of_each() -> None:
    eta, tau = np.array([[0.1], [0.2]]), np.array([0.1, 0.3, 0.5])
    many = Annealed(eta, tau=tau, control="smallinit")
    built, noise = many.build(), Prompts().build(many).tau_0
    assert np.shape(noise) == (2, 3)
    for i, j in np.ndindex(2, 3):
        one = Annealed(eta[i, 0], tau=tau[j], control="smallinit")
        assert noise[i, j] == Prompts().build(one).tau_0
        pick = lambda leaf, at=(i, j): np.broadcast_to(leaf, (2, 3))[at]
        assert eqx.tree_equal(jax.tree.map(pick, built), jax.tree.map(np.float64, one.build()))
