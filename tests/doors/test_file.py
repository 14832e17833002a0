"""Bad input in the settings of runs, in axes, and in sweeps as TOML has them."""

import math
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynsim
import sweeps
from dynsim import schedules
from sweeps import Experiment, Sweep, experiment
from sweeps.language.axes import Axes
from sweeps.language.describe import describe
from sweeps.language.values import find_axis, find_value
from sweeps.runner.spec import from_table
from tests.doors import refuses
from tests.sweeps.language import catalog
from tests.sweeps.language.catalog import LANGUAGE, YZ, Bowl, Overlapping, language_with, run

COSINE = {"kind": "cosine", "steps": 5}
BOWL = {"problem": "bowl"}
RATE = ("[0, inf)", "1/step", "constant, linear, cosine")
INTEGER = "integer from 1 to 2147483647"
# Settings of the small catalog, and what the error names.
SETTINGS = [
    # names: unknown, misspelt, of another kind, twice
    ({"momentm": 0.9}, "momentm = 0.9", "momentum?"),
    ({"": 2}, " = 2", "problem, task"),
    ({"eta-w": 1}, "eta-w = 1", "eta.Z", "eta.Y"),
    ({**BOWL, "eta": COSINE, "eta.peek": 1}, "eta.peek = 1", "eta.peak?"),
    ({"eta": {"W": 1}}, "eta.W = 1", "eta.Z"),
    ({"rule": "adam", "momentum": 1}, "momentum = 1", "adam", "sgd, sign"),
    ({"rule": {"kind": "adam", "momentum": 0.5}}, "rule.momentum = 0.5", "adam", "sgd, sign"),
    ({"overlap": 0.2}, "overlap = 0.2", "syn-small", "overlapping"),
    ({"stiff": 2}, "stiff = 2", "yz", "bowl"),
    ({"eta-peak": 2}, "eta-peak = 2", "rule.eta", "constant, linear, cosine"),
    ({"momentum": 0.5, "rule-momentum": 0.6}, "rule-momentum = 0.6", "momentum"),
    # numbers and words
    ({"momentum": 1}, "rule.momentum = 1", "[0, 1)"),
    ({"momentum": True}, "rule.momentum = True", "[0, 1)"),
    ({"momentum": math.nan}, "rule.momentum = nan", "[0, 1)"),
    ({"momentum": "high"}, "rule.momentum = 'high'", "[0, 1)"),
    ({"momentum": {"kind": "sgd"}}, "rule.momentum = 'sgd'", "[0, 1)"),
    ({"decay": math.inf}, "rule.decay = inf", "[0, inf)", "none"),
    ({"eta": -1}, "rule.eta = -1", *RATE, "group"),
    ({"eta-y": "inf"}, "rule.eta.Y = 'inf'", *RATE),
    ({"steps": "inf"}, "steps = 'inf'", INTEGER),
    ({"steps": 10**400}, "steps = 1000", INTEGER),
    ({"batch": 2.5}, "batch = 2.5", INTEGER, "inf"),
    ({"batch": "-inf"}, "batch = '-inf'", INTEGER, "inf"),
    ({"length": 1}, "problem.length = 1", "from 2 to 2147483647", "inf"),
    ({"seed": -1}, "seed = -1", ">= 0"),
    ({"nesterov": 1}, "rule.nesterov = 1", "true or false"),
    ({"layout": "papr"}, "problem.task.layout = 'papr'", "paper?", "authors, paper"),
    ({"record": "loss"}, "record = 'loss'", "list", "text"),
    ({"record": ["loss", 3]}, "record[1] = 3", "text"),
    ({**BOWL, "sizes": [4, 0]}, "problem.part.sizes[1] = 0", ">= 1"),
    ({**BOWL, "activation": "relu"}, "problem.part.activation = 'relu'", "module:name"),
    ({**BOWL, "activation": "no_such:relu"}, "activation = 'no_such:relu'", "ModuleNotFoundError"),
    # kinds
    ({"rule": "admw"}, "rule = 'admw'", "adamw", "sgd, adam, adamw, rmsprop, sign", "module:Name"),
    ({"rule": "cosine"}, "rule = 'cosine'", "Rule", "sgd, adam"),
    ({"rule": "a.npz"}, "rule = 'a.npz'", "sgd, adam"),
    ({"rule": {"kind": 7}}, "rule = 7", "sgd, adam"),
    ({"rule": 0.1}, "rule = 0.1", "sgd", "rule.eta?"),
    ({"problem": 3}, "problem = 3", "yz, bowl"),
    ({"eta": "schedule"}, "rule.eta = 'schedule'", "Schedule", *RATE),
    ({"rule": "no_such:Net"}, "rule = 'no_such:Net'", "ModuleNotFoundError"),
    ({"rule": "exits:Net"}, "rule = 'exits:Net'", "SystemExit('no')", "exits.py, line 1"),
    ({"rule": "fails:Net"}, "rule = 'fails:Net'", "ZeroDivisionError", "fails.py, line 2"),
    ({"rule": "own:"}, "rule = 'own:'", "module:NAME"),
    ({"problem": "own:Nett"}, "problem = 'own:Nett'", "AttributeError"),
    ({"problem": "own:make"}, "problem = 'own:make'", "dataclass"),
    ({"rule": "own:Net"}, "rule = 'own:Net'", "Rule", "sgd, adam"),
    ({"problem": "own:Net"}, "problem.gain", "must be even"),
    ({"problem": "own:Odd"}, "problem: here: there"),
    # what is missing, or does not fit together
    ({"rule": "adamw"}, "rule.decay", "missing", "weight decay", "[0, inf)"),
    ({"eta": "cosine"}, "rule.eta.steps", "missing", "when the fall ends", "(0, inf)"),
    ({"task": "table"}, "problem.task.probs", "missing", "array"),
    (
        {"task": "table", "probs": {"array": "0f", "shape": [1], "dtype": "float32"}},
        *("problem.task.probs = '0f'", "array"),
    ),
    ({"eta": {**COSINE, "warmup": 10}}, "rule.eta.warmup = 10.0", "[0, 5]"),
    ({"eta": {"kind": "linear", "steps": 2000}}, "steps = 1000", "eta"),
]
OWN = """
from tests.sweeps.language.catalog import Problem

class Net(Problem):
    gain: float = 1.0

    def __check_init__(self):
        raise ValueError("gain: must be even")

class Odd(Problem):
    def __check_init__(self):
        raise TypeError("here: there")

def make():
    pass
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "own.py").write_text(OWN)
    (folder / "exits.py").write_text("raise SystemExit('no')")
    (folder / "fails.py").write_text("one = 1\nhalf = one / 0")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("settings", "named"), [(row[0], row[1:]) for row in SETTINGS])
def test_settings(settings, named):
    refuses(lambda: run(settings), *named)


GROUPS = {"eta.Y": [1, 2]}
# Axes of a run of the small catalog, how they are zipped, and what the error names.
AXES = [
    ({}, [], "axes", "at least one"),
    ({"momentm": [0.5]}, [], "axes.momentm = 0.5", "momentum?"),
    ({"rule": ["sgd", "adam"], "momentum": [0, 0.5]}, [], "axes.momentum = 0", "adam", "sgd, sign"),
    ({"seed": [0, 1.5]}, [], "axes.seed = 1.5", ">= 0"),
    ({"layout": ["paper", "papr"]}, [], "axes.problem.task.layout = 'papr'", "authors, paper"),
    ({"momentum": [0], "rule.momentum": [0]}, [], "axes.rule.momentum = 0", "momentum"),
    ({"momentum": [0, 0.0]}, [], "axes.rule.momentum = 0.0", "twice"),
    ({"rule": ["sgd", "SGD"]}, [], "axes.rule = 'sgd'", "twice"),
    ({"eta": [0.1, 0.2], "eta.Y": [1, 2]}, [], "axes.rule.eta.Y", "axes.rule.eta;"),
    ({"momentum": []}, [], "axes.momentum = []", "at least one"),
    ({"momentum": 0.5}, [], "axes.momentum = 0.5", "list", "linspace, logspace or range"),
    ({"momentum": {"linspce": [0, 1, 2]}}, [], "axes.momentum = {'linspce'", "linspace?"),
    ({"momentum": {"linspace": [0, 1]}}, [], "momentum.linspace = [0, 1]", "[first, last, number"),
    ({"seed": {"linspace": [0, 1, 1]}}, [], "seed.linspace = 1:", "from 2 to 16777216"),
    ({"seed": range(2**24 + 1)}, [], "axes.seed", "16777217", "16777216"),
    # Refused before anything is listed: this would take 10^10 numbers.
    ({"seed": range(10**10)}, [], "axes.seed", "10000000000", "16777216"),
    (
        {"eta.Y": {"logspace": [1, 2, 2**20]}, "eta.Z": {"logspace": [1, 2, 2**20 + 1]}},
        [],
        "axes",
        f"{2**40 + 2**20} runs",
        f"{2**40}",
    ),
    ({"eta.Y": np.ones(2**20), "seed": range(2**24)}, [], "axes", f"{2**44} runs", f"{2**40}"),
    ({"seed": {"linspace": [0, 1, 2**24 + 1]}}, [], "linspace = 16777217", "from 2 to 16777216"),
    ({"seed": {"linspace": [0, "inf", 3]}}, [], "seed.linspace = 'inf'", "(-inf, inf)"),
    ({"seed": {"logspace": [0, 1, 3]}}, [], "seed.logspace = 0:", "(0, inf)"),
    ({"seed": {"range": [-1, 2]}}, [], "seed.range = -1", "from 0 to 16777216"),
    ({"seed": {"range": [3, 3]}}, [], "seed.range = [3, 3]", "no values"),
    ({"seed": {"range": 1.5}}, [], "seed.range = 1.5", "[first, end]"),
    (GROUPS | {"eta.Z": [1, 2, 3]}, [["eta.Y", "eta.Z"]], "zip", "eta.Y 2", "eta.Z 3"),
    (GROUPS, [["eta.Y", "eta.Q"]], "zip = 'eta.Q'", "one of eta.Y"),
    (GROUPS, [["eta.Y"], ["eta-y"]], "zip = 'eta.Y'", "two groups"),
    (GROUPS, ["eta.Y"], "zip = ['eta.Y']", "list of lists"),
    ({"eta.Y": [1, 1], "eta.Z": [2, 2]}, [["eta.Y", "eta.Z"]], "eta.Z = (1.0, 2.0)", "twice"),
]


@pytest.mark.parametrize(("axes", "zipped", "named"), [(*row[:2], row[2:]) for row in AXES])
def test_axes(axes, zipped, named):
    refuses(lambda: Axes(LANGUAGE, catalog.Experiment(), axes, zipped), *named)


class Reserved(catalog.Rule):
    kind: str = "x"


def test_what_depends_on_other_settings():
    needs = Axes(LANGUAGE, catalog.Experiment(), {"rule": ["sgd", "adamw"]})
    refuses(lambda: needs.run({"rule": "adamw"}), "rule.decay", "missing", "[0, inf)")
    # A number in place of a schedule.
    given = LANGUAGE.assign({}, [("eta", COSINE)])
    for name in ("eta", "eta-y"):
        field = "rule.eta.Y" if name == "eta-y" else "rule.eta"
        refuses(lambda n=name: LANGUAGE.assign(given, [(n, 1)]), f"{name} = 1", f"{field}.peak?")
    rule = catalog.SGD(catalog.Cosine(steps=100))
    refuses(
        lambda: Axes(LANGUAGE, catalog.Experiment(rule=rule), {"eta": [0.1, 0.2]}),
        *("axes.eta = 0.1", "rule.eta.peak?"),
    )
    # Names with two meanings, of one run and along an axis.
    stiff = describe(Bowl).fields["stiff"]
    refuses(
        lambda: run({**BOWL, "decay": 1}, language=language_with(decay=stiff)),
        *("decay = 1", "problem.decay", "rule.decay"),
    )
    two = language_with(overlap=stiff)
    overlapping, axes = catalog.Experiment(YZ(Overlapping())), {"problem": ["yz", "bowl"]}
    refuses(
        lambda: Axes(two, overlapping, axes | {"overlap": [0.1, 0.2]}),
        *("axes.overlap", "problem.task.overlap", "problem.overlap"),
    )
    refuses(lambda: run({"overlap": 1}, language=two), "overlap = 1", "syn-small", "overlapping")
    alike = language_with(a_b=stiff, aB=stiff)
    refuses(lambda: run({**BOWL, "A-B": 1}, language=alike), "A-B = 1", "problem.a_b", "problem.aB")
    # A run that its class should not have made, and a class that has no text.
    run_of = catalog.Experiment(rule=catalog.SGD(momentum=2))
    refuses(lambda: catalog.canonical(run_of), "rule.momentum = 2", "[0, 1)")
    refuses(lambda: LANGUAGE.kind_of(Reserved), "Reserved.kind", "another one")
    refuses(lambda: LANGUAGE.complete({"rule": {"kind": "sgd", "momentm": 1}}), "momentm", "sgd")


AXIS = np.array([0.1, 0.1 + 1e-9, 0.2])
FEW, MANY = np.array([0.0, 1e-12]), np.geomspace(1e-12, 1, 13)
STEPS = np.array([10, 999_999, 1_000_000])
WORDS = np.array(["false", "true"])
VALUES = [
    *((("eta", FEW, wanted), "eta = ", "0, 1e-12") for wanted in (math.nan, -1.0, 1e-13)),
    *((("eta", MANY, wanted), "eta = ", "13 values from 1e-12 to 1") for wanted in (-1.0, 1e-13)),
    (("eta", AXIS, 0.1 + 5e-10), "eta = 0.1000000005", "0.1 and 0.100000001"),
    (("steps", STEPS, 1_000_001), "steps = 1000001", "10, 999999, 1000000"),
    (("steps", STEPS.astype(float), 1_000_001), "steps = 1000001", "10, 999999, 1000000"),
    (("steps", STEPS, 10.5), "steps = 10.5", "10, 999999, 1e+06"),
    (("nesterov", WORDS, "True"), "nesterov = 'True'", "'true'"),
]


@pytest.mark.parametrize(("given", "named"), [(row[0], row[1:]) for row in VALUES])
def test_values_of_axes(given, named):
    refuses(lambda: find_value(*given), *named)


def test_names_of_axes():
    names = ["eta.W1", "seed"]
    refuses(lambda: find_axis("where", "eta.W2", names), "where = 'eta.W2'", "'eta.W1'")


def check(problem, text):
    """Check a sweep in TOML, in which `;` ends a line."""
    table = tomllib.loads(f"run.problem = '{problem}'; {text}".replace("; ", "\n"))
    from_table(table | {"axes": table.get("axes") or {"seed": [0]}}).check()


# Sweeps in TOML, and what the error names.
FILES = [
    ("yz", "axes.rule = ['adm']", "axes.rule = 'adm'", "adam or adamw"),
    ("yz", "axes.rule = [['sgd']]", "axes.rule = ['sgd']", "sgd, "),
    ("yz", "axes.rule.range = 2", "axes.rule = 0", "sgd"),
    ("yz", "axes.rule = ['sgd', 'sign']; axes.b1 = [0.5]", "b1 = 0.5", "sgd", "adamw"),
    ("yz", "run.start = 'zero'; axes.start = ['zero']", "problem.start = 'zero'", "axis"),
    ("yz", "axes.start = ['zro']", "start = 'zro'", "zero?"),
    ("yz", "axes.rule = ['sgd', 'adamw']", "rule.decay", "missing"),
    ("yz", "axes.dtype = ['float32']", "axes.dtype"),
    ("yz", "axes.seed = [4294967296]", "seed = 4294967296", "from 0 to 4294967295"),
    ("yz", "run.rule = 'adam'; run.momentum = 0.5", "momentum = 0.5", "adam", "sgd"),
    ("yz", "axes.overlap = [0.1]", "overlap = 0.1", "syn-small", "overlapping"),
    ("yz", "run.task = 'overlapping'; axes.layout = ['paper']", "layout", "overlapping"),
    *((name, "run.task = 'overlapping'; run.K = 100000", "K = 100000", "372.5 GiB")
      for name in ("yz", "qkv", "joma")),
    ("joma", "axes.start = ['zero']", "start = 'zero'", "joma", "yz"),
    ("joma", "axes.length = [8]", "batch = inf", "length = inf"),
    ("joma", "theory = 'erf'", "Theorem 2", "exp"),
    ("joma", "run.task = 'syn-small'; theory = 'joma'", "queries = 2"),
    ("joma", "run.task = 'joma-classes'; run.num_queries = 2", "num_queries", "joma-classes"),
    ("sparse_attention", "run.length = 8; axes.B = [9]", "B = 9"),
    ("linear_icl", "run.spectrum = 'geometric'; axes.ratio = [2.0]", "ratio = 2.0"),
    ("linear_icl", "run.batch = inf; theory = 'sigmoid'", "eq. 10", "merged"),
    ("linear_icl", "run.batch = inf; axes.rank = [2]; theory = 'scalar'", "rank=2", "eq. 21"),
    ("qkv", "axes.width = [20]", "width = 20", "embedding"),
    ("qkv", "theory = 'eq10'", "theory = 'eq10'"),
    ("transformer", "run.layers = 7", "layers = 7"),
    ("transformer", "run.prompt = 1000000", "prompt = 1000000"),
    ("transformer", "run.corpus = 'nowhere.txt'", "nowhere.txt"),
    ("transformer", "axes.min_count = [2]", "min_count = 2", "synthetic"),
    ("two_stage", "axes.eta_y = [1.0]", "eta_y"),
    ("two_stage", "axes.r = [1.0, -1.0]", "r = -1.0"),
    ("two_stage", "record = ['loss']", "record = 'loss'"),
    ("two_stage", "run.bias = true; theory = 'ode'", "bias = True"),
    ("two_stage", "run.core = 'fixed'; theory = 'ode'", "core = 'fixed'"),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "text", "named"), [(*row[:2], row[2:]) for row in FILES])
def test_sweeps(problem, text, named):
    refuses(lambda: check(problem, text), *named)


class Net(dynsim.Problem):
    """Two groups of weights, and a setting of each kind."""

    width: int = 3
    shift: float = 0.5

    def init(self, key):
        return {"a": jnp.ones(2), "b": jnp.ones(1)}

    def groups(self, params):
        return {name: name for name in params}

    def draw(self, key, batch):
        return jax.random.normal(key, (batch, 3))

    def loss(self, params, data):
        return jnp.mean((data @ jnp.concatenate([*params.values()]) - self.shift) ** 2)


class Valued(Net):
    def init(self, key):
        return jnp.ones(3) if jnp.any(jnp.ones(1) == jax.random.normal(key, (1,))) else key


class ValuedDraw(Net):
    def draw(self, key, batch):
        return jnp.ones(3) if jax.random.normal(key) > 0 else key


class Alone(dynsim.Problem):
    """Weights without groups."""

    def init(self, key):
        return {"w": jnp.ones(2)}

    def loss(self, params, data):
        return jnp.sum(params["w"] ** 2)


RULE = dynsim.adamw(schedules.warmup_cosine(0.03, 2, 10), decay=0.1, clip=1.0)
PEAK = {"peak": [0.1]}


def swept(axes=PEAK, problem=None, rule=RULE, steps=10, batch=4, **options):
    Sweep(Experiment(problem or Net(), rule, steps, batch), axes, **options).check()


OPTAX = dynsim.from_optax(optax.sgd, learning_rate=0.1)
PLAIN = dynsim.sgd(0.1)
# Sweeps of a problem of one's own.
SWEPT = [
    (lambda: swept({"depth": [1]}), "axes.depth = 1", "problem, width, shift"),
    (lambda: swept({"width": [1.5]}), "axes.problem.width = 1.5", "integer"),
    (lambda: swept(record=("speed",)), "record = 'speed'", "batch_loss"),
    (lambda: swept(batch=math.inf), "batch = inf", "Net", "population_loss"),
    (lambda: swept(steps=5), "eta", "10", "steps = 5"),
    (lambda: swept(theory="plain"), "theory = 'plain'", "linear-noise, sde", "population_loss"),
    (lambda: swept(rule=0.1), "rule = 0.1", "dynsim.Rule"),
    (lambda: swept(problem=Valued()), "Valued.init"),
    (lambda: swept(problem=ValuedDraw()), "ValuedDraw.draw"),
    (lambda: swept({"eta.warmup": [0.1]}, rule=PLAIN), "eta.warmup = 0.1", "rule.eta", "linear, "),
    (lambda: swept({"decay.q": [0.1]}, rule=PLAIN), "decay.q = 0.1", "decay.a"),
    (lambda: swept({"noise.a": [0.1]}, rule=dynsim.sgd(0.1, noise={"c": 0.1})), "'c': 0.1", "a, b"),
    (lambda: swept({"momentum": [0.1]}, rule=OPTAX), "momentum = 0.1", "optax", "sgd, sign"),
    (lambda: swept({"b1": [0.5]}, rule=PLAIN), "b1 = 0.5", "sgd", "adam, adamw"),
    (lambda: swept({"seed": [0]}, rule=dynsim.sgd({"b": 0.1})), "eta", "group 'a'", "Net"),
    (lambda: experiment(Net(), eta_c=1), "eta_c = 1", "eta.a"),
    # A misspelt number of a schedule is no group.
    (lambda: experiment(Alone(), eta_peak=1), "eta_peak = 1", "rule.eta", "constant, "),
    (lambda: experiment(Alone(), **{"eta.w": 1}), "eta.w = 1"),
    (lambda: sweeps.experiment("yz", steps=9).steps_recorded((0, 10)), "times", "10"),
    (lambda: sweeps.experiment("two_stage").steps_recorded((0, 2**31)), "times", "2147483648"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "named"), [(row[0], row[1:]) for row in SWEPT])
def test_problems_of_ones_own(call, named):
    refuses(call, *named)
