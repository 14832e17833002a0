"""The loop against the same loop written out in Python."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from dynsim import Status, Trajectory
from dynsim.precision import compiled_for
from dynsim.training.checkpoint import Checkpoint
from dynsim.training.loop import train
from dynsim.training.recording import Recording
from dynsim.training.steps import Segments, checked_times, segments_of
from tests.doors import refuses

LIMIT = 10.0
# Losses before each update and at the end, and how such a run is judged: status, first bad step.
JUDGED = {
    "good": ([3.0, 2.0, 1.0, 1.0], -1),
    "at the limit": ([1.0, 10.0, 10.0, 10.0], -1),
    "recovered": ([1.0, 11.0, math.inf, 1.0], -1),
    "bad at the end": ([1.0, 1.0, 1.0, 10.5], 3),
    "bad from the start": ([11.0, 12.0, 13.0, 14.0], 0),
    "the last stretch counts": ([11.0, 1.0, 12.0, 13.0], 2),
    "not a number": ([1.0, math.nan, math.nan, math.nan], 1),
    "a number again": ([math.nan, 1.0, math.nan, 2.0], -1),
}
# The loss behind the one at the end is nobody's.
LOSSES = jnp.array([[*losses, 99.0 - losses[-1]] for losses, _ in JUDGED.values()])
FIRST_BAD = [first_bad for _, first_bad in JUDGED.values()]
STEPS = LOSSES.shape[1] - 2


def halve(params: Array, memory: Array, k: Array, losses: Array) -> tuple[Array, Array, Array]:
    """Weights that halve, a memory that counts, and the losses given."""
    return params / 2, memory + 1, losses[k]


def observe(params: Array, memory: Array, k: Array, seen: Array) -> tuple[dict[str, Array], Array]:
    return {"params": params, "before": seen}, params


COURSES = (
    "every step",
    "segments",
    "segments of two",
    "record to record",
    "record to record, by three",
)


def run(
    losses: Array,
    times: Array | list[int],
    course: str = "every step",
    steps: int = STEPS,
    relative: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Trajectory:
    """The run by one of the ways through its steps; those by segments need concrete times."""
    begin = checkpoint.step if checkpoint else 0
    how: dict[str, Any] = {"steps": steps}
    if "segments" in course:
        with compiled_for("tpu"):
            how["segments"] = segments_of(times, steps, checkpoint)
        if course == "segments of two":
            gaps = np.diff([begin, *times, steps])
            how["segments"] = Segments(int(np.sum((gaps + 1) // 2)), 2, start=times[0] == 0)
    elif "record to record" in course:
        how = {"steps": None, "steps_per_check": 3 if "by three" in course else 1}
    return traced(losses, jnp.asarray(times), checkpoint, relative=relative, **how)


@functools.partial(jax.jit, static_argnames=("steps", "segments", "steps_per_check", "relative"))
def traced(losses: Array, times: Array, checkpoint: Checkpoint | None, **how: Any) -> Trajectory:
    how |= {"limit": LIMIT, "dtype": "float32", "seen": jnp.full(2, -1.0), "checkpoint": checkpoint}
    step = functools.partial(halve, losses=losses)
    return train(jnp.ones(2), jnp.int32(0), step, observe, times, **how)


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("losses", list(LOSSES), ids=list(JUDGED))
def test_two_parts_are_the_run(losses: Array, course: str) -> None:
    whole = run(losses, [0, 2, 3], course, checkpoint=Checkpoint())
    first = run(losses, [0, 2], course, 2, checkpoint=Checkpoint())
    # Without `steps` the caller knows at which it was.
    begin = dataclasses.replace(first.checkpoint, step=2)
    second = run(losses, [3], course, checkpoint=begin)
    for name in whole.observables:
        both = np.concatenate([first[name], second[name]])
        np.testing.assert_array_equal(whole[name], both)
    for name in ("params", "status", "first_bad_step"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(second, name))
    for found in (whole, second):
        # Its memory counts updates.
        assert int(found.checkpoint.state.memory) == STEPS
        np.testing.assert_array_equal(found.checkpoint.seen, found["params"][-1])
    np.testing.assert_array_equal(whole["batch_loss"], run(losses, [0, 2, 3], course)["batch_loss"])


def test_a_run_resumes_after_its_own_checkpoint() -> None:
    record, first = Recording(()), run(LOSSES[0], [0, 2], steps=2, checkpoint=Checkpoint())
    assert checked_times([3, 5], 5, record, Checkpoint(2)) == [3, 5]
    np.testing.assert_array_equal(checked_times(None, 5, record, Checkpoint(2)), [3, 4, 5])
    refuses(lambda: checked_times([2, 4], 5, record, Checkpoint(2)), "times", "[2, 4]", "step 2")
    refuses(lambda: checked_times([3], 2, record, Checkpoint(2)), "steps", "2", "larger")
    for name, value in (
        ("params", jnp.ones(3)),
        ("memory", jnp.float32(0)),
        ("memory", ()),
        ("sums", jnp.zeros(2)),
    ):
        state = first.checkpoint.state._replace(**{name: value})
        other = dataclasses.replace(first.checkpoint, state=state)
        refuses(
            lambda other=other: run(LOSSES[0], [3], checkpoint=other), "checkpoint", f"state.{name}"
        )


@pytest.mark.parametrize("course", COURSES)
def test_runs_are_judged_by_their_last_stretch(course: str) -> None:
    found = jax.vmap(lambda losses: run(losses, [1, STEPS], course))(LOSSES)
    np.testing.assert_array_equal(found.first_bad_step, FIRST_BAD)
    want = [Status.OK if first < 0 else Status.DIVERGED for first in FIRST_BAD]
    np.testing.assert_array_equal(found.status, want)
    np.testing.assert_array_equal(found["batch_loss"], LOSSES[:, [1, STEPS]])


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("times", [[0, 1, 3], [3], [0, 1, 2, 3], [0, 1]])
def test_records_are_of_the_weights_before_the_update(times: list[int], course: str) -> None:
    """A run may outlast its records, if its number of steps is given."""
    found = run(LOSSES[3], times, course)
    want = 0.5 ** np.array(times)
    np.testing.assert_array_equal(found.times, times)
    np.testing.assert_array_equal(found["params"], np.stack([want, want], 1))
    np.testing.assert_array_equal(found["before"][:, 0], [-1.0, *want[:-1]])
    last = times[-1] if "record to record" in course else STEPS
    np.testing.assert_array_equal(found.params, np.full(2, 0.5**last))
    assert int(found.first_bad_step) == (3 if last == 3 else -1)


def test_from_record_to_record_the_times_may_be_traced() -> None:
    times = jnp.array([[0, 2], [1, 3]])
    found = jax.vmap(lambda times: run(LOSSES[0], times, "record to record"))(times)
    np.testing.assert_array_equal(found["params"][..., 0], 0.5**times)
    np.testing.assert_array_equal(found.params[:, 0], [0.25, 0.125])


@pytest.mark.parametrize("steps", [3, 25])
@pytest.mark.parametrize("course", COURSES)
def test_relative_loss_is_the_mean_of_the_last_losses_over_the_first(
    steps: int, course: str
) -> None:
    losses = jnp.asarray(np.random.default_rng(0).uniform(1, 2, steps + 1), jnp.float32)
    found = run(losses, [1, steps], course, steps, relative=True)["relative_loss"]
    # Of the last twenty steps, or of all.
    want = np.mean(losses[:steps][-20:]) / losses[0]
    np.testing.assert_allclose(found, [math.nan, want], rtol=1e-6)


def bare(start: Array, step: Any, times: list[int], **options: Any) -> Trajectory:
    """A run that records its weights alone."""
    observe = lambda params, memory, k, seen: ({"params": params}, seen)
    given: Any = {"steps": STEPS, "limit": LIMIT, "dtype": "float32"} | options
    return train(start, (), step, observe, jnp.array(times), **given)


@pytest.mark.parametrize("steps", [STEPS, None], ids=["every step", "record to record"])
def test_steps_without_a_loss_are_judged_by_the_weights(steps: int | None) -> None:
    step = lambda w, memory, k: (jnp.where(k == 1, w * jnp.inf, w / 2), memory, None)
    found = jax.jit(lambda start: bare(start, step, [0, STEPS], steps=steps, limit=None))(
        jnp.ones(2)
    )
    assert set(found.observables) == {"params"}
    assert (int(found.status), int(found.first_bad_step)) == (Status.DIVERGED, 2)
    refuses(lambda: bare(jnp.ones(1), step, [1], limit=None, relative=True), "relative")


def test_weights_are_looked_through_once_at_the_end() -> None:
    """A weight that no batch attends to does not show in the loss."""
    step = lambda w, memory, k: (w.at[1].multiply(jnp.inf), memory, w[0])
    found = jax.jit(lambda start: bare(start, step, [0]))(jnp.ones(2))
    assert (int(found.status), int(found.first_bad_step)) == (Status.DIVERGED, STEPS)


def test_a_batch_on_the_last_axis_is_the_batch_by_vmap() -> None:
    def step(params: Array, memory: Array, k: Array) -> tuple[Array, Array, Array]:
        return params / 2, memory, LOSSES[:, k]

    B = len(LOSSES)
    batched = {"relative": True, "batch": (B,)}
    found = jax.jit(lambda start: bare(start, step, [1, STEPS], **batched))(jnp.ones((2, B)))
    want = jax.vmap(lambda losses: run(losses, [1, STEPS], relative=True))(LOSSES)
    np.testing.assert_array_equal(found.status, want.status)
    np.testing.assert_array_equal(found.first_bad_step, want.first_bad_step)
    for name in ("params", "batch_loss", "relative_loss"):
        np.testing.assert_array_equal(np.moveaxis(found[name], -1, 0), want[name], err_msg=name)


@pytest.mark.parametrize(
    ("times", "steps", "segments"),
    [
        # Nothing is asked where each leg ends with a record.
        ([1000], 1000, Segments(1, 1000)),
        ([0, 250, 500, 750, 1000], 1000, Segments(4, 250, start=True)),
        # By hand: (3 + ceil(37 / n)) (n + 4) for segments of n steps is 104 for 4, 96 for 8 and 120
        # for 16; without questions, a leg of 37 for each record, it is 148.
        ([0, 1, 2, 3, 40], 40, Segments(8, 8, start=True)),
        # Two segments of 16 without questions take 32, three of 8 with questions 36.
        ([0, 1, 17], 17, Segments(2, 16, start=True)),
    ],
)
def test_legs_cost_least(times: list[int], steps: int, segments: Segments) -> None:
    with compiled_for("gpu"):
        assert segments_of(times, steps) == segments
        # A resumed run begins at its checkpoint.
        assert segments_of([20], 20, Checkpoint(10)) == Segments(1, 10)
    assert segments_of(times, steps) is None
