"""The rows of `dynsim explain` that only two-stage training has (arXiv:2502.20681): the thresholds
below which Q is learned, and why it is not learned above them."""

import math
from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dynsim import Prompts
from dynsim.problem.build import narrowed
from dynsim.problem.train import problem_in
from dynsim.two_stage.annealing import Annealing, why_not_annealed
from dynsim.two_stage.observables import LEARNED
from odes.two_stage import thresholds
from sweeps.systems.base import Prediction, Row
from sweeps.systems.experiment import Experiment


def rows(run: Experiment, prediction: Prediction) -> Iterator[Row]:
    """Yield noise, growth rates and times of the stages in closed form, and which of them keep a
    component from being learned. They hold without coupling; times are in eta-time."""
    del run
    training = prediction.training
    if why_not_annealed(training.rule):
        return
    stages = Annealing.of(training.rule)
    problem = problem_in(training.problem, "float64")
    closed_form = _closed_form(problem, narrowed(stages, "float64"))
    tau_c, eta_c, tau_1, tau_2, g_1, g_2, hessian_1, hessian_2, margin, a, b, growth, waiting = map(
        float, closed_form
    )
    yield Row("critical noise tau_c", tau_c)
    yield Row("critical rate eta_c", eta_c)
    yield Row("noise tau_1 of stage 1", tau_1, 0.0)
    reason = ""
    if tau_2 >= tau_c:
        reason = (
            f"Q is learned: the noise of stage 2, tau_2 = {tau_2:.3g}, is above the critical tau_c "
            f"= {tau_c:.3g}, so that nothing grows (g_2 = {g_2:.3g}): anneal below eta_2 = "
            f"{eta_c:.3g}"
        )
    yield Row("noise tau_2 of stage 2", tau_2, 0.0, reason)
    # The Hessian of the reduced loss has terms that the closed form leaves out.
    yield Row("growth rate g_1 of Q in stage 1", g_1, abs(g_1 - hessian_1))
    yield Row("growth rate g_2 of Q in stage 2", g_2, abs(g_2 - hessian_2))
    # ln(1 + e^-m) = loss: with this margin on all prompts, P just counts as learned.
    learned_margin, reason = -math.log(math.expm1(LEARNED["P"][1])), ""
    if margin < learned_margin:
        reason = (
            f"P is learned: unsaturated, its margin would reach {margin:.3g} in stage 1, and "
            f"learned takes {learned_margin:.3g}: a smaller decay or a larger gamma0 raises it"
        )
    yield Row("margin of P after stage 1, unsaturated", margin, math.nan, reason)
    yield Row("stationary trace a* of P", a)
    yield Row("stationary trace b* of Q", b)
    # In stage 2, the signal of Q grows from noise, which first has to decay to tau_2.
    duration, reason = float((stages.last - stages.first) * stages.eta_2), ""
    if tau_2 < tau_c and waiting + growth > duration:
        reason = (
            f"Q is learned: at g_2 = {g_2:.3g} the signal needs the eta-time {growth:.3g} to "
            f"outgrow the noise, after about {waiting:.3g} in which noise decays; stage 2 lasts "
            f"{duration:.3g}: make stage_2 longer"
        )
    yield Row("eta-time in which the noise decays", waiting)
    yield Row("eta-time in which Q outgrows the noise", growth, math.nan, reason)
    if np.any(np.asarray(training.problem.coupling) > 0):
        coupling = float(training.problem.coupling)
        reason = "no coupling (thresholds in closed form): P starves Q with it"
        yield Row("coupling", coupling, 0.0, reason)


@eqx.filter_jit  # one program instead of one for each of hundreds of operations
def _closed_form(task: Prompts, stages: Annealing) -> tuple[Array, ...]:
    decay = stages.decay
    tau_1, tau_2 = (jnp.asarray(stages.stationary(eta)) for eta in (stages.eta_1, stages.eta_2))
    return (
        thresholds.critical_noise(task, decay),
        thresholds.critical_rate(task, stages),
        tau_1,
        tau_2,
        thresholds.growth_rate(task, tau_1, decay),
        thresholds.growth_rate(task, tau_2, decay),
        thresholds.growth_rate_hessian(task, tau_1, decay),
        thresholds.growth_rate_hessian(task, tau_2, decay),
        thresholds.unsaturated_margin(task, stages.first * stages.eta_1),
        *thresholds.stationary_signal(task, decay),
        thresholds.growth_time(task, tau_2, decay),
        thresholds.waiting_time(decay),
    )
