"""Settings mean one run, however they are written."""

import json
import math
import sys
import tomllib

import equinox as eqx
import hypothesis
import pytest
from hypothesis import strategies as st

import dynsim
import sweeps
from sweeps.language.describe import describe
from sweeps.language.fields import closest
from sweeps.language.tree import build, encode, toml
from tests.sweeps.language.catalog import (
    LANGUAGE,
    SGD,
    WORDS,
    YZ,
    Adam,
    AdamW,
    Bowl,
    Constant,
    Cosine,
    Experiment,
    File,
    Linear,
    Overlapping,
    Part,
    RMSProp,
    Sign,
    SynSmall,
    canonical,
    decode,
    language_with,
    run,
)

RATES = {"Y": 1.0, "Z": 0.1}
LINEAR = {"kind": "linear", "steps": 9, "peak": 3}
COSINE = {"kind": "cosine", "steps": 9, "peak": 2}
ADAM = {"rule": "adam", "b1": 0.5, "b2": 0.6, "eta": 2}
MEANINGS = [
    # The problem has defaults of its own for a run, which end with it.
    (Experiment(rule=SGD(RATES)), {}, {"problem": "yz"}, {"task": "syn-small", "rule": "sgd"}),
    (Experiment(Bowl()), {"problem": "bowl"}, {"problem": {"kind": "BOWL", "width": 2}}),
    (Experiment(Bowl(), SGD(momentum=0.5)), [{"momentum": 0.5}, {"problem": "bowl"}]),
    (Experiment(rule=SGD(0.3)), {"eta": 0.3}, {"rule": {"kind": "sgd", "eta": 0.3}}),
    # Names are the last parts of paths; case, - _ . and blanks do not matter.
    (
        Experiment(rule=SGD(RATES, momentum=0.5)),
        *({name: 0.5} for name in ("momentum", "Momentum", "rule.momentum", "rule-momentum")),
        *({name: 0.5} for name in ("RULE_momentum", "rule mom entum")),
        {"rule": {"momentum": 0.5}},
        {"rule.kind": "sgd", "momentum": 0.5},
    ),
    (
        Experiment(YZ(SynSmall("paper")), SGD(RATES)),
        {"layout": "PAPER"},
        *({"task": word, "layout": "paper"} for word in ("SynSmall", "syn_small", "SYN SMALL")),
        {"problem": {"task": {"kind": "syn-small", "layout": "Paper"}}},
        {"task.kind": "syn-small", "problem.task.layout": "paper"},
    ),
    (
        Experiment(YZ(File("a/my.npz")), SGD(RATES)),
        {"task": "a/my.npz"},
        {"path": "a/my.npz", "task": "file"},
    ),
    # A number of any type has one form, and so has what is none or infinite.
    (
        Experiment(rule=SGD(RATES), steps=1000, batch=math.inf),
        {"steps": 1e3, "batch": "inf", "momentum": 0, "decay": "none"},
        {"batch": math.inf, "decay": None, "nesterov": False},
    ),
    # Kinds are chosen before their settings, and a problem before its parts.
    (
        Experiment(YZ(Overlapping(K=3)), Adam({"Y": 2.0, "Z": 0.1}, b1=0.5)),
        {"K": 3, "task": "overlapping", "b1": 0.5, "rule": "adam", "eta-y": 2},
        {"problem": {"task": {"kind": "overlapping", "K": 3}}, "rule": {"kind": "adam", "b1": 0.5},
         "eta": {"Y": 2}},
        [{"rule": "adam", "eta": {"Y": 2}}, {"K": 3, "task": "overlapping"}, {"rule": {"b1": 0.5}}],
    ),
    (Experiment(Bowl(part=Part((3,)))), {"sizes": [3], "part": "part", "problem": "bowl"}),
    # Another kind keeps what both have from one base: of AdamW both numbers are Adam's; the
    # number of RMSProp only has the same name.
    (
        Experiment(rule=AdamW(2.0, b1=0.5, b2=0.6, decay=1.0)),
        [ADAM, {"rule": {"kind": "adamw", "decay": 1}}],
        [ADAM, {"rule": "adamw", "decay": 1}],
    ),
    (Experiment(rule=RMSProp(2.0)), [ADAM, {"rule": "rmsprop"}]),
    (Experiment(rule=SGD(Cosine(3.0, steps=9.0))), [{"eta": LINEAR}, {"eta": "cosine"}]),
    (Experiment(rule=SGD(Constant(3.0))), [{"eta": LINEAR}, {"eta": "constant"}]),
    # A schedule is replaced by a number only together with its rule.
    (Experiment(rule=SGD(1.0)), [{"eta": LINEAR}, {"rule": {"kind": "sgd", "eta": 1}}]),
    # A rate for all groups becomes one for each.
    (
        Experiment(rule=SGD({"Y": 2.0, "Z": 0.5})),
        {"eta": 0.5, "eta-y": 2},
        {"eta": {"Y": 2, "Z": 0.5}},
        [{"eta": 0.5}, {"eta.Y": 2}],
        [{"momentum": 0, "eta": {"Y": 2}}, {"rule": {"kind": "sgd", "eta": {"Z": 0.5}}}],
    ),
    (
        Experiment(rule=SGD({"Y": Cosine(steps=9.0), "Z": Linear(4.0, steps=9.0)})),
        [{"eta": LINEAR}, {"eta-z.peak": 4, "eta-y": {"kind": "cosine", "peak": 0.1}}],
    ),
    # Only its weights know the groups of a problem.
    (
        Experiment(Bowl(), SGD({"array": Cosine(2.0, steps=9.0), "decoder": 3.0})),
        {"problem": "bowl", "eta": {"array": COSINE, "decoder": 3}},
        {"problem": "bowl", "eta.array": COSINE, "eta.decoder": 3},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("meant", "written"), [(meant, each) for meant, *ways in MEANINGS for each in ways]
)
def test_all_ways_to_write_settings_mean_one_run(meant, written):
    tables = written if isinstance(written, list) else [written]
    for order in (1, -1):
        found = run(*(dict([*table.items()][::order]) for table in tables))
        assert found == meant
        # As text too, which tells 1 from 1.0.
        assert canonical(found) == canonical(meant)


numbers, sizes = st.floats(0, 1e3, exclude_min=True), st.integers(1, 2**31 - 1)
maybe = numbers | st.none()
rates = st.one_of(
    numbers,
    st.builds(Constant, numbers, maybe),
    st.builds(Linear, numbers, st.floats(0, 50), steps=st.just(50.0), end=numbers),
    st.builds(Cosine, numbers, st.none(), steps=st.just(60.0)),
)
shares = st.floats(0, 1, exclude_max=True)
grouped = rates | st.fixed_dictionaries({"Y": rates, "Z": rates})
rules = st.one_of(
    st.builds(SGD, grouped, maybe, shares, st.booleans()),
    st.builds(Sign, grouped, momentum=shares),
    st.builds(AdamW, grouped, decay=numbers, b1=shares, b2=shares),
    st.builds(RMSProp, grouped, b2=shares),
)
tasks = st.one_of(
    st.builds(SynSmall, st.sampled_from(["authors", "paper"])),
    st.builds(Overlapping, st.integers(1, 99), shares),
    st.just(File("a b.csv")),
)
parts = st.builds(Part, st.lists(st.integers(1, 2**40), max_size=3).map(tuple))
problems = st.builds(YZ, tasks, st.integers(2, 99) | st.just(math.inf))
problems |= st.builds(Bowl, numbers, st.integers(1, 9), parts)
names = st.lists(st.text(max_size=4), max_size=2).map(tuple)
runs = st.builds(
    Experiment, problems, rules, sizes.map(lambda n: max(n, 60)), sizes | st.just(math.inf),
    st.integers(0, 2**64), names,
)  # fmt: skip
spelt = st.sampled_from([str, str.upper, lambda n: n.replace(".", "-"), lambda n: f" {n}_"])
drawn = hypothesis.settings(max_examples=30, derandomize=True, deadline=None, database=None)


def flat(table, path=()):
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


@drawn
@hypothesis.given(runs)
@hypothesis.example(Experiment(Bowl(), record=('"\\\x7f',)))
def test_runs_are_their_text(meant):
    text = canonical(meant)
    again = decode(json.loads(text))
    assert again == meant
    assert canonical(again) == text
    assert decode(tomllib.loads(toml(encode(LANGUAGE, meant)))) == meant
    assert build(LANGUAGE, encode(LANGUAGE, meant, full=False)) == meant


@drawn
@hypothesis.given(runs, st.randoms(), st.data())
def test_runs_are_their_settings_in_any_order_and_spelling(meant, random, data):
    pairs = [pair for pair in flat(encode(LANGUAGE, meant)) if pair[0] != "kind"]
    random.shuffle(pairs)
    # Names of groups that only weights know are exact.
    ways = {}
    for name, value in pairs:
        exact = name.endswith("kind") or ".eta." in f".{name}"
        ways[name if exact else data.draw(spelt)(name)] = value
    assert run(ways) == meant


def test_a_value_for_all_groups_comes_before_that_of_one_and_a_full_path_before_its_end():
    table = LANGUAGE.assign({}, [("eta", "cosine")])
    assert LANGUAGE.resolve(table, "peak").path == ("rule", "eta", "peak")
    assert LANGUAGE.resolve(table, "steps").path == ("steps",)
    language = language_with(
        **dict.fromkeys(("a_b", "ab", "decay"), describe(Bowl).fields["stiff"])
    )
    table = {"problem": {"kind": "bowl"}}
    for exact in ("a_b", "ab"):
        assert language.resolve(table, exact).path == ("problem", exact)
    assert language.assign(table, [("rule-decay", 1)])["rule"] == {"kind": "sgd", "decay": 1.0}


def test_suggestions_are_close_and_short():
    names = ["momentum", "rule.momentum", "decay"]
    for typed, meant in (("Momentm", "momentum?"), ("rule.momentm", "momentum?"), ("zzz", "")):
        assert closest(typed, names).rpartition(" ")[2] == meant
    # At most three, of which seven in ten letters agree: 2 * 6 / 18 is less.
    assert closest("alphabet", [f"alphabet{letter}" for letter in "abcde"]).count(" or ") == 2
    assert closest("abcdefghij", ["abcdefgxyz"])
    assert closest("abcdefghi", ["abcdefxyz"]) == ""


OWN = """
from tests.sweeps.language.catalog import Problem, SynSmall, Task

class Net(Problem):
    task: Task = SynSmall()
    gain: float = 1.0
"""


def test_classes_from_outside_are_imported_where_they_are_named(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert "own_net" not in sys.modules
    found = run({"problem": "own_net:Net", "gain": 2, "task": "overlapping", "K": 4})
    monkeypatch.delitem(sys.modules, "own_net")
    assert type(found.problem).__name__ == "Net"
    assert (found.problem.gain, found.problem.task) == (2.0, Overlapping(K=4))
    # The language itself stays what it was.
    assert LANGUAGE.words(LANGUAGE.resolve({}, "problem").field) == ["yz", "bowl"]
    assert {kind.word for kind in LANGUAGE.kinds} == {*WORDS}


# Problems of dynsim with the task, the rates by group, and the batch of their runs.
BUILT_IN = [
    ("yz", dynsim.Layer(dynsim.SynSmall()), dynsim.sgd(1.0, 0.1), 128),
    ("qkv", dynsim.QKV(dynsim.SynSmall()), dynsim.sgd(1.0, 0.1), 128),
    ("joma", dynsim.JoMA(dynsim.SynMedium(1)), dynsim.sgd(0.1, 0.1), math.inf),
]


@pytest.mark.parametrize(("word", "problem", "rule", "batch"), BUILT_IN)
def test_a_problem_has_a_task_and_rates_by_default(word, problem, rule, batch):
    found = sweeps.experiment(word)
    assert eqx.tree_equal((found.problem, found.rule.build(), found.batch), (problem, rule, batch))
    found = sweeps.experiment(word, task="syn", num_queries=2, M=70)
    assert found.problem.task == dynsim.Syn(2, M=70)
    assert sweeps.experiment(word, task="a/my.npz").problem.task == dynsim.TaskFile("a/my.npz")


@pytest.mark.parametrize("preset", ["default", "fast", "joint"])
def test_a_preset_is_its_problem_with_the_defaults_of_a_run(preset):
    word = "two_stage" if preset == "default" else f"two_stage-{preset}"
    found = sweeps.experiment(word, control="smallinit")
    task, rule, batch = dynsim.two_stage(preset, "smallinit")
    assert eqx.tree_equal((found.problem.build(found.rule), found.rule), (task, rule))
    assert found.batch == batch
    assert found.steps is None
