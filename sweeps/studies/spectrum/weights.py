"""Choose matrices of a `.safetensors` checkpoint by shell patterns, as blocks of fused matrices."""

import fnmatch
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from dynsim import checks
from sweeps.lines import printable

INDEX = ".safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")
"""Data types that can be read, as named by the format."""
MOST_LISTED = 10
"""Largest number of names in a message."""
Fused = Literal["rows", "columns"]
"""The axis along which several matrices are joined."""


class Tensor(NamedTuple):
    """A tensor as the header of its file describes it, or a block of a matrix.

    Attributes:
        name: name in the checkpoint, followed by [i] for block i.
        shape, dtype: its shape, and its data type as named by the format, for instance BF16.
        path, stored: the file that contains it, and its name there.
        axis, parts: the stored rows (axis 0) or columns that belong to it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    stored: str
    axis: int = 1
    parts: tuple[slice, ...] = (slice(None),)

    @property
    def obstacle(self) -> str | None:
        """Reason why it has no singular values, or None. Axes of length 1 are not squeezed."""
        if len(self.shape) != 2:
            return f"is {len(self.shape)}-D, not 2-D"
        if self.dtype not in DTYPES:
            return f"dtype {self.dtype}: must be one of {', '.join(DTYPES)}"
        return None if all(self.shape) else "has no entries"

    def blocks(
        self, split: int, fused: Fused | None = None, heads: int | None = None
    ) -> list["Tensor"]:
        """Return the `split` blocks of a fused matrix, as the options of `Spectrum` describe it;
        `ValueError` where neither its shape nor these tell where the blocks are."""
        if split == 1:
            return [self]
        about = f"of {self.name}, {self.shape}"
        fits = [self.shape[i] == split * self.shape[1 - i] for i in (0, 1)]
        if fused is None and not any(fits):
            raise ValueError(
                f"split = {split}: the shape {about}, does not tell whether rows or columns are "
                "fused; choose other tensors, or set fused = rows or fused = columns"
            )
        axis = fits.index(True) if fused is None else ("rows", "columns").index(fused)
        if heads is None and axis == 0:
            raise ValueError(
                f"split = {split}: the shape {about}, does not tell how its rows are fused; set "
                "heads = 1 if each block is in one piece, as in nanoGPT, or heads = the number of "
                "heads if each head has its rows of all blocks together, as in GPT-NeoX"
            )
        heads = heads or 1
        width, rest = divmod(self.shape[axis], split * heads)
        if rest:
            number = f"split * heads = {split} * {heads}" if heads > 1 else f"split = {split}"
            kind = ("rows", "columns")[axis]
            raise ValueError(f"{number}: must divide the number of {kind} {about}")
        # Rows of a head: all of its blocks, one after the other; then those of the next head.
        begins = width * np.arange(split * heads).reshape(heads, split)
        shape = tuple(n // split if i == axis else n for i, n in enumerate(self.shape))
        parts = [tuple(slice(a, a + width) for a in begin) for begin in begins.T.tolist()]
        block = self._replace(shape=shape, axis=axis)
        return [block._replace(name=f"{self.name}[{i}]", parts=parts[i]) for i in range(split)]

    def read(self) -> Float[np.ndarray, "m n"]:
        """Read the entries of a matrix in float64, copying only their bytes from the file.

        Raises `ValueError` if the file has changed since its header was read.
        """
        try:
            with safe_open(self.path, framework="numpy") as file:
                stored = file.get_slice(self.stored)
                parts = [stored[p] if self.axis == 0 else stored[:, p] for p in self.parts]
        except SafetensorError as error:
            raise ValueError(f"checkpoint = {self.path}: {self.stored}: {error}") from None
        return np.concatenate([part.astype(np.float64) for part in parts], axis=self.axis)


def tensors(checkpoint: Path) -> list[Tensor]:
    """Return all tensors of a file, or of the one checkpoint in a folder, in natural order: layer 2
    before layer 10. `ValueError` for a file that is missing, empty, truncated or in another format,
    and for a folder with several."""
    if not checkpoint.exists():
        raise ValueError(f"checkpoint = {checkpoint}: does not exist")
    paths = [checkpoint]
    if checkpoint.is_dir():
        # As in other libraries, model.safetensors has priority over an index, and an index over its
        # files.
        patterns = ("model.safetensors", f"model{INDEX}", f"*{INDEX}", "*.safetensors")
        paths = next(filter(None, (sorted(checkpoint.glob(p)) for p in patterns)), [])
    if not paths:
        raise ValueError(
            f"checkpoint = {checkpoint}: must contain a .safetensors or a {INDEX} file"
        )
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths[:MOST_LISTED])
        raise ValueError(f"checkpoint = {checkpoint}: contains several; choose one of {names}")
    (path,) = paths
    # Reading a pipe or a device would block.
    checks.regular("checkpoint", path)
    every = _shards(path) if path.suffix == ".json" else list(_headers(path).values())
    # Text and numbers of a name in turn, so that layer 2 comes before layer 10.
    digits = lambda name: [  # noqa: E731
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
    return sorted(every, key=lambda tensor: digits(tensor.name))


def select_tensors(every: Sequence[Tensor], patterns: Sequence[str]) -> list[Tensor]:
    """Return the tensors whose names match any of the shell `patterns`, which are case-sensitive;
    `ValueError` for a pattern without a match."""
    names = [tensor.name for tensor in every]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            flat = sum(len(tensor.shape) == 2 for tensor in every)
            listed = ", ".join(names[:MOST_LISTED]) + ", ..." * (len(names) > MOST_LISTED)
            raise ValueError(
                f"pattern = {pattern!r}: matches none of the {len(names)} tensors ({flat} of them "
                f"2-D); there are {listed}"
            )
    return [t for t in every if any(fnmatch.fnmatchcase(t.name, p) for p in patterns)]


def _shards(path: Path) -> list[Tensor]:
    """Return the tensors of all files that the index at `path` names, in the same folder."""
    try:
        file_of = json.loads(path.read_bytes())["weight_map"]
        files = sorted({str(file) for file in file_of.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"checkpoint = {path}: must be JSON with a weight_map from tensors to files"
        ) from None
    for file in files:
        # A downloaded index must not make us open arbitrary files.
        if Path(file).name != file:
            raise ValueError(f"checkpoint = {path}: file {file!r}: must be next to the index")
        if not (path.parent / file).is_file():
            raise ValueError(f"checkpoint = {path}: file {file!r}: does not exist")
    headers = {file: _headers(path.parent / file) for file in files}
    for name, file in file_of.items():
        if name not in headers[file]:
            raise ValueError(f"checkpoint = {path}: tensor {name!r} is not in {file}")
    return [headers[file][name] for name, file in file_of.items()]


def _headers(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="numpy") as file:
            views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                # Names are printed, in a table whose lines they must not end.
                name: Tensor(printable(name), tuple(view.get_shape()), view.get_dtype(), path, name)
                for name, view in views.items()
            }
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise ValueError(
            f"checkpoint = {path}: must be a complete .safetensors file; its {size} bytes "
            f"cannot be read: {error}"
        ) from None
