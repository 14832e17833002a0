"""What every solver shares, and the only place that integrates an ODE: diffrax behind one call.

Times come in as optimiser steps, go through the theory's clock, and results leave with a
status instead of an exception, because one failed member must not take a batch with it.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from dynsim import checks
from dynsim.models.yz import YZ, init_zero
from dynsim.optim import Clock, Optimizer
from dynsim.precision import DType, precision, settle
from dynsim.run_checks import check_weights
from dynsim.tasks import SequenceClasses
from dynsim.trajectory import Status, Trajectory

VectorField = Callable[[Float[Array, ""], PyTree, PyTree], PyTree]
Derivatives = Literal["reverse", "forward"]
Task = TypeVar("Task", bound=Any)
Start = Callable[[Task, Optimizer], tuple[PyTree, ...]]


class Tolerances(NamedTuple):
    """Accuracy of an adaptive solve, and the number of solver steps after which it gives up
    with `Status.MAX_STEPS`."""

    rtol: float = 1e-8
    atol: float = 1e-10
    max_steps: int = 16384

    def check(self, dtype: str) -> "Tolerances":
        """Return self, or raise `ValueError` for a value that cannot work."""
        smallest = 1e-6 if dtype == "float32" else 1e-13
        if not self.rtol >= smallest:
            raise ValueError(
                f"rtol = {self.rtol}: must be >= {smallest:g} in {dtype}; the step size control "
                "stalls on rounding errors below that"
            )
        checks.real("atol", self.atol, 0, open_minimum=True)
        checks.integer("max_steps", self.max_steps, 1)
        return self


DEFAULT_TOLERANCES = {
    "float32": Tolerances(1e-5, 1e-7),
    "float64": Tolerances(),
}


def checked_tolerances(tolerances: Tolerances | None, dtype: DType) -> Tolerances:
    """`tolerances`, by default those of `dtype`; raises `ValueError` for what cannot work."""
    checks.choice("dtype", dtype, tuple(DEFAULT_TOLERANCES))
    return (tolerances or DEFAULT_TOLERANCES[dtype]).check(dtype)


class Solved(NamedTuple):
    """What `integrate` returns: what was saved at each time, the final state, a status."""

    saved: PyTree
    final: PyTree
    status: Int[Array, ""]
    first_bad_step: Int[Array, ""]


def check_times(times: Float[ArrayLike, " S"]) -> None:
    """Raise `ValueError` unless `times` are finite, non-negative and increasing."""
    if checks.is_traced(times):
        return
    array = np.asarray(times, np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"times = {times!r}: must be a non-empty list of finite times")
    if array[0] < 0 or (np.diff(array) <= 0).any():
        raise ValueError(f"times = {times!r}: must be >= 0 and increase")


def run(
    compiled: Callable[..., Trajectory],
    task: Task,
    optimizer: Optimizer,
    times: Float[ArrayLike, " S"],
    dtype: DType,
    *,
    init: PyTree = None,
    start: Start[Task] = lambda task, optimizer: (),
    **options: Any,
) -> Trajectory:
    """What the solvers have in common: check the times, cast, compute in `dtype`, hand out.

    Args:
        compiled: called with the task, the optimiser and the times in `dtype`, with what `start`
            returns, and with `options`.
        init: what the user gave to start from, looked through for tracers alone.
        start: makes further arguments from task and optimiser in `dtype`, in that precision.
    """
    check_times(times)
    with precision(dtype, task, optimizer, times, init):
        task, optimizer = task.astype(dtype), optimizer.astype(dtype)
        more = start(task, optimizer)
        trajectory = compiled(task, optimizer, jnp.asarray(times, dtype), *more, **options)
    return settle(trajectory)


def integrate(
    vector_field: VectorField,
    initial: PyTree,
    times: Float[Array, " S"],
    args: PyTree,
    *,
    save: Callable[[Float[Array, ""], PyTree, PyTree], PyTree],
    clock: Clock,
    tolerances: Tolerances,
    derivatives: Derivatives = "reverse",
    jumps: tuple[float, ...] = (),
) -> Solved:
    """Integrate y' = vector_field(t, y, args) from y(0) = `initial`.

    Args:
        vector_field: f(t, y, args), in ODE time, with every parameter in `args`.
        initial: state at t = 0.
        times: (S,) optimiser steps at which `save` is evaluated, increasing.
        save: what to keep at a saved time.
        clock: maps `times` to ODE time.
        derivatives: which of them can be taken through the solve, "reverse" (`jax.grad`) or
            "forward" (`jax.jvp`, `jax.jacfwd`).
        jumps: ODE times at which the vector field jumps; the solver stops and restarts there.

    Returns:
        `Solved`. From the time of a failure on, what was saved holds `inf`.
    """
    adjoints = {
        "reverse": diffrax.RecursiveCheckpointAdjoint,
        "forward": diffrax.ForwardMode,
    }
    adjoint = adjoints[checks.choice("derivatives", derivatives, tuple(adjoints))]()
    flow_times = clock.flow_time(times)
    if_single = jnp.where(flow_times[-1] > 0, flow_times[-1], 1.0)

    def save_with_check(t: Float[Array, ""], y: PyTree, args: PyTree) -> PyTree:
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(y)])
        # As a float, because diffrax fills what it never reached with inf.
        return save(t, y, args), jnp.all(finite).astype(t.dtype)

    controller = diffrax.PIDController(rtol=tolerances.rtol, atol=tolerances.atol)
    if jumps:
        jump_times = jnp.asarray(jumps, if_single.dtype)
        controller = diffrax.ClipStepSizeController(controller, jump_ts=jump_times)
    solution = diffrax.diffeqsolve(
        # diffrax calls both functions several times; under `jit` each is traced once.
        diffrax.ODETerm(jax.jit(vector_field)),
        diffrax.Tsit5(),
        t0=jnp.zeros_like(if_single),
        t1=if_single,
        dt0=None,
        y0=initial,
        args=args,
        saveat=diffrax.SaveAt(
            subs=[
                diffrax.SubSaveAt(ts=flow_times, fn=jax.jit(save_with_check)),
                diffrax.SubSaveAt(t1=True),
            ]
        ),
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=tolerances.max_steps,
        throw=False,
    )
    (saved, finite), final = solution.ys
    valid = finite == 1
    results = diffrax.RESULTS
    status = jnp.where(
        solution.result == results.max_steps_reached, Status.MAX_STEPS, Status.SOLVER_FAILED
    )
    succeeded = solution.result == results.successful
    finite_status, first_bad = judge(times, valid)
    status = jnp.where(succeeded, finite_status, status)
    last = jax.tree.map(lambda leaf: leaf[-1], final)
    return Solved(saved, last, status.astype(jnp.int32), first_bad)


def judge(
    times: Float[Array, " S"], valid: Bool[Array, " S"]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Status (OK or DIVERGED) and first bad step of a run that was `valid` at some of `times`."""
    good = jnp.all(valid)
    status = jnp.where(good, Status.OK, Status.DIVERGED)
    first_bad = jnp.where(good, -1, jnp.ceil(times[jnp.argmin(valid)]))
    return status.astype(jnp.int32), first_bad.astype(jnp.int32)


def weights(init: YZ | None, task: SequenceClasses, dtype: str) -> YZ:
    """Starting weights in `dtype`: `init`, or zero; raises `ValueError` for wrong shapes."""
    check_weights(init, task)
    if init is None:
        return init_zero(task, dtype)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), init)
