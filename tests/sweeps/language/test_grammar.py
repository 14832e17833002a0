"""What names stand for, and how settings combine."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sweeps.language.describe import describe
from sweeps.language.fields import MISSING, Field, LanguageError, Table
from sweeps.language.grammar import Language, chooses_kind
from sweeps.language.tree import build
from tests.sweeps.language import catalog
from tests.sweeps.language.catalog import (
    LANGUAGE,
    SGD,
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
    RMSProp,
)

RATES = {"Y": 1.0, "Z": 0.1}


def given(*settings: tuple[str, object], start: Table | None = None) -> Table:
    return LANGUAGE.assign(start or {}, settings)


def run(*settings: tuple[str, object]) -> Experiment:
    return build(LANGUAGE, given(*settings))


def test_defaults_depend_on_the_problem() -> None:
    assert run() == Experiment(rule=SGD(eta=RATES))
    assert run(("problem", "bowl")) == Experiment(Bowl())


@pytest.mark.parametrize(
    "name",
    ["momentum", "Momentum", "rule.momentum", "rule-momentum", "RULE_momentum", "rule mom entum"],
)
def test_a_setting_has_many_spellings(name: str) -> None:
    assert run((name, 0.5)).rule == SGD(eta=RATES, momentum=0.5)


@pytest.mark.parametrize("word", ["syn-small", "SynSmall", "syn_small", "SYN SMALL"])
def test_a_word_has_many_spellings(word: str) -> None:
    found = given(("task", word))
    assert found["problem"] == {"kind": "yz", "task": {"kind": "syn-small"}}


def test_a_word_stands_for_its_table() -> None:
    assert given(("task", "overlapping")) == given(("task", {"kind": "overlapping"}))
    assert given(("task.kind", "overlapping")) == given(("task", {"kind": "overlapping"}))


def test_words_of_a_literal_and_numbers_have_one_spelling() -> None:
    settings = ("layout", "PAPER"), ("steps", 1e3), ("momentum", 0), ("batch", "inf")
    found = given(*settings)
    assert found["problem"]["task"]["layout"] == "paper"
    assert [type(found["steps"]), type(found["rule"]["momentum"])] == [int, float]
    assert run(*settings).batch == float("inf")


def test_kinds_are_chosen_before_their_settings() -> None:
    pairs = ("K", 3), ("task", "overlapping"), ("b1", 0.5), ("rule", "adam"), ("eta-y", 2)
    expected = Experiment(YZ(Overlapping(K=3)), Adam(b1=0.5, eta={"Y": 2.0, "Z": 0.1}))
    assert run(*pairs) == run(*reversed(pairs)) == expected


def test_a_problem_is_chosen_before_its_parts() -> None:
    pairs = ("sizes", [3]), ("part", "part"), ("problem", "bowl")
    assert run(*pairs).problem == Bowl(part=catalog.Part(sizes=(3,)))


def test_tables_are_settings_of_their_parts() -> None:
    table = {"problem": {"task": {"kind": "overlapping", "K": 3}}, "rule": {"momentum": 0.5}}
    assert run(*table.items()) == run(("task", "overlapping"), ("K", 3), ("momentum", 0.5))


def test_a_table_is_merged_with_the_given_settings() -> None:
    first = given(("momentum", 0.5), ("eta", {"Y": 2}))
    assert given(("rule", {"kind": "sgd", "eta": {"Z": 3}}), start=first)["rule"] == {
        "kind": "sgd",
        "momentum": 0.5,
        "eta": {"Y": 2.0, "Z": 3.0},
    }


def test_another_kind_keeps_what_both_have_from_a_base() -> None:
    first = given(("rule", "adam"), ("b1", 0.5), ("b2", 0.6), ("eta", 2))
    # Of AdamW both are Adam's; the number of RMSProp only has the same name.
    adamw = given(("rule", {"kind": "adamw", "decay": 1}), start=first)
    assert build(LANGUAGE, adamw).rule == AdamW(eta=2.0, b1=0.5, b2=0.6, decay=1.0)
    rmsprop = given(("rule", "rmsprop"), start=first)
    assert build(LANGUAGE, rmsprop).rule == RMSProp(eta=2.0)
    schedule = given(("eta", {"kind": "linear", "steps": 9, "peak": 3}))
    cosine = given(("eta", "cosine"), start=schedule)
    assert build(LANGUAGE, cosine).rule.eta == Cosine(3.0, steps=9.0)
    constant = given(("eta", "constant"), start=schedule)
    assert build(LANGUAGE, constant).rule.eta == Constant(3.0)


def test_a_default_of_one_kind_is_not_kept_for_another() -> None:
    with pytest.raises(LanguageError, match=r"^rule\.decay: is missing"):
        run(("rule", "adamw"))


def test_defaults_of_a_problem_do_not_outlive_it() -> None:
    first = given(("momentum", 0.5))
    bowl = given(("problem", "bowl"), start=first)
    assert build(LANGUAGE, bowl) == Experiment(Bowl(), SGD(momentum=0.5))
    assert run(("eta", 0.3)).rule.eta == 0.3


def test_a_rate_for_all_groups_becomes_one_for_each() -> None:
    assert run(("eta", 0.5), ("eta-y", 2)).rule.eta == {"Y": 2.0, "Z": 0.5}
    assert run(("eta-y", 2), ("eta", 0.5)).rule.eta == {"Y": 2.0, "Z": 0.5}
    first = given(("eta", {"kind": "linear", "steps": 9}))
    parts = given(("eta-z.peak", 3), ("eta-y", "cosine"), start=first)
    eta = {"Y": Cosine(steps=9.0), "Z": Linear(3.0, steps=9.0)}
    assert build(LANGUAGE, parts).rule.eta == eta


def test_groups_that_only_the_weights_know_have_any_name() -> None:
    rates = {
        "array": {"kind": "cosine", "steps": 9, "peak": 2},
        "decoder": 3,
        "head": {"kind": "linear", "steps": 4},
    }
    found = run(("problem", "bowl"), ("eta", rates)).rule.eta
    assert found == {"array": Cosine(2.0, steps=9.0), "decoder": 3.0, "head": Linear(steps=4.0)}


def test_groups_of_another_problem_are_errors() -> None:
    other = describe(YZ, "other")._replace(groups=("A",), run_defaults={})
    language = Language([other if kind.word == "yz" else kind for kind in LANGUAGE.kinds])
    with pytest.raises(LanguageError) as error:
        language.finished(given(("eta-y", 1)) | {"problem": {"kind": "other"}})
    assert str(error.value) == "rule.eta = {'A': 0.1, 'Y': 1.0}: has groups A"


def test_a_schedule_is_replaced_by_a_number_only_with_its_rule() -> None:
    first = given(("eta", {"kind": "cosine", "steps": 9}))
    with pytest.raises(LanguageError, match=r"did you mean rule\.eta\.peak\?"):
        given(("eta", 1), start=first)
    again = given(("rule", {"kind": "sgd", "eta": 1}), start=first)
    assert build(LANGUAGE, again).rule.eta == 1.0


def test_a_file_is_a_task() -> None:
    assert run(("task", "data/my.npz")).problem.task == File("data/my.npz")


def test_ambiguous_names_are_errors() -> None:
    bowl = describe(Bowl, "bowl")
    field = bowl.fields["stiff"]
    kinds = [k for k in LANGUAGE.kinds if k.word != "bowl"]
    language = Language([*kinds, bowl._replace(fields={**bowl.fields, "decay": field})])
    with pytest.raises(LanguageError) as error:
        language.assign({}, [("problem", "bowl"), ("decay", 1)])
    assert str(error.value) == "decay = 1: is ambiguous; write problem.decay or rule.decay"
    found = language.assign({}, [("problem", "bowl"), ("rule-decay", 1)])
    assert found["rule"] == {"kind": "sgd", "decay": 1.0}
    # A full path takes precedence.
    assert LANGUAGE.resolve(given(("eta", "cosine")), "steps").path == ("steps",)


def test_the_part_that_lacks_a_setting_is_the_closest_one() -> None:
    bowl = describe(Bowl, "bowl")
    kinds = [k for k in LANGUAGE.kinds if k.word != "bowl"]
    language = Language([*kinds, bowl._replace(fields={"overlap": bowl.fields["stiff"]})])
    with pytest.raises(LanguageError, match=r"^overlap = 1: syn-small does not have it; overl"):
        language.assign({}, [("overlap", 1)])
    with pytest.raises(LanguageError, match=r"^peak = 1: rule\.eta does not have it; constant, "):
        LANGUAGE.assign(given(("eta", 0.5)), [("peak", 1)])


def test_unknown_fields_in_a_table_are_errors() -> None:
    with pytest.raises(LanguageError, match=r"^momentm: is not a field of sgd$"):
        LANGUAGE.complete({"rule": {"kind": "sgd", "momentm": 1}})


def test_exact_names_take_precedence() -> None:
    bowl = describe(Bowl, "bowl")
    kinds = [k for k in LANGUAGE.kinds if k.word != "bowl"]
    fields = dict.fromkeys(("a_b", "ab", "aB"), bowl.fields["stiff"])
    language = Language([*kinds, bowl._replace(fields=fields)])
    start = {"problem": {"kind": "bowl"}}
    assert language.resolve(start, "ab").path == ("problem", "ab")
    assert language.resolve(start, "a_b").path == ("problem", "a_b")
    with pytest.raises(LanguageError, match=r"^A-B: is ambiguous; write problem\.a_b or problem\."):
        language.resolve(start, "A-B")


@pytest.mark.parametrize(
    ("types", "value", "chooses"),
    [
        ((), "sgd", True),
        ((), {"kind": "sgd"}, True),
        ((), {"Y": 1.0}, False),
        ((), 1.0, False),
        ((), "Auto", False),
        (("none",), "none", False),
        (("number",), "inf", False),
        (("text",), "sgd", False),
        (("text",), {"kind": "sgd"}, True),
    ],
)
def test_words_choose_kinds_unless_they_mean_something_else(
    types: tuple[str, ...], value: Any, chooses: bool
) -> None:
    field = Field(types=types, words=("auto",), bases=("module:Rule",))
    assert chooses_kind(field, value) is chooses
    assert not chooses_kind(field._replace(bases=()), value)


def test_a_value_for_all_groups_comes_before_the_share_of_one() -> None:
    table = given(("eta", "cosine"))
    assert LANGUAGE.resolve(table, "peak").path == ("rule", "eta", "peak")


def test_walk_has_every_setting_with_its_value() -> None:
    values = {
        each.name: each.value for each in LANGUAGE.walk(given(("rule", "adamw"))) if not each.shared
    }
    assert values == {
        "problem": {"kind": "yz"},
        "problem.task": {"kind": "syn-small"},
        "problem.task.layout": "authors",
        "problem.length": 128,
        "rule": {"kind": "adamw", "eta": RATES},
        "rule.eta": RATES,
        "rule.eta.Y": 1.0,
        "rule.eta.Z": 0.1,
        "rule.decay": MISSING,
        "rule.b1": 0.9,
        "rule.b2": 0.999,
        "steps": 1000,
        "batch": 32,
        "seed": 0,
        "record": ["loss"],
    }


OWN = """
from tests.sweeps.language.catalog import Problem, SynSmall, Task

class Net(Problem):
    task: Task = SynSmall()
    gain: float = 1.0
"""


def test_classes_from_outside_are_imported_where_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert "own_net" not in sys.modules
    found = run(("problem", "own_net:Net"), ("gain", 2), ("task", "overlapping"), ("K", 4))
    monkeypatch.delitem(sys.modules, "own_net")
    assert type(found.problem).__name__ == "Net"
    assert (found.problem.gain, found.problem.task) == (2.0, Overlapping(K=4))
    # The language itself stays what it was.
    assert LANGUAGE.words(LANGUAGE.resolve({}, "problem").field) == ["yz", "bowl"]
