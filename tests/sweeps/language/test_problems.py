"""Problems on sequence classes as text: their tasks, and the defaults of a run with them."""

import math
from pathlib import Path

import equinox as eqx
import pytest

import dynsim
from dynsim.classes.tasks import TaskTable
from dynsim.decoding import CountOrInf
from sweeps.language.describe import describe
from sweeps.language.grammar import Language
from sweeps.language.tree import encode
from tests.sweeps.language.catalog import decode


class Experiment(eqx.Module):
    """A run."""

    problem: dynsim.Problem = dynsim.Layer()
    rule: dynsim.Rule = dynsim.SGD(0.5)
    batch: CountOrInf = eqx.field(static=True, default=32)


WORDS = {
    "experiment": Experiment, "yz": dynsim.Layer, "qkv": dynsim.QKV, "joma": dynsim.JoMA,
    "sgd": dynsim.SGD, "constant": type(dynsim.schedules.constant(1.0)),
    "syn-small": dynsim.SynSmall, "syn-medium": dynsim.SynMedium, "syn": dynsim.Syn,
    "overlapping": dynsim.Overlapping, "file": dynsim.TaskFile, "table": TaskTable,
    "joma-classes": dynsim.JoMAClasses,
}  # fmt: skip
LANGUAGE = Language(describe(cls, word) for word, cls in WORDS.items())


@pytest.mark.parametrize(
    ("word", "problem", "eta", "batch"),
    [
        ("yz", dynsim.Layer(dynsim.SynSmall()), 1.0, 128),
        ("qkv", dynsim.QKV(dynsim.SynSmall()), 1.0, 128),
        ("joma", dynsim.JoMA(dynsim.SynMedium(1)), 0.1, math.inf),
    ],
)
def test_a_problem_has_a_task_and_rates_by_default(
    word: str, problem: dynsim.Problem, eta: float, batch: float
) -> None:
    run = decode(LANGUAGE, {"problem": word})
    rule = dynsim.sgd({"Y": eta, "Z": 0.1})
    assert eqx.tree_equal(run, Experiment(problem, rule, batch))
    assert LANGUAGE.kind_of(type(problem)).groups == ("Y", "Z")


def test_a_plain_number_stands_for_a_constant_rate() -> None:
    constant = dynsim.schedules.constant
    run = decode(LANGUAGE, {"eta": {"Y": 2, "Z": {"kind": "constant", "peak": 1, "warmup": 5}}})
    assert eqx.tree_equal(run.rule, dynsim.sgd({"Y": constant(2.0), "Z": constant(1.0, warmup=5)}))
    assert encode(LANGUAGE, run)["rule"]["eta"]["Y"] == 2.0
    assert encode(LANGUAGE, run)["rule"]["eta"]["Z"]["warmup"] == 5.0


def test_a_task_is_chosen_by_its_word_or_its_file(tmp_path: Path) -> None:
    run = decode(LANGUAGE, {"problem": "qkv", "task": "syn", "num_queries": 2, "M": 70})
    assert run.problem.task == dynsim.Syn(2, M=70)
    run = decode(LANGUAGE, {"task": "some/my.npz"})
    assert run.problem.task == dynsim.TaskFile("some/my.npz")
    arrays = {}
    run = Experiment(dynsim.QKV(TaskTable([[0.5, 0.5], [0.2, 0.8]], [0, 1])))
    text = encode(LANGUAGE, run, arrays)
    assert eqx.tree_equal(decode(LANGUAGE, text, arrays).problem.classes, run.problem.classes)
    assert LANGUAGE.words(LANGUAGE.kind_of(dynsim.QKV).fields["task"]) == list(WORDS)[6:]
