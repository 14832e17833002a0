"""What is told of options before anything is imported."""

import re
import reprlib
from typing import Any

import pytest

from sweeps import cli
from sweeps.commands import line
from sweeps.commands.table import COMMANDS, Offer
from sweeps.lines import assignments


def given(*words: str, problem: str = "") -> Any:
    return line.parse(Offer.of("compare", problem), words, [])


def test_values_are_those_behind_their_options() -> None:
    found = given(
        *("--steps", "1e3", "--momentum=0.5", "--theories", "plain", "best", "--no-quiet"),
        *("--nesterov", "--batch", "inf", "--task", "my.npz", "--seeds=2e1", "--json"),
        *("--out", "12"),
    )
    assert found == {
        "kind": "command",
        "problem": {"kind": "yz", "task": {"kind": "file", "path": "my.npz"}},
        "rule": {"kind": "sgd", "momentum": 0.5, "nesterov": True},
        "steps": 1000,
        "batch": "inf",
        "seeds": 20,
        "theories": ["plain", "best"],
        "quiet": False,
        "json": True,
        "out": "12",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("inf", float("inf")),
        ("true", True),
        ("sgd", "sgd"),
        (" ./runs/a-b.npz ", "./runs/a-b.npz"),
        ("[sgd, inf, my_package:Rule]", ["sgd", float("inf"), "my_package:Rule"]),
        ("-.5e-3", -5e-4),
        ("[.1, 5.,0.25, 2]", [0.1, 5.0, 0.25, 2]),
        ("'.1, 5.'", ".1, 5."),
        ("data.5", "data.5"),
    ],
)
def test_text_needs_no_quotes_by_itself_or_in_a_list(text: str, value: object) -> None:
    assert assignments(f"run.rule={text}") == {"run": {"rule": value}}
    with pytest.raises(ValueError, match=re.escape(f"start = {reprlib.repr(value)}: ")):
        given("--start", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--theories --steps 3", "option --theories needs at least one value, each text"),
        ("--seeds --json", "option --seeds needs a value, an integer from 1"),
        ("--momentum --json", "option --momentum needs a value, a number in [0, 1)"),
        ("plain", "'plain' is not an option; options begin with --"),
        ("--eta-y=x", "rule.eta.Y = 'x': must be a number in [0, inf)"),
        ("--layout Papr", "problem.task.layout = 'Papr': did you mean paper? It must be one of"),
        ("--steps -x", "steps = '-x': must be an integer from 1"),
        ("--seeds 1.5", "seeds = 1.5: must be an integer"),
        ("--json=maybe", "json = 'maybe': must be true or false"),
        ("--json maybe", "'maybe' is not an option"),
    ],
)
def test_what_is_wrong_is_told_at_once(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        given(*words.split())


def test_theories_are_known_of_problems_of_this_project_alone() -> None:
    names_for = lambda word, option: Offer.of("compare").names(option, {"problem": {"kind": word}})
    assert "factors" in names_for("qkv", "theories")
    assert "anchored" in names_for("two_stage-fast", "theories")
    assert "symmetric-descent" in names_for("yz", "against")
    assert "simulation" not in names_for("yz", "theories")
    assert "entropy" in names_for("yz", "observable")
    for word in ("qkv_of_mine:Net", "qkv-mine", ""):
        assert names_for(word, "theory") == []


def test_observables_are_known_of_the_problem_of_a_figure() -> None:
    scaling = Offer.of("figure scaling", "linear_icl")
    start = [("problem", "linear_icl")]
    with pytest.raises(ValueError, match=r"observable = 'los': did you mean loss\?"):
        line.parse(scaling, ["--observable", "los"], start)
    for word in ("diverged", "loss", "sharpness_2"):
        assert line.parse(scaling, ["--observable", word], start)["observable"] == word


def test_defaults_of_a_command_are_those_of_its_problem_alone() -> None:
    offer = Offer.of("figure optimum")
    usual = offer.chosen([])
    assert offer.language.resolve(usual, "scale").value == 0.5
    other = offer.chosen([("Problem", "qkv")])
    assert offer.language.resolve(other, "scale").value == 1.0
    # A system may set its own.
    layer = Offer.of("figure optimum", "yz").chosen([("problem", "yz"), ("steps", 7)])
    assert (layer["observable"], layer["steps"]) == ("relative_loss", 7)
    assert layer["problem"]["length"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 5 --seeds 6", "seeds = 6: is given twice, first as seeds"),
        ("--=3", "'--=3': must be followed by the name of an option"),
        ("--eta 1e400", "rule.eta = inf: must be a number in [0, inf)"),
        ("--eta dynsim.schedules:Cosine", "rule.eta.peak: is missing"),
        ("--rule dynsim:SGD --steps 0", "steps = 0: must be an integer"),
    ],
)
def test_command_lines_are_read_as_they_are_meant(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compare", *words.split()])
    assert message in capsys.readouterr().err


def test_help_has_the_settings_of_the_kinds_that_other_words_choose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compare", "linear_icl", "--help", "--rule", "adam", "--eta", "cosine"])
    page = capsys.readouterr().out
    assert "--rule.b1" in page
    assert "--rule.eta.peak" in page
    assert "--rule.momentum" not in page


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("explore a --port 80", "port = 80: has no effect without --serve; leave it out"),
        ("explore a --serve --out b.html", "out = 'b.html': has no effect with --serve; "),
        ("explore --serve --times 3", "times = [3.0]: has no effect without --paths; leave it out"),
        ("plot a --y eta", "y = 'eta': has no effect without --view heatmap; leave it out"),
        ("plot a --view heatmap --hue eta", "hue = 'eta': has no effect without --view lines"),
        ("sweep a.toml --patience 9", "has no effect without --coordinator or --distributed; "),
        ("phase yz --probes 9", "probes = 9: has no effect without --refine; leave it out"),
        ("figure phase --max-seeds 9", "max_seeds = 9: has no effect without --band; leave it out"),
    ],
)
def test_an_option_that_has_no_effect_is_a_mistake(words: str, reason: str) -> None:
    name, problem, left = line.find(words.split())
    with pytest.raises(ValueError, match=re.escape(reason)):
        line.parse(Offer.of(name, problem), left, [])
    # What it needs is there.
    line.parse(
        Offer.of("phase"),
        ["--refine", "--probes", "9", "--band", "2", "--max-seeds", "9"],
        [],
    )


def test_every_option_that_needs_another_is_one() -> None:
    kinds_of = {Offer.of(name).kind.word.partition(":")[2]: name for name in COMMANDS}
    for kind, needs in line.NEEDS.items():
        options = Offer.of(kinds_of[kind]).options
        named = [*needs, *(e for others in needs.values() for e in others.split("|"))]
        assert {each.removeprefix("no-").split()[0] for each in named} <= {*options}


def test_commands_that_read_a_file_or_stores_are_known() -> None:
    reading = dict.fromkeys(("info", "check", "plot", "explore", "export"), "store")
    found = {name: command.reads for name, command in COMMANDS.items() if command.reads}
    assert found == {"sweep": "file", **reading}
