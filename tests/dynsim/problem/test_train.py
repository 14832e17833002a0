"""`train` on problems that are known: a linear regression against NumPy, an Equinox network against
a plain loop, statuses, checkpoints, and what is refused."""

import inspect
import itertools
import math
import re
import reprlib
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
from dynsim.problem.train import drawn
from dynsim.training import loop


class Line(dynsim.Problem):
    """w learns the slope of y = slope x, on x ~ N(0, 1)."""

    slope: float = 2.0
    start: float = 0.0

    def init(self, key):
        return {"w": self.start + 0 * jax.random.normal(key, ()), "steps": jnp.int32(7)}

    def draw(self, key, batch):
        x = jax.random.normal(key, (batch,))
        return x, self.slope * x

    def loss(self, params, data):
        return jnp.mean((params["w"] * data[0] - data[1]) ** 2) / 2

    def population_loss(self, params):
        return (params["w"] - self.slope) ** 2 / 2

    def observables(self):
        return {"w": lambda problem, params: params["w"], "missed": missed}

    def groups(self, params):
        return {"w": "slope", "steps": None}


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


def missed(problem: Line, params: Any) -> jax.Array:
    return problem.slope - params["w"]


KEY, TOKENS = jax.random.key(3), np.arange(40) % 7


@pytest.mark.full("sweeps/runner/test_run.py::test_steps_as_an_axis_record_at_their_own_times")
def test_runs_of_traced_lengths_are_those_of_known_ones() -> None:
    """One program for both lengths: each records as the run that is told its number of steps."""
    rule = dynsim.sgd(schedules.steps(0.1, [4], [0.5]), momentum=0.5, noise=0.1)
    options = {"batch": 8, "record": ["w", "eta_time"]}

    def run(last: jax.Array) -> dynsim.Trajectory:
        times = jnp.stack([last // 2, last])
        return dynsim.train(Line(), rule, KEY, steps=None, times=times, **options)

    together = jax.jit(jax.vmap(run))(jnp.array([6, 11]))
    for found, steps in zip(together["w"], (6, 11), strict=True):
        alone = dynsim.train(Line(), rule, KEY, steps=steps, times=[steps // 2, steps], **options)
        # float32, the same operations in another order.
        np.testing.assert_allclose(found, alone["w"], rtol=1e-5)
    np.testing.assert_allclose(together["eta_time"], [[0.3, 0.5], [0.45, 0.75]], rtol=1e-6)


def test_population_descent_is_the_closed_form() -> None:
    """w = slope + (start - slope) (1 - eta)^k."""
    found = dynsim.train(
        Line(2.0, 1.0),
        dynsim.sgd(0.1),
        KEY,
        steps=20,
        batch=math.inf,
        times=range(21),
        record=["w", "missed", "loss", "gradient_norm", "update_norm"],
        dtype="float64",
    )
    left = -(0.9 ** np.arange(21))
    # Settings are rounded to float32 for the start alone, and 1 and 2 are not.
    np.testing.assert_allclose(found["w"], 2 + left, rtol=1e-12)
    np.testing.assert_allclose(found["missed"], -left, rtol=1e-12)
    np.testing.assert_allclose(found["loss"], left**2 / 2, rtol=1e-12)
    np.testing.assert_allclose(found["batch_loss"], left**2 / 2, rtol=1e-12)
    np.testing.assert_allclose(found["gradient_norm"], -left, rtol=1e-12)
    np.testing.assert_allclose(found["update_norm"], -0.1 * left, rtol=1e-12)
    assert int(found.params["steps"]) == 7


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


def test_a_batch_has_32_examples_by_default() -> None:
    found = dynsim.train(Line(), dynsim.sgd(0.0), KEY, steps=1, times=[0])
    x, y = (leaf[0] for leaf in drawn(Line(), KEY, 1, 32))
    assert found["batch_loss"].dtype == np.float32
    assert float(found["batch_loss"][0]) == pytest.approx(float(np.mean(y**2)) / 2, rel=1e-5)
    np.testing.assert_allclose(y, 2 * x)


def test_batches_of_a_key_are_one_more_than_its_steps() -> None:
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


@pytest.mark.full("test_an_equinox_network_is_the_loop_that_one_would_write")
def test_draws_do_not_depend_on_the_precision() -> None:
    both = [
        dynsim.train(Net(), dynsim.sgd(0.0), KEY, steps=1, batch=8, dtype=dtype, times=[1])
        for dtype in ("float32", "float64")
    ]
    np.testing.assert_allclose(both[0]["batch_loss"], both[1]["batch_loss"], rtol=1e-6)


def test_rates_by_group() -> None:
    found = dynsim.train(
        Line(), dynsim.sgd({"slope": 0.1}), KEY, steps=5, batch=math.inf, dtype="float64"
    )
    assert float(found.params["w"]) == pytest.approx(2 - 2 * 0.9**5, rel=1e-12)


class Several(Line):
    def loss(self, params, data):
        return (params["w"] * data[0] - data[1]) ** 2


class Deaf(Line):
    def draw(self, key, batch):
        return jnp.ones(3), jnp.ones(3)


class Empty(Line):
    def init(self, key):
        return {"steps": 3}


class Listed(Line):
    names: list = eqx.field(default_factory=lambda: [{1, 2}])


class Unlearned(dynsim.Problem):
    def init(self, key):
        return jnp.ones(())


class Known(Unlearned):
    def population_loss(self, params):
        return params**2


class Two(Line):
    def init(self, key):
        return {"w": jnp.zeros(()), "b": jnp.zeros(())}

    def groups(self, params):
        return {"w": "slope", "b": "other"}


class Taken(Line):
    def observables(self):
        return {"update_norm": missed}


def ahead(eta: float) -> optax.GradientTransformation:
    return optax.lookahead(optax.sgd(eta), 5, 0.5)


def warmed(peak: float) -> optax.GradientTransformation:
    return optax.sgd(optax.warmup_cosine_decay_schedule(0.0, peak, 1, 10))


NEEDS_LOSS = optax.scale_by_polyak
SGD = dynsim.sgd(0.1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (
            Several(),
            {},
            "Several.loss: must return one real number, returned f32[4",
        ),
        (Deaf(), {}, "Deaf.draw: returns arrays of the same shapes for batch = 4 and 5"),
        (Empty(), {}, "Empty.init: must return weights, has no floating-point array"),
        (Listed(), {}, "Listed.names.0: must be hashable or an array, is {1, 2}"),
        (Unlearned(), {}, "Unlearned: has no method 'draw', which a finite batch needs"),
        (Unlearned(), {"batch": math.inf}, "Unlearned has no method 'population_loss'"),
        (
            Known(),
            {},
            "Known: has no method 'draw', which a finite batch needs; batch = inf needs neither",
        ),
        (Known(), {"data": np.ones((10, 1))}, "Known: has no method 'loss', which a finite"),
        (
            Unlearned(),
            {"data": np.ones((10, 1)), "record": {"w": lambda problem: 0.0}},
            "Unlearned: has no method 'loss', which a finite batch needs",
        ),
        (
            Known(),
            {"batch": math.inf, "record": {"mine": lambda problem: 0.0}},
            "record = 'mine': must take (Known, an array); too many positional arguments",
        ),
        (
            Net(),
            {"rule": dynsim.sgd(0.1, decay={"a": 1.0})},
            "decay: has rates for 'a', but Net.groups names no groups",
        ),
        (
            Line(),
            {"rule": dynsim.sgd(0.1, noise={"a": 1.0})},
            "noise: has a rate for 'a', Line.groups has 'slope'",
        ),
        (
            Two(),
            {"rule": dynsim.sgd({"slope": 0.1})},
            "eta: has no rate for the group 'other' of Two.groups",
        ),
        (Taken(), {}, "Taken.observables: 'update_norm' is recorded for every problem"),
        (
            Line(),
            {"rule": dynsim.sgd({"other": 1.0})},
            "eta: has a rate for 'other', Line.groups has 'slope'",
        ),
        (
            Line(),
            {"rule": dynsim.sgd({"slope": 1.0, "other": 1.0})},
            "eta: has a rate for 'other', Line.groups has 'slope'",
        ),
        (
            Net(),
            {"rule": dynsim.sgd({"a": 1.0})},
            "eta: has rates for 'a', but Net.groups names no",
        ),
        (
            Line(),
            {"rule": dynsim.sgd(schedules.cosine(1.0, 30))},
            "eta: its schedule has 30 steps, but the run has steps = 10",
        ),
        (
            Line(),
            {"rule": dynsim.from_optax(NEEDS_LOSS)},
            "from_optax(scale_by_polyak): needs more than the gradient and the weights",
        ),
        (
            Line(),
            {"rule": dynsim.from_optax(ahead, eta=0.1)},
            "from_optax(ahead): needs more than the gradient and the weights",
        ),
        (
            Line(),
            {"rule": dynsim.from_optax(warmed, peak=0.1)},
            "from_optax(warmed): needs the value of a number in Python, but its numbers (peak) are",
        ),
        (
            Line(),
            {"rule": dynsim.sgd(1.0, 1.0)},
            "eta: has a rate for 'Y', 'Z', Line.groups has 'slope'",
        ),
        (
            Line(),
            {"rule": dynsim.sgd(1.0, decay={"other": 0.1})},
            "decay: has a rate for 'other', Line.groups has 'slope'",
        ),
        (
            Line(),
            {"rule": dynsim.sgd({"slope": 1.0}), "record": "eta_time"},
            "record = 'eta_time': needs a rule with one rate",
        ),
        (Line(), {"steps": None}, "steps = None: needs times"),
        (
            Line(),
            {"record": "speed"},
            "record = 'speed': must be one of loss, w, missed, batch_loss",
        ),
        (Line(), {"key": None}, "key = None: starting weights, batches or noise are random"),
        (Line(), {"steps": 0}, "steps = 0: must be an integer >= 1"),
        (Line(), {"times": [1, 1]}, "times = [1, 1]: must increase within [0, steps = 10]"),
        (Line(), {"times": [-1, 2]}, "times = [-1, 2]: must increase within [0, steps = 10]"),
        (Line(), {"times": [0, 11]}, "times = [0, 11]: must increase within [0, steps = 10]"),
        (Line(), {"times": []}, "times = []: must be a non-empty list of whole steps"),
        (Line(), {"times": [[0, 1]]}, "times = [[0, 1]]: must be a non-empty list of whole"),
        (
            Line(),
            {"times": [0, 9], "record": "relative_loss"},
            "so times must include steps = 10; they end at 9",
        ),
        (
            Line(),
            {"checkpoint": True, "record": "relative_loss"},
            "record = 'relative_loss': is measured over the last steps of a run",
        ),
        (Line(), {"batch": 0}, "batch = 0: must be an integer from 1"),
        (Line(), {"data": (np.ones((9, 1)),)}, "data[0]: must have a leading axis of length"),
        (Line(), {"data": (np.ones((12, 1)),)}, "data[0]: must have a leading axis of length"),
        (Line(), {"data": (np.float64(1),)}, "data[0]: must have a leading axis of length"),
        (
            Line(),
            {"data": (np.ones((3, 1)),)},
            "data[0]: must have a leading axis of length steps = 10",
        ),
        ("Line", {}, "problem = 'Line': must be of type dynsim.Problem"),
        (Line, {}, "problem = Line: is a class; must be an object of type dynsim.Problem"),
        (Line(), {"limit": -math.inf}, "limit = -inf: must be finite"),
    ],
)
def test_bad_input_is_named(problem: Any, changes: dict[str, Any], message: str) -> None:
    given = {"rule": SGD, "key": KEY, "steps": 10, "batch": 4} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        dynsim.train(problem, **given)


VALUES = {
    "init": lambda self, key: {"w": float(jax.random.normal(key))},
    "draw": lambda self, key, batch: np.asarray(jax.random.normal(key, (batch,))),
    "loss": lambda self, params, data: params["w"] if params["w"] > 0 else -params["w"],
    "population_loss": lambda self, params: params["w"][params["w"] > 0],
    "observables": lambda self: {"w": lambda problem, params: int(params["w"])},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", VALUES)
def test_code_that_needs_values_is_named_above_the_words_of_jax(method: str) -> None:
    problem = type("Valued", (Line,), {method: VALUES[method]})()
    batch = math.inf if method == "population_loss" else 4
    with pytest.raises(ValueError, match="needs the values of arrays") as found:
        dynsim.train(problem, SGD, KEY, steps=3, batch=batch, record="w")
    first, line, *words = str(found.value).splitlines()
    where = "record = 'w'" if method == "observables" else f"Valued.{method}"
    assert first.startswith(f"{where}: ")
    assert line.startswith(f"{__file__}, line ")
    assert line.endswith(inspect.getsource(VALUES[method]).strip())
    assert words == str(found.value.__cause__).splitlines()


def wrong(*_: Any) -> jax.Array:
    return jnp.ones((3, 4)) @ jnp.ones(2)


METHODS = ["init", "draw", "loss", "population_loss", "observables", "snapshot", "is_frozen"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", [*METHODS, "groups", "divergence_limit", "record"])
def test_code_that_fails_is_named_with_its_line_above_the_words_of_jax(method: str) -> None:
    """Whatever calls it: training, a flow, or a sweep, which also hashes the methods."""
    record = {"w": wrong} if method == "record" else "w"
    problem = type("Wrong", (Line,), {} if method == "record" else {method: wrong})()
    batch = math.inf if method in ("population_loss", "snapshot") else 4
    rule = dynsim.sgd({"w": 0.1}) if method == "groups" else SGD
    with pytest.raises(ValueError, match="while JAX compiles it") as found:
        dynsim.train(problem, rule, KEY, steps=3, batch=batch, record=record)
    first, line, words = str(found.value).splitlines()
    where = "record = 'w'" if method == "record" else f"Wrong.{method}"
    assert first.startswith(f"{where}: must work")
    assert first.endswith("raises TypeError")
    assert line.startswith(f"{__file__}, line ")
    assert line.endswith("return jnp.ones((3, 4)) @ jnp.ones(2)")
    assert words == str(found.value.__cause__)
    weights = "with the arguments {'steps': i32[], 'w': f32[]}"
    shown = {"loss": "(f32[4], f32[4])", "draw": "key<fry>[], ", "record": weights}
    given = shown.get(method, "")
    assert given in first


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("groups", jnp.arange(2), "must return strings in place of the weights, returned i32[2]"),
        ("is_frozen", "yes", "must return bools in place of the weights, returned 'yes'"),
        ("is_frozen", {"v": True}, "does not have the structure of the weights"),
        ("population_loss", jnp.ones(2), "must return one real number, returned f32[2]"),
        ("population_loss", None, "must return one real number, returned None"),
        ("init", np.ones(2, complex), "must return real weights, returned c64[2]"),
        ("init", None, "must return weights, has no floating-point array; returned None"),
        ("draw", None, "must return arrays, returned None"),
        ("draw", range(4), "must return arrays, returned range(0, 4)"),
        ("batches", (1.0, 2.0), "must return a function of the step, returned (1.0, 2.0)"),
    ],
)
def test_what_methods_return_is_named(method: str, value: Any, message: str) -> None:
    """The vector also where it is recorded alone."""
    problem = type("Odd", (Line,), {method: lambda *_: value})()
    with pytest.raises(ValueError, match=rf"^Odd.{method}: {re.escape(message)}"):
        dynsim.train(
            problem,
            dynsim.sgd({"w": 0.1}) if method == "groups" else SGD,
            KEY,
            steps=3,
            batch=4,
            record="loss",
        )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("value", "shown"),
    [("text", "'text'"), (None, "None"), ({"a": 1.0}, "a dict"), ([1.0], "a list")],
)
def test_what_an_observable_returns_is_named_unless_it_is_an_array(value: Any, shown: str) -> None:
    message = f"record = 'mine': must return an array or a number, returned {shown}"
    with pytest.raises(ValueError, match=re.escape(message)):
        dynsim.train(Line(), SGD, KEY, steps=3, batch=4, record={"mine": lambda *_: value})


@pytest.mark.usefixtures("unchecked")
def test_an_observable_whose_shape_changes_is_named() -> None:
    lengths = itertools.count(1)
    record = {"mine": lambda *_: jnp.zeros(next(lengths))}
    message = r"record = 'mine': must return arrays of one shape, returned \(1,\) and \(2,\)"
    with pytest.raises(ValueError, match=message):
        dynsim.train(Line(), SGD, KEY, steps=3, batch=4, record=record)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", [["w"], None, {1: missed}, {"w": 1.0}])
def test_what_observables_returns_is_named_unless_it_is_functions_by_name(value: Any) -> None:
    problem = type("Odd", (Line,), {"observables": lambda self: value})()
    message = f"Odd.observables: must return functions by name, returned {reprlib.repr(value)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        dynsim.train(problem, SGD, KEY, steps=3, batch=4)


@pytest.mark.more
def test_recorded_weights_are_those_of_descent() -> None:
    """Whose closed form is slope (1 - (1 - eta)^k) on the population; a flow has 1 - e^(-eta t)."""
    times, eta = [0, 1, 5], 0.1
    options = {"times": times, "record": ["params", "w"], "dtype": "float64"}
    found = dynsim.train(Line(), dynsim.sgd(eta), KEY, steps=5, batch=math.inf, **options)
    expected = 2 * (1 - (1 - eta) ** np.array(times))
    # Rounding of float64, over five steps.
    np.testing.assert_allclose(found["params.w"], expected, rtol=1e-14)
    assert "params.steps" not in found.observables  # an integer, which nobody trains
    flow = odes.flow(Line(), dynsim.sgd(eta), times, key=KEY, record="params")
    np.testing.assert_allclose(flow["params.w"], 2 * -np.expm1(-eta * np.array(times)), rtol=1e-6)
    net = dynsim.train(Net(), dynsim.adam(0.1), KEY, steps=2, times=[0, 2], record="params")
    last = net.model.layers[1].weight
    np.testing.assert_array_equal(net["params.layers.1.weight"][-1], last)


def test_weights_are_not_recorded_where_a_theory_has_none() -> None:
    reduction = odes.problem.Reduction(lambda *_: 0.0, lambda *_: 0.0, lambda *_: ())
    with pytest.raises(ValueError, match=r"^record = 'params': this theory does not solve for all"):
        odes.flow(Line(), dynsim.sgd(0.1), [1], reduction=reduction, record="params")


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


def test_only_problems_with_examples_have_a_full_batch() -> None:
    assert dynsim.full_batch(Net(), KEY, 1).data[0].shape == (1, 2)
    with pytest.raises(ValueError, match="size = 0"):
        dynsim.full_batch(Net(), KEY, 0)

    class Bare(dynsim.Problem):
        def init(self, key):
            return jnp.ones(())

    with pytest.raises(ValueError, match="Bare: has no method 'draw'"):
        dynsim.full_batch(Bare(), KEY, 3)
