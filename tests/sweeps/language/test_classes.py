"""What annotations and docstrings of classes say, with and without importing JAX; the schema."""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types as at
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Real

import dynsim
import sweeps
from dynsim.decoding import FINITE, Unit
from dynsim.decoding import Real as RealNumber
from dynsim.precision import Number
from sweeps import cache
from sweeps.commands.schema import json_schema
from sweeps.commands.table import COMMANDS, metadata
from sweeps.language.derived import MOST_FILES, derived, sources
from sweeps.language.describe import describe
from sweeps.language.fields import Field, Kind, check
from sweeps.language.tree import encode
from sweeps.systems import kinds
from tests.sweeps.language import catalog
from tests.sweeps.language.catalog import LANGUAGE, SGD, YZ, AdamW, Bowl, Experiment, Table

CATALOG = "tests.sweeps.language.catalog:"
OVERLAPPING = catalog.Overlapping(K=3)


@dataclasses.dataclass(frozen=True)
class Plain:
    """All kinds of fields.

    More text.

    Attributes:
        number: a number, of a description that
            has two lines.
    """

    number: Annotated[float, at.Gt(0), at.Le(2), Unit("1/step")]
    real: RealNumber = 0
    still: float = eqx.field(static=True, default=1)
    count: Annotated[int, at.Interval(ge=1, lt=5)] = 1
    flag: bool = True
    word: Literal["a", "b"] | None = None
    text: str = "x"
    array: Float[Array, "K"] | np.ndarray = dataclasses.field(default_factory=lambda: np.ones(2))
    either: Real[Number, ""] = 2
    several: tuple[Annotated[int, at.Ge(0)], ...] = (1, 2)
    rates: tuple[Annotated[float, at.Le(2), FINITE], ...] = ()
    table: Mapping[str, float] | float = 0.5
    branch: catalog.Task | catalog.Schedule | None = OVERLAPPING


DIGEST = hashlib.sha256(b"(2,)float64" + np.ones(2).tobytes()).hexdigest()[:32]
DOC = "a number, of a description that has two lines"
FIELDS: dict[str, dict[str, Any]] = {
    "number": {"types": ("number",), "bounds": {"gt": 0, "le": 2}, "unit": "1/step", "traced": True,
               "doc": DOC, "required": True},
    "real": {"types": ("number",), "bounds": {"lt": "inf"}, "traced": True, "default": 0.0},
    "still": {"types": ("number",), "default": 1.0},
    "count": {"types": ("integer",), "bounds": {"ge": 1, "lt": 5}, "default": 1},
    "flag": {"types": ("boolean",), "default": True},
    "word": {"types": ("none",), "words": ("a", "b")},
    "text": {"types": ("text",), "default": "x"},
    "array": {"types": ("array",), "traced": True,
              "default": {"array": DIGEST, "shape": [2], "dtype": "float64"}},
    "either": {"types": ("number", "array"), "traced": True, "default": 2.0},
    "several": {"types": ("integer",), "listed": True, "bounds": {"ge": 0}, "default": [1, 2]},
    "rates": {"types": ("number",), "listed": True, "bounds": {"le": 2}, "default": []},
    "table": {"types": ("number",), "groups": True, "traced": True, "default": 0.5},
    "branch": {"types": ("none",), "bases": (f"{CATALOG}Task", f"{CATALOG}Schedule"),
               "default": {"kind": f"{CATALOG}Overlapping", "K": 3}},
}  # fmt: skip


def test_annotations_say_what_may_be_written():
    kind = describe(Plain, "plain")
    assert kind[:3] == ("plain", f"{__name__}:Plain", "All kinds of fields.")
    assert kind.fields == {
        n: Field(declared=kind.location)._replace(**f) for n, f in FIELDS.items()
    }


def test_a_kind_knows_what_it_inherits_and_from_whom():
    kind = describe(AdamW)
    assert (kind.word, kind.about) == (f"{CATALOG}AdamW", "")
    assert kind.bases[:3] == (f"{CATALOG}AdamW", f"{CATALOG}Adam", f"{CATALOG}Rule")
    declared = {name: field.declared for name, field in kind.fields.items()}
    rule, adam = f"{CATALOG}Rule", f"{CATALOG}Adam"
    assert declared == {"eta": rule, "decay": rule, "b1": adam, "b2": adam}
    assert kind.fields["decay"].required
    assert kind.fields["eta"].doc == "learning rate"
    assert describe(Experiment).fields["rule"].default == {"kind": f"{CATALOG}SGD"}
    assert (describe(catalog.Schedule).abstract, describe(catalog.Constant).abstract) == (
        True,
        False,
    )
    # A field with a converter takes what that takes.
    eta = describe(dynsim.SGD).fields["eta"]
    assert {*eta.types} == {"number", "array", "function"}
    assert [base.partition(":")[2] for base in eta.bases] == ["Schedule", "Ratio"]
    assert (eta.groups, eta.traced, {**eta.bounds}) == (True, True, {"ge": 0, "lt": "inf"})


