"""Two-stage training of P and Q as an ODE in seven numbers (arXiv:2502.20681).

At a large learning rate, noise in the weights keeps Q at the saddle where it starts while P is
learned. After the annealing the noise decays and Q is learned. In eta-time t, the sum of the
learning rates so far, and with R_k the n_k weights whose mean square is v_k, the gradient flow of
the loss with weight decay lambda and gradient noise tau_xi is

    da/dt = -dLoss/da - lambda a,   db/dt = -dLoss/db - lambda b
    dv_k/dt = -(4/n_k) v_k dLoss/dv_k - 2 lambda v_k + eta tau_xi^2

because R_k . grad Loss = 2 v_k dLoss/dv_k for isotropic blocks. The learning rate enters through
the noise alone. b keeps the sign of its start, which is random in training; b = 0 stays 0.

Assumes: eta -> 0 at fixed eta tau_xi^2 (the stationary noise of the steps themselves is larger by
the factor 2/(2 - eta lambda)), the whole population as batch, no noise on a and b themselves
(`odes.two_stage.sde` has that), and the assumptions of `odes.two_stage.loss`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.precision import DType, Number
from dynsim.problem.build import built, split
from dynsim.problem.train import problem_in
from dynsim.training.recording import Record, Recording, Table
from dynsim.training.rule import Rule as TrainingRule
from dynsim.training.rule import UpdateRule
from dynsim.trajectory import Times, Trajectory
from dynsim.two_stage.annealing import Annealing, why_not_annealed
from dynsim.two_stage.task import Prompts
from odes.run import check_times, dtype_of, run
from odes.solver.integrate import Derivatives, integrate
from odes.solver.tolerances import Tolerances, checked_tolerances
from odes.theory import Training
from odes.two_stage.loss import Losses, ReducedState, Rule, auc_Q, block_sizes, losses, root, total

Args = tuple[Prompts, Annealing]
"""Inputs of the drift besides the state."""


class Model(NamedTuple):
    """Static settings of the model: whether J is part of the loss, whether the outputs have the
    variance of a finite context, and the quadrature."""

    coupled: bool
    finite_length: bool
    rule: Rule

    @property
    def numerics(self) -> dict[str, Any]:
        """Return keyword arguments for the functions of `odes.two_stage.loss`."""
        return {"finite_length": self.finite_length, "rule": self.rule}


class Snapshot(NamedTuple):
    """The state at one moment, and its losses."""

    state: ReducedState
    task: Prompts
    losses: Losses
    model: Model


def inapplicable(training: Training) -> str | None:
    """Return why the reduction does not describe a training, or None."""
    task: Prompts = training.problem
    if task.core != "fresh":
        return f"core = {task.core!r}: must be 'fresh'; no reduction is known for others"
    if task.bias:
        return "bias = True: must be False; the reduction has no bias"
    return why_not_annealed(training.rule)


def checked_model(task: Prompts, finite_length: bool, rule: Rule | None) -> Model:
    """Return the model of `task`. J is included unless the coupling is 0 and not traced.

    Raises:
        ValueError: for a rule without nodes.
    """
    rule = rule or Rule()
    for name, num in rule._asdict().items():
        checks.integer(f"rule.{name}", num, 1)
    # J takes most of the time, so that it is left out where its weight is known to be zero.
    coupled = checks.is_traced(task.coupling) or bool(np.any(np.asarray(task.coupling) != 0))
    return Model(coupled, bool(finite_length), rule)


def switch_time(stages: Annealing) -> Float[Array, ""]:
    """Return the eta-time at which the learning rate changes."""
    return jnp.asarray(stages.flow_time(stages.first))


def rate_at(stages: Annealing, t: Float[Array, ""]) -> Float[Array, ""]:
    """Return the learning rate at eta-time `t`."""
    return jnp.where(t < switch_time(stages), stages.eta_1, stages.eta_2)


def drift(model: Model, t: Float[Array, ""], state: ReducedState, args: Args) -> ReducedState:
    """Return d(state)/dt at eta-time `t`."""
    task, stages = args
    # dv_k/dt = -(4/n_k) v_k dLoss/dv_k - 2 lambda v_k + eta tau_xi^2; da/dt = -dLoss/da - lambda a.
    # Without noise dv/dt ~ -sqrt(v), so that a step can overshoot 0.
    state = state.clamped()
    gradient = jax.grad(total)(state, task, **model._asdict())
    noise = rate_at(stages, t) * stages.noise**2

    def square(v: Real[Number, ""], slope: Real[Number, ""], size: int) -> Real[Number, ""]:
        return -4 / size * v * slope - 2 * stages.decay * v + noise

    moved = jax.tree.map(square, state, gradient, block_sizes(task.d))
    a, b = (-gradient.a - stages.decay * state.a, -gradient.b - stages.decay * state.b)
    return dataclasses.replace(moved, a=a, b=b)


def _squares(s: Snapshot, block: str) -> Real[Number, ""]:
    """Return the sum of the squares of W without a, or of V without b."""
    names = {"W": ("v_h", "v_W"), "V": ("v_e", "v_u", "v_M")}[block]
    sizes = block_sizes(s.task.d)
    return sum(getattr(sizes, name) * getattr(s.state, name) for name in names)


OBSERVABLES: dict[str, Callable[[Snapshot], Array]] = {
    "K1": lambda s: s.losses.K1,
    "K2": lambda s: s.losses.K2,
    "K2_pos": lambda s: s.losses.K2_pos,
    "K2_neg": lambda s: s.losses.K2_neg,
    "J": lambda s: s.losses.J,
    "loss": lambda s: s.losses.trained(s.task),
    "auc_Q": lambda s: auc_Q(s.state, s.task, **s.model.numerics),
    "W_norm": lambda s: root(s.state.a**2 + _squares(s, "W")),
    "V_norm": lambda s: root(s.state.b**2 + _squares(s, "V")),
    "W_trace": lambda s: jnp.asarray(s.state.a),
    "V_trace": lambda s: jnp.asarray(s.state.b),
    "V_trace_abs": lambda s: jnp.abs(s.state.b),
    "V_rms": lambda s: root(_squares(s, "V") / (s.task.d**2 - 1)),
    "state": lambda s: jnp.stack(jax.tree.leaves(s.state)),
}
"""Observables, all of shape () but "state": the losses in nat ("loss" is the trained
one, without weight decay), the AUC of N_V, Frobenius norms of the weights, the traces a and b of
their signal, |b|, the root mean square of V without V[0,0], and (7,) the state in the order of its
fields."""
TABLE = Table(OBSERVABLES)
"""Observables that can be requested from the theories."""
DEFAULT_RECORD = ("K1", "K2", "W_norm", "V_norm", "W_trace", "V_trace")
"""Observables recorded by default."""
DEFAULT_TOLERANCES = Tolerances(1e-5, 1e-7)


def observe(
    model: Model, record: Recording, t: Float[Array, ""], state: ReducedState, args: Args
) -> dict[str, Array]:
    """Return the recorded observables of a state."""
    # Negative mean squares of a solver's step are no weights.
    task, state = args[0], state.clamped()
    return record(Snapshot(state, task, losses(state, task, **model.numerics), model))


def solve(
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    *,
    start: ReducedState | None = None,
    tolerances: Tolerances | None = None,
    derivatives: Derivatives = "reverse",
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """Integrate the reduced ODE.

    Args:
        task: `dynsim.Prompts` with core "fresh". Its numbers may be traced; a coupling of 0 that is
            not traced saves the quadrature of J, which is most of the work.
        optimizer: a `dynsim.Annealed`, or the rule that it builds; its numbers may be traced.
        times: (S,) optimiser steps at which to record, increasing, >= `begin`; need not be
            whole. `Annealing.of(optimizer).flow_time` maps them to eta-time.
        start: state at `begin`, such as `ReducedState.from_weights(W, V)` of a simulation;
            `ReducedState.nominal(task)` if None.
        tolerances: tolerances of the solver; by default rtol 1e-5 and atol 1e-7, below the error of
            the quadrature.
        derivatives: kind of derivatives that the solve supports, "reverse" or "forward".
        dtype: "float64" or "float32".
        **options: `begin`, the optimiser step at which the solve starts, 0 by default;
            `finite_length`, False to leave out the variance of the outputs at finite L; `rule`, the
            numbers of quadrature nodes; `record`, a name from `OBSERVABLES`, functions of an
            `odes.two_stage.field.Snapshot` by name, or a list of both.

    Returns:
        A `Trajectory` with the final `ReducedState` as `params`, and the source "ode", or
        "infinite" without `finite_length`. If the solve fails, its status is not OK.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    options["tolerances"] = checked_tolerances(tolerances or DEFAULT_TOLERANCES, dtype)
    options |= {"start": start, "derivatives": derivatives, "dtype": dtype}
    return reduced(_solve, task, optimizer, times, **options)


