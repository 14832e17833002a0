"""Metadata of classes."""

import dataclasses
import hashlib
import json
import sys
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import annotated_types as at
import equinox as eqx
import numpy as np
import pytest
from jaxtyping import Array, Float, Real

import dynsim
import sweeps
from dynsim.decoding import FINITE, Unit
from dynsim.decoding import Real as RealNumber
from dynsim.precision import Number
from dynsim.schedules import Constant, Cosine, Exponential, Linear, Steps
from dynsim.training.rules import KNOWN
from sweeps.language.describe import describe, words
from sweeps.language.fields import Field, Kind, LanguageError
from tests.sweeps.language import catalog
from tests.sweeps.language.catalog import LANGUAGE

HERE = f"{__name__}:"
SHAPES = (Constant, Linear, Cosine, Exponential, Steps)
OVERLAPPING = catalog.Overlapping(K=3)
CATALOG = "tests.sweeps.language.catalog:"


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


def test_a_field_with_a_converter_takes_what_that_takes() -> None:
    eta = describe(dynsim.SGD).fields["eta"]
    assert set(eta.types) == {"number", "array", "function"}
    assert [base.partition(":")[2] for base in eta.bases] == ["Schedule", "Ratio"]
    assert (eta.groups, eta.traced, dict(eta.bounds)) == (True, True, {"ge": 0, "lt": "inf"})


@pytest.mark.parametrize("cls", [*KNOWN, dynsim.OptaxRule, *SHAPES])
def test_numbers_of_rules_and_schedules_have_ranges(cls: type) -> None:
    kind = describe(cls)
    numbers = {n: f for n, f in kind.fields.items() if "number" in f.types and n != "numbers"}
    assert len(numbers) > 1
    # Factors of a schedule by steps are checked by the schedule.
    assert all(f.bounds for n, f in numbers.items() if n not in ("at", "factors"))


def test_annotations_say_what_may_be_written() -> None:
    kind = describe(Plain, "plain")
    assert (kind.word, kind.location, kind.about) == (
        "plain",
        f"{HERE}Plain",
        "All kinds of fields.",
    )
    plain = Field(declared=f"{HERE}Plain")
    digest = hashlib.sha256(b"(2,)float64" + np.ones(2).tobytes()).hexdigest()[:32]
    array = {"array": digest, "shape": [2], "dtype": "float64"}
    assert kind.fields == {
        "number": plain._replace(
            types=("number",),
            bounds={"gt": 0, "le": 2},
            unit="1/step",
            traced=True,
            doc="a number, of a description that has two lines",
            required=True,
        ),
        "real": plain._replace(types=("number",), bounds={"lt": "inf"}, traced=True, default=0.0),
        "still": plain._replace(types=("number",), default=1.0),
        "count": plain._replace(types=("integer",), bounds={"ge": 1, "lt": 5}, default=1),
        "flag": plain._replace(types=("boolean",), default=True),
        "word": plain._replace(types=("none",), words=("a", "b")),
        "text": plain._replace(types=("text",), default="x"),
        "array": plain._replace(types=("array",), traced=True, default=array),
        "either": plain._replace(types=("number", "array"), traced=True, default=2.0),
        "several": plain._replace(
            types=("integer",), listed=True, bounds={"ge": 0}, default=[1, 2]
        ),
        "rates": plain._replace(types=("number",), listed=True, bounds={"le": 2}, default=[]),
        "table": plain._replace(types=("number",), groups=True, traced=True, default=0.5),
        "branch": plain._replace(
            types=("none",),
            bases=(f"{CATALOG}Task", f"{CATALOG}Schedule"),
            default={"kind": f"{CATALOG}Overlapping", "K": 3},
        ),
    }


def test_a_kind_knows_what_it_inherits_and_from_whom() -> None:
    kind = describe(catalog.AdamW)
    assert kind.word == f"{CATALOG}AdamW"
    assert kind.bases[:3] == (f"{CATALOG}AdamW", f"{CATALOG}Adam", f"{CATALOG}Rule")
    declared = {name: field.declared for name, field in kind.fields.items()}
    rule, adam = f"{CATALOG}Rule", f"{CATALOG}Adam"
    assert declared == {"eta": rule, "decay": rule, "b1": adam, "b2": adam}
    assert kind.fields["decay"].required
    assert kind.fields["eta"].doc == "learning rate"
    # Equinox and dataclasses write the call where there is no docstring.
    assert kind.about == ""


def test_defaults_leave_out_what_is_a_default_of_their_class() -> None:
    fields = describe(catalog.Experiment).fields
    assert fields["rule"].default == {"kind": f"{CATALOG}SGD"}


def test_json_has_all_of_a_kind() -> None:
    for kind in LANGUAGE.kinds:
        text = json.dumps(kind.to_json(), allow_nan=False)
        again = Kind.from_json(json.loads(text))
        assert json.dumps(again.to_json()) == text
        assert [*again.fields] == [*kind.fields]


def test_classes_without_objects_are_abstract() -> None:
    assert describe(catalog.Schedule).abstract
    assert not describe(catalog.Constant).abstract


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ((1, "a"), "(1, 'a')"),
        (Constant, "dynsim.schedules:Constant"),
        (dynsim.sgd, "dynsim.training.rules:sgd"),
        (object(), "builtins:object"),
    ],
)
def test_objects_are_known_by_their_names_and_values_by_their_text(value: Any, text: str) -> None:
    assert words(value) == text


@dataclasses.dataclass(frozen=True)
class Reserved:
    kind: str = "x"


@dataclasses.dataclass(frozen=True)
class Outside:
    share: Annotated[float, at.Le(1)] = 2.0


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Reserved, "Reserved.kind: cannot be the name of a field; choose another one"),
        (Outside, "Outside.share = 2.0: must be a number in (-inf, 1]"),
    ],
)
def test_fields_that_cannot_be_written_are_errors(cls: type, text: str) -> None:
    with pytest.raises(LanguageError) as error:
        catalog.LANGUAGE.kind_of(cls)
    assert str(error.value) == HERE + text


@pytest.mark.parametrize("file", ["/usr/bin/dynsim", "/usr/bin/dynsim.py"])
def test_an_installed_command_is_no_module(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others import a script by its name, but not a command without a suffix."""
    main = types.ModuleType("__main__")
    main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    if file.endswith(".py"):
        with pytest.raises(ValueError, match=r"rule = 'dynsim:SGD': cannot be imported"):
            sweeps.experiment(rule="dynsim:SGD")
    else:
        assert isinstance(sweeps.experiment(rule="dynsim:SGD").rule.build(), dynsim.SGD)
