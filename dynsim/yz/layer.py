"""The attention layer in Y and Z on sequence classes, as a problem to train.

The functions here that create a task of `dynsim.classes` return the layer on it.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.classes import task, tasks
from dynsim.classes.task import SequenceClasses
from dynsim.decoding import Length
from dynsim.precision import on_cpu
from dynsim.problem.base import Measured, Problem
from dynsim.training import loop
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.rule import of_layer
from dynsim.yz import finite_length, gradients, observables, sampling
from dynsim.yz import model as yz
from dynsim.yz.model import Examples
from dynsim.yz.observables import DEFAULT_RECORD, MEASURED, Snapshot
from dynsim.yz.sampling import SupportExamples

Batch = Examples | SupportExamples


class Layer(SequenceClasses, Problem):
    r"""The attention layer in Y and Z (Scan and Snap), which is itself the task it is trained on.

    Its weights are a `dynsim.YZ` with the groups "Y" and "Z". Batches are `dynsim.Examples`, which
    may be recorded (`dynsim.yz.sampling.examples_from_tokens`). With `batch=math.inf` it descends
    the population loss, for finite `length` to first order in 1/T (`dynsim.yz.finite_length`). Runs
    count as diverged above 10 log M.

    Attributes:
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        start: starting weights: zero, or uniform on +-1/sqrt(M).

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> layer = dynsim.layer(dynsim.syn_small(), length=64)
        >>> run = dynsim.train(layer, dynsim.sgd(1.0, 0.1), jax.random.key(0), steps=10)
    """

    NAME: ClassVar = "yz"
    RECORD: ClassVar = DEFAULT_RECORD
    COMPARED: ClassVar = tuple(name for name in DEFAULT_RECORD if name != "accuracy")
    REFUSED: ClassVar = MEASURED.refused

    length: Length = eqx.field(static=True, default=128)
    start: yz.Init = eqx.field(static=True, default="zero")

    def build(self, rule: Any = None) -> "Layer":
        """Return the layer itself."""
        return self

    def init(self, key: PRNGKeyArray) -> yz.YZ:
        """Return zero weights, as in the paper's theory and Figs. 4, 5, or uniform ones, Fig. 6."""
        if self.start == "uniform":
            return yz.init_uniform(self, key)
        return yz.init_zero(self)

    def draw(self, key: PRNGKeyArray, batch: int) -> Examples:
        """Draw sequences as token counts, or as token probabilities if T is infinite."""
        sampling.check_tokens(batch, self.length)
        if math.isinf(self.length):
            classes = sampling.sample_classes(self, key, batch)
            return Examples(classes, jnp.asarray(self.probs)[classes])
        found = sampling.sample_counts(self, key, batch, int(self.length))
        return Examples(found.classes, found.counts)

    def batches(
        self, key: PRNGKeyArray, steps: int, batch: int
    ) -> Callable[[Array], Batch | Array]:
        """Like `draw`, with less memory. On a CPU, counts are stored only on the support of each
        class; if T is infinite, only the classes are stored."""
        sampling.check_tokens(batch, self.length)
        of_step = loop.keys_of_steps(key, steps)
        if math.isinf(self.length):
            return lambda k: sampling.sample_classes(self, of_step(k), batch)
        size = {"batch": batch, "length": int(self.length), "dtype": "float32"}
        small = np.min_scalar_type(int(self.length) - 1)
        if on_cpu():
            on_support = sampling.support_sampler(self, **size)
            make, sample = SupportExamples, on_support
        else:
            make, sample = Examples, sampling.counts_sampler(self, **size, scatter=False)

        def of(k: Array) -> Batch:
            found = sample(of_step(k))
            return make(found.classes, found.counts.astype(small))

        return of

    def loss(self, params: yz.YZ, data: Examples) -> Float[Array, ""]:
        """Mean cross entropy of the next token in nat."""
        return yz.loss(params, self, data.astype(params.Y.dtype.name))

    def loss_and_gradient(self, params: yz.YZ, data: Batch | Array) -> tuple[Array, yz.YZ]:
        """Explicit loss and gradient, for either form of the weights (see `compact`) and any form
        of a batch."""
        dtype = params.Y.dtype.name
        merged = params.Y.shape[1] < self.M
        columns = gradients.merged_outputs(self, dtype) if merged else gradients.each_output(self)
        if isinstance(data, SupportExamples):
            data = data.astype(dtype)
            few = merged and not gradients.support_pays(self.support.shape[1], self.M)
            if not few and not params.residual:
                return gradients.loss_and_grad_on_support(params, self, data, columns)
            data = data.dense(self)
        elif isinstance(data, Examples):
            data = self._recorded(data).astype(dtype)
        else:
            drawn = jnp.zeros(self.K, jnp.int32).at[data].add(1)
            probs = jnp.asarray(self.probs)
            data = Examples(jnp.arange(self.K), probs, drawn.astype(dtype) / data.size)
        if merged:
            return gradients.loss_and_grad(params, self, data, columns)
        return yz.loss_and_grad(params, self, data, scatter=on_cpu())

    def population_loss(self, params: yz.YZ) -> Float[Array, ""]:
        """The loss at infinite batch; raises `ValueError` as `check_population` does."""
        context = finite_length.contextual(self.length, params.Y.dtype.name)
        return finite_length.mean_loss(finite_length.by_counts(params, self), self, context)

    def population_loss_and_gradient(self, params: yz.YZ) -> tuple[Array, yz.YZ]:
        """The population loss and its explicit gradient."""
        context = finite_length.contextual(self.length, params.Y.dtype.name)
        return finite_length.loss_and_grad(params, self, context)

    def check_population(self) -> None:
        """Raise `ValueError` if sequences are too short for the expansion in 1/T."""
        finite_length.check_length(self, self.length)

    def compact(self, params: yz.YZ, rule: Any) -> tuple[yz.YZ, Callable[[PyTree], PyTree]]:
        """Use one column of Y for all outputs that are not a next token: training from zero keeps
        their columns equal."""
        dtype = params.Y.dtype.name
        columns = gradients.each_output(self)
        if self.start == "zero" and rule.is_elementwise:
            columns = gradients.merged_outputs(self, dtype)
        few = dataclasses.replace(params, Y=columns.merge(params.Y))
        return few, columns.whole

    def groups(self, params: yz.YZ) -> yz.YZ:
        """The groups "Y" and "Z"."""
        return of_layer(params)

    def snapshot(self, params: yz.YZ) -> tuple[SequenceClasses, Snapshot]:
        """The classes and the quantities from which observables are computed."""
        return self, observables.measure(self, params)

    def observables(self) -> dict[str, Measured]:
        """The observables of `dynsim.yz.observables`."""
        return dict(MEASURED.functions)

    def summary(self, times: Float[np.ndarray, " S"], recorded: Any) -> dict[str, float]:
        """The largest speed coefficient, a mean over classes, and its step: attention scans before
        it, and snaps after it."""
        speed = recorded["speed"].mean(-1)
        peak = int(np.argmax(speed))
        return {"step of the largest speed": float(times[peak]), "largest speed": speed[peak]}

    def divergence_limit(self) -> float:
        """Ten times the loss of uniform guessing."""
        return DIVERGED_LOSS * math.log(self.M)

    def _recorded(self, data: Examples) -> Examples:
        """Return recorded examples; `ValueError` if they belong to another task."""
        shape = np.shape(data.counts)
        if shape[1:] != (self.M,) or np.shape(data.classes) != shape[:1]:
            raise ValueError(
                f"data.counts: must have shape (steps, E, M = {self.M}) and data.classes (steps, E)"
                f", got {shape} and {np.shape(data.classes)} for a step"
            )
        return data

    def __repr__(self) -> str:
        about = super().__repr__().removeprefix("SequenceClasses(").removesuffix(")")
        return f"Layer({about}, T = {self.length}, start {self.start!r})"


