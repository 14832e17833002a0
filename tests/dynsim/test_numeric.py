"""Arrays from the user are kept, converted exactly, or refused by name."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dynsim import numeric

Y = np.arange(1.0, 21.0)
WIDE = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps
"""Whether long doubles have more digits than float64 on this machine."""


class Metres(np.ndarray):
    """An array with a unit, as other packages have them."""


KEPT: dict[str, tuple[Any, np.dtype[Any]]] = {
    "big-endian": (Y.astype(">f4"), np.dtype("f4")),
    "big-endian integers": (Y.astype(">i8"), np.dtype("i8")),
    "big-endian complex": ((Y + 1j).astype(">c16"), np.dtype("c16")),
    "long doubles": (Y.astype(np.longdouble), np.dtype("f8")),
    "complex": (Y + 2j, np.dtype("c16")),
    "half precision": (Y.astype("f2"), np.dtype("f2")),
    "bfloat16": (Y.astype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.bfloat16)),
    "bools": (Y > 3, np.dtype(bool)),
    "list": (Y.tolist(), np.dtype("f8")),
    "largest integer": (np.array([2**31 - 1, -(2**31)]), np.dtype("i8")),
    "largest without a sign": (np.array([2**32 - 1], np.uint64), np.dtype("u8")),
    "nothing masked": (np.ma.masked_equal(Y, 0.5), np.dtype("f8")),
    "largest of float32": (np.array([np.finfo("f4").max], float), np.dtype("f8")),
    "nothing": (np.zeros((0, 3)), np.dtype("f8")),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_jax_can_hold_is_kept_exactly(name: str) -> None:
    given, dtype = KEPT[name]
    found = numeric.array("y", given)
    assert type(found) is np.ndarray
    assert (found.dtype, found.dtype.isnative) == (dtype, True)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(found)), np.asarray(given))


def test_numbers_and_arrays_of_jax_stay_what_they_are() -> None:
    for given in (1.5, np.float32(1.5), jnp.arange(3.0), jax.random.key(0), np.arange(3.0)):
        assert numeric.array("y", given) is given
    tree = {"x": np.arange(3.0), "f": abs, "n": 3, "inf": float("inf"), "none": None}
    assert numeric.tree("data", tree) is tree
    assert jax.vmap(lambda y: numeric.array("y", y))(jnp.full(3, jnp.nan)).shape == (3,)


REFUSED: dict[str, tuple[Any, str]] = {
    "large": (np.where(Y == 4, 2**32 + 3, 7), r"y\[3\] = 4294967299: is the largest integer; 1 of"),
    "milliseconds": (np.int64(1.7e12) + np.arange(20), r"\[19\] = 1700000000019: .* 20 of 20"),
    "negative": (np.array([[1, 2], [3, -(2**40)]]), r"y\[1, 1\] = -1099511627776: is the smallest"),
    "without a sign": (np.array([2**32], np.uint64), r"y\[0\] = 4294967296: .* uint32"),
    "masked": (np.ma.masked_equal(Y, 5), r"y\[4\]: is masked, as are 1 of 20"),
    "structured": (np.zeros(3, [("a", int), ("b", float)]), r"y: is structured.* 'a', 'b'"),
    "records": (np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), "y: is structured"),
    "unit": (np.zeros(3).view(Metres), "y: is a Metres"),
    "ragged": ([[1.0, 2.0], [3.0]], "y: must be an array of numbers"),
    "dates": (np.arange(3).astype("M8[ms]"), "y: must be an array of numbers, has dtype datetime"),
    "text": (np.array(["1"]), "y: must be an array of numbers"),
    "objects": (np.array([1, None]), "y: must be an array of numbers, has dtype object"),
    "bytes": (np.zeros(2, "V8"), "y: must be an array of numbers"),
    "nan": (np.where(Y > 18, np.nan, Y), r"y\[18\] = nan: is not finite.* \(2 of 20"),
    "infinite": (np.array([[0, -np.inf]]), r"y\[0, 1\] = -inf: is not finite"),
    "bfloat16": (np.array([1, np.nan], ml_dtypes.bfloat16), r"y\[1\] = nan: is not finite"),
    "imaginary": (np.array([1, 1 + 1j * np.nan]), r"y\[1\] = \(?.*nan.*: is not finite"),
    "overflow": (np.where(Y == 2, 1e200, Y), r"y\[1\] = 1e\+200: is infinite in float32.* \(1 of"),
    "just over": (np.array([3.4028236e38]), "is infinite in float32"),
    "imaginary overflow": (np.array([1 - 1e39j]), "is infinite in float32"),
    "single": (1e200, r"y = 1e\+200: is infinite in float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_would_change_is_an_error_of_one_line(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as caught:
        numeric.array("y", given)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not WIDE, reason="long doubles are float64 here")
def test_long_doubles_that_float64_would_round_are_an_error() -> None:
    given = np.array([1, 1, np.longdouble(1) + np.finfo(np.longdouble).eps])
    with pytest.raises(
        ValueError, match=r"y\[2\] = 1\.0000.*1.*: is not exact in float64.* \(1 of"
    ):
        numeric.array("y", given)
    with pytest.raises(ValueError, match=r"y\[0\] = 1e\+400: is not exact"):
        numeric.array("y", np.array([np.longdouble("1e400")]))


def test_precision_decides_what_overflows_and_the_caller_what_may_be_infinite() -> None:
    numeric.array("y", np.array([1e200]), "float64")
    found = numeric.array("y", np.array([np.nan, -np.inf, 1.0]), finite=False)
    np.testing.assert_array_equal(found, [np.nan, -np.inf, 1.0])
    with pytest.raises(ValueError, match=r"y\[1\] = 1e\+200: is infinite"):
        numeric.array("y", np.array([np.nan, 1e200]), finite=False)
    tree = {"rates": np.array([1.0, np.inf]), "x": [np.array([1.0, np.inf])]}
    with pytest.raises(ValueError, match=r"data\['x'\]\[0\]\[1\] = inf"):
        numeric.tree("data", tree, settings={"rates"})


def test_integers_are_told_from_other_numbers() -> None:
    assert numeric.integers("tokens", [1, 2]).tolist() == [1, 2]
    with pytest.raises(ValueError, match="tokens: must be whole numbers, has dtype float64"):
        numeric.integers("tokens", [1.5, 2.0])
