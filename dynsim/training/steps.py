"""The steps of a training run, and the records between them.

There are three loops with equal results. On a CPU, checking at every step whether to record costs
nothing, but an accelerator has to wait for its host: there `in_segments` makes many steps between
two checks. `from_record_to_record` does not need to know the number of steps before it runs.

`checked_times` and `check_rule` check what every training run requires of its times and its rule.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from dynsim import checks, numeric
from dynsim.precision import on_cpu
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.recording import RELATIVE_LOSS, Recording
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, log_times

Rows = dict[str, Array]


class LoopSpec(NamedTuple):
    """A training loop: its functions, and the steps at which it records.

    Attributes:
        advance: (state, k) -> the state after step k, and the numbers of that step, its
            `batch_loss` first.
        record: (state, k, value passed on by the previous record, numbers of step k) ->
            quantities to record, value to pass on.
        judge: (state, k, numbers of step k) -> the state before step k, marked as valid or not
            according to the loss.
        times: (S,) whole steps at which to record, increasing, >= `begin`.
        begin: number of steps already made.
        resumable: whether another loop may continue from the final state, which must then be
            complete, not only the weights.
    """

    advance: Callable[[PyTree, Int[Array, ""]], tuple[PyTree, Rows | None]]
    record: Callable[[PyTree, Int[Array, ""], PyTree, Rows | None], tuple[Rows, PyTree]]
    judge: Callable[[PyTree, Int[Array, ""], Rows | None], PyTree]
    times: Int[Array, " S"]
    begin: int = 0
    resumable: bool = False

    def ahead(self, state: PyTree, k: Int[Array, ""]) -> Rows | None:
        """Return the numbers of the next step; the compiler drops its update."""
        return self.advance(state, k)[1]


class Segments(NamedTuple):
    """A run divided into `number` segments of `length` steps each; the last one before a record may
    be shorter. `start`: whether there is a record before the first segment."""

    number: int
    length: int
    start: bool = False


STEPS_PER_CHECK = 8
"""Steps between two checks on an accelerator, in `from_record_to_record`."""
CHECK_COST = 4
"""Cost on an accelerator of checking once whether to record, in steps of the layer."""


def segments_of(times: Times, steps: int, checkpoint: Checkpoint | None = None) -> Segments | None:
    """Return the cheapest segments for records at `times` of a run up to `steps`, from its
    checkpoint if it has one; steps beyond the end of a short segment are computed but discarded.
    None for traced times, and for runs on a CPU."""
    if on_cpu() or checks.is_traced(times):
        return None
    ends, begin = np.asarray(times), checkpoint.step if checkpoint else 0
    start = bool(ends[0] == begin)
    gaps = np.diff([begin, *ends, steps])
    powers = 2 ** np.arange(int(gaps.max()).bit_length())

    def cost(segments: Segments) -> int:
        # If every segment ends with a record, nothing has to be checked.
        number_of_checks = segments.number if segments.number > len(ends) - start else 0
        return segments.number * segments.length + CHECK_COST * number_of_checks

    # A segment as long as a gap wastes nothing on it; powers of two stand for all other lengths.
    lengths = sorted({int(length) for length in (*gaps, *powers) if length > 0})
    # -(-a // b) is a / b, rounded up.
    choices = [Segments(int(np.sum(-(-gaps // length))), length, start) for length in lengths]
    return min(choices, key=cost)


def at_every_step(
    loop: LoopSpec, state: PyTree, seen: PyTree, rows: Rows, steps: int
) -> tuple[PyTree, PyTree, Rows]:
    """Run one scan over all steps. It makes one more turn than there are updates, to judge and
    record the last state. The records are written into `rows`."""
    times = loop.times

    def turn(carry, k):  # type: ignore[no-untyped-def]
        before, seen, slot, rows = carry
        after, numbers = loop.advance(before, k)
        # After the last record `slot` is the number of records; then nothing is due.
        at = jnp.minimum(slot, len(times) - 1)
        # `due` does not depend on batched values, so under vmap this stays a branch and the
        # observables cost nothing on the steps in between.
        due = times[at] == k

        def record() -> tuple[Rows, PyTree]:
            row, passed_on = loop.record(before, k, seen, numbers)
            for name, value in row.items():
                if jnp.shape(value) != rows[name].shape[1:]:
                    raise ValueError(
                        f"record = {name!r}: must return arrays of one shape, returned "
                        f"{rows[name].shape[1:]} and {jnp.shape(value)}"
                    )
            return row, passed_on

        row, seen = jax.lax.cond(
            due,
            record,
            # Both branches return a row, this one the row that is there.
            lambda: (jax.tree.map(lambda column: column[at], rows), seen),
        )
        rows = jax.tree.map(lambda column, value: column.at[at].set(value), rows, row)

        # The turn after the last update judges and records, and must not move the weights.
        def undo_last(after: PyTree, before: PyTree) -> PyTree:
            return jax.tree.map(lambda new, old: jnp.where(k < steps, new, old), after, before)

        after = after._replace(params=undo_last(after.params, before.params))
        if loop.resumable:
            after = after._replace(memory=undo_last(after.memory, before.memory))
        return (after, seen, slot + due, rows), None

    turns = jnp.arange(loop.begin, steps + 1, dtype=jnp.int32)
    (state, seen, _, rows), _ = jax.lax.scan(turn, (state, seen, jnp.int32(0), rows), turns)
    return state, seen, rows


def in_segments(
    loop: LoopSpec, state: PyTree, seen: PyTree, rows: Rows, steps: int, segments: Segments
) -> tuple[PyTree, PyTree, Rows]:
    """Run a scan over segments of a scan over steps. Records are made at the ends of segments; if
    every segment ends with a record, no check is needed."""
    number, length, start = segments

    def advance(state: PyTree, k: Int[Array, ""]) -> PyTree:
        return loop.advance(state, k)[0]

    def segment(carry, bounds):  # type: ignore[no-untyped-def]
        state, seen, rows = carry
        begin, until, slot, due = bounds
        state = _up_to(until - 1, advance, state, begin, length)

        at = until, slot
        if number == len(loop.times) - start:
            return (state, *write(state, seen, rows, *at)), None
        seen, rows = jax.lax.cond(
            due, write, lambda _, seen, rows, *at: (seen, rows), state, seen, rows, *at
        )
        return (state, seen, rows), None

    def write(
        state: PyTree, seen: PyTree, rows: Rows, k: Int[Array, ""], slot: Int[Array, ""]
    ) -> tuple[PyTree, Rows]:
        row, seen = loop.record(state, k, seen, loop.ahead(state, k))
        return seen, jax.tree.map(lambda column, value: column.at[slot].set(value), rows, row)

    if start:
        seen, rows = write(state, seen, rows, jnp.int32(loop.begin), jnp.int32(0))

    # Records cut the run into stretches, the last one up to its end. Each stretch needs its length
    # over `length` segments, rounded up; segment i is number `place` of the stretch number `slot`.
    times = loop.times
    ends = jnp.append(times, jnp.int32(steps))
    begins = jnp.concatenate([jnp.full(1, loop.begin, ends.dtype), times])
    needed = -((begins - ends) // length)
    after = jnp.cumsum(needed)
    index = jnp.arange(number, dtype=ends.dtype)
    slot = jnp.searchsorted(after, index, side="right")
    place = index - (after - needed)[slot]
    begin = begins[slot] + place * length
    until = jnp.minimum(begin + length, ends[slot])
    due = (place == needed[slot] - 1) & (slot < len(times))

    (state, seen, rows), _ = jax.lax.scan(segment, (state, seen, rows), (begin, until, slot, due))
    end = jnp.int32(steps)
    return loop.judge(state, end, loop.ahead(state, end)), seen, rows


def from_record_to_record(
    loop: LoopSpec, state: PyTree, seen: PyTree, length: int
) -> tuple[PyTree, PyTree, Rows]:
    """Scan over the records, with an inner loop over segments of `length` steps. A loop of unknown
    length supports forward-mode differentiation only. The loop makes one step beyond each record,
    because the record needs the numbers of that step, and keeps the state before it: a separate
    copy of the step for records would have to be compiled and executed as well."""

    def turn(outcome: _StepOutcome, k: Int[Array, ""]) -> _StepOutcome:
        after, numbers = loop.advance(outcome.after, k)
        return _StepOutcome(outcome.after, numbers, after)

    def up_to_record(carry, until):  # type: ignore[no-untyped-def]
        outcome, seen, now = carry

        def segment(i: Int[Array, ""], outcome: _StepOutcome) -> _StepOutcome:
            if length == 1:
                return turn(outcome, now + i)
            return _up_to(until, turn, outcome, now + i * length, length)

        # From step `now` up to and including step `until`, whose numbers the record needs.
        outcome = jax.lax.fori_loop(0, -((now - until - 1) // length), segment, outcome)
        row, seen = loop.record(outcome.before, until, seen, outcome.numbers)
        return (outcome, seen, until + 1), row

    begin = jnp.int32(loop.begin)
    shapes = jax.eval_shape(loop.ahead, state, begin)
    none = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    start = (_StepOutcome(state, none, state), seen, begin)
    (outcome, seen, _), rows = jax.lax.scan(up_to_record, start, loop.times)
    return outcome.before._replace(first_bad=outcome.after.first_bad), seen, rows


class _StepOutcome(NamedTuple):
    """The states before and after a step, and its numbers, such as the loss."""

    before: PyTree
    numbers: Rows | None
    after: PyTree


def _up_to(
    last: Int[Array, ""],
    turn: Callable[[PyTree, Int[Array, ""]], PyTree],
    state: PyTree,
    begin: Int[Array, ""],
    length: int,
) -> PyTree:
    """Apply `turn` to a state for `length` steps; those after step `last` have no effect."""

    def masked(before: PyTree, k: Int[Array, ""]) -> tuple[PyTree, None]:
        after = turn(before, k)
        return jax.tree.map(lambda new, old: jnp.where(k <= last, new, old), after, before), None

    return jax.lax.scan(masked, state, begin + jnp.arange(length, dtype=jnp.int32))[0]


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
        # Without `steps` the run ends with its last record.
        steps = 0 if traced else int(np.max(numeric.as_numpy("times", times), initial=0))
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
    steps = numeric.as_numpy("times", times)
    check_step_times(times, int(steps[-1]) if steps.ndim == 1 and steps.size else 0)
    return tuple(int(step) for step in steps)


def check_step_times(times: Times, steps: int) -> None:
    """Raise `ValueError` unless `times` are whole steps that increase within [0, steps]."""
    if checks.is_traced(times):
        return
    array = numeric.as_numpy("times", times)
    real = array.dtype.kind in "iuf"
    if array.ndim != 1 or array.size == 0 or not real or (array != np.floor(array)).any():
        raise ValueError(f"times = {times!r}: must be a non-empty list of whole steps")
    if array[0] < 0 or array[-1] > steps or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must increase within [0, steps = {steps}]")


def check_schedules(rule: Rule, steps: int, resumable: bool) -> None:
    """Raise `ValueError` if a schedule ends after the run, unless the run can be resumed."""
    for group, schedule in rule.schedules.items():
        length = schedule.length
        if resumable or checks.is_traced(length) or np.max(length) <= steps:
            continue
        name = f"eta[{group!r}]" if group else "eta"
        raise ValueError(
            f"{name}: its schedule has {np.max(length):g} steps, but the run has steps = {steps}; "
            "shorten it, or set checkpoint = True for a run that is to be resumed"
        )
