"""`train` on problems that are known: a linear regression against NumPy, an Equinox network against
a plain loop, divergence, checkpoints, batches."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import odes
from dynsim import Status, schedules
from dynsim.problem.train import drawn, highest_loss
from dynsim.training import loop
from tests.doors.test_dynsim import Line


class Net(dynsim.Problem):
    """An Equinox network, which has functions among its leaves."""

    width: int = 8

    def init(self, key):
        return eqx.nn.MLP(2, "scalar", self.width, 1, key=key)

    def draw(self, key, batch):
        x = jax.random.normal(key, (batch, 2))
        return x, x[:, 0] * x[:, 1]

    def loss(self, params, data):
        return jnp.mean((jax.vmap(params)(data[0]) - data[1]) ** 2)


KEY, TOKENS = jax.random.key(3), np.arange(40) % 7


@pytest.mark.more
def test_an_equinox_network_is_the_loop_that_one_would_write() -> None:
    """AdamW with warm-up, cosine and clipping, by optax, on the batches of the same keys."""
    rate = schedules.warmup_cosine(0.03, 5, 30)
    rule = dynsim.adamw(rate, decay=0.1, clip=0.5)
    found = dynsim.train(
        Net(), rule, KEY, steps=30, batch=16, record="gradient_norm", times=[0, 9, 30]
    )
    init, data = loop.split_key(KEY)
    params, static = eqx.partition(Net().init(init), eqx.is_inexact_array)
    their_rate = optax.warmup_cosine_decay_schedule(0, 0.03, 5, 30)
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(their_rate, weight_decay=0.1))
    memory, norms = rule.init(params), []

    @jax.jit
    def step(params, memory, key):
        batch = Net().draw(key, 16)
        loss = lambda p: Net().loss(eqx.combine(p, static), batch)
        gradient = jax.grad(loss)(params)
        update, memory = rule.update(gradient, memory, params)
        return optax.apply_updates(params, update), memory, optax.tree.norm(gradient)

    for k in range(30):
        params, memory, norm = step(params, memory, jax.random.fold_in(data, k))
        norms.append(norm)
    # Thirty steps of float32, of which Adam's first ones divide small gradients.
    np.testing.assert_allclose(found["gradient_norm"][:2], [norms[0], norms[9]], rtol=1e-4)
    x = jnp.array([0.3, -0.7])
    assert float(found.model(x)) == pytest.approx(float(eqx.combine(params, static)(x)), rel=1e-4)
    assert found.model.activation is Net().init(init).activation


def test_a_batch_of_runs_is_the_single_runs_of_one_program() -> None:
    compiled = 0

    class Counted(Line):
        def loss(self, params, data):
            nonlocal compiled
            compiled += 1
            return super().loss(params, data)

    def run(eta, slope, key):
        rule = dynsim.adamw(schedules.warmup_cosine(eta, 2, 10), decay=eta, clip=1.0)
        return dynsim.train(Counted(slope), rule, key, steps=10, batch=4)

    etas, slopes = np.float32([0.1, 1.0, 3.0]), np.float32([1.0, 2.0, 3.0])
    batch = jax.vmap(run)(etas, slopes, jax.random.split(KEY, 3))
    traced = compiled
    for i, key in enumerate(jax.random.split(KEY, 3)):
        single = run(etas[i], slopes[i], key)
        np.testing.assert_allclose(batch["loss"][i], single["loss"], rtol=1e-5)
        if i == 0:
            traced = compiled
    assert compiled == traced, "another rate, slope or key must not compile again"


@pytest.mark.parametrize("rule", [dynsim.sgd(0.3, momentum=0.5, noise=0.1), dynsim.adam(0.1)])
@pytest.mark.more
def test_a_resumed_run_is_the_run_in_one_go(rule: dynsim.Rule) -> None:
    options = {"batch": 4, "record": ["w", "update_norm"], "checkpoint": True}
    whole = dynsim.train(Line(), rule, KEY, steps=20, times=[20], **options)
    half = dynsim.train(Line(), rule, KEY, steps=7, times=[7], **options)
    rest = dynsim.train(
        Line(), rule, KEY, steps=20, times=[20], **options | {"checkpoint": half.checkpoint}
    )
    for name in ("w", "batch_loss", "update_norm"):
        np.testing.assert_array_equal(rest[name], whole[name])


def test_recorded_batches_are_replayed() -> None:
    """One example a step: w <- w - eta (w - 2) x^2."""
    x = np.array([1.0, -2.0, 0.5])
    found = dynsim.train(
        Line(), dynsim.sgd(0.1), init={"w": 1.0}, data=(x[:, None], 2 * x[:, None]), steps=3,
        times=[0, 3], dtype="float64",
    )  # fmt: skip
    left = -np.prod(1 - 0.1 * x**2)
    assert float(found.params["w"]) == pytest.approx(2 + left, rel=1e-12)
    # The last batch again.
    np.testing.assert_allclose(found["batch_loss"], [0.5, (left * x[2]) ** 2 / 2], rtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "limit", "status", "step"),
    [(0.1, None, Status.OK, -1), (2.5, None, Status.DIVERGED, 9), (2.5, 1e30, Status.OK, -1)],
)
def test_divergence_is_a_status(rate: float, limit: float | None, status: int, step: int) -> None:
    """At eta = 2.5 the loss grows by 1.5^2 a step: a thousandfold from step 9 on."""
    found = dynsim.train(
        Line(), dynsim.sgd(rate), KEY, steps=20, batch=math.inf, limit=limit, times=[20]
    )
    assert (int(found.status), int(found.first_bad_step)) == (status, step)


def test_a_first_example_without_loss_is_no_measure_of_divergence() -> None:
    """The first of 20 has a millionth of the loss of the others, whose loss shrinks from 2."""
    x = np.r_[1e-3, np.ones(19)][:, None]
    found = dynsim.train(Line(), dynsim.sgd(0.01), KEY, data=(x, 2 * x), steps=20, times=[20])
    assert (int(found.status), int(found.first_bad_step)) == (Status.OK, -1)


def test_the_loss_at_the_start_is_that_of_sixteen_batches() -> None:
    """Their examples have the loss 2, and the seventeenth one of 3200, which is more than a
    thousand times as much, and the last one."""
    x = np.r_[np.ones(16), 40.0][:, None]
    found = dynsim.train(Line(), dynsim.sgd(0.0), KEY, data=(x, 2 * x), steps=17, times=[17])
    assert (int(found.status), int(found.first_bad_step)) == (Status.DIVERGED, 16)
    assert float(found["batch_loss"][0]) == 3200


def test_noise_is_drawn_with_a_key_of_its_own() -> None:
    """w <- w - eta (w - slope + s xi), with xi of the key of the start folded with the largest
    number, which no split of it gives, and with the step."""
    options = {"steps": 3, "times": range(4), "batch": math.inf, "record": "w", "dtype": "float64"}
    found = dynsim.train(Line(), dynsim.sgd(0.1, noise=0.3), KEY, **options)["w"]
    key, w = jax.random.fold_in(loop.split_key(KEY)[0], 2**32 - 1), 0.0
    with jax.enable_x64(True):
        for k in range(3):
            (leaf,) = jax.random.split(jax.random.fold_in(key, k), 1)
            w = w - 0.1 * (w - 2 + 0.3 * float(jax.random.normal(leaf, (), "float64")))
            # Rounding of float64.
            assert found[k + 1] == pytest.approx(w, rel=1e-12)


def test_batches_of_a_key_are_one_more_than_its_steps() -> None:
    """And a batch has 32 examples by default."""
    found = dynsim.train(Line(), dynsim.sgd(0.0), KEY, steps=1, times=[0])
    _, y = drawn(Line(), KEY, 1, 32)
    assert float(found["batch_loss"][0]) == pytest.approx(float(np.mean(y[0] ** 2)) / 2, rel=1e-5)
    x, y = drawn(Line(3.0), KEY, 5, 4)
    assert x.shape == (6, 4)
    key = jax.random.fold_in(loop.split_key(KEY)[1], 5)
    np.testing.assert_array_equal(x[5], jax.random.normal(key, (4,)))
    np.testing.assert_allclose(y, 3 * x, rtol=1e-6)


@pytest.mark.parametrize(
    ("problem", "limit"),
    [
        (Line(), None),
        # A thousand times tr Lambda, and a thousand times 1/2.
        (dynsim.Regression(2, 5, spectrum=dynsim.GivenSpectrum([3.0, 0.5])), 3500),
        (dynsim.Retrieval(), 500),
        # Ten times the loss of uniform guessing among all tokens.
        (dynsim.Layer(dynsim.SynSmall()), 10 * math.log(34)),
        (dynsim.QKV(dynsim.SynSmall(), width=34), 10 * math.log(34)),
        (dynsim.LanguageModel(dynsim.Text(TOKENS, TOKENS, 7)), 10 * math.log(7)),
        (dynsim.JoMA(dynsim.SynSmall()), 1e6),
        (dynsim.Prompts(), math.inf),
    ],
    ids=lambda value: type(value).__name__,
)
def test_losses_above_which_a_run_has_diverged(problem: Any, limit: float | None) -> None:
    found = problem.divergence_limit()
    assert found is limit is None or float(found) == pytest.approx(limit, rel=1e-6)


def test_recorded_weights_are_those_of_descent() -> None:
    """Whose closed form is slope (1 - (1 - eta)^k) on the population; a flow has 1 - e^(-eta t)."""
    times, eta = [0, 1, 5], 0.1
    options = {"times": times, "record": ["params", "w"], "dtype": "float64"}
    found = dynsim.train(Line(), dynsim.sgd(eta), KEY, steps=5, batch=math.inf, **options)
    expected = 2 * (1 - (1 - eta) ** np.array(times))
    # Rounding of float64, over five steps.
    np.testing.assert_allclose(found["params.w"], expected, rtol=1e-14)
    np.testing.assert_allclose(found["w"], expected, rtol=1e-14)
    assert int(found.params["steps"]) == 7
    assert "params.steps" not in found.observables  # an integer, which nobody trains
    flow = odes.flow(Line(), dynsim.sgd(eta), times, key=KEY, record="params")
    np.testing.assert_allclose(flow["params.w"], 2 * -np.expm1(-eta * np.array(times)), rtol=1e-6)
    net = dynsim.train(Net(), dynsim.adam(0.1), KEY, steps=2, times=[0, 2], record="params")
    last = net.model.layers[1].weight
    np.testing.assert_array_equal(net["params.layers.1.weight"][-1], last)


@pytest.mark.more
def test_a_full_batch_is_descended_as_its_examples_at_every_step() -> None:
    """And a finite batch draws from them."""
    fixed = dynsim.full_batch(Net(), jax.random.key(1), 12)
    data = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (20, *leaf.shape)), fixed.data)
    rule = dynsim.sgd(0.2, momentum=0.5)
    found = dynsim.train(fixed, rule, KEY, steps=20, batch=math.inf, record="loss")
    want = dynsim.train(Net(), rule, KEY, steps=20, data=data)
    # float32, the same operations in another order.
    np.testing.assert_allclose(found["loss"][:-1], want["batch_loss"][:-1], rtol=1e-5)
    rows = {tuple(row): i for i, row in enumerate(np.asarray(fixed.data[0]).tolist())}
    chosen = [rows[tuple(row)] for row in np.asarray(fixed.draw(KEY, 1200)[0]).tolist()]
    # Five standard deviations of the number of times that one of twelve is drawn.
    counts = np.bincount(chosen, minlength=12)
    assert np.abs(counts - 100).max() < 5 * (1200 / 12 * 11 / 12) ** 0.5


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


@pytest.mark.parametrize(
    ("rule", "steps", "start"),
    [
        (dynsim.sgd(1e-4, noise=1e-2), 400, 0.0),
        (dynsim.sgd(schedules.warmup_cosine(0.1, 20, 50), noise=1.0), 50, 0.0),
        (dynsim.sgd(0.1, momentum=0.9, noise=1.0), 60, 1e-7),
    ],
)
def test_noise_around_a_minimum_is_no_divergence(rule: Any, steps: int, start: float) -> None:
    # The usual loss, 1.5, must not matter: the problem knows only its minimum.
    status, loss = ended(Bowl(start), rule, steps)
    assert status == Status.OK
    assert loss > 1e3 * Bowl(start).population_loss(start * np.array([1, 2]))


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


SLOPES, SWAPPED, FROM = np.array([1.0, 0.3]), np.array([1, 0]), np.array([0.5, -1.25])
RATES = np.array([0.3, 0.2, 0.1])


class ReadsArrays(dynsim.Problem):
    """A bowl whose methods read NumPy arrays from outside, which have 64 bits."""

    def init(self, key):
        return jnp.asarray(FROM)

    def population_loss(self, params):
        return jnp.sum(SLOPES * params[SWAPPED] ** 2) / 2

    def observables(self):
        return {"first": lambda problem, params: jnp.asarray(SLOPES) @ params}


def scaled(learning_rate):
    """Descent whose gradient is scaled by an array in optax, at the rates of a table."""
    by_slope = optax.stateless(lambda updates, _: updates / SLOPES)
    return optax.chain(by_slope, optax.scale(-learning_rate))


@pytest.mark.parametrize("first", ["float32", "float64"])
@pytest.mark.parametrize("own", ["rate", "rule"])
def test_arrays_that_code_reads_have_the_precision_of_each_run(first: str, own: str) -> None:
    """JAX keeps the conversion of an array that a program reads, whatever the precision of the next
    one."""
    rule = {"rate": lambda: dynsim.sgd(lambda k: jnp.asarray(RATES)[k]),
            "rule": lambda: dynsim.from_optax(scaled, learning_rate=0.3)}[own]()  # fmt: skip
    w = FROM.copy()
    for rate in RATES if own == "rate" else [0.3] * 3:
        w -= rate * SLOPES[SWAPPED] * w / (SLOPES if own == "rule" else 1)
    want = {"loss": np.sum(SLOPES * w[SWAPPED] ** 2) / 2, "first": SLOPES @ w}
    other = {"float32": "float64", "float64": "float32"}[first]
    for dtype in (first, other, first):
        run = dynsim.train(
            ReadsArrays(), rule, KEY, steps=3, batch=math.inf, dtype=dtype, record=[*want]
        )
        # Arrays in float32 would cost 3e-8.
        rtol = {"float32": 1e-6, "float64": 1e-14}[dtype]
        for name, value in want.items():
            np.testing.assert_allclose(run[name][-1], value, rtol=rtol, err_msg=name)


def test_a_model_may_hold_a_number_and_an_object_without_a_hash() -> None:
    class Label:
        __hash__ = None

    class Labelled(ReadsArrays):
        def init(self, key):
            return jnp.asarray(FROM), jnp.float32(2), Label()

        def population_loss(self, params):
            return super().population_loss(params[0])

        def observables(self):
            return {}

    options = {"steps": 3, "batch": math.inf, "record": "loss", "dtype": "float64"}
    found, want = (
        dynsim.train(problem, dynsim.sgd(0.3), KEY, **options)["loss"]
        for problem in (Labelled(), ReadsArrays())
    )
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("copied", [False, True])
def test_a_compiled_function_of_ones_own_has_to_copy_what_it_reads(copied: bool) -> None:
    @jax.jit
    def loss(params):
        return jnp.sum((SLOPES.copy() if copied else SLOPES) * params**2) / 2

    class Compiled(ReadsArrays):
        def population_loss(self, params):
            return loss(params)

    train = lambda dtype: dynsim.train(
        Compiled(), dynsim.sgd(0.1), KEY, steps=2, batch=math.inf, record="loss", dtype=dtype
    )
    train("float64")
    if copied:
        want = np.sum(SLOPES * (FROM * (1 - SLOPES / 10) ** 2) ** 2) / 2
        np.testing.assert_allclose(train("float32")["loss"][-1], want, rtol=1e-6)
    else:
        with pytest.raises(ValueError, match=r"ARRAY\.copy\(\)"):
            train("float32")