def layer(
    task: SequenceClasses, length: int | float | None = None, start: yz.Init | None = None
) -> Layer:
    """Return the layer on a task; see `Layer`. If the task is a layer already, its length and start
    are the defaults.

    Raises:
        ValueError: for anything but a task, a length below 2, or an unknown start.

    Example:
        >>> layer = dynsim.layer(dynsim.syn_small(), length=32, start="uniform")
    """
    checks.kind("task", task, SequenceClasses)
    held = {each.name: getattr(task, each.name) for each in dataclasses.fields(SequenceClasses)}
    own = {"length": getattr(task, "length", 128), "start": getattr(task, "start", "zero")}
    given = {"length": length, "start": start}
    return Layer(**held, **own | {name: each for name, each in given.items() if each is not None})


class AttentionLayer(sampling.OnClasses):
    """The attention layer in Y and Z on sequence classes. Training builds a `Layer` from it.

    Attributes:
        task: the sequence classes, or a description of them.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        start: starting weights: zero, or uniform on +-1/sqrt(M).

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> problem = dynsim.AttentionLayer(dynsim.Overlapping(K=4), length=64)
        >>> run = dynsim.train(problem, dynsim.sgd(1.0, 0.1), jax.random.key(0), steps=10)
    """

    NAME: ClassVar = "yz"

    start: yz.Init = eqx.field(static=True, default="zero")

    def build(self, rule: Any) -> Layer:
        """Return the layer."""
        return layer(self.classes, self.length, self.start)

    def init(self, key: PRNGKeyArray) -> yz.YZ:
        """The starting weights of the layer."""
        return self.build(None).init(key)


Arguments = ParamSpec("Arguments")


def _layered(name: str, make: Callable[Arguments, task.Task]) -> Callable[Arguments, Layer]:
    def made(*args: Arguments.args, **options: Arguments.kwargs) -> Layer:
        return layer(make(*args, **options).build())

    # The docstring and the signature are those of `make`.
    made.__name__ = made.__qualname__ = name
    made.__doc__ = (make.__doc__ or "").replace("Attributes:", "Args:")
    signature = inspect.signature(make).replace(return_annotation=Layer)
    setattr(made, "__signature__", signature)  # noqa: B010  (no type of a function has it)
    return made


sequence_classes = _layered("sequence_classes", task.sequence_classes)
load_task = _layered("load_task", tasks.TaskFile)
overlapping = _layered("overlapping", tasks.Overlapping)
syn = _layered("syn", tasks.syn)
syn_medium = _layered("syn_medium", tasks.SynMedium)
syn_small = _layered("syn_small", tasks.SynSmall)
