"""The training loop: steps, records, and the check for divergence.

A run is a pure function of arrays, so `jax.vmap` over keys, rates or starting weights turns it into
a batch of whole training runs. Systems differ in two functions, a `Step` and an `Observe`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Real

from dynsim.precision import DType, Number
from dynsim.training.checkpoint import Checkpoint, restore
from dynsim.training.recording import NORMS, RELATIVE_LOSS
from dynsim.training.rule import Rule, norm
from dynsim.training.steps import (
    LoopSpec,
    Rows,
    Segments,
    at_every_step,
    from_record_to_record,
    in_segments,
)
from dynsim.trajectory import Status, Trajectory

DIVERGED_LOSS = 10.0
"""A run counts as diverged while its batch loss exceeds this multiple of log M, the loss of
uniform guessing."""
LAST = 20
"""Number of final steps whose losses are averaged in the relative loss; all steps of a shorter
run."""


def split_key(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Return keys for the starting weights and for the data; step k uses fold_in(second, k)."""
    key_init, key_data = jax.random.split(key)
    return key_init, key_data


def noise_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """Return the key of a rule's noise, which differs from those of data and starting weights."""
    # Steps have smaller numbers, so that no other key of a run is this one.
    return jax.random.fold_in(key, 2**32 - 1)


def keys_of_steps(key: PRNGKeyArray, steps: int | None) -> Callable[[Int[Array, ""]], PRNGKeyArray]:
    """Return the keys fold_in(key, k) by k, computed at once for k in [0, steps] if `steps` is
    known."""
    if steps is None:
        return lambda k: jax.random.fold_in(key, k)
    # All keys at once, so that no step has to compute a hash.
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(jnp.arange(steps + 1, dtype=jnp.int32))
    return lambda k: keys[k]


def normal_noise(key: PRNGKeyArray, k: Int[Array, ""], like: PyTree) -> PyTree:
    """Draw independent standard normal numbers for all weights in step k."""
    return optax.tree.random_like(jax.random.fold_in(key, k), like, jax.random.normal)


class LossSums(NamedTuple):
    """Running sums for the relative loss.

    Attributes:
        first: (*B) loss of step 0.
        last: (*B) sum of the losses so far of the last `LAST` steps of the run.
    """

    first: Float[Array, "*B"]
    last: Float[Array, "*B"]


def relative_loss(
    sums: LossSums, times: Int[Array, " S"], steps: Int[Number, ""]
) -> Float[Array, "S *B"]:
    """Return the mean of the last losses divided by the first one, at the end of a run.

    This is the measure of Sohl-Dickstein (arXiv:2402.06184), who counts a run as converged if it is
    below 1. It needs the loss of every step, so it is accumulated during a run instead of recorded.
    NaN at earlier times; inf or NaN if the losses are.
    """
    # A run of fewer steps than LAST has added all of them.
    relative = sums.last / (jnp.minimum(LAST, steps) * sums.first)
    at_end = (times == steps).reshape(-1, *(1,) * relative.ndim)
    return jnp.where(at_end, relative[None], math.nan)


LossAndGradient = Callable[[PyTree, Int[Array, ""]], tuple[Float[Array, "*B"], PyTree]]
StepNumbers = Float[Array, "*B"] | Rows | None
Step = Callable[[PyTree, PyTree, Int[Array, ""]], tuple[PyTree, PyTree, StepNumbers]]
"""(weights, state of the rule, k) -> both after update number k, counted from 0, and the loss
before it on the same batch. Instead of the loss, a dict of it as `batch_loss` and of other
quantities to record for the step, or None if no loss is needed."""
Observe = Callable[[PyTree, PyTree, Int[Array, ""], PyTree], tuple[dict[str, Array], PyTree]]
"""(weights, state of the rule, k, value passed on by the previous record) -> quantities to record
after k steps, and the value to pass on."""


class State(NamedTuple):
    """The state of a run between two steps.

    Attributes:
        params: the weights.
        memory: state of the update rule, such as momentum.
        first_bad: (*B) first step of the current invalid stretch; -1 if the run is valid.
        sums: sums for the relative loss; None unless it is recorded.
    """

    params: PyTree
    memory: PyTree
    first_bad: Int[Array, "*B"]
    sums: LossSums | None


def by_rule(
    gradient: LossAndGradient,
    rule: Rule,
    key: PRNGKeyArray | None = None,
    groups: PyTree = None,
    also: tuple[str, ...] = (),
    normal: Callable[[PRNGKeyArray, Int[Array, ""], PyTree], PyTree] = normal_noise,
) -> Step:
    """Make the step of a rule from (weights, k) -> loss and gradient.

    Args:
        key: random key of the starting weights, for the noise of the rule if it has noise.
        groups: the groups of weights, if the rule has rates by group.
        also: names in `NORMS` that the step returns in addition to the loss.
        normal: (key, step, gradient) -> standard normal numbers for the noise.
    """
    key_noise = None
    if rule.noise is not None:
        assert key is not None
        key_noise = noise_key(key)

    def step(params: PyTree, memory: PyTree, k: Int[Array, "*B"]) -> tuple[PyTree, PyTree, Rows]:
        loss, grads = gradient(params, k)
        noise = None if key_noise is None else normal(key_noise, k, grads)
        update, memory = rule.update(grads, memory, params, k, noise, groups)
        vectors: dict[str, PyTree] = dict(zip(NORMS, (grads, update), strict=True))
        numbers = {"batch_loss": loss, **{name: norm(vectors[name]) for name in also}}
        return optax.apply_updates(params, update), memory, numbers

    return step


