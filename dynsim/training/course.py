"""The steps of a training run, the records between them, and its checkpoint. A run of 1000 steps,
resumed for 1000 more, gives exactly the numbers of a run of 2000 steps.

There are three loops with equal results. On a CPU, checking at every step whether to record costs
nothing, but an accelerator has to wait for its host: there `in_legs` makes many steps between two
checks. `from_record_to_record` does not need to know the number of steps before it runs.

`checked_times` and `check_rule` check what every training run requires of its times and its rule.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, UInt8

from dynsim import checks, numeric
from dynsim.precision import AnyArray, on_cpu
from dynsim.training.recording import RELATIVE_LOSS, Recording
from dynsim.trajectory import Times, log_times


class Checkpoint(eqx.Module):
    """The state of a training run between two steps.

    Attributes:
        step: number of steps made.
        state: weights and state of the update rule, as the loop stores them; None before the first
            step.
        seen: the value that the last record passed on to the next one.
    """

    step: int = eqx.field(static=True, default=0)
    state: PyTree = None
    seen: PyTree = ()


def checked_start(checkpoint: Checkpoint | bool) -> Checkpoint | None:
    """Return the checkpoint to start from, or None for a run that keeps no checkpoint.

    Raises:
        ValueError: for anything but True, False or a `Checkpoint`.
    """
    if isinstance(checkpoint, bool):
        return Checkpoint() if checkpoint else None
    checks.kind("checkpoint", checkpoint, Checkpoint)
    return checkpoint


def begun(checkpoint: Checkpoint, state: PyTree, seen: PyTree) -> tuple[int, PyTree, PyTree]:
    """Return the step, the state and the last record's value from which a run begins; without a
    checkpointed state, `state` and `seen`.

    Raises:
        ValueError: for a checkpoint of a run whose state has other parts, shapes or dtypes.
    """
    if checkpoint.state is None:
        return checkpoint.step, state, seen
    want, found = _parts(state, seen), _parts(checkpoint.state, checkpoint.seen)
    if want != found:
        name = next(name for name in {**want, **found} if want.get(name) != found.get(name))
        raise ValueError(
            "checkpoint: must be of a run of the same task, rule, dtype and record; "
            f"{name} is {want.get(name, 'missing')} in this run and "
            f"{found.get(name, 'missing')} there"
        )
    return checkpoint.step, checkpoint.state, checkpoint.seen


def _parts(state: PyTree, seen: PyTree) -> dict[str, str]:
    leaves = jax.tree.leaves_with_path({"state": state, "seen": seen})
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    shapes = (f"{jnp.result_type(leaf)}{list(np.shape(leaf))}" for _, leaf in leaves)
    return dict(zip(names, shapes, strict=True))


def packed(checkpoint: Checkpoint) -> UInt8[Array, " N"]:
    """Return the state and the last record's value of a checkpoint as bytes, without rounding."""
    leaves = map(_data, jax.tree.leaves((checkpoint.state, checkpoint.seen)))
    return jnp.concatenate([leaf.ravel().view(jnp.uint8) for leaf in leaves])


def unpacked(state: UInt8[Array, " N"], like: Checkpoint, step: int) -> Checkpoint:
    """Restore the checkpoint after `step` steps from its bytes, which other bytes may follow.
    `like` has the shapes and dtypes of its state."""
    leaves, structure = jax.tree.flatten((like.state, like.seen))
    found: list[Array] = []
    begin = 0
    for leaf in leaves:
        empty = jnp.empty(leaf.shape, leaf.dtype)
        data = _data(empty)
        end = begin + data.nbytes
        made = state[begin:end].view(data.dtype).reshape(data.shape)
        if data is not empty:
            made = jax.random.wrap_key_data(made, impl=jax.random.key_impl(empty))
        found.append(made)
        begin = end
    return Checkpoint(step, *jax.tree.unflatten(structure, found))


