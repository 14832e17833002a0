"""Tensors of a `.safetensors` checkpoint: what there is, and the few that are asked for."""

import dataclasses
import json
import os
import re
from pathlib import Path

import ml_dtypes  # noqa: F401  (numpy knows the name bfloat16, by which it is read, only with it)
import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from dynsim import checks

INDEX = ".safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")
"""What can be read, by the names of the format."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as the header of its file describes it; nothing of it has been read.

    Attributes:
        name: its name in the checkpoint.
        path: the file that holds it.
        shape: its axes.
        dtype: its type as the format writes it, for instance BF16.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def obstacle(self) -> str | None:
        """Why it has no singular values here, or None. Nothing is squeezed to make it fit."""
        if len(self.shape) != 2:
            return f"is {len(self.shape)}-D, not 2-D"
        if self.dtype not in DTYPES:
            return f"dtype {self.dtype}: must be one of {', '.join(DTYPES)}"
        return None if all(self.shape) else "has no entries"

    def read(self, columns: slice = slice(None)) -> Float[np.ndarray, "m n"]:
        """Some of the columns of a matrix in float64; only their bytes are copied from the file.

        Raises `ValueError` when the file is no longer what its header said.
        """
        try:
            with safe_open(self.path, framework="numpy") as file:
                return file.get_slice(self.name)[:, columns].astype(np.float64)
        except SafetensorError as error:
            raise ValueError(f"checkpoint = {self.path}: {self.name}: {error}") from None


def tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor by name, in the order in which people count: layer 2 before layer 10.

    `checkpoint` is a `.safetensors` file, the `.safetensors.index.json` of a checkpoint in several
    files, or a directory that holds one of the two. Raises `ValueError`, naming the file, where
    it is missing, empty, cut off or of another format.
    """
    path = locate(checkpoint)
    found = _indexed(path) if path.suffix == ".json" else _headers(path)
    return {name: found[name] for name in sorted(found, key=_counted)}


def locate(checkpoint: Path) -> Path:
    """The file that a path means: itself, or the one checkpoint in that directory.

    As in other libraries `model.safetensors` comes before an index, an index before shards.
    Raises `ValueError` where there is none or no single one.
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
            raise ValueError(f"checkpoint = {checkpoint}: holds several, choose one of {names}")
        if there:
            return there[0]
    raise ValueError(
        f"checkpoint = {checkpoint}: must hold a .safetensors or a {INDEX} file, has neither"
    )


def _indexed(path: Path) -> dict[str, Tensor]:
    """Tensors of all files that the index at `path` names; they lie beside it."""
    try:
        where = json.loads(path.read_bytes())["weight_map"]
        shards = {str(file) for file in where.values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"checkpoint = {path}: must be JSON with a weight_map from tensors to files"
        ) from None
    for shard in sorted(shards):
        # An index from elsewhere must not make us open files of its choice.
        if Path(shard).name != shard:
            raise ValueError(f"checkpoint = {path}: file {shard!r}: must lie beside the index")
        if not (path.parent / shard).is_file():
            raise ValueError(f"checkpoint = {path}: file {shard!r}: does not exist")
    held = {shard: _headers(path.parent / shard) for shard in sorted(shards)}
    for name, shard in where.items():
        if name not in held[shard]:
            raise ValueError(f"checkpoint = {path}: tensor {name!r} is not in {shard}")
    return {name: held[shard][name] for name, shard in where.items()}


def _headers(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="numpy") as file:
            views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Tensor(name, path, tuple(view.get_shape()), view.get_dtype())
                for name, view in views.items()
            }
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise ValueError(
            f"checkpoint = {path}: must be a whole .safetensors file, is one of {size} bytes that "
            f"cannot be read: {error}"
        ) from None


def _counted(name: str) -> list[tuple[int, str]]:
    """Key to sort by: numbers in a name by their value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
