"""Choosing matrices of a checkpoint: by shell patterns, in column blocks, and in pairs."""

import dataclasses
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sweeps.studies.spectrum.weights import Tensor

SHOWN = 10
"""Number of names in a message."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Columns of a tensor, perhaps transposed.

    Attributes:
        name: of the tensor, with [i] for block i of it and .T if transposed.
        tensor: where it comes from.
        columns: which of them.
        transposed: whether they are used as rows.
    """

    name: str
    tensor: Tensor
    columns: slice
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, as they are used."""
        rows, width = self.tensor.shape
        columns = len(range(*self.columns.indices(width)))
        return (columns, rows) if self.transposed else (rows, columns)

    def read(self) -> Float[np.ndarray, "m n"]:
        """The entries in float64."""
        values = self.tensor.read(self.columns)
        return values.T if self.transposed else values


class Matrix(NamedTuple):
    """A matrix whose singular values are wanted: the product of one or two `factors`."""

    name: str
    factors: tuple[Block, ...]


class Skipped(NamedTuple):
    """A tensor or product that was asked for and has no singular values, and why."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str


Chosen = tuple[list[Matrix], list[Skipped]]


def by_patterns(found: Mapping[str, Tensor], patterns: Sequence[str], split: int) -> Chosen:
    """The 2-D float tensors that match any of the shell `patterns`, each in `split` blocks.

    Case counts. Raises `ValueError` for a pattern without a match, and for a matrix whose
    columns cannot be cut into `split` equal blocks.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in found):
            raise ValueError(f"pattern = {pattern!r}: {_nothing(found)}")
    matrices, skipped = [], []
    for name, tensor in found.items():
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if tensor.obstacle is not None:
            skipped.append(Skipped(name, tensor.shape, tensor.dtype, tensor.obstacle))
            continue
        blocks = [_block(tensor, i, split) for i in range(split)] if split > 1 else [whole(tensor)]
        matrices += [Matrix(block.name, (block,)) for block in blocks]
    return matrices, skipped


def by_product(found: Mapping[str, Tensor], product: str, split: int) -> Chosen:
    """The products that "A @ B" stands for, in the order of the first factors.

    A and B are names in which every * stands for any text; two tensors make a pair when the texts
    agree, star by star. Only * is special. [i] at the end means block i of `split`, and .T after
    that the transpose, as in "h.*.c_attn.weight[0] @ h.*.c_attn.weight[1].T". Raises
    `ValueError` for a product of another form, without a pair, or of shapes that do not fit.
    """
    sides = [side.strip() for side in product.split("@")]
    if len(sides) != 2 or not all(sides):
        raise ValueError(f"products = {product!r}: must be 'PATTERN @ PATTERN', each perhaps .T")
    if sides[0].count("*") != sides[1].count("*"):
        raise ValueError(f"products = {product!r}: must have as many * on the left as on the right")
    parsed = [_parse(side, product, split) for side in sides]
    left, right = (_captured(found, pattern, product) for pattern, _, _ in parsed)
    matrices, skipped = [], []
    for stars, tensor in [*left.items(), *((s, t) for s, t in right.items() if s not in left)]:
        one, other = left.get(stars), right.get(stars)
        if one is None or other is None:
            searched = parsed[0 if one is None else 1][0]
            reason = f"nothing in {searched!r} to multiply with"
            skipped.append(Skipped(tensor.name, tensor.shape, tensor.dtype, reason))
        elif bad := [each for each in (one, other) if each.obstacle is not None]:
            reason = f"no factor of {product!r}: {bad[0].obstacle}"
            skipped.append(Skipped(bad[0].name, bad[0].shape, bad[0].dtype, reason))
        else:
            first, second = (
                _factor(tensor, block, transposed, split)
                for tensor, (_, block, transposed) in zip((one, other), parsed, strict=True)
            )
            matrices.append(_multiplied(first, second))
    if left.keys().isdisjoint(right):
        raise ValueError(
            f"products = {product!r}: matches {len(left)} and {len(right)} tensors, and the texts "
            f"for * agree in none: {_listed(sorted(left))} and {_listed(sorted(right))}"
        )
    return matrices, skipped


def whole(tensor: Tensor) -> Block:
    """All columns of a matrix."""
    return Block(tensor.name, tensor, slice(None))


def _block(tensor: Tensor, i: int, split: int) -> Block:
    width, rest = divmod(tensor.shape[1], split)
    if rest:
        raise ValueError(
            f"split = {split}: must divide the number of columns of {tensor.name}, {tensor.shape}"
        )
    return Block(f"{tensor.name}[{i}]", tensor, slice(i * width, (i + 1) * width))


def _factor(tensor: Tensor, block: int | None, transposed: bool, split: int) -> Block:
    factor = whole(tensor) if block is None else _block(tensor, block, split)
    if not transposed:
        return factor
    return dataclasses.replace(factor, name=f"{factor.name}.T", transposed=True)


def _multiplied(A: Block, B: Block) -> Matrix:
    if A.shape[1] != B.shape[0]:
        raise ValueError(
            f"products: {A.name} of shape {A.shape} and {B.name} of shape {B.shape} do not fit; "
            "must have as many columns on the left as rows on the right"
        )
    return Matrix(f"{A.name} @ {B.name}", (A, B))


def _parse(side: str, product: str, split: int) -> tuple[str, int | None, bool]:
    """Pattern of names, block and transposition of one side of a product."""
    pattern = side.removesuffix(".T")
    transposed = pattern != side
    block = re.fullmatch(r"(.*)\[(\d+)\]", pattern)
    if block is None:
        return pattern, None, transposed
    if int(block[2]) >= split:
        raise ValueError(f"products = {product!r}: block {block[2]} must be below split = {split}")
    return block[1], int(block[2]), transposed


def _captured(
    found: Mapping[str, Tensor], pattern: str, product: str
) -> dict[tuple[str, ...], Tensor]:
    """Tensors that match, by the texts that the stars stand for."""
    expression = re.compile(re.escape(pattern).replace(r"\*", "(.*)"))
    matches = {name: expression.fullmatch(name) for name in found}
    if not any(matches.values()):
        raise ValueError(f"products = {product!r}: {pattern!r}: {_nothing(found)}")
    return {match.groups(): found[name] for name, match in matches.items() if match}


def _nothing(found: Mapping[str, Tensor]) -> str:
    flat = sum(len(tensor.shape) == 2 for tensor in found.values())
    return (
        f"matches none of the {len(found)} tensors ({flat} of them 2-D); there are "
        f"{_listed(list(found))}"
    )


def _listed(entries: Sequence[object]) -> str:
    more = ", ..." if len(entries) > SHOWN else ""
    return ", ".join(map(str, entries[:SHOWN])) + more
