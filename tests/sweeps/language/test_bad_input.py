"""Bad input, each with its whole message."""

import math
from pathlib import Path
from typing import Any

import pytest

from sweeps.language.axes import Axes
from sweeps.language.fields import LanguageError
from sweeps.language.tree import build
from tests.sweeps.language.catalog import LANGUAGE, SGD, Cosine, Experiment

RULES = "sgd, adam, adamw, rmsprop, sign, or module:Name of your own"
RATE = "a number in [0, inf), in 1/step, or one of constant, linear, cosine"
STEPS = "must be an integer from 1 to 2147483647"
LISTS = "must be a list, or a table with linspace, logspace or range"
ALL = (
    "there are problem, task, layout, length, rule, eta, Y, Z, decay, momentum, nesterov, steps, "
    "batch, seed, record"
)
COSINE = {"kind": "cosine", "steps": 5}
BOWL = ("problem", "bowl")

SETTINGS = [
    # names
    ([("momentm", 0.9)], "momentm = 0.9: is not a setting; did you mean momentum?"),
    ([("zzz", 2)], f"zzz = 2: is not a setting; {ALL}"),
    ([("", 2)], f" = 2: is not a setting; {ALL}"),
    ([("eta-w", 1)], "eta-w = 1: is not a setting; did you mean eta or eta.Z or eta.Y?"),
    (
        [BOWL, ("eta", COSINE), ("eta.peek", 1)],
        "eta.peek = 1: is not a setting; did you mean eta.peak?",
    ),
    ([("eta", {"W": 1})], "eta.W = 1: is not a setting; did you mean eta or eta.Z or eta.Y?"),
    ([("rule", "adam"), ("momentum", 1)], "momentum = 1: adam does not have it; sgd, sign do"),
    ([("overlap", 0.2)], "overlap = 0.2: syn-small does not have it; overlapping does"),
    ([("stiff", 2)], "stiff = 2: yz does not have it; bowl does"),
    ([("eta-peak", 2)], "eta-peak = 2: rule.eta does not have it; constant, linear, cosine do"),
    (
        [("rule", {"kind": "adam", "momentum": 0.5})],
        "rule.momentum = 0.5: adam does not have it; sgd, sign do",
    ),
    (
        [("momentum", 0.5), ("rule-momentum", 0.6)],
        "rule-momentum = 0.6: is given twice, first as momentum",
    ),
    ([("rule", "sgd"), ("rule", "adam")], "rule = 'adam': is given twice, first as rule"),
    # numbers and words
    ([("momentum", 1)], "rule.momentum = 1: must be a number in [0, 1)"),
    ([("momentum", True)], "rule.momentum = True: must be a number in [0, 1)"),
    (
        [("momentum", math.nan)],
        "rule.momentum = nan: must be a number in [0, 1); nan is not a number",
    ),
    ([("momentum", None)], "rule.momentum = None: must be a number in [0, 1)"),
    ([("momentum", "high")], "rule.momentum = 'high': must be a number in [0, 1)"),
    ([("momentum", {"kind": "sgd"})], "rule.momentum = 'sgd': must be a number in [0, 1)"),
    ([("decay", math.inf)], "rule.decay = inf: must be a number in [0, inf), or none"),
    ([("eta", -1)], f"rule.eta = -1: must be {RATE}, or one of these for each group"),
    ([("eta-y", -1)], f"rule.eta.Y = -1: must be {RATE}"),
    ([("eta-y", "inf")], f"rule.eta.Y = 'inf': must be {RATE}"),
    ([("steps", "many")], f"steps = 'many': {STEPS}"),
    ([("steps", 1.5)], f"steps = 1.5: {STEPS}"),
    ([("steps", "inf")], f"steps = 'inf': {STEPS}"),
    ([("steps", 10**400)], f"steps = 100000000000000000...0000000000000000000: {STEPS}"),
    ([("batch", 2.5)], "batch = 2.5: must be an integer from 1 to 2147483647, or inf"),
    ([("length", 1)], "problem.length = 1: must be an integer from 2 to 2147483647, or inf"),
    ([("nesterov", 1)], "rule.nesterov = 1: must be true or false"),
    (
        [("layout", "papr")],
        "problem.task.layout = 'papr': did you mean paper? It must be one of authors, paper",
    ),
    ([("record", "loss")], "record = 'loss': must be a list, each entry text"),
    ([("record", ["loss", 3])], "record[1] = 3: must be text"),
    ([BOWL, ("sizes", [4, 0])], "problem.part.sizes[1] = 0: must be an integer >= 1"),
    (
        [BOWL, ("activation", "relu")],
        "problem.part.activation = 'relu': must be a function module:name",
    ),
    (
        [BOWL, ("activation", "no_such:relu")],
        "problem.part.activation = 'no_such:relu': cannot be imported (ModuleNotFoundError"
        "(\"No module named 'no_such'\"))",
    ),
    # kinds
    ([("rule", "admw")], f"rule = 'admw': did you mean adamw or adam? It must be one of {RULES}"),
    ([("rule", "cosine")], f"rule = 'cosine': is not a kind of Rule; must be one of {RULES}"),
    ([("rule", "a.npz")], f"rule = 'a.npz': must be one of {RULES}"),
    ([("rule", {"kind": 7})], f"rule = 7: must be one of {RULES}"),
    ([("rule", 0.1)], "rule = 0.1: would replace sgd; did you mean rule.eta?"),
    ([("problem", 3)], "problem = 3: must be one of yz, bowl"),
    (
        [("eta", "schedule")],
        "rule.eta = 'schedule': is not a kind of Schedule; must be a number in [0, inf), "
        "in 1/step, or one of constant, linear, cosine, or one of these for each group, or "
        "module:Name of your own",
    ),
    (
        [("rule", "no_such:Net")],
        "rule = 'no_such:Net': cannot be imported (ModuleNotFoundError"
        "(\"No module named 'no_such'\"))",
    ),
    (
        [("rule", "ends_python:Net")],
        "rule = 'ends_python:Net': cannot be imported (SystemExit('no'))\n"
        "FOLDER/ends_python.py, line 1: raise SystemExit('no')",
    ),
    ([("rule", "own:")], "rule = 'own:': must be module:NAME"),
    (
        [("rule", "fails:Net")],
        "rule = 'fails:Net': cannot be imported (ZeroDivisionError('division "
        "by zero'))\nFOLDER/fails.py, line 2: half = one / 0",
    ),
    (
        [("problem", "own:Nett")],
        "problem = 'own:Nett': cannot be imported (AttributeError(\"module 'own' has no attribute "
        "'Nett'\"))",
    ),
    (
        [("problem", "own:make")],
        "problem = 'own:make': must be a dataclass or an Equinox module",
    ),
    ([("rule", "own:Net")], f"rule = 'own:Net': is not a kind of Rule; must be one of {RULES}"),
    ([("problem", "own:Net")], "problem.gain: must be even"),
    ([("problem", "own:Odd")], "problem: here: there"),
    # what is missing, or does not fit together
    ([("rule", "adamw")], "rule.decay: is missing (weight decay); must be a number in [0, inf)"),
    (
        [("eta", "cosine")],
        "rule.eta.steps: is missing (when the fall ends); must be a number in (0, inf)",
    ),
    ([("task", "table")], "problem.task.probs: is missing; must be an array"),
    (
        [("task", "table"), ("probs", {"array": "0f", "shape": [1], "dtype": "float32"})],
        "problem.task.probs = '0f': is an array that was not passed",
    ),
    (
        [("eta", {**COSINE, "warmup": 10})],
        "rule.eta.warmup = 10.0: must be finite and in [0, 5]",
    ),
    (
        [("eta", {"kind": "linear", "steps": 2000})],
        "steps = 1000: must be at least those of eta",
    ),
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


@pytest.mark.parametrize(("settings", "message"), SETTINGS, ids=[text for _, text in SETTINGS])
def test_settings(
    settings: list[tuple[str, Any]],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "ends_python.py").write_text("raise SystemExit('no')")
    (tmp_path / "fails.py").write_text("one = 1\nhalf = one / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LanguageError) as error:
        build(LANGUAGE, LANGUAGE.assign({}, settings))
    assert str(error.value) == message.replace("FOLDER", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eta", "eta = 1: would replace cosine; did you mean rule.eta.peak?"),
        ("eta-y", "eta-y = 1: would replace cosine; did you mean rule.eta.Y.peak?"),
    ],
)
def test_numbers_over_schedules(name: str, message: str) -> None:
    given = LANGUAGE.assign({}, [("eta", COSINE)])
    with pytest.raises(LanguageError) as error:
        LANGUAGE.assign(given, [(name, 1)])
    assert str(error.value) == message


AXES = [
    ({}, [], "axes: needs at least one axis"),
    ({"momentm": [0.5]}, [], "axes.momentm = 0.5: is not a setting; did you mean momentum?"),
    (
        {"rule": ["sgd", "adam"], "momentum": [0, 0.5]},
        [],
        "axes.momentum = 0: adam does not have it; sgd, sign do",
    ),
    ({"momentum": [0, 2]}, [], "axes.rule.momentum = 2: must be a number in [0, 1)"),
    ({"seed": [0, 1.5]}, [], "axes.seed = 1.5: must be an integer >= 0"),
    (
        {"layout": ["paper", "papr"]},
        [],
        "axes.problem.task.layout = 'papr': did you mean paper? It must be one of authors, paper",
    ),
    (
        {"rule": ["sgd", "admw"]},
        [],
        f"axes.rule = 'admw': did you mean adamw or adam? It must be one of {RULES}",
    ),
    (
        {"momentum": [0.5], "rule.momentum": [0.5]},
        [],
        "axes.rule.momentum = 0.5: is given twice, first as momentum",
    ),
    ({"momentum": [0, 0.0]}, [], "axes.rule.momentum = 0.0: is given twice"),
    ({"rule": ["sgd", "SGD"]}, [], "axes.rule = 'sgd': is given twice"),
    (
        {"eta": [0.1, 0.2], "eta.Y": [1, 2]},
        [],
        "axes.rule.eta.Y: is part of axes.rule.eta; leave one out",
    ),
    ({"momentum": []}, [], "axes.momentum = []: is empty; needs at least one value"),
    ({"momentum": "0.5"}, [], f"axes.momentum = '0.5': {LISTS}"),
    ({"momentum": 0.5}, [], f"axes.momentum = 0.5: {LISTS}"),
    (
        {"momentum": {"linspce": [0, 1, 2]}},
        [],
        f"axes.momentum = {{'linspce': [0, 1, 2]}}: did you mean linspace? It {LISTS}",
    ),
    (
        {"momentum": {"linspace": [0, 1]}},
        [],
        "axes.momentum.linspace = [0, 1]: must be [first, last, number of values]",
    ),
    (
        {"momentum": {"linspace": [0, 1, 1e9]}},
        [],
        "axes.momentum.linspace = 1000000000.0: must be an integer from 2 to 16777216",
    ),
    (
        {"momentum": {"logspace": [0, 1, 3]}},
        [],
        "axes.momentum.logspace = 0: must be a number in (0, inf)",
    ),
    ({"seed": {"range": [3, 3]}}, [], "axes.seed.range = [3, 3]: has no values"),
    ({"seed": {"range": 1.5}}, [], "axes.seed.range = 1.5: must be n or [first, end]"),
    (
        {"eta.Y": [1, 2], "eta.Z": [1, 2, 3]},
        [["eta.Y", "eta.Z"]],
        "zip: axes need the same number of values, got eta.Y 2, eta.Z 3",
    ),
    (
        {"eta.Y": [1, 2]},
        [["eta.Y", "eta.Q"]],
        "zip = 'eta.Q': did you mean eta.Y? It must be one of eta.Y",
    ),
    ({"eta.Y": [1, 2]}, [["eta.Y"], ["eta-y"]], "zip = 'eta.Y': is in two groups"),
    ({"eta.Y": [1, 2]}, ["eta.Y"], "zip = ['eta.Y']: must be a list of lists of axes"),
    (
        {"eta.Y": [1, 1], "eta.Z": [2, 2]},
        [["eta.Y", "eta.Z"]],
        "axes.rule.eta.Y, rule.eta.Z = (1.0, 2.0): is given twice",
    ),
]


@pytest.mark.parametrize(("given", "zipped", "message"), AXES, ids=[text for *_, text in AXES])
def test_axes(given: dict[str, Any], zipped: Any, message: str) -> None:
    with pytest.raises(LanguageError) as error:
        Axes(LANGUAGE, Experiment(), given, zipped)
    assert str(error.value) == message


def test_a_setting_that_a_kind_along_an_axis_needs() -> None:
    found = Axes(LANGUAGE, Experiment(), {"rule": ["sgd", "adamw"]})
    with pytest.raises(LanguageError) as error:
        found.run({"rule": "adamw"})
    text = "rule.decay: is missing (weight decay); must be a number in [0, inf)"
    assert str(error.value) == text


def test_an_axis_of_numbers_over_a_schedule() -> None:
    with pytest.raises(LanguageError) as error:
        Axes(LANGUAGE, Experiment(rule=SGD(Cosine(steps=100))), {"eta": [0.1, 0.2]})
    text = "axes.eta = 0.1: would replace cosine; did you mean rule.eta.peak?"
    assert str(error.value) == text
