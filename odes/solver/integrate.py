"""Integration of ODEs and SDEs, shared by all solvers: the only module that calls diffrax.

Times are given in optimiser steps and converted to the theory's time variable. A failure sets a
status instead of raising, because one failed member must not abort a batch. diffrax is imported
when an equation is solved, because the import takes a third of a second.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.precision import AnyArray, Number
from dynsim.trajectory import Status, Trajectory
from odes.solver.tolerances import Tolerances

if TYPE_CHECKING:
    import diffrax

    Solver = diffrax.AbstractSolver
else:
    Solver = Any


@runtime_checkable
class Timescale(Protocol):
    """Conversion from optimiser steps to ODE time: `StepTime`, or a schedule of rates."""

    def flow_time(self, steps: Any, /) -> Array:
        """Return the ODE times (S,) at which the states after (S,) optimiser steps are read."""
        ...


class StepTime(eqx.Module):
    """Time variable of a flow whose time is optimiser steps.

    Attributes:
        shift: the state after k >= 1 steps is the flow at t = k + shift; before the first
            step it is the starting point.
    """

    shift: Real[Number, ""] = 0.0

    def flow_time(self, steps: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
        """Return the ODE time at which the state after `steps` optimiser steps is read."""
        return jnp.where(steps > 0, steps + self.shift, jnp.zeros_like(steps))


VectorField = Callable[[Float[Array, ""], PyTree, PyTree], PyTree]
Derivatives = Literal["reverse", "forward"]
Save = Callable[[Float[Array, ""], PyTree, PyTree], PyTree]


class Solved(NamedTuple):
    """Result of `integrate`: the saved values at each time, the final state, and a status."""

    times: Float[Array, " S"]
    saved: PyTree
    final: PyTree
    status: Int[Array, ""]
    first_bad_step: Int[Array, ""]

    def trajectory(
        self, source: str, params: PyTree = None, observables: Mapping[str, AnyArray] | None = None
    ) -> Trajectory:
        """Return the run as a `Trajectory`; `observables` are by default the saved values."""
        saved = self.saved if observables is None else observables
        return Trajectory(self.times, saved, params, self.status, self.first_bad_step, source)


def integrate(
    vector_field: VectorField,
    initial: PyTree,
    times: Float[Array, " S"],
    args: PyTree,
    *,
    save: Save,
    timescale: Timescale,
    tolerances: Tolerances,
    derivatives: Derivatives = "reverse",
    jumps: Float[Array, " J"] | tuple[Real[Number, ""], ...] = (),
    begin: Real[Number, ""] = 0.0,
    solver: Solver | None = None,
    stop: Callable[..., Bool[Array, ""]] | None = None,
) -> Solved:
    """Integrate y' = vector_field(t, y, args) from y = `initial` at the time of `begin`.

    Args:
        vector_field: f(t, y, args), in ODE time, with every parameter in `args`.
        initial: state at the start.
        times: (S,) optimiser steps at which `save` is evaluated, increasing, >= `begin`.
        save: what to keep at a saved time.
        timescale: maps `times` to ODE time.
        derivatives: kind of derivatives that the solve supports, "reverse" (`jax.grad`) or
            "forward" (`jax.jvp`, `jax.jacfwd`).
        jumps: (J,) ODE times at which the vector field jumps; the solver stops and restarts
            there. They may be traced, and may lie outside the integrated time.
        begin: optimiser step at which the state is `initial`.
        solver: a diffrax solver; by default `diffrax.Tsit5()`.
        stop: (t, y, args) -> whether the equations have become invalid; the solve ends there.

    Returns:
        `Solved`. From the time of a failure or stop on, saved values are `inf`.
    """
    import diffrax

    adjoints = {
        "reverse": diffrax.RecursiveCheckpointAdjoint,
        "forward": diffrax.ForwardMode,
    }
    adjoint = adjoints[checks.choice("derivatives", derivatives, tuple(adjoints))]()
    t0, t1, flow_times = _span(timescale, begin, times)
    # The solver picks its first step itself, and steps by an estimate of the local error.
    controller = diffrax.PIDController(rtol=tolerances.rtol, atol=tolerances.atol)
    # At a jump of the rate no error estimate holds, so that steps end there. Most times are inf,
    # where a schedule is smooth.
    jump_times = jnp.asarray(jumps, t1.dtype)
    if jump_times.size:
        controller = diffrax.ClipStepSizeController(controller, jump_ts=jump_times)
    solution = diffrax.diffeqsolve(
        # diffrax calls both functions several times; under `jit` each is traced once.
        diffrax.ODETerm(jax.jit(vector_field)),
        diffrax.Tsit5() if solver is None else solver,
        t0=t0,
        t1=t1,
        dt0=None,
        y0=initial,
        args=args,
        saveat=_save_at(flow_times, save),
        stepsize_controller=controller,
        adjoint=adjoint,
        # A stop is seen at the end of a step, without a search for its time within the step.
        event=None if stop is None else diffrax.Event(lambda t, y, args, **_: stop(t, y, args)),
        # Stopping at jumps takes steps of its own.
        max_steps=tolerances.max_steps + jump_times.size,
        # One failed run must not stop those beside it under vmap: `_solved` sets a status.
        throw=False,
    )
    return _solved(times, solution, initial, flow_times[-1] > t0)


def integrate_sde(
    vector_field: VectorField,
    diffusion: VectorField,
    initial: PyTree,
    times: Float[Array, " S"],
    args: PyTree,
    key: PRNGKeyArray,
    *,
    save: Save,
    timescale: Timescale,
    num_steps: int,
    jump: Real[Number, ""],
    begin: Real[Number, ""] = 0.0,
) -> Solved:
    """Integrate the Ito equation dy = vector_field(t, y, args) dt + diffusion(t, y, args) dB by
    Euler-Maruyama. `key` determines the noise of each step, so other steps mean another Brownian
    path. Only forward-mode derivatives are supported.

    Args:
        vector_field, initial, times, args, save, timescale, begin: as for `integrate`.
        diffusion: noise amplitude of every entry of y, in the structure of y; the entries have
            independent noise.
        num_steps: equal steps from `begin` to the last time, >= 2.
        jump: ODE time at which the vector field jumps; it replaces the nearest of the solver's
            times.

    Returns:
        As `integrate`; between the steps y is interpolated linearly.
    """
    import diffrax
    import lineax

    t0, t1, flow_times = _span(timescale, begin, times)
    grid = t0 + (t1 - t0) * jnp.arange(num_steps + 1, dtype=t0.dtype) / num_steps
    # Rounding must not leave the last time outside of the grid.
    grid = grid.at[-1].set(t1)
    jump = jnp.asarray(jump, t0.dtype)
    # The first and last time stay: a jump within half a step of them is taken there.
    nearest = jnp.argmin(jnp.abs(grid - jump))
    inside = (nearest > 0) & (nearest < num_steps)
    grid = grid.at[nearest].set(jnp.where(inside, jump, grid[nearest]))
    # On a fixed grid each increment is needed once, so that no tree of refinements is stored.
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), initial)
    path = diffrax.UnsafeBrownianPath(shape, key)
    # A diagonal operator: each entry has its own noise.
    noise = diffrax.ControlTerm(
        lambda t, y, args: lineax.DiagonalLinearOperator(diffusion(jnp.asarray(t), y, args)), path
    )
    solution = diffrax.diffeqsolve(
        diffrax.MultiTerm(diffrax.ODETerm(jax.jit(vector_field)), noise),
        diffrax.Euler(),
        t0=t0,
        t1=t1,
        dt0=None,
        y0=initial,
        args=args,
        saveat=_save_at(flow_times, save),
        stepsize_controller=diffrax.StepTo(ts=grid),
        adjoint=diffrax.ForwardMode(),
        max_steps=num_steps,
        throw=False,
    )
    return _solved(times, solution, initial, flow_times[-1] > t0)


def _span(
    timescale: Timescale, begin: Real[Number, ""], times: Float[Array, " S"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " S"]]:
    """Return the ODE times of the start, of the end, and of `times`."""
    flow_times = timescale.flow_time(times)
    t0 = jnp.asarray(timescale.flow_time(jnp.asarray(begin, times.dtype)), flow_times.dtype)
    # A single time at the start leaves nothing to integrate, which diffrax does not accept.
    t1 = jnp.where(flow_times[-1] > t0, flow_times[-1], t0 + 1)
    return t0, t1, flow_times


def _save_at(flow_times: Float[Array, " S"], save: Save) -> "diffrax.SaveAt":
    import diffrax

    def save_with_check(t: Float[Array, ""], y: PyTree, args: PyTree) -> PyTree:
        finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(y)])
        # As a float, because diffrax fills times that it never reached with inf.
        return save(t, y, args), jnp.all(finite).astype(t.dtype)

    # The values at the times, with the final state, from which a solve may continue.
    at_times = diffrax.SubSaveAt(ts=flow_times, fn=jax.jit(save_with_check))
    return diffrax.SaveAt(subs=[at_times, diffrax.SubSaveAt(t1=True)])


def _solved(
    times: Float[Array, " S"], solution: "diffrax.Solution", initial: PyTree, moved: Bool[Array, ""]
) -> Solved:
    """Return diffrax's solution with a status; unless `moved`, the final state is the initial."""
    import diffrax

    ys: PyTree = solution.ys
    (saved, finite), final = ys
    results = diffrax.RESULTS
    status = jnp.where(
        solution.result == results.max_steps_reached, Status.MAX_STEPS, Status.SOLVER_FAILED
    )
    # A stop is no failure of the solver: the values after it, which are inf, mark it as diverged.
    stopped = solution.result == results.event_occurred
    succeeded = (solution.result == results.successful) | stopped
    finite_status, first_bad = judge(times, finite == 1)
    status = jnp.where(succeeded, finite_status, status)
    last = jax.tree.map(lambda leaf, start: jnp.where(moved, leaf[-1], start), final, initial)
    return Solved(times, saved, last, status.astype(jnp.int32), first_bad)


