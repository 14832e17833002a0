"""Arrays from the user: fields of problems, data, files, batches, starting weights, times.

JAX drops imaginary parts, the upper bits of integers and the mask of a masked array without a word
in some places, and raises its own errors in others. So arrays come through the functions here. They
return an array that JAX does not change, except that it rounds to the precision of the run, or
raise an error that names the array.
"""

from collections.abc import Collection
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Tree = TypeVar("Tree")


def as_numpy(field: str, value: Any) -> np.ndarray:
    """Return an array or a list as a NumPy array, without losing anything but its type.

    Raises:
        ValueError: for an array with masked entries; for other subclasses of NumPy's, which may
            have more than numbers, such as units; for structured arrays; and for lists whose rows
            differ in length.
    """
    # JAX would read the numbers under the mask.
    masked = isinstance(value, np.ma.MaskedArray)
    if masked and (hidden := np.ma.getmaskarray(value)).any():
        raise ValueError(
            f"{field}{_place(hidden)}: is masked, as are {np.count_nonzero(hidden)} of "
            f"{value.size} entries; leave them out or fill them, and pass a plain array"
        )
    plain_types = (np.ndarray, np.memmap, np.ma.MaskedArray, np.recarray)
    if isinstance(value, np.ndarray) and type(value) not in plain_types:
        raise ValueError(
            f"{field}: is a {type(value).__name__}; must be a plain array: use np.asarray if that "
            "means the same"
        )
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{field}: must be an array of numbers; its rows differ") from None
    if array.dtype.names:
        names = ", ".join(map(repr, array.dtype.names))
        raise ValueError(f"{field}: is structured; must be an array of numbers: pass {names} apart")
    return array


def array(field: str, value: Any, dtype: str = "float32", *, finite: bool = True) -> Any:
    """Return numbers of the user as an array that JAX does not change, except that it rounds real
    and complex numbers to `dtype`. All of a user's arrays come through this function.

    Arrays of the other byte order, and long doubles that are exact in float64, are converted.
    Integers must fit into 32 bits, in which examples are drawn. Traced arrays and random keys are
    not checked.

    Args:
        field: name of the array for messages.
        dtype: precision, "float32" or "float64", in which no finite number may become infinite.
        finite: whether NaN and infinities are errors.

    Raises:
        ValueError: naming the field, the first wrong number, and how many there are.
    """
    is_key = jnp.issubdtype(getattr(value, "dtype", float), jax.dtypes.extended)
    if isinstance(value, Tracer) or is_key:
        return value
    original = converted = as_numpy(field, value)
    if not jnp.issubdtype(converted.dtype, np.number) and converted.dtype != bool:
        raise ValueError(f"{field}: must be an array of numbers, has dtype {converted.dtype}")
    # JAX rejects arrays of the other byte order.
    if not converted.dtype.isnative:
        converted = converted.astype(converted.dtype.newbyteorder("="))
    # Long doubles and their complex numbers.
    if converted.dtype.char in "gG":
        with np.errstate(over="ignore"):
            exact = np.float64 if converted.dtype.char == "g" else np.complex128
            converted = original.astype(exact)
        inexact = (converted != original) & (original == original)
        _reject(field, original, inexact, "is not exact in float64; round it with astype")
    is_complex = converted.dtype.kind == "c"
    for part in (np.real(converted), np.imag(converted)) if is_complex else (converted,):
        is_small = part.dtype == bool or (part.dtype.kind in "iu" and part.dtype.itemsize <= 4)
        if not part.size or is_small:
            continue
        if part.dtype in (np.float32, np.float64) and part.flags.c_contiguous:
            # If the sum of squares is finite, so are all numbers. It takes half the time of a
            # minimum and a maximum.
            flat, largest = part.ravel(), float(np.finfo(dtype).max)
            with np.errstate(all="ignore"):
                limit = min(largest * largest, float(np.finfo(part.dtype).max))
                if np.dot(flat, flat) <= limit:
                    continue
        # Some types warn of NaN.
        with np.errstate(invalid="ignore"):
            low, high = part.min().item(), part.max().item()
        if jnp.issubdtype(part.dtype, np.integer):
            # JAX without x64 drops the upper bits.
            ends = np.iinfo(np.uint32 if part.dtype.kind == "u" else np.int32)
            if low < ends.min or high > ends.max:
                end, word = (high, "largest") if high > ends.max else (low, "smallest")
                number = np.count_nonzero((part < ends.min) | (part > ends.max))
                raise ValueError(
                    f"{field}{_place(part == end)} = {end}: is the {word} integer; {number} of "
                    f"{part.size} do not fit into {ends.dtype}. Subtract an offset, or pass them "
                    "as floating-point numbers, which are rounded"
                )
            continue
        # False for NaN, as the comparison of a minimum or maximum that is NaN.
        largest = float(np.finfo(dtype).max)
        if -largest <= low and high <= largest:
            continue
        if finite:
            what = "is not finite; leave it out, or define `allows_nonfinite` of the problem"
            _reject(field, converted, ~np.isfinite(part), what)
        with np.errstate(over="ignore"):
            overflows = np.isinf(part.astype(dtype)) & np.isfinite(part)
        _reject(field, converted, overflows, f"is infinite in {dtype}; change its unit")
    # Single numbers keep their type, and JAX's arrays their device.
    unchanged = converted is original
    if unchanged and isinstance(value, jax.Array | np.generic | complex | float | int):
        return value
    return converted


def integers(field: str, value: Any) -> Any:
    """Like `array`; raises `ValueError` for anything but integers."""
    numbers = array(field, value)
    if not jnp.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{field}: must be whole numbers, has dtype {numbers.dtype}")
    return numbers


def tree(
    field: str,
    values: Tree,
    dtype: str = "float32",
    *,
    finite: bool = True,
    single: str | None = None,
    settings: Collection[str] = (),
) -> Tree:
    """Return a pytree whose arrays and floating-point numbers went through `array`, each with its
    place in the tree as its name; the same tree if that changes none. Single numbers, and those at
    the places `settings`, may be infinite, and are of the precision `single`, by default `dtype`.
    """

    def convert(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | float):
            return leaf
        name = field + jax.tree_util.keystr(path)
        place = jax.tree_util.keystr(path, simple=True, separator=".")
        # A single number may be a limit such as infinity.
        if not np.ndim(leaf) or place in settings:
            return array(name, leaf, single or dtype, finite=False)
        return array(name, leaf, dtype, finite=finite)

    converted = jax.tree.map_with_path(convert, values)
    pairs = zip(jax.tree.leaves(converted), jax.tree.leaves(values), strict=True)
    return values if all(new is old for new, old in pairs) else converted


def _reject(field: str, values: np.ndarray, bad: np.ndarray | np.bool_, what: str) -> None:
    if bad.any():
        first = values[bad].ravel()[0] if values.ndim else values[()]
        many = f" ({np.count_nonzero(bad)} of {values.size} are like this)" if values.ndim else ""
        raise ValueError(f"{field}{_place(bad)} = {first!s}: {what}{many}")


def _place(chosen: np.ndarray | np.bool_) -> str:
    """Return the index of the first entry of a mask that is true, as text; empty for a number."""
    index = np.unravel_index(int(np.argmax(chosen)), chosen.shape)
    return f"[{', '.join(map(str, index))}]" if index else ""
