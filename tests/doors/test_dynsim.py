"""Bad input to `dynsim` in Python: settings, rules, schedules, problems and runs."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
from dynsim import Annealed, Prompts, checks, decoding, schedules
from dynsim.linear_icl.model import Separate
from dynsim.problem.sharpness import starting_vectors
from dynsim.schedules import as_schedule
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ
from dynsim.two_stage.observables import rank_curves
from dynsim.two_stage.task import PromptBatch
from dynsim.yz import observables, sampling
from dynsim.yz.finite_length import check_effective
from tests.doors import refuses

pytestmark = pytest.mark.usefixtures("unchecked")
Rows = list[tuple[Callable[[], object], tuple[str, ...]]]
KEY, SGD, INF, NAN = jax.random.key(0), dynsim.sgd(0.1), math.inf, math.nan
LAST, TINY = 2**31 - 1, 5e-324

# Of each type of setting: what is just inside, and what is just outside.
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "Count": ([1, LAST], [0, LAST + 1, 1.0, True]),
    "Size": ([1, 2**20], [0, 2**20 + 1]),
    "Index": ([0, LAST], [-1, LAST + 1]),
    "SizeOrNone": ([0, 2**20], [-1, 2**20 + 1]),
    "Steps": ([1, LAST], [0, 1.5, LAST + 1]),
    "Seed": ([0, 2**32 - 1], [-1, 2**32]),
    "CountOrInf": ([1, LAST, INF], [0, LAST + 1, 1.5, -INF, False]),
    "Length": ([2, LAST, INF], [1, LAST + 1, 2.5]),
    "Tokens": ([2, LAST], [1, LAST + 1, INF]),
    "Rate": ([0, 1e300, np.array([0.0, 2.0])], [-TINY, INF, NAN, np.array([1.0, -1.0])]),
    "Real": ([-1e300, 1e300], [-INF, INF, NAN, "1", None, True, 1j, [[1.0], [1.0, 2.0]]]),
    "NotNegative": ([0.0, 1e300], [-TINY, INF]),
    "Positive": ([TINY, 1e300], [0.0, INF]),
    "Share": ([0.0, 1.0], [-TINY, 1 + 1e-15]),
    "Decay": ([0.0, 1 - 1e-15], [-TINY, 1.0]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_settings_are_accepted_and_refused_at_their_bounds(name: str) -> None:
    stated = dataclasses.make_dataclass("Stated", [("x", getattr(decoding, name))])
    inside, outside = BOUNDS[name]
    for value in inside:
        decoding.check_annotations(stated(value))
    for value in outside:
        refuses(lambda value=value: decoding.check_annotations(stated(value)), "x = ")


@dataclasses.dataclass
class Stated:
    """Fields of each form that an annotation can have."""

    word: Literal["a", "b"] = "a"
    some: decoding.Share | None = None
    by_group: decoding.NotNegative | Mapping[str, decoding.NotNegative] = 0.0
    either: Literal["auto"] | decoding.Count = 1
    any_number: float = 0.0


def stated(**fields: Any) -> Callable[[], object]:
    return lambda: decoding.check_annotations(Stated(**fields))


def test_settings_within_their_annotations_are_accepted() -> None:
    stated(word="b", some=0.5, by_group={"Y": 1.0, "Z": 0.0}, either="auto", any_number=-INF)()
    for name in ("a", "a b", "a-b.c_1", "é", "_", "com", "com10", "x" * 200):
        checks.name("f", name)
    assert jax.eval_shape(lambda x: (checks.real("f", x, 9), x)[1], 1.0).shape == ()
    for effective, length in ((4.0, 5), (1.0, 2), (4.0, INF), (3.99, 5)):
        check_effective(effective, length)


class Line(dynsim.Problem):
    """w learns the slope of y = slope x, on x ~ N(0, 1)."""

    slope: float = 2.0

    def init(self, key):
        return {"w": 0 * jax.random.normal(key, ()), "steps": jnp.int32(7)}

    def draw(self, key, batch):
        x = jax.random.normal(key, (batch,))
        return x, self.slope * x

    def loss(self, params, data):
        return jnp.mean((params["w"] * data[0] - data[1]) ** 2) / 2

    def population_loss(self, params):
        return (params["w"] - self.slope) ** 2 / 2

    def observables(self):
        return {"w": lambda problem, params: params["w"]}

    def groups(self, params):
        return {"w": "slope", "steps": None}


class Bare(dynsim.Problem):
    def init(self, key):
        return jnp.ones(())


class Listed(Line):
    names: list = eqx.field(default_factory=lambda: [{1, 2}])


class Chance(Line):
    """It is built with other numbers each time."""

    at: Any = None

    def build(self, rule):
        return Chance(at={"x": np.ones(2), "y": np.random.normal(size=2)})  # noqa: NPY002


def of(name: str = "Odd", base: type = Line, **methods: Any) -> Any:
    """A problem with other methods."""
    return type(name, (base,), methods)()


def odd(method: str, value: Any) -> Any:
    return of(**{method: lambda *_: value})


def train(problem: Any = None, rule: Any = SGD, **changes: Any) -> dynsim.Trajectory:
    problem = Line() if problem is None else problem
    return dynsim.train(problem, rule, **{"key": KEY, "steps": 10, "batch": 4} | changes)


SETTINGS: Rows = [
    (stated(word="c"), ("word", "'c'", "a, b")),
    (stated(word=None), ("word", "None", "a, b")),
    (stated(some=np.array([0.5, 2.0])), ("some", "2.0", "[0, 1]")),
    (stated(by_group={"Y": 1.0, "Z": -1.0}), ("by_group['Z']", "-1.0", "[0, inf)")),
    (stated(by_group=None), ("by_group", "None", "real")),
    *((lambda s=s: checks.name("f", s), ("f", "letters"))
      for s in ("", "..", ".a", "a/b", "a\\b", "a:b", " a", "a.", "-", "con", "NUL.txt", "lpt9",
                "x" * 201, "é" * 101, "a\n", "a\x1b[2J")),
    (lambda: checks.choice("f", "B", ["a", "b"]), ("f", "'B'", "'b'?", "a, b")),
    (lambda: checks.kind("f", dynsim.SGD, dynsim.SGD), ("f", "class", "dynsim.SGD")),
    (lambda: checks.real("f", 1.0, 1, 2, open_minimum=True), ("f", "1.0", "(1, 2]")),
    (lambda: checks.real("f", [1.5, 2.0], 1, 2, open_maximum=True), ("f", "2.0", "[1, 2)")),
    (lambda: dynsim.log_times(10, num=1), ("num", "1", ">= 2")),
    (lambda: dynsim.log_times(0), ("steps", "0", ">= 1")),
]  # fmt: skip
RULES: Rows = [
    (lambda: dynsim.SGD(eta=0.1, momentum=1.0), ("momentum", "1.0", "[0, 1)")),
    (lambda: dynsim.sgd(-1.0), ("eta", "-1.0", "[0, inf)")),
    (lambda: dynsim.sgd(1.0, NAN), ("eta_z", "nan", "[0, inf)")),
    (lambda: dynsim.sgd([0.1, "2"], 0.1), ("eta_y", "real")),
    (lambda: dynsim.sgd({}), ("eta", "{}", "rate for each group")),
    (lambda: dynsim.sgd({"a": -1.0}), ("eta['a']", "-1.0", "[0, inf)")),
    (lambda: dynsim.sgd(), ("eta", "None", "real")),
    (lambda: dynsim.sgd([0.1, 0.2]), ("eta", "[0.1, 0.2]", "one rate")),
    (lambda: dynsim.sgd(eta_y=1.0), ("eta_z", "None", "other rate")),
    (lambda: dynsim.sgd(1.0, nesterov=True), ("nesterov", "True", "momentum")),
    (lambda: dynsim.sgd(1.0, clip=0.0), ("clip", "0.0", "(0, inf)")),
    (lambda: dynsim.sgd(1.0, noise=-1.0), ("noise", "-1.0", "[0, inf)")),
    (lambda: dynsim.sgd(1.0, decay={"a": -1.0}), ("decay['a']", "-1.0", "[0, inf)")),
    (lambda: dynsim.sgd(1.0, noise={"a": -1.0}), ("noise['a']", "-1.0", "[0, inf)")),
    (lambda: dynsim.sign(1.0, momentum=1.0), ("momentum", "1.0", "[0, 1)")),
    (lambda: dynsim.adam(1.0, b1=1.0), ("b1", "1.0", "[0, 1)")),
    (lambda: dynsim.adam(1.0, b2=-0.1), ("b2", "-0.1", "[0, 1)")),
    (lambda: dynsim.adam(1.0, eps=0.0), ("eps", "0.0", "(0, inf)")),
    (lambda: dynsim.rmsprop(1.0, b2=1.0), ("b2", "1.0", "[0, 1)")),
    (lambda: dynsim.rmsprop(1.0, eps=0.0), ("eps", "0.0", "(0, inf)")),
    (lambda: dynsim.adamw(1.0, decay=-1.0), ("decay", "-1.0", "[0, inf)")),
    (lambda: dynsim.AdamW(1.0, decay=0.1, decoupled=False), ("decoupled", "False", "True")),
    (lambda: dynsim.Ratio(0.1, ratio=-1.0), ("ratio", "-1.0", "[0, inf)")),
    (lambda: dynsim.Ratio(-0.1), ("Z", "-0.1", "[0, inf)")),
    (lambda: dynsim.from_optax(3), ("make", "3", "function")),
    (lambda: dynsim.from_optax(optax.sgd, learning_rate=0.1, b1=0.5), ("'b1'",)),
    (lambda: dynsim.from_optax(optax.sgd, learning_rate="x"), ("learning_rate", "'x'", "real")),
    (lambda: dynsim.sharpness_threshold(dynsim.sign(0.1)), ("rule", "sign")),
    (lambda: dynsim.sharpness_threshold(dynsim.sgd({"a": 1.0, "b": 0.1})), ("by group",)),
    (lambda: dynsim.sharpness_threshold(dynsim.sgd(0.1, decay={"a": 1.0})), ("by group",)),
    (lambda: dynsim.sharpness_threshold(dynsim.adam(0.4, decay=0.7)), ("preconditioner", "None")),
    (lambda: dynsim.sharpness_threshold(dynsim.rmsprop(1, decay=1)), ("preconditioner", "None")),
    (lambda: schedules.constant(-1.0), ("peak", "-1.0", "[0, inf)")),
    (lambda: schedules.constant(1.0, warmup=-1), ("warmup", "-1.0", "[0, inf)")),
    (lambda: schedules.cosine(1.0, 0), ("steps", "0.0", "(0, inf)")),
    (lambda: schedules.linear(1.0, 10, warmup=11), ("warmup", "11.0", "[0, 10")),
    (lambda: schedules.linear(1.0, 10, end=-0.1), ("end", "-0.1", "[0")),
    (lambda: schedules.exponential(1.0, 10, 0), ("factor", "0.0", "(0")),
    (lambda: schedules.exponential(1.0, 0, 0.5), ("steps", "0.0", "(0, inf)")),
    (lambda: schedules.inverse_sqrt(1.0, warmup=0), ("warmup", "0.0", "[1, inf)")),
    (lambda: schedules.warmup_stable_decay(1.0, -1, 1, warmup=1), ("stable", "-1.0", "[0, inf)")),
    (lambda: schedules.steps(1.0, (5, 3), (1, 1)), ("at", "3.0", "[5, inf)")),
    (lambda: schedules.steps(1.0, (np.array([5, 6]), np.array([7, 3])), (1, 1)),
     ("at", "3.0", "[6, inf)")),
    (lambda: schedules.steps(1.0, (5,), (1, 1)), ("one factor for each",)),
    (lambda: schedules.steps(1.0, (5,), (-1,)), ("factors", "-1.0", "[0, inf)")),
    (lambda: as_schedule("eta", "fast"), ("eta", "'fast'", "real")),
    (lambda: as_schedule("eta", lambda k: 1 / jnp.sqrt(k)).table(20), ("eta", "step 0", "inf")),
    (lambda: as_schedule("eta", lambda k: 0.1 - 0.01 * k).table(20), ("eta", "step 11", "-0.0")),
    (lambda: as_schedule("eta", lambda k: jnp.where(k == 4, NAN, 0.1)).table(20),
     ("eta", "step 4", "nan")),
    (lambda: jax.eval_shape(schedules.cosine(0.1, 20).eta_time, jnp.ones(3)), ("times", "traced")),
    (lambda: schedules.cosine(0.1, 20).table(2e8), ("times", "200000000", "<= 134217728")),
    *((lambda f=f: jax.eval_shape(as_schedule("eta", f).rate, jnp.int32(0)), ("eta", *words))
      for f, words in ((lambda k: "fast", ("'fast'",)), (lambda k: jnp.ones(3), ("f32[3]",)),
                       (lambda: 0.1, ("1 was given",)), (lambda k: 1 if k > 3 else 2, ("line",)))),
]  # fmt: skip


class Turned(dynsim.Rule):
    """A rule of a user whose direction, or its result, is another thing than it should be."""

    made: Any = None
    returned: Any = None

    def direction(self) -> Any:
        return self.made or optax.GradientTransformation(
            lambda params: {"seen": jnp.zeros(2)}, lambda g, state, params: self.returned
        )


def turned(**fields: Any) -> Callable[[], object]:
    rule, gradient = Turned(0.1, **fields), {"w": jnp.ones(3)}
    return lambda: rule.update(gradient, rule.init(gradient), gradient, jnp.int32(0))


class Unnamed(dynsim.Rule):
    """Keeps an older key where nothing says that it is one."""

    def direction(self) -> optax.GradientTransformation:
        def update(g: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            draw, left = jax.random.split(state[0])
            add = lambda x: x + jax.random.normal(draw, x.shape)
            return jax.tree.map(add, g), (left,)

        return optax.GradientTransformation(lambda params: (jax.random.PRNGKey(0),), update)


def same_draw(rate: float) -> optax.GradientTransformation:
    draw = lambda g, _: jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(0)), g)
    return optax.chain(optax.add_noise(1.0, 0.0, key=0), optax.stateless(draw), optax.sgd(rate))


ahead = dynsim.from_optax(lambda eta: optax.lookahead(optax.sgd(eta), 5, 0.5), eta=0.1)
warmed = dynsim.from_optax(
    lambda peak: optax.sgd(optax.warmup_cosine_decay_schedule(0.0, peak, 1, 10)), peak=0.1
)
noisy = dynsim.from_optax(lambda rate: optax.noisy_sgd(rate, 1.0, 0.0, 0), rate=0.1)
GENERATOR, COUNTER, LENGTHS = np.random.default_rng(0), itertools.count(), itertools.count(1)
normal = lambda key, batch: jax.random.normal(key, (batch,))
looped = lambda i, x: x + jnp.asarray(np.random.normal(size=4), x.dtype)  # noqa: NPY002
CHANCE: list[Callable[[Any, int], Any]] = [
    lambda key, batch: np.random.normal(size=batch),  # noqa: NPY002
    lambda key, batch: jnp.asarray(GENERATOR.normal(size=batch)),
    lambda key, batch: normal(key, batch) * random.random(),
    lambda key, batch: normal(key, batch) + next(COUNTER),
    lambda key, batch: jax.lax.fori_loop(0, 2, looped, normal(key, batch)),
    lambda key, batch: normal(jax.random.key(0), batch),
]
"""Draws that are the same, or differ, whatever the key."""
VALUED = {
    "init": lambda self, key: {"w": float(jax.random.normal(key))},
    "draw": lambda self, key, batch: np.asarray(jax.random.normal(key, (batch,))),
    "loss": lambda self, params, data: params["w"] if params["w"] > 0 else -params["w"],
    "population_loss": lambda self, params: params["w"][params["w"] > 0],
}
wrong = lambda *_: jnp.ones((3, 4)) @ jnp.ones(2)
FAILS = "init draw loss population_loss observables snapshot is_frozen groups divergence_limit"
RETURNED: tuple[tuple[str, Any, str], ...] = (
    ("groups", jnp.arange(2), "i32[2]"),
    ("is_frozen", "yes", "'yes'"),
    ("is_frozen", {"v": True}, "structure"),
    ("population_loss", jnp.ones(2), "f32[2]"),
    ("population_loss", None, "None"),
    ("loss", jnp.ones(4), "f32[4]"),
    ("init", np.ones(2, complex), "c64[2]"),
    ("init", {"steps": 3}, "floating-point"),
    ("draw", None, "None"),
    ("draw", jnp.ones(3), "batch = 4 and 5"),
    ("batches", (1.0, 2.0), "(1.0, 2.0)"),
    ("observables", ["w"], "['w']"),
    ("observables", {"w": 1.0}, "functions"),
    ("observables", {"update_norm": wrong}, "'update_norm'"),
)
BY_SLOPE = dynsim.sgd({"slope": 0.1})
RUNS: Rows = [
    (lambda: train(steps=0), ("steps", "0", ">= 1")),
    (lambda: train(steps=None), ("steps", "None", "times")),
    (lambda: train(times=[1, 1]), ("times", "[1, 1]", "[0, steps = 10]")),
    (lambda: train(times=[-1, 2]), ("times", "[-1, 2]", "[0, steps = 10]")),
    (lambda: train(times=[0, 11]), ("times", "[0, 11]", "[0, steps = 10]")),
    (lambda: train(times=[]), ("times", "[]", "non-empty")),
    (lambda: train(times=[[0, 1]]), ("times", "[[0, 1]]", "non-empty")),
    (lambda: train(times=[0.5]), ("times", "whole steps")),
    (lambda: train(times=[0, 9], record="relative_loss"), ("steps = 10", "end at 9")),
    (lambda: train(checkpoint=True, record="relative_loss"), ("record", "'relative_loss'")),
    (lambda: train(batch=0), ("batch", "0", "1 to 2147483647, or inf")),
    (lambda: train(dtype="float16"), ("dtype", "'float16'", "float32")),
    (lambda: jax.vmap(lambda eta: train(rule=dynsim.sgd(eta), dtype="float64").status)(
        jnp.ones(2)), ("dtype", "'float64'", "vmap")),
    (lambda: train(limit=-INF), ("limit", "-inf", "finite")),
    (lambda: train(key=None), ("key", "None", "random")),
    (lambda: train(rule=dynsim.sgd(1.0, noise=0.1), key=None, batch=INF), ("key", "None")),
    *((lambda k=k: train(key=k), ("key", repr(k), "jax.random.key(0)"))
      for k in (3, jnp.zeros(2, "float32"))),
    (lambda: train(key=jax.random.split(KEY, 3)), ("key", "one key", "(3,)")),
    (lambda: train(rule=noisy, key=None, batch=INF, init={"w": 0.0, "steps": 7}), ("key", "None")),
    (lambda: train(data=(np.ones((9, 1)),)), ("data[0]", "steps = 10")),
    (lambda: train(data=(np.ones((12, 1)),)), ("data[0]", "steps = 10")),
    (lambda: train(data=(np.float64(1),)), ("data[0]", "steps = 10")),
    (lambda: train(init=3), ("init", "Line.init")),
    (lambda: train(Line), ("problem", "class", "dynsim.Problem")),
    (lambda: train(rule=0.1), ("rule", "0.1", "dynsim.Rule")),
    (lambda: train(rule=dynsim.sgd(np.array([0.1, 0.2]))), ("rule", "(2,)", "scalars")),
    (lambda: train(rule=dynsim.sgd(schedules.cosine(1.0, 30))), ("eta", "30", "steps = 10")),
    (lambda: train(rule=dynsim.sgd({"slope": 1.0, "other": 1.0})), ("eta", "'other'", "'slope'")),
    (lambda: train(rule=dynsim.sgd(0.1, noise={"a": 1.0})), ("noise", "'a'", "'slope'")),
    (lambda: train(rule=dynsim.sgd(1.0, decay={"other": 0.1})), ("decay", "'other'", "'slope'")),
    (lambda: train(of(init=lambda *_: {"w": jnp.zeros(()), "b": jnp.zeros(())},
                      groups=lambda *_: {"w": "slope", "b": "other"}), BY_SLOPE),
     ("eta", "'other'", "groups")),
    (lambda: train(Bare()), ("Bare", "'draw'")),
    (lambda: train(of(groups=lambda *_: None), dynsim.sgd({"a": 1.0})), ("eta", "'a'", "groups")),
    (lambda: train(of(groups=lambda *_: None), dynsim.sgd(1.0, decay={"a": 1.0})),
     ("decay", "'a'", "groups")),
    (lambda: train(Bare(), batch=INF), ("Bare", "'population_loss'")),
    (lambda: train(Bare(), data=np.ones((10, 1)), record={"w": lambda problem: 0.0}),
     ("Bare", "'loss'")),
    (lambda: dynsim.full_batch(Bare(), KEY, 3), ("Bare", "'draw'")),
    (lambda: dynsim.full_batch(Line(), KEY, 0), ("size", "0", ">= 1")),
    (lambda: train(Chance()), ("Chance.build", "at.y")),
    (lambda: train(dynsim.FullBatch(Chance(), np.ones(3))), ("FullBatch.build", "problem.at.y")),
    (lambda: train(Listed()), ("Listed.names.0", "{1, 2}", "hashable")),
    (lambda: train(rule=ahead), ("from_optax", "gradient")),
    (lambda: train(rule=warmed), ("from_optax", "peak")),
    (lambda: train(rule=Unnamed(0.1)), ("key", "same in all runs")),
    (lambda: train(rule=dynsim.from_optax(same_draw, rate=0.1)), ("key", "same in all runs")),
    (turned(made="sgd"), ("Turned.direction", "'sgd'")),
    (turned(returned=({"w": jnp.ones(1)}, {"seen": jnp.zeros(2)})), ("{'w': f32[1]}",)),
    (turned(returned=({"w": jnp.ones(3)}, jnp.zeros(2))), ("state", "returned f32[2]")),
    (turned(returned=({"w": jnp.ones(3)}, {"seen": jnp.zeros(2, bool)})), ("{'seen': bool[2]}",)),
    (turned(returned=("w", {"seen": jnp.zeros(2)})), ("{'w': f32[3]}", "'w'")),
    (turned(), ("Turned.direction", "NoneType")),
    *((lambda draw=draw: train(of(draw=lambda self, key, batch: draw(key, batch),
                                  loss=lambda self, params, data: jnp.mean(params["w"] - data))),
       ("Odd.draw", "key")) for draw in CHANCE),
    (lambda: train(of(init=lambda self, key: {"w": jnp.asarray(np.random.normal())}), batch=INF),  # noqa: NPY002
     ("Odd.init", "jax.random")),
    *((lambda f=f, m=m: train(of(**{m: f}), batch=INF if m == "population_loss" else 4),
       (f"Odd.{m}", "values of arrays", __file__)) for m, f in VALUED.items()),
    *((lambda m=m: train(of(**{m: wrong}), BY_SLOPE if m == "groups" else SGD, record="w",
                         batch=INF if m in ("population_loss", "snapshot") else 4),
       (f"Odd.{m}", "TypeError", __file__, "@ jnp.ones(2)")) for m in FAILS.split()),
    *((lambda m=m, v=v: train(odd(m, v), BY_SLOPE if m == "groups" else SGD, record="loss"),
       (f"Odd.{m}", said)) for m, v, said in RETURNED),
]  # fmt: skip
BAD = np.array([0, 1])
RUN = dynsim.Trajectory(
    np.ones((2, 1)), {"loss": np.ones((2, 1)), "xi": np.ones((2, 1, 5, 4))}, None, BAD, BAD, "eq10"
)
TRAINED = observables.TRAINED.resolve
RECORDS: Rows = [
    (lambda: train(record="speed"), ("record", "'speed'", "loss, w, batch_loss")),
    (lambda: train(record=["los"]), ("record", "'los'", "'loss'?")),
    (lambda: train(record={"w": wrong}), ("record = 'w'", "TypeError", __file__)),
    (lambda: train(record={"mine": lambda problem: 0.0}), ("record", "'mine'", "positional")),
    *((lambda v=v: train(record={"mine": lambda *_: v}), ("record = 'mine'", said))
      for v, said in (("text", "'text'"), (None, "None"), ([1.0], "list"))),
    (lambda: train(record={"mine": lambda *_: jnp.zeros(next(LENGTHS))}), ("'mine'", "(2,)")),
    (lambda: train(rule=BY_SLOPE, record="eta_time"), ("record", "'eta_time'", "one rate")),
    (lambda: train(record="sharpness_2"), ("'sharpness_2'", "at most 1")),
    (lambda: train(record="sharpness_0"), ("sharpness_0",)),
    (lambda: train(rule=dynsim.sign(0.1), record="preconditioned_sharpness"), ("rule", "sign")),
    # LOBPCG needs five times as many weights as the block has columns.
    (lambda: starting_vectors(jnp.zeros(201), {"sharpness": 40}), ("'sharpness_40'", "at most 39")),
    (lambda: TRAINED(3), ("record", "3", "name")),
    (lambda: TRAINED(["loss", 3]), ("record", "3")),
    (lambda: TRAINED({"loss": "accuracy"}), ("record", "'accuracy'", "functions")),
    (lambda: TRAINED({3: wrong}), ("record", "{3: ")),
    *((lambda n=n: TRAINED({n: wrong}), ("record", f"'{n}'"))
      for n in ("batch_loss", "time", "status")),
    (lambda: TRAINED(["loss", {"loss": wrong}]), ("record", "'loss'", "two")),
    (lambda: TRAINED({"mine": type("F", (), {"__call__": wrong, "__hash__": None})()}),
     ("hashable",)),
    (lambda: TRAINED(["loss", "B"]), ("record", "'B'", "Eq. 10")),
    (lambda: RUN["z"], ("'z'", "loss, xi")),
    (lambda: RUN.crossing_time("z", 1), ("'z'", "loss, xi")),
    (lambda: RUN.std, ("std", "eq10")),
    (lambda: RUN.across_runs(), ("1 of 2", "at least 2")),
    (lambda: RUN.to_xarray(("a", "b")), ("runs", "('a', 'b')", "1 different")),
    (lambda: RUN.to_xarray(3), ("runs", "3", "1 different")),
    *((lambda v=v: RUN.to_xarray(inner={"xi": v}), ("inner['xi']", "2 different"))
      for v in (("a",), ("a", "a"), "ab")),
]  # fmt: skip
SMALL = dynsim.SynSmall().build()


def layer(rule: Any = SGD, layer: Any = None, **options: Any) -> dynsim.Trajectory:
    problem = dynsim.Layer(SMALL, **layer or {})
    return dynsim.train(problem, rule, KEY, **{"steps": 3, "batch": 8} | options)


def icl(*sizes: int, **fields: Any) -> Callable[[], object]:
    return lambda: dynsim.Regression(*sizes, **fields)


def qkv(batch: float = INF, **fields: Any) -> Callable[[], object]:
    return lambda: dynsim.train(
        dynsim.QKV(SMALL, **{"width": 34} | fields), SGD, KEY, steps=2, batch=batch
    )


def prompts(**options: Any) -> Callable[[], object]:
    given = {"steps": None, "times": [0, 8], **options}
    return lambda: dynsim.train(Prompts(3, 5), Annealed(), KEY, **given)


def ranked(*names: str, **options: Any) -> object:
    batch = PromptBatch(*np.ones((2, 4, 3, 2), "f4"), np.ones((4, 3), "f4"))
    return rank_curves(PQ(np.eye(2), np.eye(2)), batch, names, **options)


LONGEST = (1.0, 1.0, 0.25)
"""Rates and decay with which the first stage takes 1 step, the second 4 for each `stage_2`."""
PARTS: tuple[tuple[str, float, str], ...] = (
    ("d", 1, ">= 2"), ("length", 1, ">= 2"), ("r", 0.0, "(0, inf)"), ("s1", -1.0, "[0, inf)"),
    ("s2", -1.0, "[0, inf)"), ("gamma0", -0.1, "[0, inf)"), ("coupling", 1.1, "[0, 1]"),
    ("pool", 0, ">= 1"), ("num_test", 1, ">= 2"), ("tau_0", -0.1, "[0, inf)"),
)  # fmt: skip
OTHERS: tuple[dict[str, Any], ...] = (
    {"momentum": 0.5}, {"clip": 1.0}, {"decoupled": True}, {"decay": {"noise": 0.1}},
    {"decay": 0.1}, {"noise": {"noise": 0.1, "signal": 0.1}}, {"noise": None}, {"eta": 0.1},
)  # fmt: skip
SYSTEMS: Rows = [
    (lambda: layer(layer={"length": 1}), ("length", "1", "2 to 2147483647, or inf")),
    (lambda: layer(layer={"start": "ones"}), ("start", "'ones'", "zero, uniform")),
    (lambda: layer(layer={"length": 2}, batch=INF), ("length", "2", "1/T")),
    # 1 / sum p^2 = 17.3 effective tokens need as many contextual ones.
    (lambda: layer(layer={"length": 18}, batch=INF), ("length", "18", "17.3", ">= 19")),
    (lambda: check_effective(4.01, 5), ("length", "5", ">= 6")),
    (lambda: check_effective(0.5, 1), ("length", "1.0")),
    (lambda: layer(batch=10**8), ("12800000000 tokens",)),
    (lambda: sampling.check_tokens(1, 2**30 + 1), ("batch", "1", f"length = {2**30 + 1}")),
    (lambda: layer(init=dynsim.YZ(np.zeros((2, 2)), np.zeros((1, 2)))), ("init", "(34, 34)")),
    (lambda: layer(dynsim.sgd(schedules.cosine(1.0, 40), 1.0)), ("eta['Y']", "40")),
    (lambda: dynsim.JoMA(scale=-np.array([0.5, 2.0])), ("scale", "-0.5", "[0, inf)")),
    (qkv(length=3), ("length", "3", "expansion")),
    (qkv(frozen=("W",)), ("frozen", "'W'", "U, W_Q")),
    (qkv(frozen=("W_Q", "W_K", "W_V")), ("decoder",)),
    (qkv(slope=-1.0), ("slope", "-1.0", "[0, inf)")),
    (qkv(slope=0.1, length=INF), ("slope", "0.1", "sequences")),
    (qkv(slope=0.1), ("slope", "0.1", "finite batch")),
    (qkv(heads=0), ("heads", "0", ">= 1")),
    (qkv(head_width=0), ("head_width", "0", ">= 1")),
    (qkv(scale=-1.0), ("scale", "-1.0", "[0, inf)")),
    (qkv(embedding="odd"), ("embedding", "'odd'", "identity")),
    (qkv(normalisation="l1"), ("normalisation", "'l1'", "l2")),
    (qkv(placement="x"), ("placement", "'x'", "theory")),
    (qkv(width=0), ("width", "0", ">= 1")),
    (qkv(width=33), ("width", "33", "'orthogonal'", "34")),
    (qkv(width=35, embedding="identity"), ("width", "35", "'identity'")),
    (qkv(width=1, embedding="gaussian", normalisation="layer", placement="practice"),
     ("width", "1", "'layer'")),
    (icl(0), ("D", "0", ">= 1")),
    (lambda: dynsim.GivenSpectrum([1.0, 2.0]), ("eigenvalues", "[1. 2.]", "increase")),
    (lambda: dynsim.GivenSpectrum([1.0, 0.0]), ("eigenvalues", "0.0", "(0, inf)")),
    (icl(3, 5, spectrum=dynsim.GivenSpectrum([1.0])), ("spectrum", "D = 3")),
    (lambda: dynsim.GeometricSpectrum(np.array([0.5, 1.5])), ("ratio", "1.5", "(0, 1]")),
    (lambda: dynsim.SeparateHeads(0), ("rank", "0", ">= 1")),
    (icl(data="old"), ("data", "'old'", "fresh, fixed")),
    (icl(scale=-1.0), ("scale", "-1.0", "(0, inf)")),
    (icl(heads=0), ("heads", "0", ">= 1")),
    (lambda: train(dynsim.Regression(), init=Separate(np.zeros(2), *np.zeros((2, 2, 1, 4)))),
     ("init", "Regression.init")),
    *((lambda f=f, v=v: Prompts(**{f: v}), (f, str(v), said)) for f, v, said in PARTS),
    (lambda: Prompts(core="none"), ("core", "'none'", "fresh, fixed")),
    (lambda: Annealed(eta_1=0.0), ("eta_1", "0.0", "(0, inf)")),
    (lambda: Annealed(eta_2=-1.0), ("eta_2", "-1.0", "(0, inf)")),
    (lambda: Annealed(decay=0.0), ("decay", "0.0", "(0, inf)")),
    (lambda: Annealed(tau=np.array([[0.1], [-1.0]])), ("tau", "-1.0", "[0, inf)")),
    (lambda: Annealed(stage_1=0.0), ("stage_1", "0.0", "(0, inf)")),
    (lambda: Annealed(stage_2=0.0), ("stage_2", "0.0", "(0, inf)")),
    (lambda: Annealed(eta_1=np.array([0.1, 100.0])), ("eta_1 * decay", "2.5", "[0, 1)")),
    (lambda: Annealed(eta_2=2.0, decay=0.5), ("eta_2 * decay", "1.0", "[0, 1)")),
    (lambda: Annealed(control="big"), ("control", "'big'", "small")),
    (lambda: dynsim.two_stage("slow"), ("preset", "'slow'", "default, fast, joint")),
    (lambda: Annealed(*LONGEST, stage_2=2**29 - 1 / 4), ("2.15e+09 steps", "2147483647")),
    (lambda: Annealed(1e-12), ("1e+13 steps", "2147483647")),
    (lambda: dynsim.train(Prompts(), Annealed().build(), KEY, steps=None, times=[0, 8]),
     ("tau_0",)),
    (lambda: Annealing.of(SGD), ("dynsim.Annealed",)),
    *((lambda c=c: Annealing.of(dataclasses.replace(Annealed().build(), **c)),
       ("dynsim.Annealed",)) for c in OTHERS),
    (lambda: Annealed().stages.times(0), ("num", "0", ">= 1")),
    (prompts(checkpoint=True), ("checkpoint",)),
    (lambda: prompts(init=PQ(np.eye(2), np.eye(3)))(), ("init",)),
    (lambda: ranked("loss"), ("record", "'loss'", "K1")),
    (lambda: ranked("K1", largest=-1), ("largest", "-1", ">= 0")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "named"), [*SETTINGS, *RULES, *SYSTEMS])
def test_settings_of_rules_and_systems(call: Callable[[], object], named: tuple[str, ...]) -> None:
    refuses(call, *named)


@pytest.mark.parametrize(("call", "named"), RUNS)
def test_runs_and_code_of_users(call: Callable[[], object], named: tuple[str, ...]) -> None:
    refuses(call, *named)


@pytest.mark.parametrize(("call", "named"), RECORDS)
def test_what_is_recorded(call: Callable[[], object], named: tuple[str, ...]) -> None:
    refuses(call, *named, error=(ValueError, KeyError))
