"""Help and schema; names, errors and help without importing JAX or NumPy."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeps.commands.line import settings_page
from sweeps.commands.schema import json_schema
from sweeps.language.grammar import Language
from sweeps.language.tree import encode
from tests.sweeps.language.catalog import (
    LANGUAGE,
    SGD,
    YZ,
    AdamW,
    Bowl,
    Cosine,
    Experiment,
    Linear,
    Table,
)

ROOT = Path(__file__).parents[3]
PAGE = """\
Options. The last part of a name suffices if it is unique; - _ . are interchangeable.
  --problem
      what is learned (one of yz, bowl; default: bowl)
  --problem.stiff
      largest curvature (a number in (0, inf); default: 4.0) *
  --problem.width
      number of directions (an integer from 1 to 1048576; default: 2)
  --problem.part
      (one of part; default: part)
  --problem.part.sizes
      of layers (a list, each entry an integer >= 1; default: [4, 4])
  --problem.part.activation
      between them (a function module:name; default: jax._src.nn.functions:relu)
  --rule
      how (one of sgd, adam, adamw, rmsprop, sign; default: adamw)
  --rule.eta
      learning rate (a number in [0, inf), in 1/step, or one of constant, linear, cosine, or one
      of these for each group; default: 0.1) *
  --rule.decay
      weight decay (a number in [0, inf); required) *
  --rule.b1
      (a number in [0, 1); default: 0.9) *
  --rule.b2
      (a number in [0, 1); default: 0.999) *
  --steps
      of the rule (an integer from 1 to 2147483647; default: 1000)
  --batch
      examples of a step (an integer from 1 to 2147483647, or inf; default: 32)
  --seed
      of the random numbers (an integer >= 0; default: 0) *
  --record
      names of observables (a list, each entry text; default: ['loss'])
* Runs that differ only in these share one compiled program."""


def test_help_is_about_what_was_chosen() -> None:
    given = LANGUAGE.assign({}, [("problem", "bowl"), ("rule", "adamw")])
    assert "\n".join(settings_page(LANGUAGE, given)) == PAGE
    # A rate for all groups is one line.
    page = "\n".join(settings_page(LANGUAGE, LANGUAGE.assign({}, [("eta", 0.5)])))
    assert "rule.eta.Y" not in page


def test_descriptions_are_ninety_characters_wide() -> None:
    """Words of one letter, which with their blanks fill 89."""
    kinds = []
    for kind in LANGUAGE.kinds:
        fields = {name: field._replace(doc="a " * 200) for name, field in kind.fields.items()}
        kinds.append(kind._replace(fields=fields))
    wide = Language(kinds)
    page = "\n".join(settings_page(wide, wide.assign({}, [("problem", "bowl")])))
    lines = page.splitlines()[1:-1]
    told = [line for line in lines if not line.startswith("  --")]
    assert all(line.startswith(" " * 6) for line in told)
    full = [line.strip() for line in told if {*line} == {*"a "}]
    assert {len(line) for line in full} == {89}


WITHOUT_JAX = """
import json, sys
from sweeps.language.fields import Kind, LanguageError
from sweeps.language.grammar import Language
from sweeps.commands.line import settings_page

language = Language(map(Kind.from_json, json.load(open(sys.argv[1]))))
for settings in [("momentm", 1)], [("rule", "admw")], [("momentum", 1)]:
    try:
        language.assign({}, settings)
    except LanguageError as error:
        print(error)
