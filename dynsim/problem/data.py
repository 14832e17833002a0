"""Your own examples as a field of a problem: arrays in memory, or in a file."""

import abc
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import annotated_types as at
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from dynsim import checks, decoding, numeric

NamedArrays = dict[str, Shaped[Array, "..."] | Shaped[np.ndarray, "..."]]
"""Arrays by name; the first axis runs over the examples."""
TestShare = Annotated[float, at.Ge(0), at.Lt(1)]


class Data(eqx.Module):
    """Your own examples. As a field of a problem they can be an axis of a sweep; stores identify
    them by their content, and compiled programs share them.

    Attributes:
        test: fraction of the examples for testing, taken from the end. Shuffle the examples first
            if they are sorted.
        replace: whether a batch may contain an example twice, which is faster to draw.

    Raises:
        ValueError: for a `test` outside [0, 1).

    Example:
        >>> class Fit(dynsim.Problem):
        ...     data: dynsim.Data = dynsim.Arrays({"x": np.eye(4), "y": np.arange(4.0)})
        ...
        ...     def init(self, key):
        ...         return jnp.zeros(4)
        ...
        ...     def draw(self, key, batch):
        ...         return self.data.draw(key, batch)
        ...
        ...     def loss(self, w, batch):
        ...         return jnp.mean((batch["x"] @ w - batch["y"]) ** 2)
        ...
        >>> run = dynsim.train(Fit(), dynsim.sgd(0.1), jax.random.key(0), steps=5, batch=2)
    """

    test: TestShare = eqx.field(static=True, default=0.0, kw_only=True)
    replace: bool = eqx.field(static=True, default=True, kw_only=True)

    def __check_init__(self) -> None:
        decoding.check_annotations(self)

    @abc.abstractmethod
    def build(self) -> "Arrays":
        """Load the examples into memory for training."""

    def contents(self) -> dict[str, str]:
        """Return hashes, by name, of data outside the fields, such as the content of a file."""
        return {}


def _checked(arrays: Any) -> dict[str, Any]:
    checks.kind("arrays", arrays, Mapping)
    # Only the problem knows whether they may have NaN.
    return {n: numeric.array(f"arrays[{n!r}]", a, finite=False) for n, a in arrays.items()}


class Arrays(Data):
    """Examples in arrays.

    Attributes:
        arrays: arrays by name, each (N, ...), such as `{"x": inputs, "y": labels}`.

    Raises:
        ValueError: for arrays that are not numeric, are masked, have integers of more than 32 bits
            or numbers beyond float32, or differ in length; or without an example to train on.
            Training and theories also raise it for NaN and infinities, unless the problem's
            `allows_nonfinite` returns True.

    Example:
        >>> data = dynsim.Arrays({"x": np.eye(10), "y": np.arange(10)}, test=0.2)
        >>> data.draw(jax.random.key(0), 4)["x"].shape
        (4, 10)
        >>> data.held_out["y"]
        array([8, 9])
    """

    arrays: NamedArrays = eqx.field(converter=_checked)

    def __check_init__(self) -> None:
        # The check of the base class runs later, but `number` needs a valid `test`.
        decoding.check_annotations(self)
        lengths = {name: np.shape(array)[:1] for name, array in self.arrays.items()}
        if len({*lengths.values()}) != 1 or () in lengths.values() or not self.number:
            raise ValueError(
                f"arrays: need the same number of examples, at least one to train on, got {lengths}"
            )

    @property
    def number(self) -> int:
        """Number of training examples."""
        length = len(next(iter(self.arrays.values())))
        # At least one example is left, see `__check_init__`.
        return length - round(self.test * length)

    @property
    def train(self) -> NamedArrays:
        """The examples to train on."""
        return {name: array[: self.number] for name, array in self.arrays.items()}

    @property
    def held_out(self) -> NamedArrays:
        """The examples for testing."""
        return {name: array[self.number :] for name, array in self.arrays.items()}

    def draw(self, key: PRNGKeyArray, batch: int) -> NamedArrays:
        """Draw a batch of training examples. Without `replace` it contains no example twice.

        Raises:
            ValueError: for a batch without replacement that is larger than the training set.
        """
        if self.replace:
            chosen = jax.random.randint(key, (batch,), 0, self.number)
        elif batch <= self.number:
            chosen = jax.random.permutation(key, self.number)[:batch]
        else:
            raise ValueError(f"batch = {batch}: there are {self.number} examples to train on")
        return {name: jnp.asarray(array)[chosen] for name, array in self.arrays.items()}

    def build(self) -> "Arrays":
        return self


class ArrayFile(Data):
    """Examples in an .npz file, or in a folder of such files.

    Attributes:
        path: an .npz file with arrays (N, ...); or a folder of them, whose examples are joined in
            the order of their names.

    Raises:
        ValueError: for a path that cannot be read, for arrays that are not numeric or differ in
            length, or without an example to train on.

    Example:
        >>> np.savez("examples.npz", x=np.eye(10), y=np.arange(10))
        >>> data = dynsim.ArrayFile("examples.npz", test=0.2).build()
        >>> data.draw(jax.random.key(0), 4)["x"].shape
        (4, 10)
    """

    ENDINGS: ClassVar = ("path", (".npz",))

    path: str | Path = eqx.field(static=True)

    def build(self) -> Arrays:
        """Load the examples; `ValueError` for a file that cannot be read."""
        parts = [_read(path) for path in self._paths()]
        if len({tuple(sorted(part)) for part in parts}) != 1:
            raise ValueError(f"path = {self.path}: its files must have arrays with the same names")
        names = parts[0]
        # In the order of the names of the files, so that a split for testing is the same
        # everywhere.
        arrays: NamedArrays = {n: np.concatenate([part[n] for part in parts]) for n in names}
        return Arrays(arrays, test=self.test, replace=self.replace)

    def contents(self) -> dict[str, str]:
        digest = hashlib.sha256()
        for path in self._paths():
            digest.update(path.read_bytes())
        return {"data_holds": digest.hexdigest()[:16]}

    def _paths(self) -> list[Path]:
        path = Path(self.path)
        files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not path.exists():
            raise ValueError(f"path = {path}: there is no such file")
        if not files:
            raise ValueError(f"path = {path}: must be an .npz file, or a folder of them")
        checks.regular("path", files[0])
        return files


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"path = {path}: cannot be read as .npz ({error})") from None
    # Before files are joined, which would convert arrays of several types.
    return {n: numeric.array(f"path = {path}: {n!r}", a, finite=False) for n, a in arrays.items()}