def judge(
    times: Float[Array, " S"], valid: Bool[Array, " S"]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Return status (OK or DIVERGED) and first bad step of a run `valid` at some of its `times`."""
    good = jnp.all(valid)
    status = jnp.where(good, Status.OK, Status.DIVERGED)
    # `argmin` of booleans is the first False. A step counts as bad as soon as it has begun.
    first_bad = jnp.where(good, -1, jnp.ceil(times[jnp.argmin(valid)]))
    return status.astype(jnp.int32), first_bad.astype(jnp.int32)


ItoDrift = Callable[[Float[Array, ""], PyTree], PyTree]
"""(t, y) -> derivative of y."""
ItoDiffusion = Callable[[Float[Array, ""], PyTree, Float[Array, " E"]], PyTree]
"""(t, y, dW) -> change of y for the increment dW of a Brownian path, linear in dW."""

RUNGE_KUTTA_STAGES = 3
"""Evaluations of the drift in half a step of `integrate_ito`."""


def integrate_ito(
    drift: ItoDrift,
    diffusion: ItoDiffusion,
    initial: PyTree,
    grid: Float[Array, " N"],
    marks: Sequence[int],
    key: PRNGKeyArray,
    *,
    noises: int,
    save: Callable[[Float[Array, ""], PyTree], PyTree],
) -> tuple[PyTree, PyTree]:
    r"""Integrate the Ito equation dy = drift(t, y) dt + diffusion(t, y, dW), for small noise.

    By Strang splitting, a step of length h has three parts: half a step of the drift, the noise of
    the whole step by Euler-Maruyama, and another half step of the drift. The half steps use the
    three-stage Runge-Kutta method with nodes 0, 1/3 and 1/2, of third order for linear drifts and
    of second for others. With noise of size :math:`\varepsilon`, the error of means is
    :math:`O(h^2 + \varepsilon^2 h)`, because only the effect of noise on itself is of first order
    (Milstein and Tretyakov, SIAM J. Sci. Comput. 18, 1067, 1997). In training, drift and noise of a
    step are proportional to the learning rate :math:`\eta`. Steps of h = 1 then have a relative
    error of :math:`O(\eta^2)`. For Euler-Maruyama it would be :math:`O(\eta)`, as large as the
    difference between descent and its flow. The diffrax solvers of this order need a Stratonovich
    equation or additive noise.

    Args:
        drift, diffusion: the equation.
        initial: state at the first time of the grid.
        grid: (N,) times between which steps are taken; drift and diffusion may jump there.
        marks: (S,) indices into `grid` at which `save(t, y)` is evaluated, increasing.
        key: random key of the Brownian path.
        noises: number E of independent noises.

    Returns:
        The saved values, with a leading axis, and the state at the last mark.
    """

    # y_1 = y + h/3 f(y), y_2 = y + h/2 f(y_1), y_3 = y + h f(y_2), in one loop: the drift is traced
    # once, which is what takes long to compile.
    def flow(t: Array, h: Array, y: PyTree) -> PyTree:
        def stage(i: Array, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            y_i, ahead = carry
            slope, ahead = drift(t + ahead, y_i), h / (RUNGE_KUTTA_STAGES - i)
            return jax.tree.map(lambda y, f: y + ahead * f, y, slope), ahead

        return jax.lax.fori_loop(0, RUNGE_KUTTA_STAGES, stage, (y, jnp.zeros_like(h)))[0]

    def step(k: Array, y: PyTree) -> PyTree:
        t, h = grid[k], grid[k + 1] - grid[k]
        # The key of a step is that of its index: the path does not depend on where it is recorded.
        normal = jax.random.normal(jax.random.fold_in(key, k), (noises,), grid.dtype)
        middle = flow(t, h / 2, y)
        kick = diffusion(t + h / 2, middle, jnp.sqrt(h) * normal)
        return flow(t + h / 2, h / 2, jax.tree.map(jnp.add, middle, kick))

    return seen_at(marks, initial, step, lambda y, k: save(grid[k], y))


def seen_at(
    times: Sequence[int],
    start: PyTree,
    step: Callable[[Int[Array, ""], PyTree], PyTree],
    look: Callable[[PyTree, Int[Array, ""]], PyTree],
) -> tuple[PyTree, PyTree]:
    """Return `look(state, k)` at all `times` (increasing whole steps) while `step(k, state)`
    advances the state; and the last state. It can be differentiated in both modes."""
    # A scan over all steps, with a branch at each: a `while_loop` up to the next time would have no
    # reverse-mode derivative.
    due = jnp.asarray(np.asarray(times), jnp.int32)
    shapes = jax.eval_shape(look, start, jnp.int32(0))
    rows = jax.tree.map(lambda s: jnp.zeros((len(times), *s.shape), s.dtype), shapes)

    def turn(
        carry: tuple[PyTree, PyTree, PyTree, Array], k: Int[Array, ""]
    ) -> tuple[tuple[PyTree, ...], None]:
        state, last, rows, slot = carry
        here = due[slot] == k
        # Elsewhere the branch returns the row as it was, so that writing it changes nothing.
        old = jax.tree.map(lambda column: column[slot], rows)
        row, last = jax.lax.cond(here, lambda: (look(state, k), state), lambda: (old, last))
        rows = jax.tree.map(lambda column, value: column.at[slot].set(value), rows, row)
        return (step(k, state), last, rows, jnp.minimum(slot + here, len(times) - 1)), None

    # The last step is not used: a turn looks before it steps.
    steps = jnp.arange(int(times[-1]) + 1, dtype=jnp.int32)
    (_, last, rows, _), _ = jax.lax.scan(turn, (start, start, rows, jnp.int32(0)), steps)
    return rows, last
