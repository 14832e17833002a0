"""The attention layer in Y and Z on sequence classes, as a problem to train."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task
from dynsim.precision import on_cpu
from dynsim.problem.base import Measured
from dynsim.training import loop
from dynsim.training.loop import DIVERGED_LOSS
from dynsim.training.rule import Rule
from dynsim.yz import finite_length, gradients, observables, sampling
from dynsim.yz import model as yz
from dynsim.yz.model import Examples
from dynsim.yz.observables import DEFAULT_RECORD, MEASURED, Snapshot
from dynsim.yz.sampling import SupportExamples

Batch = Examples | SupportExamples


class Layer(sampling.OnClasses):
    r"""The attention layer in Y and Z (Scan and Snap).

    Its weights are a `dynsim.YZ` with the groups "Y" and "Z". Batches are `dynsim.Examples`, which
    may be recorded (`dynsim.yz.sampling.examples_from_tokens`). With `batch=math.inf` it descends
    the population loss, for finite `length` to first order in 1/T (`dynsim.yz.finite_length`). Runs
    count as diverged above 10 log M.

    Attributes:
        task: the sequence classes, or a description of them.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        start: starting weights: zero, or uniform on +-1/sqrt(M).

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> layer = dynsim.Layer(dynsim.SynSmall(), length=64)
        >>> run = dynsim.train(layer, dynsim.sgd(1.0, 0.1), jax.random.key(0), steps=10)
    """

    NAME: ClassVar = "yz"
    RECORD: ClassVar = DEFAULT_RECORD
    COMPARED: ClassVar = tuple(name for name in DEFAULT_RECORD if name != "accuracy")
    REFUSED: ClassVar = MEASURED.refused

    start: yz.Init = eqx.field(static=True, default="zero")

    def init(self, key: PRNGKeyArray) -> yz.YZ:
        """Return zero weights, as in the paper's theory and Figs. 4, 5, or uniform ones, Fig. 6."""
        if self.start == "uniform":
            return yz.init_uniform(self.classes, key)
        return yz.init_zero(self.classes)

    def batches(
        self, key: PRNGKeyArray, steps: int | None, batch: int
    ) -> Callable[[Array], Batch | Array]:
        """Like `draw`, with less memory. On a CPU, counts are stored only on the support of each
        class; if T is infinite, only the classes are stored."""
        sampling.check_tokens(batch, self.length)
        task = self.classes
        key_of_step = loop.keys_of_steps(key, steps)
        if math.isinf(self.length):
            return lambda k: sampling.sample_classes(task, key_of_step(k), batch)
        size = {"batch": batch, "length": int(self.length), "dtype": "float32"}
        # Counts up to T - 1 fit into one or two bytes each.
        small = np.min_scalar_type(int(self.length) - 1)
        if on_cpu():
            make, sample = SupportExamples, sampling.support_sampler(task, **size)
        else:
            make, sample = Examples, sampling.counts_sampler(task, **size, scatter=False)

        def batch_of_step(k: Array) -> Batch:
            examples = sample(key_of_step(k))
            return make(examples.classes, examples.counts.astype(small))

        return batch_of_step

    def loss(self, params: yz.YZ, data: Examples) -> Float[Array, ""]:
        """Mean cross entropy of the next token in nat."""
        return yz.loss(params, self.classes, data.astype(params.Y.dtype.name))

    def loss_and_gradient(self, params: yz.YZ, data: Batch | Array) -> tuple[Array, yz.YZ]:
        """Explicit loss and gradient, for either form of the weights (see `compact`) and any form
        of a batch."""
        task, dtype = self.classes, params.Y.dtype.name
        merged = params.Y.shape[1] < task.M
        # The width of Y tells which form the weights have.
        columns = gradients.merged_outputs(task, dtype) if merged else gradients.each_output(task)
        if isinstance(data, SupportExamples):
            data = data.astype(dtype)
            # With few columns and a wide support, products over the vocabulary are faster.
            few = merged and not gradients.support_pays(task.support.shape[1], task.M)
            if not few and not params.residual:
                return gradients.loss_and_grad_on_support(params, task, data, columns)
            data = data.dense(task)
        elif isinstance(data, Examples):
            shape, M = np.shape(data.counts), task.M
            if shape[1:] != (M,) or np.shape(data.classes) != shape[:1]:
                raise ValueError(
                    f"data.counts: must have shape (steps, E, M = {M}) and data.classes (steps, E)"
                    f", got {shape} and {np.shape(data.classes)} for a step"
                )
            data = data.astype(dtype)
        else:
            # Classes alone, at infinite length: each enters once, weighted by its frequency.
            number = jnp.zeros(task.K, jnp.int32).at[data].add(1)
            probs = jnp.asarray(task.probs)
            data = Examples(jnp.arange(task.K), probs, number.astype(dtype) / data.size)
        if merged:
            return gradients.loss_and_grad(params, task, data, columns)
        # Scattering is slow on accelerators.
        return yz.loss_and_grad(params, task, data, scatter=on_cpu())

    def population_loss(self, params: yz.YZ) -> Float[Array, ""]:
        """The loss at infinite batch; raises `ValueError` as `check_population` does."""
        context = finite_length.contextual(self.length, params.Y.dtype.name)
        losses = finite_length.by_counts(params, self.classes)
        return finite_length.mean_loss(losses, self.classes, context)

    def population_loss_and_gradient(self, params: yz.YZ) -> tuple[Array, yz.YZ]:
        """The population loss and its explicit gradient."""
        context = finite_length.contextual(self.length, params.Y.dtype.name)
        return finite_length.loss_and_grad(params, self.classes, context)

    def check_population(self) -> None:
        """Raise `ValueError` if sequences are too short for the expansion in 1/T."""
        finite_length.check_length(self.classes, self.length)

    def compact(self, params: yz.YZ, rule: Rule) -> tuple[yz.YZ, Callable[[PyTree], PyTree]]:
        """Use one column of Y for all outputs that are not a next token: training from zero keeps
        their columns equal."""
        dtype = params.Y.dtype.name
        columns = gradients.each_output(self.classes)
        # Columns of outputs that are no next token start equal and have equal gradients.
        if self.start == "zero" and rule.is_elementwise:
            columns = gradients.merged_outputs(self.classes, dtype)
        few = dataclasses.replace(params, Y=columns.merge(params.Y))
        return few, columns.expand

    def snapshot(self, params: yz.YZ) -> tuple[SequenceClasses, Snapshot]:
        """The classes and the quantities from which observables are computed."""
        return self.classes, observables.measure(self.classes, params)

    def observables(self) -> dict[str, Measured]:
        """The observables of `dynsim.yz.observables`."""
        return dict(MEASURED.functions)

    def summary(
        self, times: Float[np.ndarray, " S"], recorded: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The largest speed coefficient, a mean over classes, and its step: attention scans before
        it, and snaps after it."""
        speed = recorded["speed"].mean(-1)
        peak = int(np.argmax(speed))
        return {"step of the largest speed": float(times[peak]), "largest speed": speed[peak]}

    def divergence_limit(self) -> float:
        """Ten times the loss of uniform guessing."""
        return DIVERGED_LOSS * math.log(self.classes.M)


def as_layer(
    problem: Layer | Task, length: int | float | None = None, start: yz.Init | None = None
) -> Layer:
    """Return a layer, or that on a task, with its sequence classes built, and with `length` and
    `start` in place of its own.

    Raises:
        ValueError: for anything else, a length below 2, or an unknown start.
    """
    checks.kind("task", problem, Layer, Task)
    layer = problem if isinstance(problem, Layer) else Layer(problem)
    length = layer.length if length is None else length
    return Layer(layer.classes, length, layer.start if start is None else start)
