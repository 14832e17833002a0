"""The course of a training: which steps follow each other, where it records between them, and the
checkpoint that it leaves. 1000 steps, and 1000 more from their checkpoint, are the run of 2000
steps, number by number.

All of these do the same. To ask at every step whether to record costs a CPU nothing, but an
accelerator waits for its host to answer: there `in_legs` makes many steps from one question to the
next. `from_record_to_record` need not know the number of steps before it runs.

`checked_times` and `check_rule` are what every training requires of the times at which it records,
and of its rule.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, UInt8

from dynsim import checks
from dynsim.precision import AnyArray, on_cpu
from dynsim.training.recording import RELATIVE_LOSS, Recording
from dynsim.trajectory import Times, log_times


class Checkpoint(eqx.Module):
    """A training between two steps.

    Attributes:
        step: how many steps it has made.
        state: weights and memory of the update rule, in the form in which the loop has them; None
            before the first step.
        seen: what its last record handed on.
    """

    step: int = eqx.field(static=True, default=0)
    state: PyTree = None
    seen: PyTree = ()


def checked_start(checkpoint: Checkpoint | bool) -> Checkpoint | None:
    """Where a run begins, None for one that leaves no checkpoint.

    Raises:
        ValueError: for what is neither True, nor False, nor a `Checkpoint`.
    """
    if isinstance(checkpoint, bool):
        return Checkpoint() if checkpoint else None
    checks.kind("checkpoint", checkpoint, Checkpoint)
    return checkpoint


def begun(checkpoint: Checkpoint, state: PyTree, seen: PyTree) -> tuple[int, PyTree, PyTree]:
    """Step, state and what the last record handed on, with which a run begins that would begin
    with `state` and `seen` otherwise.

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
    """The state as bytes, in which nothing is rounded, whatever the system."""
    leaves = jax.tree.leaves((checkpoint.state, checkpoint.seen))
    return jnp.concatenate([jax.lax.bitcast_convert_type(x, jnp.uint8).ravel() for x in leaves])


def unpacked(state: UInt8[Array, " N"], like: Checkpoint, step: int) -> Checkpoint:
    """The checkpoint after `step` steps from its bytes, which may be followed by others; `like`
    has the shapes and dtypes of its state."""
    leaves, structure = jax.tree.flatten((like.state, like.seen))
    found: list[Array] = []
    begin = 0
    for leaf in leaves:
        width = np.dtype(leaf.dtype).itemsize
        end = begin + math.prod(leaf.shape) * width
        raw = state[begin:end].reshape(*leaf.shape, width)
        found.append(jax.lax.bitcast_convert_type(raw, leaf.dtype))
        begin = end
    return Checkpoint(step, *jax.tree.unflatten(structure, found))


Rows = dict[str, Array]


class Course(NamedTuple):
    """What a training does.

    Attributes:
        advance: (state, k) -> the state after step k, and what was found before it, its
            `batch_loss` first.
        record: (state, k, what the record before handed on, what was found before step k) -> what
            to record, what to hand on.
        judge: (state, k, what was found) -> the state as it stands before step k, by its loss.
        times: (S,) whole steps at which to record, increasing, >= `begin`.
        begin: how many steps were made before.
        goes_on: whether the state at the end must be whole, so that another course can begin with
            it, and not the weights alone.
    """

    advance: Callable[[PyTree, Int[Array, ""]], tuple[PyTree, Rows | None]]
    record: Callable[[PyTree, Int[Array, ""], PyTree, Rows | None], tuple[Rows, PyTree]]
    judge: Callable[[PyTree, Int[Array, ""], Rows | None], PyTree]
    times: Int[Array, " S"]
    begin: int = 0
    goes_on: bool = False

    def ahead(self, state: PyTree, k: Int[Array, ""]) -> Rows | None:
        """What is found in the step that comes next; the compiler drops its update."""
        return self.advance(state, k)[1]


class Legs(NamedTuple):
    """A course in so many legs of so many steps each, of which the last before a record may be
    shorter; and whether there is a record at the `start`, before them."""

    number: int
    length: int
    start: bool = False


