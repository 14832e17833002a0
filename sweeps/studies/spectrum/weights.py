"""Choose matrices of a `.safetensors` checkpoint by shell patterns, as blocks of fused matrices, or
as pairs to multiply."""

import fnmatch
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from dynsim import checks

INDEX = ".safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")
"""Data types that can be read, as named by the format."""
SHOWN = 10
"""Largest number of names in a message."""


Fused = Literal["rows", "columns"]
"""The axis along which several matrices are joined."""


class Layout(NamedTuple):
    """How `split` matrices are fused into one.

    Attributes:
        split: their number.
        fused: the axis along which they are joined; None to tell it from the shape.
        heads: number of heads, if each head has its part of all matrices together; 1 if each matrix
            is in one piece; None to tell it from the axis.
    """

    split: int = 1
    fused: Fused | None = None
    heads: int | None = None

    def parts(self, name: str, shape: tuple[int, ...]) -> tuple[int, list[list[slice]]]:
        """Return the fused axis of a matrix, and the places on it of each of its blocks.

        Raises `ValueError` where neither the shape nor the layout tells them.
        """
        about = f"of {name}, {shape}"
        fits = [shape[0] == self.split * shape[1], shape[1] == self.split * shape[0]]
        if self.fused is None and not any(fits):
            raise ValueError(
                f"split = {self.split}: the shape {about}, does not tell whether rows or columns "
                "are fused; choose other tensors, or set fused = rows or fused = columns"
            )
        axis = fits.index(True) if self.fused is None else ("rows", "columns").index(self.fused)
        kind = ("rows", "columns")[axis]
        if self.heads is None and axis == 0:
            raise ValueError(
                f"split = {self.split}: the shape {about}, does not tell how its rows are fused; "
                "set heads = 1 if each block is in one piece, as in nanoGPT, or heads = the number "
                "of heads if each head has its rows of all blocks together, as in GPT-NeoX"
            )
        heads = self.heads or 1
        width, rest = divmod(shape[axis], self.split * heads)
        if rest:
            number = f"split = {self.split}" if heads == 1 else f"split * heads = {self.split}"
            number += "" if heads == 1 else f" * {heads}"
            raise ValueError(f"{number}: must divide the number of {kind} {about}")
        begins = [
            [(head * self.split + i) * width for head in range(heads)] for i in range(self.split)
        ]
        return axis, [[slice(begin, begin + width) for begin in each] for each in begins]


class Tensor(NamedTuple):
    """A tensor described by the header of its file, or part of a matrix; its values are not read.

    Attributes:
        name: name in the checkpoint, followed by [i] for block i and .T if transposed.
        shape: its shape.
        dtype: data type as named by the format, for instance BF16.
        path: the file that contains it.
        stored: plain name in the checkpoint.
        axis, parts: the stored rows (axis 0) or columns that belong to it.
        transposed: whether it is the transpose of these.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    stored: str
    axis: int = 1
    parts: tuple[slice, ...] = (slice(None),)
    transposed: bool = False

    @property
    def obstacle(self) -> str | None:
        """Reason why it has no singular values, or None. Axes of length 1 are not squeezed."""
        if len(self.shape) != 2:
            return f"is {len(self.shape)}-D, not 2-D"
        if self.dtype not in DTYPES:
            return f"dtype {self.dtype}: must be one of {', '.join(DTYPES)}"
        return None if all(self.shape) else "has no entries"

    @property
    def T(self) -> Self:
        """The transpose of a matrix."""
        return self._replace(name=f"{self.name}.T", shape=self.shape[::-1], transposed=True)

    def block(self, i: int, layout: Layout) -> Self:
        """Block i of a matrix with this layout; raises `ValueError` as `Layout.parts`."""
        axis, parts = layout.parts(self.name, self.shape)
        shape = list(self.shape)
        shape[axis] //= layout.split
        return self._replace(
            name=f"{self.name}[{i}]", shape=tuple(shape), axis=axis, parts=tuple(parts[i])
        )

    def read(self) -> Float[np.ndarray, "m n"]:
        """Read the entries of a matrix in float64, copying only their bytes from the file.

        Raises `ValueError` if the file has changed since its header was read.
        """
        try:
            with safe_open(self.path, framework="numpy") as file:
                stored = file.get_slice(self.stored)
                parts = [stored[each] if self.axis == 0 else stored[:, each] for each in self.parts]
        except SafetensorError as error:
            raise ValueError(f"checkpoint = {self.path}: {self.stored}: {error}") from None
        values = np.concatenate([each.astype(np.float64) for each in parts], axis=self.axis)
        return values.T if self.transposed else values


class Skipped(NamedTuple):
    """A chosen tensor that has no singular values, and the reason."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str


Chosen = tuple[list[tuple[Tensor, ...]], list[Skipped]]
"""Matrices, each as one or two factors, and the tensors left out."""


def tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Return all tensors by name, in natural order: layer 2 before layer 10.

    `checkpoint` is a `.safetensors` file, the `.safetensors.index.json` of a checkpoint in several
    files, or a directory that contains one of the two. Raises `ValueError`, naming the file, if it
    is missing, empty, truncated or in another format.
    """
    path = _located(checkpoint)
    found = _indexed(path) if path.suffix == ".json" else _headers(path)
    # Sort digits by their value.
    key = lambda name: [  # noqa: E731
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
    return {name: found[name] for name in sorted(found, key=key)}


def by_patterns(found: Mapping[str, Tensor], patterns: Sequence[str], layout: Layout) -> Chosen:
    """Return the 2-D float tensors that match any of the shell `patterns`, each in its blocks.

    Patterns are case-sensitive. Raises `ValueError` for a pattern without a match, and for a
    matrix that does not have this layout.
    """
    matching = set[str]()
    for pattern in patterns:
        names = {name for name in found if fnmatch.fnmatchcase(name, pattern)}
        if not names:
            raise ValueError(f"pattern = {pattern!r}: {_nothing(found)}")
        matching |= names
    matrices, skipped = [], []
    for tensor in (tensor for name, tensor in found.items() if name in matching):
        if tensor.obstacle is not None:
            skipped.append(Skipped(tensor.name, tensor.shape, tensor.dtype, tensor.obstacle))
        elif layout.split == 1:
            matrices.append((tensor,))
        else:
            matrices += [(tensor.block(i, layout),) for i in range(layout.split)]
    return matrices, skipped


def by_product(found: Mapping[str, Tensor], product: str, layout: Layout) -> Chosen:
    """Return the products that match "A @ B", in the order of the first factors.

    A and B are names in which every * stands for any text; two tensors form a pair if these texts
    agree, star by star. Only * is special. [i] at the end means block i, and .T after that the
    transpose, as in "h.*.c_attn.weight[0] @ h.*.c_attn.weight[1].T". Raises
    `ValueError` for a product of another form, without a pair, or whose shapes do not fit.
    """
    sides = [side.strip() for side in product.split("@")]
    if len(sides) != 2 or not all(sides):
        raise ValueError(f"products = {product!r}: must be 'PATTERN @ PATTERN', each perhaps .T")
    if sides[0].count("*") != sides[1].count("*"):
        raise ValueError(f"products = {product!r}: must have as many * on the left as on the right")
    parsed = [_parsed(side, product, layout.split) for side in sides]
    left, right = (_captured(found, pattern, product) for pattern, _, _ in parsed)
    matrices, skipped = [], []
    for stars in dict.fromkeys([*left, *right]):
        pair = [each[stars] for each in (left, right) if stars in each]
        obstacles = [tensor for tensor in pair if tensor.obstacle is not None]
        if len(pair) == 1:
            lacking = parsed[1 if stars in left else 0][0]
            tensor, reason = pair[0], f"nothing in {lacking!r} to multiply with"
            skipped.append(Skipped(tensor.name, tensor.shape, tensor.dtype, reason))
        elif obstacles:
            tensor = obstacles[0]
            reason = f"no factor of {product!r}: {tensor.obstacle}"
            skipped.append(Skipped(tensor.name, tensor.shape, tensor.dtype, reason))
        else:
            factors = []
            for tensor, (_, block, transposed) in zip(pair, parsed, strict=True):
                factor = tensor if block is None else tensor.block(block, layout)
                factors.append(factor.T if transposed else factor)
            A, B = factors
            if A.shape[1] != B.shape[0]:
                raise ValueError(
                    f"products: {A.name} of shape {A.shape} and {B.name} of shape {B.shape} do not "
                    "fit; must have as many columns on the left as rows on the right"
                )
            matrices.append((A, B))
    if left.keys().isdisjoint(right):
        raise ValueError(
            f"products = {product!r}: matches {len(left)} and {len(right)} tensors, and the texts "
            f"for * agree in none: {_listed(sorted(left))} and {_listed(sorted(right))}"
        )
    return matrices, skipped


def _parsed(side: str, product: str, split: int) -> tuple[str, int | None, bool]:
    """Parse one side of a product into its pattern, block and transposition."""
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
    """Return the tensors that match, keyed by the texts that the stars stand for."""
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


def _located(checkpoint: Path) -> Path:
    """Return the file at a path, or the one checkpoint in that directory.

    As in other libraries, `model.safetensors` takes precedence over an index, and an index over
    shards. Raises `ValueError` if there is none, or more than one.
    """
    if not os.path.exists(checkpoint):
        raise ValueError(f"checkpoint = {checkpoint}: does not exist")
    if not checkpoint.is_dir():
        checks.regular("checkpoint", checkpoint)
        return checkpoint
    for pattern in ("model.safetensors", f"model{INDEX}", f"*{INDEX}", "*.safetensors"):
        there = sorted(checkpoint.glob(pattern))
        if len(there) > 1:
            names = ", ".join(path.name for path in there[:10])
            raise ValueError(f"checkpoint = {checkpoint}: contains several; choose one of {names}")
        if there:
            return there[0]
    raise ValueError(f"checkpoint = {checkpoint}: must contain a .safetensors or a {INDEX} file")


def _indexed(path: Path) -> dict[str, Tensor]:
    """Return the tensors of all files that the index at `path` names, in the same folder."""
    try:
        where = json.loads(path.read_bytes())["weight_map"]
        shards = sorted({str(file) for file in where.values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"checkpoint = {path}: must be JSON with a weight_map from tensors to files"
        ) from None
    for shard in shards:
        # A downloaded index must not make us open arbitrary files.
        if Path(shard).name != shard:
            raise ValueError(f"checkpoint = {path}: file {shard!r}: must be next to the index")
        if not (path.parent / shard).is_file():
            raise ValueError(f"checkpoint = {path}: file {shard!r}: does not exist")
    held = {shard: _headers(path.parent / shard) for shard in shards}
    for name, shard in where.items():
        if name not in held[shard]:
            raise ValueError(f"checkpoint = {path}: tensor {name!r} is not in {shard}")
    return {name: held[shard][name] for name, shard in where.items()}


def _headers(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="numpy") as file:
            views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Tensor(name, tuple(view.get_shape()), view.get_dtype(), path, name)
                for name, view in views.items()
            }
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise ValueError(
            f"checkpoint = {path}: must be a complete .safetensors file; its {size} bytes "
            f"cannot be read: {error}"
        ) from None