def test_json_has_all_of_a_kind():
    for kind in (*LANGUAGE.kinds, describe(Plain)):
        text = json.dumps(kind.to_json(), allow_nan=False)
        again = Kind.from_json(json.loads(text))
        assert json.dumps(again.to_json()) == text
        assert [*again.fields] == [*kind.fields]


NUMBER, INTEGER = Field(types=("number",)), Field(types=("integer",))
COUNT = Field(types=("integer or inf",), bounds={"ge": 1})
ARRAY = {"array": "0f", "shape": [1], "dtype": "float32"}
TEXTS = [
    (NUMBER, 1, 1.0),
    (NUMBER, np.float32(0.5), 0.5),
    (NUMBER, np.ones(()), 1.0),
    (NUMBER, jnp.ones(()), 1.0),
    (NUMBER, np.inf, "inf"),
    (NUMBER, "-inf", "-inf"),
    (NUMBER, ARRAY, ARRAY),
    (INTEGER, 1e3, 1000),
    (INTEGER, np.int64(3), 3),
    (INTEGER, np.array(4), 4),
    (INTEGER, 2**70, 2**70),
    (COUNT, 2.0, 2),
    (COUNT, np.inf, "inf"),
    (Field(types=("text", "none")), "none", None),
    (Field(types=("text",)), "none", "none"),
    (Field(types=("text",)), "inf", "inf"),
    (INTEGER._replace(listed=True), (1, 2.0), [1, 2]),
    (Field(words=("one-two",)), "One Two", "one-two"),
    (Field(types=("path",)), Path("a/b"), "a/b"),
]


@pytest.mark.parametrize(("field", "value", "text"), TEXTS)
def test_values_have_one_text(field, value, text):
    found = check(field, value, "x")
    assert (found, type(found)) == (text, type(text))


@pytest.mark.parametrize("file", ["/usr/bin/dynsim", "/usr/bin/dynsim.py"])
def test_an_installed_command_is_no_module(file, monkeypatch):
    """Others import a script by its name, but not a command without a suffix."""
    main = types.ModuleType("__main__")
    main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    if file.endswith(".py"):
        with pytest.raises(ValueError, match=r"rule = 'dynsim:SGD'"):
            sweeps.experiment(rule="dynsim:SGD")
    else:
        assert isinstance(sweeps.experiment(rule="dynsim:SGD").rule.build(), dynsim.SGD)


def test_every_command_and_class_is_described():
    for name in COMMANDS:
        kind, usual, _ = metadata(name)
        assert kind.about
        assert (usual is None) == ("run" not in kind.fields)
    assert {kind.word: kind.location for kind in kinds.language().kinds} == kinds.CLASSES


def test_what_is_derived_is_kept_and_damage_costs_time_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home, calls = tmp_path / "dynsim", []

    def call():
        calls.append(None)
        return {"calls": len(calls), "both": (1.5, float("inf"))}

    first = {"calls": 1, "both": [1.5, float("inf")]}
    assert [derived("some", call) for _ in range(2)] == [first, first]
    assert derived("other", call)["calls"] == 2
    (file,) = home.glob("some-*")
    whole = file.read_bytes()
    # A lost byte, and a flipped bit that leaves JSON of another value: 0 for 1.
    for number, damaged in ((3, whole[:-1]), (4, whole.replace(b'"calls": 1', b'"calls": 0'))):
        file.write_bytes(damaged)
        assert [derived("some", call)["calls"] for _ in range(2)] == [number, number]
    # Every source file counts.
    (tmp_path / "inner").mkdir()
    for change in (lambda: (tmp_path / "inner/a.py").write_text("x"), (tmp_path / "b.py").touch):
        before = [*sources(tmp_path)]
        change()
        assert [*sources(tmp_path)] != before
    # Of other versions of the code, the last few.
    for i in range(9):
        (home / f"some-{i}.json").touch()
        os.utime(home / f"some-{i}.json", (i, i))
    file.unlink()
    assert derived("some", call)["calls"] == 5
    left = {file.name, *(f"some-{i}.json" for i in range(9)[-MOST_FILES + 1 :])}
    assert {path.name for path in home.glob("some-*")} == left
    for each in home.iterdir():
        each.unlink()
    home.rmdir()
    home.write_text("no folder")
    assert [derived("some", call)["calls"] for _ in range(2)] == [6, 7]


