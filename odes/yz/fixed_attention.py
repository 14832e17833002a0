r"""The decoder alone: attention fixed at its start, Y trained (Scan and Snap, section 4).

With `decoder="closed"` it follows :math:`h(\pi(n)\, t)` of Lemma 6 in closed form, which also
assumes :math:`\eta_Y \to 0`; with `decoder="discrete"` it follows :math:`h_n^*(k)` of Lemma 5 step
by step, for any :math:`\eta_Y`.

Both assume infinite T and batch, Y = 0 at the start, :math:`\eta_Z = 0` and the decoder update
of Lemma 3, under which the rows of W = F Y evolve independently. They are exact for one class and
for classes without common tokens (up to :math:`\eta_Y \to 0` for the closed form); otherwise the
plain update couples the rows through the overlaps :math:`f_n \cdot f_{n'}`.

In Lemma 5 a visit draws one class and moves it by :math:`\eta_Y`. A step of descent on the batch
mean moves every class at once, by :math:`\pi(n)\, \eta_Y`. In the discrete decoder, class n
therefore follows Lemma 5's recursion at the rate :math:`\pi(n)\, \eta_Y`, one visit per step; the
lemma itself is `odes.decoder.h_star(eta_Y, M, S)` at s = t/K. Momentum and schedules are exact in
the discrete decoder, and enter the closed form through :math:`\eta/(1 - \mu)` and the integral of
the rate (`odes.solver.posed`).

Example:
    >>> rule = dynsim.sgd(1.0, 0.0)
    >>> theory = odes.fixed_attention.solve(dynsim.Syn(1, 2, num_common=0), rule, [0, 10, 100])
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynsim import checks
from dynsim.classes.task import Task
from dynsim.training.recording import Recording
from dynsim.training.rule import Rule
from dynsim.training.rules import SGD
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import model as yz
from dynsim.yz.layer import Layer
from odes import decoder as closed_form
from odes.decoder import h_star
from odes.run import check_times
from odes.solver.integrate import judge
from odes.solver.posed import Rescaled
from odes.theory import AnyTheory, Theory, Training
from odes.yz import population

DecoderKind = Literal["closed", "discrete"]


def solve(
    task: Layer | Task,
    optimizer: Rule,
    times: Times,
    *,
    decoder: DecoderKind = "closed",
    **options: Any,
) -> Trajectory:
    """Predict the layer's observables while the decoder learns at fixed attention.

    Args:
        task: the layer, or its sequence classes, whose normalised attention must be linearly
            independent.
        optimizer: SGD or heavy-ball momentum, for the closed form also Nesterov momentum; its
            numbers may be traced, eta_z is not used.
        times: (S,) optimiser steps at which to record, increasing, >= 0. The discrete decoder
            rounds times down to whole steps, and needs concrete times.
        decoder: "closed" or "discrete", see above.
        **options: `init`, `key`, `record` and `dtype` of `odes.yz.eq10.solve`.

    Returns:
        A `Trajectory` with `params` None. Nothing is integrated, so its status is OK unless the
        input is not finite or the classes are linearly dependent.

    Raises:
        ValueError: naming the argument, its value and what is allowed, before compilation.
    """
    discrete = checks.choice("decoder", decoder, ("closed", "discrete")) == "discrete"
    if discrete:
        check_times(times)
        if checks.is_traced(times):
            raise ValueError("times: the discrete decoder needs concrete times, to count steps")
        options["steps"] = int(np.floor(np.asarray(times)[-1]))
    options |= {"name": "fixed_attention-discrete" if discrete else "fixed_attention"}
    why_not = functools.partial(_inapplicable, discrete=discrete)
    options["adaptive"] = False
    return population.without_decoder(_solve, task, optimizer, times, why_not, **options)


def _inapplicable(training: Training, *, discrete: bool) -> str | None:
    name, momentum = "the decoder at fixed attention", "heavy-ball" if discrete else "any"
    return population.inapplicable(training, name, momentum=momentum, together=False)


def _solve(
    training: Training,
    start: yz.YZ,
    times: Float[Array, " S"],
    *,
    name: str,
    record: Recording,
) -> Trajectory:
    task, optimizer, steps = training.problem.classes, training.rule, training.steps
    Z = population.starting_logits(start)
    assert isinstance(optimizer, SGD)
    rescaled = Rescaled.of(optimizer)
    if steps is None:
        # Lemma 6 at s = pi(n) t, with t in the time of the rate.
        visits = rescaled.flow_time(times)[:, None] * task.prior[None]
        h = closed_form.h(visits, rescaled.rate * rescaled.eta_y, task.M)
    else:
        # Lemma 5's recursion at the rate pi(n) eta_Y, one visit in each step.
        pace = jnp.asarray(dataclasses.replace(rescaled.Y, peak=1.0).rate(jnp.arange(steps)))
        at_steps = h_star(task.prior * rescaled.eta_y, task.M, steps, optimizer.mu, pace=pace)
        h = at_steps[jnp.floor(times).astype(int)]

    def at(h: Float[Array, " K"]) -> tuple[dict[str, Array], Array]:
        snapshot = population.predict(task, Z, h)
        finite = jnp.all(jnp.isfinite(snapshot.logits)) & jnp.all(jnp.isfinite(snapshot.g))
        return record(task, snapshot), finite

    saved, finite = jax.vmap(at)(h)
    return Trajectory(times, saved, None, *judge(times, finite), name)


def _theory(name: str, title: str, assumes: str, decoder: DecoderKind) -> AnyTheory:
    discrete = decoder == "discrete"
    return Theory(
        name,
        title,
        assumes,
        functools.partial(solve, decoder=decoder) if discrete else solve,
        functools.partial(_inapplicable, discrete=discrete),
        variant=True,
        needs=("key",),
        adaptive=False,
        memory=population.by_class(1),
    )


_FIXED = f"{population.START}, eta_Z = 0"
THEORIES = (
    _theory(
        "fixed_attention",
        "decoder at fixed attention",
        f"{_FIXED}, eta_Y -> 0, {population.DECODER}",
        "closed",
    ),
    _theory(
        "fixed_attention-discrete",
        "discrete decoder at fixed attention",
        f"{_FIXED}, {population.DECODER}",
        "discrete",
    ),
)
"""The decoder in closed form, and step by step."""
