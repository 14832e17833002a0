"""What the learning rates and the batch of a run strain, measured at its start and in its first
steps: for `dynsim explain`."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

import dynsim
import odes
from dynsim import Problem, Ratio, Rule, Status, Trajectory
from dynsim.precision import precision
from dynsim.problem.base import narrowed
from dynsim.problem.checks import check_groups
from dynsim.problem.train import problem_in, started
from odes.formulas import decoder
from odes.solver.rescaled import Rescaled, undescribed
from odes.symmetric.state import SymmetricTask
from sweeps.systems.experiment import Experiment

# Where an assumption counts as strained. Curvature: along its direction a step of eta lambda = 0.2
# moves the weights by 10 % less than the flow does. Apart: the loss of descent is that share of the
# fall away from the flow's. Factor: or at the end that share of the loss. Noise: the gradient of a
# batch is off by that share of its norm. Overlap: gamma's error against the population flow passes
# 5 % there (`dynsim validate overlap`). Kick: h* - h (Lemma 7) is then a tenth of the logit scale.
# Ratio: Assumption 1(c) of the paper, a decoder faster than the attention.
CURVATURE, APART, FACTOR, NOISE = 0.2, 0.05, 0.2, 0.5
FIRST = 1000
"""Steps over which descent is compared with the flow, at most."""
TURNS = 50
"""Of the power iteration, each a product of the Hessian with a vector."""
OVERLAP, KICK, RATIO = 0.3, 0.1, 2.0
MOVED = 0.05
"""Difference of the logits of top distinct and top common token below which attention, which it
changes by as many times, has not moved."""
Task = dynsim.SequenceClasses | SymmetricTask


def too_coarse(
    problem: Problem,
    rule: Rule,
    key: jax.Array,
    steps: int,
    theory: str,
    times: Float[np.ndarray, " S"],
    loss: Float[np.ndarray, " S"],
) -> list[str]:
    """What the size of the steps strains: by the curvature, and by descent itself, whose loss is
    compared with that of a `theory` at `times`."""
    found = []
    if not rule.is_adaptive:
        size = largest_curvature(problem, rule, key, steps)
        if size > CURVATURE:
            limit = "" if rule.has_inertia else "; descent is unstable above 2"
            found.append(
                f"eta -> 0 (all flows): eta times the largest curvature at the start is {size:.2g},"
                f" above {CURVATURE}{limit}"
            )
    early = times <= FIRST
    # A run that can be resumed may end before its schedule does.
    run = odes.descent(problem, rule, times[early], key=key, record="loss", checkpoint=True)
    apart, fall = (np.abs(each).max() for each in (run["loss"] - loss[early], loss - loss[0]))
    over = f"over the first {int(times[early][-1])} steps"
    if int(run.status) != Status.OK:
        found.append(f"eta -> 0 (all flows): {over} descent at these rates diverges")
    elif apart > APART * fall:
        found.append(
            f"eta -> 0 ({theory}): {over} the loss of descent at these rates is up to "
            f"{100 * apart / fall:.2g} % of the fall away, above {100 * APART:g} %"
        )
    else:
        # A loss that falls by decades may be wrong by a factor at its end.
        mine, other = float(run["loss"][-1]), float(loss[early][-1])
        if min(mine, other) > 0 and abs(math.log(mine / other)) > math.log1p(FACTOR):
            found.append(
                f"eta -> 0 ({theory}): at step {int(times[early][-1])} descent at these rates has "
                f"a loss of {mine:.3g} where the theory has {other:.3g}"
            )
    return found


def too_noisy(problem: Problem, key: jax.Array, steps: int, batch: int | float) -> list[str]:
    """What the size of the batch strains."""
    if math.isinf(batch):
        return []
    return noise_sentences(batch, batch_noise(problem, key, steps, int(batch)))


def noise_sentences(batch: int | float, share: float) -> list[str]:
    """What the size of the batch strains, where its gradient is off by that share of its norm."""
    if share <= NOISE:
        return []
    return [
        f"batch -> infinity (all flows): the gradient of {batch:g} examples at the start is off by "
        f"{share:.2g} of its norm, above {NOISE}; `dynsim compare` also trains on batches"
    ]


def symmetric_noise(task: SymmetricTask, batch: int | float) -> float:
    r"""`batch_noise` of symmetric classes from zero weights, to leading order in 1/T [ours].

    An example of class n contributes :math:`-f_n u_n^T` to the gradient, with
    :math:`u_n = e_n - 1/M` and :math:`|f_n| = 1`, and nothing to that of Z. So the mean square over
    batches of the distance from the mean G is :math:`(1 - 1/M - |G|^2) / B`, and
    :math:`|G|^2 = (1 - 1/M - (K-1)\, f_n \cdot f_{n'} / M) / K`.
    """
    K, M, (overlap, _) = int(task.K), int(task.M), starting_overlap(task)
    mean = (1 - 1 / M - (K - 1) * overlap / M) / K
    return math.sqrt(max(1 - 1 / M - mean, 0) / mean / batch)


def largest_curvature(problem: Problem, rule: Rule, key: jax.Array, steps: int) -> float:
    """Largest eigenvalue of the Hessian of the population loss at the start, times the largest
    learning rates of the run (without unit)."""
    with precision("float64"):
        return float(_curvature(problem, rule.astype("float64"), key, steps=steps))


@eqx.filter_jit
def _curvature(problem: Problem, rule: Rule, key: jax.Array, *, steps: int) -> jax.Array:
    parts, cast = started(problem, key, None, "float64"), problem_in(problem, "float64")
    groups = check_groups(cast, rule, parts)
    rates = jax.tree.map(jnp.max, rule.rate(jnp.arange(steps)))
    start, unravel = ravel_pytree(parts.params)
    gradient = jax.grad(lambda flat: cast.population_loss(parts.whole(unravel(flat))))

    def product(vector: jax.Array) -> jax.Array:
        _, bent = jax.jvp(gradient, (start,), (vector,))
        return -ravel_pytree(rule.descend(unravel(bent), rates, groups))[0]

    def dominant(shift: jax.Array | float) -> jax.Array:
        """Of the eigenvalues, the one farthest from -`shift`."""

        def turn(_: int, vector: jax.Array) -> jax.Array:
            turned = product(vector) + shift * vector
            return turned / jnp.linalg.norm(turned)

        vector = jax.random.normal(jax.random.key(0), start.shape, start.dtype)
        vector = jax.lax.fori_loop(0, TURNS, turn, vector / jnp.linalg.norm(vector))
        return vector @ product(vector)

    # At a saddle the farthest from 0 may be negative; from there the largest one is the farthest.
    return dominant(jnp.abs(dominant(0.0)))


def batch_noise(problem: Problem, key: jax.Array, steps: int, batch: int) -> float:
    """Distance of the gradient of a batch from that of the population at the start, over the norm
    of the latter."""
    with precision("float64"):
        return float(_batch_noise(problem, key, steps=steps, batch=batch))


@eqx.filter_jit
def _batch_noise(problem: Problem, key: jax.Array, *, steps: int, batch: int) -> jax.Array:
    cast, parts = problem_in(problem, "float64"), started(problem, key, None, "float64")
    with jax.enable_x64(False):
        data = problem_in(problem, "float32").batches(key, steps, batch)(jnp.int32(0))
    weights = parts.whole(parts.params)
    exact = eqx.filter_grad(cast.population_loss)(weights)
    _, found = cast.loss_and_gradient(weights, narrowed(data, "float64"))
    want, got = (ravel_pytree(gradient)[0] for gradient in (exact, found))
    return jnp.linalg.norm(got - want) / jnp.linalg.norm(want)


def check_moves(run: Experiment) -> None:
    """Raise `ValueError` for a run of the attention layer at which no zero weight moves."""
    rates = run.rule.build().of_groups("Y", "Z").schedules
    if "Y" in rates and rates["Y"].peak == 0:
        given = "ratio" if isinstance(getattr(run.rule, "eta", None), Ratio) else "eta_y"
        raise ValueError(f"{given} = 0: nothing moves from zero weights; must be positive")


def stages_by_class(task: Task, rule: Rule) -> decoder.Stages | None:
    """Transition times of the closed form; None where it does not apply."""
    if undescribed(rule, "the closed form") is not None:
        return None
    clock = Rescaled.of(rule)
    rate = clock.rate * clock.eta_y
    return decoder.stages(rate, 1 / _prior(task), task.M).at(clock.steps_at)


def stages_of(task: Task, rule: Rule) -> dict[str, float] | None:
    """The same, averaged over classes."""
    found = stages_by_class(task, rule)
    return {n: float(np.mean(t)) for n, t in found._asdict().items()} if found else None


def final_of(solved: Trajectory) -> dict[str, float]:
    """What was recorded last, averaged over classes."""
    return {name: float(np.mean(np.asarray(v)[-1])) for name, v in solved.observables.items()}


def _prior(task: Task) -> np.ndarray:
    """(K,) prior of the classes; of a reduced task, whose classes are alike, that of one."""
    return np.ones(1) / int(task.K) if isinstance(task, SymmetricTask) else np.asarray(task.prior)


def regime(steps: int, stages: dict[str, float] | None, final: dict[str, float]) -> str | None:
    """Where a run is at its end, in words; None where the closed form does not apply."""
    if stages is None:
        return None
    if steps <= stages["rise_end"]:
        return "scanning at the end"
    # Without a t0 (M <= 3) there is no second stage to be in.
    if not steps >= stages["snap"]:
        return "in transition at the end"
    apart = abs(final["z_top_distinct"] - final["z_top_common"])
    if apart < MOVED:
        return f"decoder learned, attention unmoved: its logits are {apart:.2g} apart"
    return "snapped"


def strained(
    length: int | float, task: Task, rule: Rule, stages: dict[str, float] | None
) -> list[str]:
    """The assumptions that a run strains, one sentence each."""
    reasons = []
    overlap, tokens = starting_overlap(task)
    if overlap > OVERLAP:
        reasons.append(
            f"weak overlap (Theorem 1, Eq. 10): mean f_n.f_n' at the start is {overlap:.2f}, above "
            f"{OVERLAP}"
        )
    if stages is not None:
        clock = Rescaled.of(rule)
        kick = float(clock.rate) * clock.eta_y * float(np.max(_prior(task)))
        if kick > KICK * math.log(task.M):
            reasons.append(
                f"eta -> 0 (all flows): a step moves a class's logit by up to {kick:.2g}, above "
                f"{KICK} ln M = {KICK * math.log(task.M):.2g}; gamma peaks after "
                f"{stages['peak']:.2g} steps"
            )
        if clock.eta_z > 0 and clock.eta_y / clock.eta_z < RATIO:
            reasons.append(
                f"decoder faster than attention (Assumption 1c): eta_Y / eta_Z = "
                f"{clock.eta_y / clock.eta_z:.3g}, below {RATIO:g}"
            )
        if rule.has_inertia:
            reasons.append(
                "no inertia (closed form, Eq. 10): momentum enters them only as eta / (1 - mu)"
            )
    if not math.isinf(length) and length <= 10 * tokens:
        reasons.append(
            f"T -> infinity (this prediction, and all theories but those of finite T): "
            f"T = {length} tokens sample {tokens} possible ones; `dynsim compare` also "
            "solves the finite-T theories"
        )
    return reasons


def starting_overlap(task: Task) -> tuple[float, int]:
    """Mean of f_n . f_n' over pairs of classes at zero weights, and how many tokens a class has."""
    if isinstance(task, SymmetricTask):
        common = float(task.sum_common(jnp.asarray(task.rho) ** 2))
        tokens = task.sum_distinct(jnp.ones(np.shape(task.p))) + task.sum_common(
            jnp.ones(np.shape(task.rho))
        )
        return common / (common + float(task.sum_distinct(jnp.asarray(task.p) ** 2))), int(tokens)
    probs = np.asarray(task.probs)
    f = probs / np.linalg.norm(probs, axis=-1, keepdims=True)
    pairs = (f @ f.T - np.eye(task.K)).sum() / max(task.K * (task.K - 1), 1)
    return float(pairs), task.support.shape[1]
