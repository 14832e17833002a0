"""Which theories describe which update rules, and which of them run unless they are named."""

import math

import pytest

import dynsim
import odes
from dynsim import schedules
from tests.odes.test_batch_noise import Bowl as Drawn
from tests.odes.test_problem import Bowl

FALLING = [schedules.linear(peak, 10) for peak in (1.0, 0.5)]
RULES = {
    "sgd": dynsim.sgd(1.0, 0.5),
    "one schedule": dynsim.sgd(*FALLING),
    "a schedule of each": dynsim.sgd(FALLING[0], 0.5),
    "any schedule": dynsim.sgd(lambda step: 1 / (1 + step), 1.0),
    "decay": dynsim.sgd(1.0, 0.5, decay=0.1),
    "decoupled": dynsim.sgd(1.0, 0.5, decay=0.1, decoupled=True),
    "momentum": dynsim.sgd(1.0, 0.5, momentum=0.9),
    "nesterov": dynsim.sgd(1.0, 0.5, momentum=0.9, nesterov=True),
    "momentum, decay": dynsim.sgd(1.0, 0.5, momentum=0.9, decay=0.1),
    "momentum, decoupled": dynsim.sgd(1.0, 0.5, momentum=0.9, decay=0.1, decoupled=True),
    "clip": dynsim.sgd(1.0, 0.5, clip=1.0),
    "noise": dynsim.sgd(1.0, 0.5, noise=0.1),
    "adam": dynsim.adam(0.1, 0.1),
    "adam, b1 = 0": dynsim.adam(0.1, 0.1, b1=0.0),
    "adam, decoupled": dynsim.adam(0.1, 0.1, decay=0.1, decoupled=True),
    "rmsprop": dynsim.rmsprop(0.1),
    "rmsprop, b2 = 0": dynsim.rmsprop(0.1, b2=0.0),
    "rmsprop, decoupled": dynsim.rmsprop(0.1, decay=0.1, decoupled=True),
    "sign": dynsim.sign(0.1),
    "sign, momentum": dynsim.sign(0.1, 0.5),
}
DESCENT = {"sgd", "one schedule", "a schedule of each", "any schedule", "decay", "decoupled"}
MOMENTUM = {"momentum", "nesterov", "momentum, decay", "momentum, decoupled"}
ADAM, RMSPROP = {"adam", "adam, decoupled"}, {"rmsprop", "rmsprop, decoupled"}
KNOWN = {*RULES} - {"clip", "noise"}
FIRST = DESCENT | MOMENTUM | ADAM | RMSPROP | {"sign", "sign, momentum"}
"""What `odes.flow` describes by default: decays of 0 have no logarithm."""
FLOWS = {
    "plain": DESCENT | {"sign", "sign, momentum"},
    "matched": MOMENTUM | {"sign, momentum"},
    "corrected": DESCENT | MOMENTUM,
    "heavy-ball": MOMENTUM | {"sign", "sign, momentum"},
    "rescaled": MOMENTUM,
    "matched-adam": ADAM,
    "corrected-adam": ADAM | {"adam, b1 = 0"},
    "adam": ADAM | {"adam, b1 = 0"},
    "matched-rmsprop": RMSPROP,
    "rmsprop": RMSPROP | {"rmsprop, b2 = 0"},
    "central": DESCENT | {"rmsprop", "rmsprop, b2 = 0"},
    "flow": FIRST,
}
# Without Y there is one time for both matrices, and nothing but gradients moves them.
ONE_TIME = {"sgd", "one schedule", "momentum", "nesterov"}
FIXED = ONE_TIME | {"a schedule of each", "any schedule"}
EQUATIONS = ("lemma3", "eq10-finite-m", "eq10", "eq10-paper", "eq10-remark-1", "theorem4")
LAYER = {
    "symmetric": FIRST,
    **dict.fromkeys(EQUATIONS, ONE_TIME),
    "fixed_attention": FIXED,
    "fixed_attention-discrete": FIXED - {"nesterov"},
}
NOISE = {
    "linear-noise": {*RULES} - {"clip", "noise", "sign", "sign, momentum"},
    "sde": DESCENT | MOMENTUM,
    "corrected-sde": DESCENT | {"momentum", "momentum, decay"},
}
TASK = dynsim.Syn(1, 3, num_common=1).build()
NAMED = {"corrected-adam", "central", "flow"}
"""Which no problem's theories run unless they are named."""


@pytest.mark.parametrize(
    ("problem", "described", "named"),
    [
        (Bowl(), FLOWS, NAMED | {"rescaled", "heavy-ball", "adam", "rmsprop"}),
        (
            dynsim.Layer(TASK, math.inf),
            FLOWS | LAYER,
            NAMED | {"corrected", *LAYER} - {"eq10", "eq10-paper"},
        ),
        (Drawn(), NOISE, {*NOISE}),
    ],
    ids=["own", "layer", "drawn"],
)
def test_theories_describe_these_rules(
    problem: dynsim.Problem, described: dict[str, set[str]], named: set[str]
) -> None:
    known = odes.theories(problem)
    every = {name for name in known if not name.endswith("-finite-t")}
    assert every == described.keys()
    for name, rules in described.items():
        found = {
            key for key, rule in RULES.items() if known[name].why_not(problem, rule, 4) is None
        }
        assert found == rules, name
        assert known[name].variant == (name in named), name


def test_theories_of_finite_length_describe_what_those_of_infinite_length_do() -> None:
    """From the population flow down to those of RMSProp, where the layer has a length."""
    infinite, finite = (dynsim.Layer(TASK, length) for length in (math.inf, 64))
    known = odes.theories(finite)
    pairs = [name for name in FLOWS if name not in {"central", "flow"}] + ["symmetric"]
    assert {f"{name}-finite-t" for name in pairs} == {x for x in known if x.endswith("-finite-t")}
    names = [*known]
    for name in pairs:
        both = known[f"{name}-finite-t"], known[name]
        assert names.index(name) == names.index(f"{name}-finite-t") + 1
        assert both[0].variant == both[1].variant
        for rule in RULES.values():
            assert both[0].why_not(finite, rule, 4) == both[1].why_not(finite, rule, 4)
            assert "length = inf" in (both[0].why_not(infinite, rule, 4) or "")


@pytest.mark.more
def test_classes_without_a_length_have_sequences_of_128_tokens() -> None:
    """A layer has its own."""
    theory, layer = odes.theories(dynsim.Layer(TASK))["symmetric-finite-t"], dynsim.Layer(TASK, 64)
    classes = layer.classes
    assert not hasattr(classes, "length")
    loss = lambda solve, task, **options: solve(
        task, dynsim.sgd(1.0, 0.5), [0.0, 4.0], record="loss", **options
    )["loss"][1]
    of_length = {n: loss(odes.symmetric.solve, TASK, length=n) for n in (64, 128)}
    assert loss(theory.solve, classes) == of_length[128]
    assert loss(theory.solve, layer) == of_length[64] != of_length[128]