def _data(leaf: Array) -> Array:
    """Return an array, or the numbers of random keys."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


Rows = dict[str, Array]


class Course(NamedTuple):
    """Everything that a training loop needs.

    Attributes:
        advance: (state, k) -> the state after step k, and the values found on the way, its
            `batch_loss` first.
        record: (state, k, value passed on by the previous record, values found in step k) ->
            quantities to record, value to pass on.
        judge: (state, k, values found in step k) -> the state before step k, marked as valid or
            not according to the loss.
        times: (S,) whole steps at which to record, increasing, >= `begin`.
        begin: number of steps already made.
        goes_on: whether another loop may continue from the final state, which must then be
            complete, not only the weights.
    """

    advance: Callable[[PyTree, Int[Array, ""]], tuple[PyTree, Rows | None]]
    record: Callable[[PyTree, Int[Array, ""], PyTree, Rows | None], tuple[Rows, PyTree]]
    judge: Callable[[PyTree, Int[Array, ""], Rows | None], PyTree]
    times: Int[Array, " S"]
    begin: int = 0
    goes_on: bool = False

    def ahead(self, state: PyTree, k: Int[Array, ""]) -> Rows | None:
        """Return the values found in the next step; the compiler drops its update."""
        return self.advance(state, k)[1]


class Legs(NamedTuple):
    """A run divided into `number` segments of `length` steps each; the last one before a record may
    be shorter. `start`: whether there is a record before the first segment."""

    number: int
    length: int
    start: bool = False


UNASKED = 8
"""Steps between two checks on an accelerator, in `from_record_to_record`."""
QUESTION = 4
"""Cost on an accelerator of checking once whether to record, in steps of the layer."""


def legs_of(times: Times, steps: int, checkpoint: Checkpoint | None = None) -> Legs | None:
    """Return the cheapest segments for records at `times` of a run up to `steps`, from its
    checkpoint if it has one; steps beyond the end of a short segment are computed but discarded.
    None for traced times, and for runs on a CPU."""
    if on_cpu() or checks.is_traced(times):
        return None
    ends, begin = np.asarray(times), checkpoint.step if checkpoint else 0
    start = bool(ends[0] == begin)
    gaps = np.diff([begin, *ends, steps])
    powers = 2 ** np.arange(int(gaps.max()).bit_length())

    def legs(length: int) -> Legs:
        return Legs(int(np.sum(-(-gaps // length))), length, start)

    def cost(legs: Legs) -> int:
        questions = legs.number if legs.number > len(ends) - start else 0
        return legs.number * legs.length + QUESTION * questions

    lengths = {int(length) for length in (*gaps, *powers) if length > 0}
    return min(map(legs, sorted(lengths)), key=cost)


def at_every_step(
    course: Course, state: PyTree, seen: PyTree, rows: Rows, steps: int
) -> tuple[PyTree, PyTree, Rows]:
    """Run one scan over all steps. It makes one more turn than there are updates, to judge and
    record the last state. The records are written into `rows`."""
    times = course.times

    def turn(carry, k):  # type: ignore[no-untyped-def]
        before, seen, slot, rows = carry
        after, loss = course.advance(before, k)
        # `due` does not depend on batched values, so under vmap this stays a branch and the
        # observables cost nothing on the steps in between.
        at = jnp.minimum(slot, len(times) - 1)
        due = times[at] == k

        def record() -> tuple[Rows, PyTree]:
            row, found = course.record(before, k, seen, loss)
            for name, value in row.items():
                if jnp.shape(value) != rows[name].shape[1:]:
                    raise ValueError(
                        f"record = {name!r}: must return arrays of one shape, returned "
                        f"{rows[name].shape[1:]} and {jnp.shape(value)}"
                    )
            return row, found

        row, seen = jax.lax.cond(
            due,
            record,
            lambda: (jax.tree.map(lambda column: column[at], rows), seen),
        )
        rows = jax.tree.map(lambda column, value: column.at[at].set(value), rows, row)

        def keep(after: PyTree, before: PyTree) -> PyTree:
            return jax.tree.map(lambda new, old: jnp.where(k < steps, new, old), after, before)

        after = after._replace(params=keep(after.params, before.params))
        if course.goes_on:
            after = after._replace(memory=keep(after.memory, before.memory))
        return (after, seen, slot + due, rows), None

    turns = jnp.arange(course.begin, steps + 1, dtype=jnp.int32)
    (state, seen, _, rows), _ = jax.lax.scan(turn, (state, seen, jnp.int32(0), rows), turns)
    return state, seen, rows


def in_legs(
    course: Course, state: PyTree, seen: PyTree, rows: Rows, steps: int, legs: Legs
) -> tuple[PyTree, PyTree, Rows]:
    """Run a scan over segments of a scan over steps. Records are made at the ends of segments; if
    every segment ends with a record, no check is needed."""

    def advance(state: PyTree, k: Int[Array, ""]) -> PyTree:
        return course.advance(state, k)[0]

    def leg(carry, piece):  # type: ignore[no-untyped-def]
        state, seen, rows = carry
        state = _up_to(piece.until - 1, advance, state, piece.begin, legs.length)

        at = piece.until, piece.slot
        if legs.number == len(course.times) - legs.start:
            return (state, *write(state, seen, rows, *at)), None
        seen, rows = jax.lax.cond(
            piece.due, write, lambda _, seen, rows, *at: (seen, rows), state, seen, rows, *at
        )
        return (state, seen, rows), None

    def write(
        state: PyTree, seen: PyTree, rows: Rows, k: Int[Array, ""], slot: Int[Array, ""]
    ) -> tuple[PyTree, Rows]:
        row, seen = course.record(state, k, seen, course.ahead(state, k))
        return seen, jax.tree.map(lambda column, value: column.at[slot].set(value), rows, row)

    if legs.start:
        seen, rows = write(state, seen, rows, jnp.int32(course.begin), jnp.int32(0))
    pieces = _pieces(course, steps, legs)
    (state, seen, rows), _ = jax.lax.scan(leg, (state, seen, rows), pieces)
    end = jnp.int32(steps)
    return course.judge(state, end, course.ahead(state, end)), seen, rows


def from_record_to_record(
    course: Course, state: PyTree, seen: PyTree, length: int
) -> tuple[PyTree, PyTree, Rows]:
    """Scan over the records, with an inner loop over segments of `length` steps. A loop of unknown
    length supports forward-mode differentiation only. The loop makes one step beyond each record,
    because the record needs what that step finds, and keeps the state before it: a separate copy of
    the step for records would have to be compiled and executed as well."""

    def turn(passed: _StepOutcome, k: Int[Array, ""]) -> _StepOutcome:
        after, found = course.advance(passed.after, k)
        return _StepOutcome(passed.after, found, after)

    def stretch(carry, until):  # type: ignore[no-untyped-def]
        passed, seen, now = carry

        def leg(i: Int[Array, ""], passed: _StepOutcome) -> _StepOutcome:
            if length == 1:
                return turn(passed, now + i)
            return _up_to(until, turn, passed, now + i * length, length)

        passed = jax.lax.fori_loop(0, -((now - until - 1) // length), leg, passed)
        row, seen = course.record(passed.before, until, seen, passed.found)
        return (passed, seen, until + 1), row

    begin = jnp.int32(course.begin)
    found = jax.eval_shape(course.ahead, state, begin)
    none = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), found)
    start = (_StepOutcome(state, none, state), seen, begin)
    (passed, seen, _), rows = jax.lax.scan(stretch, start, course.times)
    return passed.before._replace(first_bad=passed.after.first_bad), seen, rows


class _StepOutcome(NamedTuple):
    """The states before and after a step, and the values found in it."""

    before: PyTree
    found: Rows | None
    after: PyTree


def _up_to(
    last: Int[Array, ""],
    turn: Callable[[PyTree, Int[Array, ""]], PyTree],
    state: PyTree,
    begin: Int[Array, ""],
    length: int,
) -> PyTree:
    """Apply `turn` to a state for `length` steps; those after step `last` have no effect."""

    def kept(state: PyTree, k: Int[Array, ""]) -> tuple[PyTree, None]:
        made = turn(state, k)
        return jax.tree.map(lambda new, old: jnp.where(k <= last, new, old), made, state), None

    return jax.lax.scan(kept, state, begin + jnp.arange(length, dtype=jnp.int32))[0]


class _Piece(NamedTuple):
    """Segments from step `begin` to step `until`; if `due`, record number `slot` is made there."""

    begin: Int[AnyArray, " N"]
    until: Int[AnyArray, " N"]
    slot: Int[AnyArray, " N"]
    due: Bool[AnyArray, " N"]


def _pieces(course: Course, steps: int, legs: Legs) -> _Piece:
    """Return all segments, including those after the last record."""
    times = course.times
    ends = jnp.append(times, jnp.int32(steps))
    begins = jnp.concatenate([jnp.full(1, course.begin, ends.dtype), times])
    needed = -((begins - ends) // legs.length)
    after = jnp.cumsum(needed)
    leg = jnp.arange(legs.number, dtype=ends.dtype)
    slot = jnp.searchsorted(after, leg, side="right")
    place = leg - (after - needed)[slot]
    begin = begins[slot] + place * legs.length
    until = jnp.minimum(begin + legs.length, ends[slot])
    due = (place == needed[slot] - 1) & (slot < len(times))
    return _Piece(begin, until, slot, due)


def checked_times(
    times: Times | None, steps: int | None, record: Recording, checkpoint: Checkpoint | None = None
) -> Times:
    """Return the steps at which a run of `steps` steps records, by default `log_times(steps)`; with
    a checkpoint only those after it. Without `steps` the run ends at the last of `times`.

    Raises:
        ValueError: as `check_step_times`; for `steps` or `times` that do not lie after the
            checkpoint; and for the relative loss, which is known only at the end, if `times` do not
            include the end or the run has a checkpoint.
    """
    begin = 0 if checkpoint is None else checkpoint.step
    if steps is None:
        traced = times is None or checks.is_traced(times)
        steps = 0 if traced else int(np.max(numeric.plain("times", times), initial=0))
    if checkpoint is not None and steps <= begin:
        raise ValueError(f"steps = {steps}: must be larger than step {begin} of the checkpoint")
    if times is None:
        times = log_times(steps)
        times = times[times > begin] if begin else times
    check_step_times(times, steps)
    if begin and not checks.is_traced(times) and np.asarray(times)[0] <= begin:
        raise ValueError(f"times = {times!r}: must be after step {begin} of the checkpoint")
    if record.relative and checkpoint is not None:
        raise ValueError(
            f"record = {RELATIVE_LOSS!r}: is measured over the last steps of a run, which "
            "change when the run resumes; omit it or the checkpoint"
        )
    if record.relative and not checks.is_traced(times) and np.asarray(times)[-1] != steps:
        raise ValueError(
            f"record = {RELATIVE_LOSS!r}: is known at the end of a run, so times must include "
            f"steps = {steps}; they end at {np.asarray(times)[-1]}"
        )
    return times


def whole_steps(times: Times) -> tuple[int, ...]:
    """Return concrete times as integers, for programs that need them when they are traced.

    Raises:
        ValueError: for traced times, and unless they are whole steps that increase from >= 0.
    """
    if checks.is_traced(times):
        raise ValueError("times: must be concrete, because they determine the computation")
    steps = numeric.plain("times", times)
    check_step_times(times, int(steps[-1]) if steps.ndim == 1 and steps.size else 0)
    return tuple(int(step) for step in steps)


def check_step_times(times: Times, steps: int) -> None:
    """Raise `ValueError` unless `times` are whole steps that increase within [0, steps]."""
    if checks.is_traced(times):
        return
    array = numeric.plain("times", times)
    real = array.dtype.kind in "iuf"
    if array.ndim != 1 or array.size == 0 or not real or (array != np.floor(array)).any():
        raise ValueError(f"times = {times!r}: must be a non-empty list of whole steps")
    if array[0] < 0 or array[-1] > steps or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must increase within [0, steps = {steps}]")


def check_rule(rule: Any, steps: int, resumable: bool) -> None:
    """Raise `ValueError` if a schedule ends after the run, unless the run can be resumed."""
    for group, each in rule.schedules.items():
        length = each.length
        if resumable or checks.is_traced(length) or np.max(length) <= steps:
            continue
        name = f"eta[{group!r}]" if group else "eta"
        raise ValueError(
            f"{name}: its schedule has {np.max(length):g} steps, but the run has steps = {steps}; "
            "shorten it, or set checkpoint = True for a run that is to be resumed"
        )