SCHEMA = json_schema(LANGUAGE)
COMPARED = {
    "minimum": lambda end, value: value >= end,
    "exclusiveMinimum": lambda end, value: value > end,
    "maximum": lambda end, value: value <= end,
    "exclusiveMaximum": lambda end, value: value < end,
}


def fits(schema, value):
    """Whether a value fits to a schema: the part of the standard that is used here."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return fits(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    table, listed, text = (isinstance(value, kind) for kind in (dict, list, str))
    types = {"object": table, "array": listed, "string": text, "boolean": isinstance(value, bool)}
    types |= {"number": number, "integer": number and value == int(value)}
    known = schema.get("properties", {})
    rules = {
        "type": lambda name: types[name],
        "const": lambda one: value == one,
        "enum": lambda words: value in words,
        "anyOf": lambda some: any(fits(each, value) for each in some),
        "pattern": lambda part: not text or part in value,
        "minProperties": lambda least: not table or len(value) >= least,
        "required": lambda names: not table or {*names} <= {*value},
        "properties": lambda each: all(
            fits(each[n], value[n]) for n in each if table and n in value
        ),
        "additionalProperties": lambda rest: (
            not table or all(fits(rest, v) for n, v in value.items() if n not in known)
        ),
        "items": lambda each: not listed or all(fits(each, v) for v in value),
        **{
            n: lambda end, test=test: not number or test(end, value) for n, test in COMPARED.items()
        },
    }
    texts = {"description", "default", "$schema", "$defs"}
    return all(rules[name](rule) for name, rule in schema.items() if name not in texts)


RIGHT = [
    Experiment(Bowl(), AdamW(catalog.Cosine(steps=9), decay=1), batch=float("inf")),
    Experiment(rule=SGD({"Y": 1.0, "Z": catalog.Linear(steps=5.0)})),
    Experiment(YZ(Table([[1.0]]))),
    *({"rule": rule} for rule in ("adam", "own:Rule", {"kind": "own:Rule", "gain": 1})),
    {"rule": {"kind": "sgd", "eta": "cosine"}},
    {"rule": {"kind": "sgd", "decay": "none"}},
]
WRONG = [
    {"step": 1}, {"steps": 0}, {"steps": 1.5}, {"steps": "many"}, {"record": "loss"},
    {"record": [1]}, {"problem": {"kind": "yz", "task": {"kind": "syn-small", "layout": "papr"}}},
    *({"rule": rule} for rule in ("admw", 0.1, {"eta": 0.1}, {"kind": "adam", "momentum": 0.5},
                                  {"kind": "sgd", "momentum": 1}, {"kind": "sgd", "eta": {"Y": -1}},
                                  {"kind": "sgd", "eta": {"kind": "schedule"}})),
]  # fmt: skip


def test_the_schema_has_the_runs_that_there_are():
    usual = encode(LANGUAGE, Experiment())
    for right in RIGHT:
        run = usual | right if isinstance(right, dict) else encode(LANGUAGE, right)
        assert fits(SCHEMA, {"run": run, "axes": {"seed": [0]}}), right
    for wrong in WRONG:
        assert not fits(SCHEMA["properties"]["run"], usual | wrong), wrong
    for wrong in ({"run": usual}, {"axes": {}}, {"axes": [1]}):
        assert not fits(SCHEMA, wrong)
    again = json.loads(json.dumps(SCHEMA, allow_nan=False))["$defs"][f"{CATALOG}Linear"]
    assert again["properties"]["steps"]["description"] == "when the fall ends"
    assert (again["description"], again["required"]) == ("A linear fall.", ["kind"])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users and modes are those of POSIX")
@pytest.mark.parametrize(
    ("name", "mode", "trusted"),
    [
        ("dynsim", 0o700, True),
        ("dynsim", 0o757, False),
        (".", 0o757, False),
        # What lies in a folder with the sticky bit, such as /tmp, cannot be renamed by others.
        (".", 0o1777, True),
        ("dynsim/some", 0o606, False),
        ("dynsim", None, False),
    ],
)
def test_a_cache_that_others_may_write_is_not_read(
    name, mode, trusted, tmp_path, monkeypatch, capfd
):
    """Its contents are run: they are pickles and machine code. None is the mode of another user."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    folder = cache.folder()
    cache.write(folder / "some", b"x")
    if mode is not None:
        (home / name).chmod(mode)
    elif (user := os.geteuid()) == 0:
        os.chown(home / name, 1, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    read = None
    for _ in range(2):
        with contextlib.suppress(OSError):
            read = cache.folder() and cache.read(folder / "some")
    assert (read == b"x") is trusted
    assert len(capfd.readouterr().err.splitlines()) == (cache.folder() is None)
