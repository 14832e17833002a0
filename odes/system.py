"""User-defined theories that are systems of ordinary differential equations for any state."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from dynsim import Problem, Trajectory, checks
from dynsim.training.recording import Record
from odes.general import computed, no_sgd, predicted, rows
from odes.solver.integrate import Solver, StepTime, integrate, judge
from odes.solver.posed import jumps
from odes.solver.tolerances import Tolerances
from odes.theory import AnyTheory, Inapplicable, Training, describes_all

SystemField = Callable[[Float[Array, ""], PyTree, Training], PyTree]
"""(t, state, training) -> derivative of the state with respect to t, in optimiser steps."""
Start = Callable[[Training, PyTree], PyTree]
"""(training, starting weights) -> state before the first step."""
Observe = Callable[[Float[Array, ""], PyTree, Training], Mapping[str, Array]]
"""(t, state, training) -> observables by name."""
Stop = Callable[[Float[Array, ""], PyTree, Training], Bool[Array, ""]]
"""(t, state, training) -> whether the equations have become invalid."""


def system(
    name: str,
    title: str,
    assumes: str,
    field: SystemField,
    start: Start,
    observe: Observe,
    *,
    inapplicable: Inapplicable = describes_all,
    any_rule: bool = False,
    names: tuple[str, ...] = (),
    needs: tuple[str, ...] = ("key",),
    stop: Stop | None = None,
    discrete: bool = False,
    solver: Solver | None = None,
    tolerances: Tolerances | None = None,
    refused: Mapping[str, str] | None = None,
    variant: bool = False,
) -> AnyTheory:
    r"""Make a theory from a vector field, such as the equations of motion of order parameters.

    dynsim checks the arguments, compiles the solver, maps it over the runs of a sweep, records at
    the requested times, and reports failures in the trajectory's status.

    Args:
        name, title, assumes, refused, variant: as in `odes.Theory`.
        field: `field(t, state, training)` returns the derivative of the state with respect to t, in
            optimiser steps. `training` has the `problem`, `rule`, `batch` and `steps`;
            `training.rate(t)` is the learning rate, which may follow a schedule.
        start: `start(training, weights)` returns the state before the first step, a pytree of
            arrays. `weights` are the starting weights of training with the same key, or None if
            "key" is not in `needs`.
        observe: `observe(t, state, training)` returns observables by name. Use the same names as
            the problem, so that `dynsim compare` draws both.
        inapplicable: function that returns why the equations do not describe a `Training`, or None.
            A theory of single examples, for instance, has to check `training.batch`.
        any_rule: whether it describes rules other than gradient descent with one learning rate,
            without momentum, decay, clipping and noise. Then `inapplicable` has to check the rule.
        names: names of the observables; required if `observe` cannot be evaluated for problems
            that the theory does not describe.
        needs: `()` for a theory whose start does not use the weights, so that it needs no key.
        stop: `stop(t, state, training)` returns whether the equations have become invalid. From
            then on the run has `Status.DIVERGED`.
        discrete: whether `field` returns the change of the state in the step after t, so that the
            equations are a map and no flow. Such a theory has no `solver` and no tolerances, and
            only forward-mode derivatives.
        solver: a diffrax solver; by default `diffrax.Tsit5()`.
        tolerances: tolerances of the solver; by default those of the precision.

    Raises:
        ValueError: for a `discrete` system with a solver or tolerances; and from the theory's
            `solve`, with the reason, if it does not describe a training.

    Example:
        Online descent on :math:`(w x - y)^2/2` with label noise, to second order in the rate:

        >>> def field(t, state, training):
        ...     eta, noise = training.rate(t), training.problem.noise
        ...     return -2 * eta * state + eta**2 * (3 * state + noise**2) / training.batch
        ...
        >>> error = odes.system(
        ...     "error",
        ...     "mean square error of w",
        ...     "normal inputs, fresh examples",
        ...     field,
        ...     lambda training, w: (w - 1) ** 2,
        ...     lambda t, state, training: {"square": state},
        ... )
    """
    if discrete and (solver or tolerances):
        raise ValueError("discrete = True: a map has no solver and no tolerances")
    refused = dict(refused or {})
    field, start, observe = map(checks.of_user, (field, start, observe))
    stop = stop and checks.of_user(stop)

    def why_not(training: Training) -> str | None:
        reason = None if any_rule else no_sgd(training.rule, momentum="none")
        return reason or inapplicable(training)

    def solve(
        training: Training,
        weights: PyTree,
        times: Float[Array, " S"],
        *,
        record: Record,
        tolerances: Tolerances | None = None,
    ) -> Trajectory:
        def save(t: Float[Array, ""], state: PyTree, training: Training) -> dict[str, Array]:
            return rows(dict(observe(t, state, training)), record, refused)

        initial = start(training, weights)
        if any(map(jnp.iscomplexobj, jax.tree.leaves(initial))):
            raise ValueError(f"theory {name!r}: start must return real numbers; use two for each")
        initial = jax.tree.map(lambda leaf: jnp.asarray(leaf, times.dtype), initial)
        if tolerances is not None:
            # The user's functions take a training, but diffrax passes on only its arrays.
            numbers, rest = eqx.partition(training, eqx.is_array)

            def of_numbers(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
                return lambda t, state, numbers: function(t, state, eqx.combine(numbers, rest))

            solved = integrate(
                of_numbers(field),
                initial,
                times,
                numbers,
                save=of_numbers(save),
                timescale=StepTime(),
                tolerances=tolerances,
                jumps=jumps(training.rule),
                solver=solver,
                stop=None if stop is None else of_numbers(stop),
            )
            return solved.trajectory(name, solved.final)

        # A map: add its change at every step.
        def step(now: tuple[Array, PyTree, Array]) -> tuple[Array, PyTree, Array]:
            t, state, valid = now
            if stop is not None:
                # Unlike a solver it goes on, but the run counts as invalid from here on.
                valid &= ~stop(t, state, training)
            return t + 1, jax.tree.map(jnp.add, state, field(t, state, training)), valid

        def advance(
            now: tuple[Array, PyTree, Array], t: Array
        ) -> tuple[tuple[Array, PyTree, Array], tuple[dict[str, Array], Array]]:
            # The number of steps is traced, hence a loop without reverse-mode derivatives.
            _, state, valid = now = jax.lax.while_loop(lambda now: now[0] < t, step, now)
            finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state)]
            return now, (save(t, state, training), valid & jnp.all(jnp.stack(finite)))

        begin = jnp.zeros((), times.dtype), initial, jnp.ones((), bool)
        (_, final, _), (values, valid) = jax.lax.scan(advance, begin, times)
        return Trajectory(times, values, final, *judge(times, valid), name)

    def at_start(problem: Problem) -> Mapping[str, Array]:
        # The key is made here, because importing must not touch a device.
        weights = problem.init(jax.random.key(0)) if "key" in needs else None
        training = Training(problem, None, 1, 1)
        return observe(jnp.zeros(()), start(training, weights), training)

    return computed(
        *(name, title, assumes, solve, why_not),
        needs=(*needs, "batch", "steps"),
        adaptive=not discrete,
        tolerances=tolerances,
        variant=variant,
        refused=refused,
        predicts=predicted(names, at_start),
    )