UNASKED = 8
"""Steps that an accelerator makes without asking its host, where it goes from record to record."""
QUESTION = 4
"""What it costs an accelerator to ask whether to record, in steps of the layer."""


def legs_of(times: Times, steps: int, checkpoint: Checkpoint | None = None) -> Legs | None:
    """The legs that cost least for records at `times` of a run up to `steps`, from its checkpoint
    if it has one: steps that legs are short of are computed all the same. None for traced times,
    and where a CPU will run it."""
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
    """One scan over all steps. It makes one turn more than there are updates, to judge and record
    the last state; `rows` is what the records are written into."""
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
    """A scan over legs of a scan over the steps of a leg. After the last leg before a record there
    is one; where that is each of them, nothing is asked."""

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
    """A scan over the records of a loop over legs of `length` steps; a loop that does not know its
    length can only be differentiated forwards. It passes each record by one step, for what that
    finds, and keeps the state before: another copy of the step for the records alone would have to
    be compiled, and made once more."""

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
    """The states around a step, and what was found in it."""

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
    """What `turn` makes of a state in `length` steps, those behind the `last` without effect."""

    def kept(state: PyTree, k: Int[Array, ""]) -> tuple[PyTree, None]:
        made = turn(state, k)
        return jax.tree.map(lambda new, old: jnp.where(k <= last, new, old), made, state), None

    return jax.lax.scan(kept, state, begin + jnp.arange(length, dtype=jnp.int32))[0]


class _Piece(NamedTuple):
    """Legs from the step `begin` to the step `until`, and whether a record, number `slot`, is `due`
    there."""

    begin: Int[AnyArray, " N"]
    until: Int[AnyArray, " N"]
    slot: Int[AnyArray, " N"]
    due: Bool[AnyArray, " N"]


def _pieces(course: Course, steps: int, legs: Legs) -> _Piece:
    """All legs, those after the last record among them."""
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
    """The steps at which a run of `steps` steps records, `log_times(steps)` if None are given; of
    one that goes on from a checkpoint, those after it. Without `steps` the last one is the end.

    Raises:
        ValueError: as `check_step_times`; for `steps` or `times` that do not lie after the
            checkpoint; and where `record` has the relative loss, which is known at the end alone,
            and `times` leave out the end, or the run is to go on.
    """
    begin = 0 if checkpoint is None else checkpoint.step
    if steps is None:
        traced = times is None or checks.is_traced(times)
        steps = 0 if traced else int(np.max(np.asarray(times), initial=0))
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
    """Concrete times as integers, for what has to know its steps when it is traced.

    Raises:
        ValueError: for traced times, and unless they are whole steps that increase from >= 0.
    """
    if checks.is_traced(times):
        raise ValueError("times: must be concrete, because they determine the computation")
    steps = np.asarray(times)
    check_step_times(times, int(steps[-1]) if steps.ndim == 1 and steps.size else 0)
    return tuple(int(step) for step in steps)


def check_step_times(times: Times, steps: int) -> None:
    """Raise `ValueError` unless `times` are whole steps that increase within [0, steps]."""
    if checks.is_traced(times):
        return
    array = np.asarray(times)
    if array.ndim != 1 or array.size == 0 or not (array == np.floor(array)).all():
        raise ValueError(f"times = {times!r}: must be a non-empty list of whole steps")
    if array[0] < 0 or array[-1] > steps or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must increase within [0, steps = {steps}]")


def check_rule(rule: Any, steps: int, resumable: bool) -> None:
    """Raise `ValueError` for a schedule that ends after the run, unless that can be resumed."""
    for group, each in rule.schedules.items():
        length = each.length
        if resumable or checks.is_traced(length) or np.max(length) <= steps:
            continue
        name = f"eta[{group!r}]" if group else "eta"
        raise ValueError(
            f"{name}: its schedule has {np.max(length):g} steps, but the run has steps = {steps}; "
            "shorten it, or set checkpoint = True for a run that is to be resumed"
        )