given = language.assign({}, [("problem", "bowl"), ("rule", "adamw")])
print(*settings_page(language, given), sep="\\n")
assert not {"jax", "numpy", "equinox", "dynsim", "tests"} & {*sys.modules}
"""


def test_names_errors_and_help_do_without_jax(tmp_path: Path) -> None:
    (tmp_path / "kinds.json").write_text(json.dumps([kind.to_json() for kind in LANGUAGE.kinds]))
    command = [sys.executable, "-c", WITHOUT_JAX, str(tmp_path / "kinds.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, second, third, page = done.stdout.split("\n", 3)
    assert first == "momentm = 1: is not a setting; did you mean momentum?"
    assert second.startswith("rule = 'admw': did you mean adamw")
    assert third == "rule.momentum = 1: must be a number in [0, 1)"
    assert page == f"{PAGE}\n"


SCHEMA = json_schema(LANGUAGE)
RUN = SCHEMA["properties"]["run"]


def fits(schema: Any, value: Any) -> bool:
    """Whether a value fits to a schema: the part of the standard that is used here."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return fits(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    types = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "number": number,
        "integer": number and value == int(value),
    }
    compared = {
        "minimum": lambda end: value >= end,
        "exclusiveMinimum": lambda end: value > end,
        "maximum": lambda end: value <= end,
        "exclusiveMaximum": lambda end: value < end,
    }
    rules = {
        "type": lambda name: types[name],
        "const": lambda one: value == one,
        "enum": lambda words: value in words,
        "anyOf": lambda some: any(fits(each, value) for each in some),
        "pattern": lambda part: not types["string"] or part in value,
        "minProperties": lambda least: not types["object"] or len(value) >= least,
        "required": lambda names: not types["object"] or {*names} <= {*value},
        "properties": lambda each: (
            not types["object"] or all(fits(each[n], v) for n, v in value.items() if n in each)
        ),
        "additionalProperties": lambda rest: (
            not types["object"]
            or all(fits(rest, v) for n, v in value.items() if n not in schema.get("properties", {}))
        ),
        "items": lambda each: not types["array"] or all(fits(each, v) for v in value),
        **{name: lambda end, test=test: not number or test(end) for name, test in compared.items()},
    }
    texts = {"description", "default", "$schema", "$defs"}
    return all(rules[name](rule) for name, rule in schema.items() if name not in texts)


RUNS = [
    Experiment(),
    Experiment(Bowl(), AdamW(Cosine(steps=9), decay=1), batch=float("inf")),
    Experiment(rule=SGD({"Y": 1.0, "Z": Linear(steps=5.0)})),
    Experiment(YZ(Table([[1.0]]))),
]


def table(**changes: Any) -> dict[str, Any]:
    return encode(LANGUAGE, Experiment()) | changes


@pytest.mark.parametrize("run", RUNS)
def test_runs_fit_to_the_schema(run: Experiment) -> None:
    assert fits(SCHEMA, {"run": encode(LANGUAGE, run), "axes": {"seed": [0]}})


@pytest.mark.parametrize(
    "given",
    [
        table(rule="adam"),
        table(rule="own:Rule"),
        table(rule={"kind": "own:Rule", "gain": 1}),
        table(rule={"kind": "sgd", "eta": "cosine"}),
        table(rule={"kind": "sgd", "decay": "none"}),
    ],
)
def test_words_and_outside_classes_fit(given: dict[str, Any]) -> None:
    assert fits(RUN, given)


@pytest.mark.parametrize(
    "given",
    [
        table(step=1),
        table(steps=0),
        table(steps=1.5),
        table(steps="many"),
        table(rule="admw"),
        table(rule=0.1),
        table(rule={"eta": 0.1}),
        table(rule={"kind": "adam", "momentum": 0.5}),
        table(rule={"kind": "sgd", "momentum": 1}),
        table(rule={"kind": "sgd", "eta": {"Y": -1}}),
        table(problem={"kind": "yz", "task": {"kind": "syn-small", "layout": "papr"}}),
        table(record="loss"),
        table(record=[1]),
        table(rule={"kind": "sgd", "eta": {"kind": "schedule"}}),
    ],
)
def test_mistakes_do_not_fit(given: dict[str, Any]) -> None:
    assert not fits(RUN, given)


@pytest.mark.parametrize("given", [{"run": table()}, {"axes": {}}, {"axes": [1]}])
def test_a_sweep_has_an_axis(given: dict[str, Any]) -> None:
    assert not fits(SCHEMA, given)


def test_the_schema_is_json_and_has_the_texts() -> None:
    again = json.loads(json.dumps(SCHEMA, allow_nan=False))
    (linear,) = [kind.location for kind in LANGUAGE.kinds if kind.word == "linear"]
    steps = again["$defs"][linear]["properties"]["steps"]
    assert steps["description"] == "when the fall ends"
    assert again["$defs"][linear]["description"] == "A linear fall."
    assert again["$defs"][linear]["required"] == ["kind"]
