"""Starting weights of the attention layer in ordinary parameters, and what they must be."""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import Number
from dynsim.qkv.model import Embedded, Normalisation, Placement

Embedding = Literal["identity", "orthogonal", "gaussian"]
WEIGHTS = ("U", "W_Q", "W_K", "W_V", "D")
"""Names of the weights, as `frozen` takes them."""


class EmbeddedSpec(eqx.Module):
    r"""What decides the starting weights, all but their key.

    Attributes:
        width: width d of the embedding, >= 1.
        heads: number of heads H, >= 1.
        head_width: width r of a head; d if None.
        scale: W_Q and W_K are normal with standard deviation :math:`\text{scale}/\sqrt d`; may be
            traced.
        value_scale: the same for W_V, and for D where it is untied; 0 starts with Y = 0, from
            where an untied decoder never moves.
        embedding: "identity" (d = M), "orthogonal" (random U with :math:`U U^\top = I`, d >= M) or
            "gaussian" (normal with standard deviation :math:`1/\sqrt d`: rows of length about 1).
        tied: whether the decoder is U.
        normalisation, placement, residual: of the model, see `dynsim.qkv.model`.
    """

    width: int = eqx.field(static=True)
    heads: int = eqx.field(static=True, default=1)
    head_width: int | None = eqx.field(static=True, default=None)
    scale: Real[Number, ""] = 1.0
    value_scale: Real[Number, ""] = 1.0
    embedding: Embedding = eqx.field(static=True, default="orthogonal")
    tied: bool = eqx.field(static=True, default=True)
    normalisation: Normalisation = eqx.field(static=True, default="l2")
    placement: Placement = eqx.field(static=True, default="theory")
    residual: bool = eqx.field(static=True, default=False)

    def check(self, task: SequenceClasses) -> None:
        """Raise `ValueError`, naming the field, for what cannot be or does not fit the task."""
        for field in ("width", "heads"):
            checks.integer(field, getattr(self, field), 1)
        if self.head_width is not None:
            checks.integer("head_width", self.head_width, 1)
        for field in ("scale", "value_scale"):
            checks.real(field, getattr(self, field), 0)
        checks.choice("embedding", self.embedding, get_args(Embedding))
        _check_choices(self.normalisation, self.placement, self.width)
        if self.embedding == "identity" and self.width != task.M:
            raise ValueError(
                f"width = {self.width}: embedding = 'identity' needs the vocabulary size {task.M}"
            )
        if self.embedding == "orthogonal" and self.width < task.M:
            raise ValueError(
                f"width = {self.width}: embedding = 'orthogonal' needs at least the vocabulary "
                f"size {task.M}; narrower embeddings can be 'gaussian'"
            )


def draw(
    task: SequenceClasses,
    architecture: EmbeddedSpec,
    key: PRNGKeyArray,
    dtype: str = "float32",
) -> Embedded:
    """Weights of `architecture` for `task`.

    Raises:
        ValueError: naming the field of `architecture` that cannot be.
    """
    architecture.check(task)
    d, H = architecture.width, architecture.heads
    r = d if architecture.head_width is None else architecture.head_width
    keys: dict[str, PRNGKeyArray] = dict(
        zip(WEIGHTS, jax.random.split(key, len(WEIGHTS)), strict=True)
    )

    def normal(name: str, shape: tuple[int, ...], scale: Real[Number, ""]) -> Float[Array, "..."]:
        unit = jax.random.normal(keys[name], shape, dtype)
        return unit * jnp.asarray(scale, dtype) * jnp.asarray(d**-0.5, dtype)

    if architecture.embedding == "identity":
        U = jnp.eye(d, dtype=dtype)
    elif architecture.embedding == "orthogonal":
        U = jax.random.orthogonal(keys["U"], d, dtype=dtype)[: task.M]
    else:
        U = normal("U", (task.M, d), 1.0)
    return Embedded(
        U,
        normal("W_Q", (H, d, r), architecture.scale),
        normal("W_K", (H, d, r), architecture.scale),
        normal("W_V", (H, d, d), architecture.value_scale),
        None if architecture.tied else normal("D", (task.M, d), architecture.value_scale),
        architecture.normalisation,
        architecture.placement,
        architecture.residual,
    )


def check_weights(weights: Embedded, task: SequenceClasses) -> None:
    """Raise `ValueError` unless the shapes and settings of `weights` fit together and `task`."""
    d, H, r = np.shape(weights.U)[-1], np.shape(weights.W_Q)[0], np.shape(weights.W_Q)[-1]
    want = {
        "U": (task.M, d),
        "W_Q": (H, d, r),
        "W_K": (H, d, r),
        "W_V": (H, d, d),
        "D": (task.M, d),
    }
    for name, shape in want.items():
        leaf = getattr(weights, name)
        if leaf is not None and np.shape(leaf) != shape:
            raise ValueError(f"init.{name}: must have shape {shape}, got {np.shape(leaf)}")
    _check_choices(weights.normalisation, weights.placement, d)


def _check_choices(normalisation: str, placement: str, width: int) -> None:
    checks.choice("normalisation", normalisation, get_args(Normalisation))
    checks.choice("placement", placement, get_args(Placement))
    if normalisation == "layer" and placement == "practice" and width < 2:
        raise ValueError(
            f"width = {width}: normalisation = 'layer' of the embedding needs at least 2"
        )
