"""Messages of the checks at both sides of each bound."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import dynsim
from dynsim import checks

LAST = 2**31 - 1
COUNT = f"must be an integer from 0 to {LAST}, or inf"
PLACE = "must be letters, digits, spaces and . _ -, with a letter"


@pytest.mark.parametrize(
    ("check", "given", "want"),
    [
        (checks.integer, (2, 2), 2),
        (checks.integer, (1, 2), "f = 1: must be an integer >= 2"),
        (checks.integer, (np.int8(5), 2, 5), 5),
        (checks.integer, (6, 2, 5), "f = 6: must be an integer <= 5"),
        (checks.integer, (True, 0), "f = True: must be an integer >= 0"),
        (checks.integer, (2.0, 0), "f = 2.0: must be an integer >= 0"),
        (checks.steps, (1e3,), 1000),
        (checks.steps, (1,), 1),
        (checks.steps, (LAST,), LAST),
        (checks.steps, (0.0,), "f = 0: must be an integer >= 1"),
        (checks.steps, (1.5,), "f = 1.5: must be an integer >= 1"),
        (checks.steps, (2**31,), f"f = {2**31}: must be an integer <= {LAST}"),
        (checks.count_or_inf, (math.inf, 0), math.inf),
        (checks.count_or_inf, (0, 0), 0),
        (checks.count_or_inf, (LAST, 0), LAST),
        (checks.count_or_inf, (-1, 0), f"f = -1: {COUNT}"),
        (checks.count_or_inf, (2**31, 0), f"f = {2**31}: {COUNT}"),
        (checks.count_or_inf, (-math.inf, 0), f"f = -inf: {COUNT}"),
        (checks.count_or_inf, (1.0, 0), f"f = 1.0: {COUNT}"),
        (checks.count_or_inf, (False, 0), f"f = False: {COUNT}"),
        (checks.choice, ("b", ["a", "b"]), "b"),
        (checks.choice, ("B", ["a", "b"]), "f = 'B': did you mean 'b'? It must be one of a, b"),
        (checks.choice, (None, ["a", "b"]), "f = None: must be one of a, b"),
    ],
)
def test_what_is_returned_or_refused(check: Any, given: tuple, want: Any) -> None:
    value, *bounds = given
    if isinstance(want, str) and want.startswith("f = "):
        with pytest.raises(ValueError, match="f = ") as error:
            check("f", value, *bounds)
        assert str(error.value) == want
    else:
        found = check("f", value, *bounds)
        assert (found, type(found)) == (want, type(want))


@pytest.mark.parametrize(
    ("value", "opened", "said"),
    [
        ([1.0, 2.0], "", None),
        (1.0, "minimum", "f = 1.0: must be finite and in (1, 2]"),
        (1.5, "minimum maximum", None),
        (2.0, "maximum", "f = 2.0: must be finite and in [1, 2)"),
        ([1.0, 2.5, 3.5], "", "f = 2.5: must be finite and in [1, 2]"),
        (0.5, "", "f = 0.5: must be finite and in [1, 2]"),
        (math.nan, "", "f = nan: must be finite and in [1, 2]"),
        (1 + 1j, "", "f = (1+1j): must be a real number"),
        (None, "", "f = None: must be a real number"),
        (True, "", "f = True: must be a real number"),
        ("1.5", "", "f = '1.5': must be a real number"),
        ([[1.0], [1.0, 2.0]], "", "f = [[1.0], [1.0, 2.0]]: must be a real number"),
    ],
)
def test_real_numbers_within_bounds(value: Any, opened: str, said: str | None) -> None:
    bounds = {f"open_{side}": True for side in opened.split()}
    if said is None:
        return checks.real("f", value, 1, 2, **bounds)
    with pytest.raises(ValueError, match="f = ") as error:
        checks.real("f", value, 1, 2, **bounds)
    assert str(error.value) == said


def test_a_number_without_bounds_is_finite_and_a_traced_one_is_let_through() -> None:
    checks.real("f", -1e300)
    with pytest.raises(ValueError, match=r"f = -inf: must be finite and in \(-inf, inf\)"):
        checks.real("f", -math.inf)
    assert jax.eval_shape(lambda x: (checks.real("f", x, 9), x)[1], 1.0).shape == ()


@pytest.mark.parametrize("value", ["a", "a b", "a-b.c_1", "é", "_", "com", "com10", "x" * 200])
def test_names_that_an_array_can_have(value: str) -> None:
    checks.name("f", value)


@pytest.mark.parametrize(
    "value", ["", "a/b", " a", "a.", "-", "con", "NUL.txt", "lpt9", "x" * 201, "é" * 101, "a\n"]
)
def test_names_that_no_folder_can_have(value: str) -> None:
    with pytest.raises(ValueError, match=PLACE):
        checks.name("f", value)


def test_files_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    for path in (tmp_path / "x", tmp_path / "missing"):
        checks.regular("f", path)
    with pytest.raises(ValueError, match="must be a file, not a folder, a pipe or a device"):
        checks.regular("f", tmp_path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1.5, "f = 1.5: must be of type int or dynsim.SGD"),
        ("a", "f = 'a': must be of type int or dynsim.SGD"),
        (None, "f = None: must be of type int or dynsim.SGD"),
        ([1], "f = list: must be of type int or dynsim.SGD"),
        (dynsim.SGD, "f = SGD: is a class; must be an object of type int or dynsim.SGD"),
    ],
)
def test_types_by_the_name_under_which_they_are_imported(value: Any, said: str) -> None:
    checks.kind("f", 1, int, dynsim.SGD)
    with pytest.raises(ValueError, match="f = ") as error:
        checks.kind("f", value, int, dynsim.SGD)
    assert str(error.value) == said


def test_a_key_is_one_key_of_either_kind() -> None:
    checks.key("f", jax.random.key(0))
    checks.key("f", np.zeros(2, np.uint32))
    for value in (0, np.zeros(3, np.uint32), np.zeros(2, np.int32)):
        with pytest.raises(ValueError, match=r"must be a key, such as jax\.random\.key\(0\)"):
            checks.key("f", value)
    with pytest.raises(ValueError, match=r"f: must be one key, got shape \(2,\)"):
        checks.key("f", jax.random.split(jax.random.key(0)))


def test_long_lists_of_names_are_folded() -> None:
    names = [f"{'n' * 60}{i}{end}" for i in range(4) for end in ("", "-long")]
    with pytest.raises(ValueError, match="must be one of") as error:
        checks.choice("f", "x", [*names, "other", "other-short"])
    folded = [f"{'n' * 60}{i}[-long]" for i in range(4)]
    listed = ", ".join([*folded, "other", "other-short"])
    assert str(error.value) == f"f = 'x': must be one of {listed}"
    # 400 letters are not too long.
    with pytest.raises(ValueError, match=r"a-b$"):
        checks.choice("f", "x", ["a" * 198, "a" * 198 + "-b"])


@pytest.mark.parametrize(
    ("name", "allowed", "said"),
    [
        ("Eta-Y", ("eta_y", "eta_z", "steps"), "did you mean 'eta_y'? It "),
        ("step", ("eta_y", "steps"), "did you mean 'steps'? It "),
        ("a-b", ("a_b", "A_B", "c"), "did you mean 'a_b' or 'A_B'? It "),
        ("ab", ("ab1",), "did you mean 'ab1'? It "),
        ("ab", ("ab1", "ab2"), ""),
        ("zzz", ("eta_y", "steps"), ""),
        (3, ("3",), ""),
    ],
)
def test_hints_name_what_is_meant(name: object, allowed: tuple[str, ...], said: str) -> None:
    assert checks.hint(name, allowed) == said


def test_a_long_line_of_a_user_is_shortened(tmp_path: Path) -> None:
    """To 400 characters, of which a line may have as many."""
    for more in (0, 1):
        line = "{}['" + "a" * (394 + more) + "']"
        path = tmp_path / f"long{more}.py"
        path.write_text(line)
        assert len(line) == 400 + more
        with pytest.raises(ValueError, match=r"^mine: must") as e, checks.code_of_user("mine"):
            exec(compile(line, str(path), "exec"), {"__name__": "theirs"})
        first, told, _ = str(e.value).split("\n")
        assert first == "mine: must work while JAX compiles it; raises KeyError"
        assert told == f"{path}, line 1: {line if len(line) <= 400 else line[:400] + '...'}"


def test_the_line_of_a_user_is_told_with_its_arguments() -> None:
    def broken(x: Any) -> Any:
        return x["missing"]

    with (
        pytest.raises(
            ValueError, match=r"^mine: must work while JAX compiles it with the arg"
        ) as e,
        checks.code_of_user("mine", np.zeros((2, 3))),
    ):
        broken({})
    first, line, words = str(e.value).split("\n")
    assert first.endswith("with the arguments f64[2,3](numpy); raises KeyError")
    assert line.startswith(__file__)
    assert line.endswith('return x["missing"]')
    assert words == "'missing'"
    # What dynsim says itself is left alone.
    with pytest.raises(ValueError, match=r"^f = 0: must"), checks.code_of_user("mine"):
        checks.integer("f", 0, 1)
    with (
        pytest.raises(ValueError, match=r"^mine: needs the values of arrays"),
        checks.code_of_user("mine"),
    ):
        jax.eval_shape(lambda x: 1 if x > 0 else 2, 1.0)
