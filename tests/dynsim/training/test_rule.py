"""Rules step by step against optax, and against their formulas where optax has none."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
from dynsim import Rule, schedules

STEPS = 12
RATE = schedules.warmup_cosine(0.1, 3, 10, 0.1)
THEIR_RATE = optax.warmup_cosine_decay_schedule(0, 0.1, 3, 10, 0.01)
START = {"a": np.array([0.3, -2.0, 0.0]), "b": np.array([[1.5]])}
GRADIENTS = [
    {"a": g[:3], "b": g[3:].reshape(1, 1)}
    for g in np.random.default_rng(0).normal(size=(STEPS, 4)) * [1, 3, 0.1, 2]
]


def ours(rule: Rule, groups: Any = None) -> list[Any]:
    """The weights after each step."""
    rule = rule.astype("float64")
    params = jax.tree.map(jnp.asarray, START)
    memory, found = rule.init(params), []
    for k, g in enumerate(GRADIENTS):
        update, memory = rule.update(g, memory, params, jnp.int32(k), None, groups)
        params = optax.apply_updates(params, update)
        found.append(params)
    return found


def theirs(rule: optax.GradientTransformation) -> list[Any]:
    params = jax.tree.map(jnp.asarray, START)
    memory, found = rule.init(params), []
    for g in GRADIENTS:
        update, memory = rule.update(g, memory, params)
        params = optax.apply_updates(params, update)
        found.append(params)
    return found


DECAY = optax.add_decayed_weights(0.3)
PAIRS = {
    "sgd": (dynsim.sgd(RATE), optax.sgd(THEIR_RATE)),
    "heavy ball": (dynsim.sgd(RATE, momentum=0.8), optax.sgd(THEIR_RATE, 0.8)),
    "nesterov": (
        dynsim.sgd(RATE, momentum=0.8, nesterov=True),
        optax.sgd(THEIR_RATE, 0.8, nesterov=True),
    ),
    "rmsprop": (
        dynsim.rmsprop(RATE, b2=0.7, eps=1e-3),
        optax.chain(
            optax.scale_by_rms(0.7, 1e-3, eps_in_sqrt=False),
            optax.scale_by_learning_rate(THEIR_RATE),
        ),
    ),
    "adam": (
        dynsim.adam(RATE, b1=0.7, b2=0.9, eps=1e-3),
        optax.adam(THEIR_RATE, b1=0.7, b2=0.9, eps=1e-3),
    ),
    "adamw": (dynsim.adamw(RATE, decay=0.3), optax.adamw(THEIR_RATE, weight_decay=0.3)),
    "sign": (dynsim.sign(RATE), optax.sign_sgd(THEIR_RATE)),
    "signum": (
        dynsim.sign(RATE, momentum=0.8),
        optax.chain(optax.trace(0.8), optax.sign_sgd(THEIR_RATE)),
    ),
    "coupled decay": (
        dynsim.sgd(RATE, momentum=0.8, decay=0.3),
        optax.chain(DECAY, optax.sgd(THEIR_RATE, 0.8)),
    ),
    "decoupled decay": (
        dynsim.sgd(RATE, momentum=0.8, decay=0.3, decoupled=True),
        optax.chain(optax.trace(0.8), DECAY, optax.scale_by_learning_rate(THEIR_RATE)),
    ),
    "clip, then coupled decay": (
        dynsim.adam(RATE, clip=0.5, decay=0.3),
        optax.chain(optax.clip_by_global_norm(0.5), DECAY, optax.adam(THEIR_RATE)),
    ),
    "clipped adamw": (
        dynsim.adamw(RATE, decay=0.3, clip=0.5),
        optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(THEIR_RATE, weight_decay=0.3)),
    ),
    "from optax": (
        dynsim.from_optax(optax.lion, learning_rate=0.1, weight_decay=0.2),
        optax.lion(0.1, weight_decay=0.2),
    ),
    "function": (dynsim.sgd(lambda k: 0.1 / (k + 1)), optax.sgd(lambda k: 0.1 / (k + 1))),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.more
def test_every_step_is_that_of_optax(name: str) -> None:
    rule, other = PAIRS[name]
    # optax computes its schedules and the bias correction of Adam in float32.
    close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=2e-8)
    for found, want in zip(ours(rule), theirs(other), strict=True):
        jax.tree.map(close, found, want)


@pytest.mark.usefixtures("x64")
@pytest.mark.more
def test_groups_have_rates_of_their_own() -> None:
    rule = dynsim.sgd({"slow": 0.1, "fast": RATE})
    found = ours(rule, {"a": "slow", "b": "fast"})[-1]
    want = {
        "a": START["a"] - 0.1 * sum(g["a"] for g in GRADIENTS),
        "b": START["b"] - sum(RATE.rate(k) * g["b"] for k, g in enumerate(GRADIENTS)),
    }
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, want)
    assert float(rule.eta_time(4)["slow"]) == pytest.approx(0.4)


@pytest.mark.usefixtures("x64")
def test_noise_is_normal_with_its_deviation_on_every_entry() -> None:
    """Clipping comes before it, so that a huge gradient leaves it as it is."""
    rule = dynsim.sgd(1.0, noise=0.5, clip=1e-9).astype("float64")
    zero, drawn = jnp.zeros((200, 100)), jax.random.normal(jax.random.key(0), (200, 100))
    update, _ = rule.update(zero + 1e6, rule.init(zero), zero, jnp.int32(0), drawn)
    assert float(jnp.mean(update)) == pytest.approx(0, abs=5 * 0.5 / 20_000**0.5)
    # The standard deviation of n numbers has an error of 1/sqrt(2 n).
    assert float(jnp.std(update)) == pytest.approx(0.5, rel=5 / 40_000**0.5)


def test_what_a_rule_is_can_be_asked() -> None:
    """Inertia; whether it is nonlinear in the gradient; whether weights are treated one by one."""
    lion = dynsim.from_optax(optax.lion, learning_rate=0.1)
    for rule, name, inertia, adaptive, elementwise in (
        (dynsim.sgd(1.0), "sgd", False, False, True),
        (dynsim.sgd(1.0, momentum=0.5), "momentum", True, False, True),
        (dynsim.sgd(1.0, momentum=0.5, nesterov=True), "nesterov", True, False, True),
        (dynsim.sgd(1.0, clip=1.0), "sgd", False, False, False),
        (dynsim.sgd(1.0, noise=0.1), "sgd", False, False, False),
        (dynsim.sign(1.0), "sign", True, True, True),
        (dynsim.rmsprop(1.0), "rmsprop", False, True, True),
        (dynsim.adam(1.0), "adam", True, True, True),
        (dynsim.adamw(1.0, decay=0.1), "adamw", True, True, True),
        (lion, "optaxrule", False, True, False),
    ):
        assert rule.name == name
        assert (rule.has_inertia, rule.is_adaptive, rule.is_elementwise) == (
            inertia,
            adaptive,
            elementwise,
        )
    assert lion.schedules == {}
    assert lion.of_groups("Y", "Z") is lion
    assert float(dynsim.sgd(RATE).rate(3)) == pytest.approx(0.1)


def test_two_rates_are_those_of_the_layer() -> None:
    for rule in (dynsim.sgd(1.0, 0.1), dynsim.sgd(eta_y=1.0, eta_z=0.1)):
        assert rule == dynsim.sgd({"Y": 1.0, "Z": 0.1})
    assert dynsim.adam(1.0, RATE).schedules == {"Y": schedules.constant(1.0), "Z": RATE}
    assert dynsim.sgd(1.0, 0.1, momentum=0.5) == dynsim.sgd({"Y": 1.0, "Z": 0.1}, momentum=0.5)


def test_adam_has_the_numbers_of_its_paper_unless_others_are_given() -> None:
    assert dynsim.adam(0.3) == dynsim.Adam(0.3) == dynsim.Adam(0.3, 0.9, 0.999, 1e-8)
    assert dynsim.rmsprop(0.3) == dynsim.RMSProp(0.3, 0.9, 1e-8)
    assert dynsim.sign(0.3) == dynsim.Sign(0.3, 0.0)
    assert repr(dynsim.sgd(0.3, 0.1, momentum=0.5, noise=0.0)) == (
        "sgd(eta_y=0.3, eta_z=0.1, noise=0.0, momentum=0.5)"
    )
    ratio = dynsim.Ratio()
    assert {name: each.peak for name, each in ratio.rates.items()} == {"Y": 1.0, "Z": 0.1}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dynsim.sgd(-1.0), "eta = -1.0: must be finite and in [0, inf)"),
        (lambda: dynsim.sgd({}), "eta = {}: needs a rate for each group of weights"),
        (lambda: dynsim.sgd({"a": -1.0}), "eta['a'] = -1.0: must be"),
        (lambda: dynsim.sgd(), "eta = None: must be a real number"),
        (lambda: dynsim.sgd([0.1, 0.2]), "eta = [0.1, 0.2]: must be one rate; use an axis"),
        (lambda: dynsim.sgd(eta_y=1.0), "eta_z = None: must be given with the other rate"),
        (lambda: dynsim.sgd(1.0, nesterov=True), "nesterov = True: needs momentum"),
        (lambda: dynsim.sgd(1.0, momentum=1.0), "momentum = 1.0: must be finite and in [0, 1)"),
        (lambda: dynsim.sgd(1.0, clip=0.0), "clip = 0.0: must be finite and in (0, inf)"),
        (lambda: dynsim.sgd(1.0, noise=-1.0), "noise = -1.0: must be"),
        (lambda: dynsim.sgd(1.0, decay={"a": -1.0}), "decay['a'] = -1.0: must be"),
        (lambda: dynsim.adam(1.0, b1=None), "b1 = None: must be a real number"),
        (lambda: dynsim.adamw(1.0, decay=-1.0), "decay = -1.0: must be"),
        (lambda: dynsim.adam(1.0, eps=0.0), "eps = 0.0: must be"),
        (lambda: dynsim.from_optax(3), "make = 3: must be a function"),
        (lambda: dynsim.from_optax(optax.sgd, learning_rate=0.1, b1=0.5), "keyword argument 'b1'"),
        (lambda: dynsim.adamw(1.0, decay=None), "decay = None: must be a real number"),
        (lambda: dynsim.AdamW(1.0, decay=0.1, decoupled=False), "decoupled = False: must be True"),
        (lambda: dynsim.from_optax(optax.sgd, learning_rate="x"), "learning_rate = 'x': must be"),
    ],
)
def test_bad_input_is_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(("make", "name"), [(dynsim.sgd, "b1"), (dynsim.rmsprop, "momentum")])
def test_a_rule_has_the_numbers_that_it_reads_and_no_others(make, name: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        make(0.1, **{name: 0.5})
    assert not hasattr(make(0.1), name)


@pytest.mark.usefixtures("x64")
def test_decay_and_noise_by_group_leave_the_other_groups_alone() -> None:
    """Each group moves as by a rule with its own numbers for all weights."""
    drawn = jax.tree.map(lambda g: g * 0.7, GRADIENTS[1])
    options = {"decay": {"a": 0.3}, "noise": {"b": 0.2}}
    groups = {"a": "a", "b": "b"}

    def moved(**options: Any) -> Any:
        rule = dynsim.sgd(0.1, **options).astype("float64")
        params = jax.tree.map(jnp.asarray, START)
        return rule.update(GRADIENTS[0], (), params, jnp.int32(0), drawn, groups)[0]

    found = moved(**options)
    np.testing.assert_array_equal(found["a"], moved(decay=0.3)["a"])
    np.testing.assert_array_equal(found["b"], moved(noise=0.2)["b"])
    for field in options:
        with pytest.raises(ValueError, match=rf"{field}\['a'\] = -1.0: must be"):
            dynsim.sgd(0.1, **{field: {"a": -1.0}})


class Odd(dynsim.Rule):
    """A rule of a user whose direction, or its result, is another thing than it should be."""

    made: Any = None
    returned: Any = None

    def direction(self) -> Any:
        return self.made or optax.GradientTransformation(
            lambda params: {"seen": jnp.zeros(2)}, lambda g, state, params: self.returned
        )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Odd(0.1, made="sgd"), "must return an optax transformation, returned 'sgd'"),
        (
            Odd(0.1, returned=({"w": jnp.ones(1)}, {"seen": jnp.zeros(2)})),
            "must return an update like the gradient, {'w': f32[3]}; returned {'w': f32[1]}",
        ),
        (
            Odd(0.1, returned=({"w": jnp.ones(3)}, jnp.zeros(2))),
            "must return a state like the one before, {'seen': f32[2]}; returned f32[2]",
        ),
        (
            Odd(0.1, returned=({"w": jnp.ones(3)}, {"seen": jnp.zeros(2, bool)})),
            "must return a state like the one before, {'seen': f32[2]}; returned {'seen': bool[2]}",
        ),
        (
            Odd(0.1, returned=("w", {"seen": jnp.zeros(2)})),
            "must return an update like the gradient, {'w': f32[3]}; returned 'w'",
        ),
        (Odd(0.1), "cannot unpack non-iterable NoneType object"),
    ],
)
@pytest.mark.more
def test_what_a_rule_of_ones_own_returns_is_named(rule: Rule, message: str) -> None:
    """Without compiling: a loop would tell it in the words of JAX's scan."""
    gradient = {"w": jnp.ones(3)}
    with pytest.raises(ValueError, match=re.escape(f"Odd.direction: {message}")):
        rule.update(gradient, rule.init(gradient), gradient, jnp.int32(0))