def reduced(
    solver: Callable[..., Trajectory],
    task: Prompts,
    optimizer: UpdateRule,
    times: Times,
    *numbers: Real[Number, ""],
    start: ReducedState | None = None,
    key: PRNGKeyArray | None = None,
    begin: Real[Number, ""] = 0.0,
    finite_length: bool = True,
    rule: Rule | None = None,
    record: Record = DEFAULT_RECORD,
    dtype: DType = "float64",
    **options: Any,
) -> Trajectory:
    """Run a solver of the reduction, `solver(task, times, key, stages, start, begin, *numbers,
    model=..., record=..., **options)`, with `odes.run.run`. `start` is the state at the step
    `begin`; the other arguments are as in `solve`.

    Raises:
        ValueError: with the reason, if the reduction does not apply; and for invalid arguments.
    """
    checks.kind("task", task, Prompts)
    task, built_rule = built(task, optimizer)
    if reason := inapplicable(Training(task, built_rule)):
        raise ValueError(reason)
    check_times(times, begin)
    start = ReducedState.nominal(task) if start is None else start
    for name, value in vars(start).items():
        checks.real(f"start.{name}", value, 0 if name.startswith("v_") else -math.inf)
    options["model"] = checked_model(task, finite_length, rule)
    options |= {"record": TABLE.resolve(record), "random": key is not None, "solver": solver}
    # As arrays, numbers are traced, so that other values reuse the program.
    traced, static = split(task)
    as_array = lambda x: x if isinstance(x, jax.Array) else np.asarray(x, dtype)  # noqa: E731
    task = eqx.combine(jax.tree.map(as_array, traced), static)
    inputs = Annealing.of(built_rule), start, begin, *numbers
    return run(_of_task, task, built_rule, times, key, None, dtype, *inputs, **options)


# The program of `odes.run.run`: the reduction has its own start, and its rate in `stages`.
def _of_task(
    task: Prompts,
    optimizer: TrainingRule,
    key: PRNGKeyArray | None,
    init: None,
    times: Float[Array, " S"],
    *inputs: PyTree,
    solver: Callable[..., Trajectory],
    **options: Any,
) -> Trajectory:
    return solver(problem_in(task, dtype_of(times)), times, key, *inputs, **options)


def _solve(
    task: Prompts,
    times: Float[Array, " S"],
    key: None,
    stages: Annealing,
    start: ReducedState,
    begin: Float[Array, ""],
    *,
    model: Model,
    record: Recording,
    **options: Any,
) -> Trajectory:
    solved = integrate(
        functools.partial(drift, model),
        start,
        times,
        (task, stages),
        save=functools.partial(observe, model, record),
        timescale=stages,
        # The noise jumps with the learning rate.
        jumps=switch_time(stages)[None],
        begin=begin,
        **options,
    )
    return solved.trajectory("ode" if model.finite_length else "infinite", solved.final.clamped())
