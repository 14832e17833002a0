"""Bad input to `odes` in Python: what a theory does not describe, and values that cannot be."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import odes
from dynsim import schedules
from dynsim.classes.tasks import syn
from dynsim.joma import Hidden, Joint
from dynsim.qkv.model import Embedded
from odes import Tolerances, predictions, symmetric, two_stage
from odes.qkv import FACTORS
from odes.qkv import FACTORS_FINITE as FACTORS_OF_LENGTH
from odes.solver.flows import checked_flow
from odes.sparse_attention import finite_batch, linear_escape_time
from odes.two_stage import ReducedState, solve_sde, solve_seed
from odes.yz import eq10, fixed_attention, population, spread, theorem4
from tests.doors import refuses

# Annotations are not checked, as in the process of a user.
pytestmark = pytest.mark.usefixtures("unchecked")

KEY = jax.random.key(0)
SGD, ADAM, HEAVY = dynsim.sgd(0.1), dynsim.adam(0.1), dynsim.sgd(0.1, momentum=0.9)
NESTEROV = dynsim.sgd(0.1, momentum=0.9, nesterov=True)
DECAY, CLIP, NOISE = (dynsim.sgd(0.1, **{n: 0.1}) for n in ("decay", "clip", "noise"))
BY_GROUP, FALLING = dynsim.sgd({"a": 0.1}), dynsim.sgd(schedules.linear(0.1, 9))
Rows = list[tuple[Callable[[], object], tuple[str, ...]]]


class Online(dynsim.Problem):
    """Weights with examples and a population loss."""

    size: int = 2

    def init(self, key):
        return jnp.zeros(self.size)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, w, data):
        return self.population_loss(w) + jnp.mean(data) * w[0]

    def population_loss(self, w):
        return jnp.sum(w**2 / 2 - w**3 / 3)

    def observables(self):
        return {"w": lambda problem, w: w}


class Kept(Online):
    """Whose examples are not drawn again before all have been."""

    data: Any = dynsim.Arrays({"x": np.ones(4, "float32")}, replace=False)

    def draw(self, key, batch):
        return self.data.draw(key, batch)["x"]


class Drawn(dynsim.Problem):
    """Without a population loss."""

    def init(self, key):
        return jnp.ones(2)

    def draw(self, key, batch):
        return jax.random.normal(key, (batch,))

    def loss(self, w, data):
        return jnp.mean(data) * w[0]


class Unheard(dynsim.SGD):
    """A rule that steps in a way of its own."""


class Averaged(dynsim.Rule):
    """A rule with a flow of its own, and a key of its own."""

    def direction(self):
        return optax.GradientTransformation(lambda params: jax.random.key(0), None)

    def flow(self, gradient, averages, t):
        raise NotImplementedError


def of(solve, **usual):
    return lambda **changes: solve(**usual | changes)


USUAL = {"problem": Online(), "rule": SGD, "times": [1.0], "key": KEY}
flow, central = of(odes.flow, **USUAL), of(odes.central_flow, **USUAL)
noise = of(odes.linear_noise, **USUAL, batch=8, starts=1, record="w")
sde = of(odes.sde, **USUAL, batch=4, paths=8, examples=8, record="w")
escape = functools.partial(
    of(odes.escape_error, problem=Online(1), rule=SGD, barrier=1.0, start=0.0), batch=1, key=KEY
)
ANY_PROBLEM: Rows = [
    (lambda: flow(rule=CLIP), ("clip", "0.1", "no flow")),
    (lambda: flow(rule=NOISE), ("noise", "0.1", "no flow")),
    (lambda: flow(rule=Unheard(SGD.eta)), ("rule", "Unheard", "dynsim.SGD")),
    (lambda: flow(rule=dynsim.from_optax(dynsim.sgd)), ("rule", "OptaxRule", "dynsim.SGD")),
    (lambda: flow(rule=Averaged(0.1)), ("averaged", "key")),
    (lambda: flow(rule=dynsim.rmsprop(0.1), kind="plain"), ("plain", "rmsprop", "matched-rmsprop")),
    (lambda: flow(rule=dynsim.sign(0.1), kind="matched"), ("momentum", "0.0", "(0, 1)")),
    (lambda: flow(kind="matched"), ("flow", "matched", "sgd", "one of plain")),
    (lambda: flow(problem=Drawn()), ("Drawn", "population_loss")),
    (lambda: flow(rule=ADAM, record="preconditioned_sharpness"), ("preconditioned_sharpness",)),
    (lambda: flow(key=None), ("key", "None", "init")),
    (lambda: flow(record="batch_loss"), ("record", "batch_loss")),
    (lambda: flow(times=[1.0, 1.0]), ("times", "[1.0, 1.0]", "increasing")),
    (lambda: flow(times=[-1.0, 2.0]), ("times", "-1.0", ">= 0")),
    (lambda: flow(times=[]), ("times", "[]", "non-empty")),
    (lambda: flow(times=[0.0, np.nan]), ("times", "nan", "finite")),
    (lambda: flow(times="soon"), ("times", "soon", "list")),
    (lambda: flow(dtype="int8"), ("dtype", "int8", "float32, float64")),
    (lambda: flow(tolerances=Tolerances(0.99e-13)), ("rtol", "9.9e-14", ">= 1e-13", "float64")),
    (lambda: flow(tolerances=Tolerances(atol=0.0)), ("atol", "0", "(0, inf)")),
    (lambda: flow(tolerances=Tolerances(max_steps=0)), ("max_steps", "0", ">= 1")),
    (lambda: checked_flow(Averaged(0.1), "plain"), ("flow", "plain", "averaged", "own")),
    (lambda: checked_flow(Averaged(0.1, clip=1.0)), ("clip", "1.0", "no flow")),
    (lambda: central(rule=HEAVY), ("rule", "momentum", "gradient descent")),
    (lambda: central(rule=ADAM), ("rule", "adam", "gradient descent")),
    (lambda: central(rule=CLIP), ("clip", "0.1")),
    (lambda: central(rule=dynsim.rmsprop(0.1, decay=0.1, decoupled=True)), ("decoupled", "True")),
    (lambda: central(follow=5), ("follow", "5", "<= 4")),
    (lambda: central(follow=0), ("follow", "0", ">= 1")),
    (lambda: central(record="oscilation"), ("record", "oscilation", "oscillation")),
    (lambda: noise(batch=math.inf), ("batch", "inf")),
    (lambda: noise(batch=0), ("batch", "0", ">= 1")),
    (lambda: noise(rule=CLIP), ("clip", "0.1")),
    (lambda: noise(rule=dynsim.sign(0.1)), ("sign",)),
    (lambda: noise(rule=Averaged(0.1)), ("averaged", "key")),
    (lambda: noise(problem=Kept()), ("data.replace", "False")),
    (lambda: noise(starts=2, init=np.zeros(2)), ("starts", "2", "1")),
    (lambda: noise(starts=0), ("starts", "0", ">= 1")),
    (lambda: noise(key=None), ("key", "None")),
    (lambda: noise(examples=1), ("examples", "1", ">= 2")),
    (lambda: noise(passes=1), ("passes", "1", ">= 2")),
    (lambda: noise(draws=1), ("draws", "1", ">= 2")),
    (lambda: noise(rule=ADAM, examples=2**26), ("examples", "67108864", "2 weights")),
    (
        lambda: odes.theories(Online())["linear-noise"].check(Online(2001), SGD, 4),
        ("2001 weights", "2000"),
    ),
    (lambda: sde(batch=math.inf), ("batch", "inf")),
    (lambda: sde(rule=CLIP), ("clip", "0.1")),
    (lambda: sde(rule=ADAM), ("rule", "adam", "linear in the gradient")),
    (lambda: sde(rule=dynsim.sgd(0.1, momentum=0.0)), ("momentum", "0.0", "(0, 1)")),
    (lambda: sde(rule=NESTEROV, order=2), ("nesterov", "True")),
    (
        lambda: sde(rule=dynsim.sgd(0.1, momentum=0.9, decay=0.1, decoupled=True), order=2),
        ("decoupled", "True"),
    ),
    (lambda: sde(order=3), ("order", "3", "1 or 2")),
    (lambda: sde(paths=0), ("paths", "0", ">= 1")),
    (lambda: sde(substeps=0), ("substeps", "0", ">= 1")),
    (lambda: sde(problem=Drawn(), examples=4, record="loss"), ("examples", "4", "> batch = 4")),
    (lambda: sde(record="w_std"), ("record", "w_std", "across_runs")),
    (lambda: sde(key=None), ("key", "None")),
    (lambda: escape(rule=ADAM), ("rule", "adam", "SGD")),
    (lambda: escape(rule=HEAVY), ("momentum", "0.9", "None")),
    (lambda: escape(rule=FALLING), ("eta", "constant")),
    (lambda: escape(order=3), ("order", "3", "1 or 2")),
    (lambda: escape(examples=1), ("examples", "1", ">= 2")),
    (lambda: escape(start=math.nan), ("start", "nan")),
]


def field(t, w, training):
    return -w


def odd(training):
    if training.batch != 1:
        return f"batch = {training.batch}: must be 1"
    return f"steps = {training.steps}: must be even" if (training.steps or 0) % 2 else None


def own_theory(**options):
    observe = lambda t, w, training: {"w": w[0]}
    return odes.system("own", "t", "a", field, lambda training, w: w, observe, **options)


own = of(own_theory(inapplicable=odd).solve, **USUAL, batch=1)
TASK, SYN = dynsim.SynSmall().build(), dynsim.Syn(2, 2, num_common=2, num_distinct=3).build()
REDUCTION = odes.problem.Reduction(lambda *_: 0.0, lambda *_: 0.0, lambda *_: ())
LAYER, FROM_UNIFORM = dynsim.Layer(TASK), dynsim.Layer(TASK, start="uniform")
classes = dynsim.sequence_classes
DEPENDENT = classes([[0.5, 0.5], [0.5, 0.5]], [0, 1])


def profiles_differ():
    """Syn with another distinct profile in class 3."""
    probs = np.array(SYN.probs)
    first, second = np.flatnonzero(np.asarray(SYN.distinct())[3])[:2]
    probs[3, [first, second]] += [0.01, -0.01]
    return classes(probs, SYN.query)


def one_common(*args, **options):
    return lambda: theorem4.solve(classes(*args, **options), SGD, [1.0])


def reduce(*args, **options):
    return lambda: symmetric.symmetric_task(classes(*args, **options))


TWO = {"task": TASK, "optimizer": dynsim.sgd(1.0, 1.0), "times": [0, 1]}
solve_eq10, solve_at_fixed = of(eq10.solve, **TWO), of(fixed_attention.solve, **TWO)
solve_layer, solve_4 = of(population.solve, **TWO), of(theorem4.solve, **TWO)
layer_noise = of(spread.solve, **TWO | {"times": [1], "batch": 2})
layer_drift = of(spread.drift, **TWO | {"times": [1], "batch": 2, "key": KEY})
REDUCED = symmetric.symmetric_profiles((0.1, 0.2, 0.3), (0.15, 0.25), 4, 40, 2)
reduced = of(symmetric.solve, **TWO | {"task": REDUCED})
descend = of(symmetric.descend, task=REDUCED, optimizer=dynsim.sgd(1.0), steps=2)
ties = of(symmetric.instability, task=REDUCED, optimizer=SGD, steps=5, batch=128, length=128)
profiles = of(symmetric.symmetric_profiles, p=(0.1, 0.2, 0.3), rho=(0.15, 0.25), K=4, M=40)
Z, OF_SYN = np.zeros((2, 34, 34)), np.zeros((2, *SYN.probs.shape))
agree = of(predictions.agreement, task=SYN, times=[0, 1], z=OF_SYN)
OF_THE_LAYER: Rows = [
    (lambda: own(rule=ADAM), ("optimizer", "adam", "gradient descent")),
    (lambda: own(rule=DECAY), ("decay", "0.1", "plain gradients")),
    (lambda: own(rule=BY_GROUP), ("eta", "one")),
    (lambda: own(batch=64), ("batch", "64", "1")),
    (lambda: own(steps=7), ("steps", "7", "even")),
    (lambda: own(key=None), ("key", "None", "init")),
    (lambda: own_theory(discrete=True, tolerances=Tolerances()), ("discrete", "True")),
    (lambda: own_theory(inapplicable=odd).check(Online(), SGD, 2), ("own", "batch", "2", "1")),
    *(
        (lambda n=n: flow(problem=LAYER, kind="plain", reduction=REDUCTION, record=n), (n,))
        for n in ("params", "sharpness")
    ),
    (lambda: odes.theories(LAYER)["wkb"], ("theory", "wkb", "plain[-finite-t]")),
    (lambda: odes.theories(LAYER)["eq10"].check(LAYER, ADAM), ("eq10", "adam", "descent")),
    (lambda: odes.applicable(LAYER, "sgd"), ("rule", "sgd", "dynsim")),
    (lambda: solve_layer(tolerances=Tolerances(), dtype="float32"), ("rtol", "1e-08", ">= 1e-06")),
    (lambda: solve_eq10(convention="x"), ("convention", "x", "sgd, paper")),
    (lambda: solve_eq10(task=DEPENDENT), ("independent",)),
    (lambda: solve_eq10(record="bound"), ("record", "bound")),
    (lambda: solve_at_fixed(optimizer=ADAM), ("optimizer", "adam")),
    (lambda: solve_at_fixed(decoder="exact"), ("decoder", "exact", "closed, discrete")),
    (lambda: solve_at_fixed(record="B"), ("record", "B", "Eq")),
    (lambda: solve_at_fixed(init=dynsim.YZ(Z[0], Z[0], True)), ("init",)),
    (lambda: solve_4(optimizer=ADAM), ("optimizer", "adam", "Theorem 4")),
    (lambda: solve_4(), ("one common token", "10")),
    (lambda: solve_4(task=SYN, optimizer=dynsim.sgd(0.0, 1.0)), ("eta_y", "0.0")),
    (one_common([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0, 1.0]], [0, 0, 0]), ("one common", "2")),
    (
        one_common([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1.0]], [0, 0, 0]),
        ("common token", "0", "all 3 classes"),
    ),
    (one_common([[0.5, 0.5, 0, 0], [0.4, 0, 0.6, 0]], [0, 0]), ("P(0|n)", "0.4", "0.5")),
    (one_common([[0.5, 0.5, 0], [0.5, 0, 0.5]], [0, 0], prior=[0.4, 0.6]), ("equal priors",)),
    (one_common(np.c_[np.full(3, 0.5), np.eye(3) / 2], [0, 0, 1]), ("each query", "[2, 1]")),
    (one_common([[1.0, 0.0], [1.0, 0.0]], [0, 0]), ("distinct token", "class 0")),
    (lambda: layer_drift(batch=0), ("batch", "0", "[1")),
    (lambda: layer_drift(batch=np.inf), ("batch", "inf", "finite")),
    (lambda: layer_drift(length=2), ("length", "2", "1/T")),
    (lambda: layer_drift(times=[0.5]), ("times", "0.5", "whole steps")),
    (lambda: layer_drift(times=[3, 2]), ("times", "[3, 2]", "increase")),
    (lambda: layer_drift(record="losses"), ("record", "losses", "loss")),
    (lambda: layer_drift(draws=0), ("draws", "0", ">= 1")),
    (lambda: layer_noise(draws=1), ("draws", "1", ">= 2")),
    (lambda: layer_noise(draws=8), ("key", "None", "8 draws")),
    (lambda: layer_noise(tails=True), ("length", "inf", "integer")),
    (lambda: layer_noise(optimizer=dynsim.sign(0.1)), ("linear noise", "sign")),
    (lambda: layer_noise(optimizer=CLIP), ("clip", "0.1", "linear noise")),
    (lambda: layer_noise(optimizer=NOISE), ("noise", "0.1", "linear noise")),
    (lambda: profiles(num_queries=3), ("num_queries", "3", "divide K = 4")),
    (lambda: profiles(M=3), ("K = 4", "M = 3", "K <= M")),
    (lambda: profiles(K=2.5), ("K", "2.5", "integer")),
    (lambda: profiles(rho=(0.1, 0.2, 0.3)), ("p, rho", "1.2", "1")),
    (lambda: profiles(p=(-1.0, 2), rho=()), ("p", "-1.0", "(0")),
    (lambda: profiles(p=(), rho=()), ("at least one token",)),
    (lambda: profiles(p=[(0.1,)]), ("p", "one-dimensional")),
    (lambda: reduced(record=["overlap"]), ("record", "overlap", "loss, accuracy")),
    (lambda: reduced(record=["attention"]), ("attention", "attention_common")),
    (lambda: reduced(optimizer=ADAM, flow="matched"), ("flow", "matched", "adam")),
    (lambda: reduced(optimizer=dynsim.adam(1.0, b1=0.0)), ("b1", "0.0", "(0, 1)")),
    (lambda: reduced(tails=True), ("length", "inf")),
    (lambda: reduced(task=SYN, init=dynsim.YZ(Z, Z)), ("init", "zero weights")),
    (lambda: reduced(length=5), ("length", "5", "6")),
    (lambda: descend(length=5), ("length", "5", "6")),
    (lambda: descend(times=[3]), ("times", "3", "steps = 2")),
    (lambda: descend(optimizer=dynsim.sgd(np.ones((2, 2)), 1.0)), ("(2, 2)", "scalars")),
    (lambda: descend(length=128, batch=8), ("key", "None", "batch = 8")),
    (lambda: descend(length=128, batch=8, key=KEY, classes=5), ("classes", "5", "K = 4")),
    (lambda: descend(length=128, batch=8, key=KEY, tails=True), ("tails", "True", "batch = inf")),
    (lambda: ties(path="training"), ("path", "training", "flow, descent")),
    (lambda: ties(length=np.inf), ("length", "inf", "[2, inf)")),
    (lambda: ties(length=1), ("length", "1.0", "[2, inf)")),
    (lambda: ties(batch=0), ("batch", "0.0", "[1, inf)")),
    (lambda: ties(steps=0), ("steps", "0")),
    (lambda: ties(optimizer=ADAM), ("optimizer", "descent")),
    (lambda: ties(optimizer=DECAY), ("optimizer", "descent")),
    (reduce(np.eye(3)[[0, 1]], [2, 2], prior=[0.4, 0.6]), ("equally likely", "class 1")),
    (reduce(np.eye(5)[:3], [3, 3, 4]), ("per query", "1")),
    (lambda: symmetric.symmetric_task(syn(2, 2, num_common_per_query=1)), ("token 10", "2 of 4")),
    (reduce([[0.5, 0.5, 0], [0.4, 0, 0.6]], [2, 2]), ("common tokens", "class 1")),
    (lambda: symmetric.symmetric_task(profiles_differ()), ("profiles", "class 3")),
    (
        lambda: odes.theories(LAYER)["symmetric"].check(FROM_UNIFORM, SGD),
        ("symmetric", "zero weights"),
    ),
    (lambda: agree(z=np.zeros((2, 3, 3))), ("z", "(S, 4, ", "(2, 3, 3)")),
    (lambda: agree(times=[0, 1, 2]), ("times, z", "3 and 2")),
    (lambda: predictions.relative_gain_error(SYN, Z[:0]), ("z", "(S, 4,", "(0, ")),
    (lambda: predictions.sandwich(SYN, OF_SYN, np.zeros((2, 3))), ("B", "(2, 4)", "(2, 3)")),
    (lambda: predictions.peak_time(np.arange(3), np.ones(2)), ("values", "(2,)", "times")),
    (lambda: predictions.peak_time(np.array([1, 3, 3]), np.ones(3)), ("times", "increase")),
]

TWO_CLASSES = classes([[0.5, 0.3, 0.2, 0], [0.2, 0.1, 0.3, 0.4]], [0, 0])
joma = functools.partial(dynsim.JoMA, TWO_CLASSES)
START = Joint(Hidden(np.zeros((2, 4)), np.zeros((2, 1))), np.zeros((2, 4)))
REGRESSION, MERGED = dynsim.Regression(), dynsim.Regression(attention=dynsim.MergedHeads())
RETRIEVAL = dynsim.Retrieval(12, 5, 3, 0.2)
qkv = functools.partial(dynsim.QKV, TASK, math.inf, width=36)
PROMPTS, ANNEALED = dynsim.Prompts(), dynsim.Annealed()


def solved(problem, name, rule=SGD, **options):
    solve = odes.hierarchy.of_class(type(problem))[name].solve
    return lambda: solve(problem, rule, [1.0], **{"key": KEY} | options)


def retrieval(name, rule=SGD, **options):
    solve = odes.hierarchy.of_class(dynsim.Retrieval)[name].solve
    return lambda: solve(RETRIEVAL, rule, [1.0], **options)


def factors(problem, rule=SGD, theory=FACTORS, **options):
    return lambda: theory.solve(problem, rule, [0, 1], **{"key": KEY} | options)


def batches(task=RETRIEVAL, rule=ADAM, batch=8):
    return lambda: finite_batch.solve(task, rule, [0, 1], batch=batch)


stages = of(two_stage.solve, task=PROMPTS, optimizer=ANNEALED, times=[100.0])
NEGATIVE = ReducedState(-0.5, -0.1, 1.0, 1.0, -1.0, 1.0, 1.0)
OF_OTHERS: Rows = [
    (lambda: joma(temperature=0.0), ("temperature", "0.0", "(0")),
    (lambda: joma(scale=-1.0), ("scale", "-1.0", "[0")),
    (lambda: joma(length=1), ("length", "1", "2 to")),
    (lambda: joma(attention="hard"), ("attention", "hard", "linear, exp")),
    (lambda: joma(activation="gelu"), ("activation", "gelu", "relu")),
    (lambda: dynsim.JoMA("joma"), ("task", "joma", "dynsim.Task")),
    (
        lambda: dynsim.train(joma(length=8), SGD, KEY, steps=2, batch=math.inf),
        ("batch", "inf", "length = 8"),
    ),
    (
        lambda: odes.joma.mixture.velocity(np.ones(2), np.ones((1, 2)), np.ones(1), 0.0),
        ("spread", "0.0", "(0, inf)"),
    ),
    (solved(dynsim.JoMA(TASK), "joma"), ("queries", "2", "Theorem 1")),
    (solved(joma(), "erf"), ("exp attention", "linear activation", "signal")),
    (
        solved(joma(attention="exp", activation="linear", head="signal"), "erf", HEAVY),
        ("optimizer", "momentum", "descent"),
    ),
    (solved(joma(), "joma", init=START), ("init", "JoMA")),
    (solved(MERGED, "sigmoid"), ("white",)),
    (solved(REGRESSION, "sigmoid"), ("merged",)),
    (
        solved(dynsim.Regression(attention=dynsim.SeparateHeads(2)), "scalar"),
        ("rank=2", "separate heads"),
    ),
    (solved(REGRESSION, "scalar", ADAM), ("optimizer", "adam", "descent")),
    (solved(REGRESSION, "scalar", dynsim.sgd({"v": 0.1})), ("eta", "group")),
    (lambda: dynsim.Retrieval(8, 4, 8), ("B", "8", "length = 8")),
    (lambda: dynsim.Retrieval(8, 1), ("d", "1", ">= 2")),
    (lambda: dynsim.Retrieval(p=1.5), ("p", "1.5", "[0, 1]")),
    (retrieval("printed"), ("p", "0.2", "0")),
    (retrieval("escape", DECAY), ("decay", "0.1", "plain gradients")),
    (retrieval("escape", record="gap"), ("record", "gap")),
    (lambda: linear_escape_time(RETRIEVAL, 0.0), ("eps", "0.0", "(0, 1)")),
    (batches(rule=SGD), ("optimizer", "sgd", "adam")),
    (batches(dynsim.Retrieval(24, 24), dynsim.adam(0.1, decay=0.1)), ("decay", "0.1")),
    (batches(), ("p", "0.2", "0")),
    (batches(dynsim.Retrieval(24, 24), batch=0.5), ("batch", "0.5")),
    (factors(qkv(train_embedding=True)), ("U", "frozen")),
    (factors(qkv(), ADAM), ("optimizer", "adam")),
    (factors(qkv(normalisation="rms")), ("normalisation", "rms", "l2")),
    (factors(qkv(placement="practice")), ("placement", "practice", "theory")),
    (factors(dynsim.QKV(TASK, 40, slope=0.1)), ("slope", "0.1", "None")),
    (factors(qkv(frozen=("W_K",)), DECAY), ("decay", "0.1", "trained")),
    (factors(qkv(), theory=FACTORS_OF_LENGTH), ("length", "inf", "finite")),
    (factors(dynsim.QKV(TASK, 5), theory=FACTORS_OF_LENGTH), ("length", "5")),
    (lambda: factors(qkv(), init=Embedded(*[np.zeros((1, 3, 3))] * 4))(), ("init", "QKV")),
    (lambda: stages(times=[10.0], begin=50), ("times", "[10.0]", ">= 50")),
    (lambda: stages(begin=-1.0), ("begin", "-1")),
    (lambda: stages(record=("K3",)), ("record", "K3", "K1")),
    (lambda: stages(rule=two_stage.Rule(g=0)), ("rule.g", "0", ">= 1")),
    (lambda: stages(start=NEGATIVE), ("start.v_e", "-1.0")),
    (lambda: stages(optimizer=ANNEALED.build()), ("tau_0", "None")),
    (lambda: stages(task=dynsim.Prompts(core="fixed")), ("core", "fixed", "fresh")),
    *(
        (lambda f=f: f(PROMPTS, ANNEALED, [1.0], KEY, num_steps=1), ("num_steps", "1", ">= 2"))
        for f in (solve_sde, solve_seed)
    ),
]

TRACED: Rows = [
    (
        lambda: jax.grad(lambda r: central(rule=dynsim.sgd(r), dtype="float32")["loss"][-1])(0.1),
        ("central_flow", "derivatives"),
    ),
    (lambda: escape(problem=Online()), ("2 weights", "one")),
    (lambda: escape(barrier=1.1, examples=64), ("barrier", "1.1", "rise")),
    (lambda: own(record="loss"), ("record", "loss", "w")),
]
"""What only tracing finds, which takes a second."""


SLOW = [pytest.param(*row, marks=pytest.mark.more) for row in TRACED]


@pytest.mark.parametrize(("call", "named"), [*ANY_PROBLEM, *OF_THE_LAYER, *OF_OTHERS, *SLOW])
def test_error_names_field_value_and_what_is_allowed(call, named):
    refuses(call, *named)


def test_the_least_values_are_allowed():
    for dtype, least in (("float32", 1e-6), ("float64", 1e-13)):
        assert Tolerances(least, 1e-300, 1).check(dtype) == (least, 1e-300, 1)