def train(
    params: PyTree,
    memory: PyTree,
    step: Step,
    observe: Observe,
    times: Int[Array, " S"],
    *,
    steps: int | None,
    segments: Segments | None = None,
    steps_per_check: int = 1,
    limit: Real[Number, ""] | None,
    dtype: DType,
    relative: bool = False,
    also: tuple[str, ...] = (),
    seen: PyTree = (),
    batch: tuple[int, ...] = (),
    checkpoint: Checkpoint | None = None,
) -> Trajectory:
    """Train `params`; call it inside the traced function.

    Args:
        memory: state of the update rule at the start.
        times: (S,) whole steps at which to record, increasing, >= 0.
        steps: length of the run, as one `lax.scan`, which can be differentiated in both modes. None
            runs up to the last of `times`, which may be traced, so that a grid over the number of
            steps shares one program; then only forward-mode differentiation works.
        segments: for an accelerator, the result of `segments_of` for concrete times; None checks at
            every step whether to record.
        steps_per_check: without `steps`, number of steps between two checks for the end. Up to this
            many steps are wasted for each record.
        limit: loss above which a run counts as diverged. None, for steps without a loss, checks the
            weights at every step.
        relative: whether to record the relative loss; the last of `times` must then be `steps`.
        also: names of the numbers that `step` returns in addition to the loss.
        seen: the value that the first record receives as passed on by a previous one.
        batch: trailing shape *B of all weights and losses, for runs that advance together in
            that layout.
        checkpoint: checkpoint from which the run begins, instead of from step 0; the run then
            returns another one. If it has a state, that replaces `params`, `memory` and `seen`.
            Without `steps` the caller has to set the step of the returned one.
    Returns:
        A `Trajectory` whose observables have the shape (S, ..., *B). `batch_loss`, included unless
        steps have no loss, is the loss on the batch of the *next* step. Status and first bad step
        have shape *B; `dynsim.train` documents them.
    """
    if relative and limit is None:
        raise ValueError("relative = True: needs steps with a loss")

    def advance(state: State, k: Int[Array, ""]) -> tuple[State, Rows | None]:
        params, memory, numbers = step(state.params, state.memory, k)
        if numbers is not None and not isinstance(numbers, dict):
            numbers = {"batch_loss": numbers}
        loss = None if numbers is None else numbers["batch_loss"]
        # A loss above the limit, or NaN, shows as soon as a batch has it; without a loss only the
        # weights can tell.
        valid = _finite(state.params, batch) if loss is None or limit is None else loss <= limit
        sums = state.sums
        if sums is not None and loss is not None:
            # A selection rather than a product with 0, because the loss may be infinite. The step
            # k = `end` is not made, only measured.
            late = (k >= end - LAST) & (k < end)
            sums = LossSums(
                jnp.where(k == 0, loss, sums.first),
                sums.last + jnp.where(late, loss, jnp.zeros_like(loss)),
            )
        return State(params, memory, _first_bad(state, k, valid), sums), numbers

    def record(
        state: State, k: Int[Array, ""], seen: PyTree, numbers: Rows | None
    ) -> tuple[Rows, PyTree]:
        values, seen = observe(state.params, state.memory, k, seen)
        return {**values, **(numbers or {})}, seen

    def judge(state: State, k: Int[Array, ""], numbers: Rows | None) -> State:
        if numbers is None or limit is None:
            return state
        return state._replace(first_bad=_first_bad(state, k, numbers["batch_loss"] <= limit))

    end = times[-1] if steps is None else steps
    sums = LossSums(jnp.zeros(batch, dtype), jnp.zeros(batch, dtype)) if relative else None
    start = State(params, memory, jnp.full(batch, -1, jnp.int32), sums)
    begin = 0
    if checkpoint is not None:
        begin, start, seen = restore(checkpoint, start, seen)
    loop = LoopSpec(advance, record, judge, times, begin, checkpoint is not None)
    if steps is None:
        state, seen, rows = from_record_to_record(loop, start, seen, steps_per_check)
    else:
        # The shapes of a record, without a call of the step.
        names = () if limit is None else ("batch_loss", *also)
        numbers = {name: jnp.zeros(batch, dtype) for name in names} or None
        rows = jax.eval_shape(record, start, jnp.int32(0), seen, numbers)[0]
        rows = jax.tree.map(lambda s: jnp.zeros((*times.shape, *s.shape), s.dtype), rows)
        if segments is None:
            state, seen, rows = at_every_step(loop, start, seen, rows, steps)
        else:
            state, seen, rows = in_segments(loop, start, seen, rows, steps, segments)
    if state.sums is not None:
        rows[RELATIVE_LOSS] = relative_loss(state.sums, times, end)
    # Non-finite weights show up in the loss as soon as a batch attends to them. Checking all of
    # them at every step would cost almost as much as the update.
    bad = (state.first_bad < 0) & ~_finite(state.params, batch)
    first_bad = jnp.where(bad, end, state.first_bad)
    status = jnp.where(first_bad < 0, Status.OK, Status.DIVERGED).astype(jnp.int32)
    run = Trajectory(times.astype(dtype), rows, state.params, status, first_bad, "simulation")
    if checkpoint is None:
        return run
    return dataclasses.replace(run, checkpoint=Checkpoint(steps or 0, state, seen))


def _first_bad(state: State, k: Int[Number, ""], valid: Bool[Array, "*B"]) -> Int[Array, "*B"]:
    # Comparisons with NaN are false, so NaN counts as invalid.
    return jnp.where(valid, -1, jnp.where(state.first_bad < 0, k, state.first_bad))


def _finite(params: PyTree, batch: tuple[int, ...]) -> Bool[Array, "*B"]:
    finite = [
        jnp.all(jnp.isfinite(leaf), axis=tuple(range(leaf.ndim - len(batch))))
        for leaf in jax.tree.leaves(params)
    ]
    return jnp.stack(finite).all(axis=0)
