"""Flow of the factors W_Q, W_K, W_V (and D) that make up Y and Z, with U frozen [ours].

The layer is `dynsim.qkv.model` with l2 normalisation as in the theory (Scan and Snap, section 2).
Assumes batch -> infinity, eta -> 0, and a frozen U of any width and with any overlaps. T is
infinite (Lemma 2), or finite to first order in 1/T. In terms of the tokens the factors are, for
each head (Q and Z have rows only for queries):

    Q = U_q W_Q (Q, r),   K = U W_K (M, r),   A = U W_V^T (M, d),   C = U U^T (M, M)
    Z = Q K^T / sqrt(d),  Y = A D^T, or Y = U W_V^T U^T where the decoder is tied

With the gradients G_Y, G_Z of the population loss in Y and Z (Lemma 1), the chain rule gives

    Q' = -(eta_Z / sqrt(d)) C_qq G_Z K            A' = -eta_Y C G_Y D
    K' = -(eta_Z / sqrt(d)) C G_Z^T Q             D' = -eta_Y sum over heads of G_Y^T A
    Y' = -eta_Y C G_Y C where the decoder is tied

The map from weights to factors is linear, so that the momentum and corrected flows of
`odes.solver.flows` apply to the factors. Rules that are not linear in the gradient, such as Adam,
act weight by weight, which requires U = I. `docs/systems/qkv.md` lists the conserved quantities.

Example:
    >>> problem = dynsim.QKV(dynsim.SynSmall(), length=float("inf"))
    >>> theory = odes.theories(problem)["factors"]
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynsim import Trajectory
from dynsim.classes.task import SequenceClasses
from dynsim.precision import AnyArray
from dynsim.problem.observables import measured
from dynsim.qkv import model as embedded
from dynsim.qkv.model import Embedded
from dynsim.training.recording import Recording
from dynsim.training.rule import of_layer
from dynsim.training.rules import check_known
from dynsim.yz import finite_length
from dynsim.yz import model as yz
from odes.general import at, computed, flows
from odes.problem import flow_of_rule
from odes.solver.flows import checked_flow
from odes.solver.tolerances import Tolerances
from odes.theory import AnyTheory, Inapplicable, Training, named, of_finite_length

__all__ = ["THEORIES", "Factors", "Layer", "Problem", "gradient"]


class Layer(eqx.Module):
    r"""The factors in terms of the tokens, and the layer that they form.

    Attributes:
        Y: (H, M, M) effective decoder logits of each head.
        Z: (H, Q, M) effective attention logits of each head, for each query.
        Q: (H, Q, r) the product :math:`U_q W_Q`.
        K: (H, M, r) the product :math:`U W_K`.
        A: (H, M, d) the product :math:`U W_V^\top`, and D: (M, d) the decoder; None where it is
            tied to U.
    """

    Y: Float[AnyArray, "H M M"]
    Z: Float[AnyArray, "H Q M"]
    Q: Float[Array, "H Q r"]
    K: Float[Array, "H M r"]
    A: Float[Array, "H M d"] | None
    D: Float[Array, "M d"] | None


class Factors(NamedTuple):
    """The state of the flow, by learning rate: Y is (Y,) if tied, else (A, D); Z is (Q, K)."""

    Y: tuple[Array, ...]
    Z: tuple[Array, Array]


class Problem(NamedTuple):
    r"""Inputs of the right-hand side: the task, C and its query block :math:`C_{qq}`,
    :math:`1/\sqrt d`, and the number of contextual tokens."""

    task: SequenceClasses
    C: Float[Array, "M M"]
    C_qq: Float[Array, "Q Q"]
    scale: Float[Array, ""]
    context: finite_length.Context


def inapplicable(training: Training) -> str | None:
    """Return why the flow does not describe the layer or the rule, or None."""
    problem, rule = training.problem, training.rule
    try:
        check_known(rule)
        checked_flow(rule.of_groups("Y", "Z"))
    except ValueError as error:
        return str(error)
    if "U" not in problem.untrained:
        return "train_embedding = True: must be False; the factor flow keeps U frozen"
    if (problem.normalisation, problem.placement) != ("l2", "theory"):
        return (
            f"normalisation = {problem.normalisation!r}, placement = {problem.placement!r}: must "
            "be 'l2' and 'theory' for this flow"
        )
    if problem.slope is not None:
        return f"slope = {problem.slope}: must be None; the factor flow does not describe positions"
    if rule.decay is not None and problem.untrained != {"U"}:
        return f"decay = {rule.decay!r}: this flow needs all weights except U to be trained"
    if rule.is_adaptive and problem.embedding != "identity":
        return (
            f"optimizer = {rule.name}: acts weight by weight, which this flow describes for U = I "
            "only (embedding = 'identity')"
        )
    return None


def _solve(
    training: Training,
    init: Embedded,
    times: Float[Array, " S"],
    *,
    finite: bool,
    record: Recording,
    tolerances: Tolerances,
) -> Trajectory:
    """Solve for a trajectory with a `Layer` in `params`."""
    layer, rule = training.problem, training.rule
    task, length = layer.classes, layer.length if finite else math.inf
    context = finite_length.contextual(length, times.dtype.name)
    # Q = U_q W_Q, K = U W_K, A = U W_V^T; Y = A D^T, or A U^T where the decoder is tied.
    U = jnp.asarray(init.U)
    U_q, d = U[task.queries], init.width
    problem = Problem(task, U @ U.T, U_q @ U_q.T, jnp.asarray(d**-0.5, U.dtype), context)
    A = U @ jnp.swapaxes(init.W_V, 1, 2)
    decoder = (A @ U.T,) if init.D is None else (A, jnp.asarray(init.D))
    start = Factors(decoder, (U_q @ init.W_Q, U @ init.W_K))

    def save(problem: Problem, factors: Factors, t: Array) -> dict[str, Array]:
        del t
        weights = embedded.from_heads(task, _heads(problem, factors, init.residual))
        return measured(layer, record, weights)

    solved, final = flow_of_rule(
        functools.partial(gradient, residual=init.residual, frozen=tuple(layer.untrained)),
        problem,
        rule,
        of_layer(start),
        start,
        times,
        flow=checked_flow(rule),
        save=save,
        tolerances=tolerances,
    )
    heads = _heads(problem, final, init.residual)
    A, D = final.Y if len(final.Y) == 2 else (None, None)
    Q, K = final.Z
    params = Layer(heads.Y, heads.Z, Q, K, A, D)
    return solved.trajectory(named("factors", context is not None), params)


def gradient(
    problem: Problem, factors: Factors, *, residual: bool = False, frozen: tuple[str, ...] = ()
) -> Factors:
    r"""Return the gradient for the factors: minus the module's right-hand sides divided by
    :math:`\eta`, and 0 for frozen factors."""
    task, C, C_qq, scale, context = problem

    # The outputs of the heads add up.
    def forward(heads: yz.YZ, task: SequenceClasses, examples: yz.Examples) -> Float[Array, "K M"]:
        return jnp.sum(jax.vmap(lambda head: yz.forward(head, task, examples))(heads), axis=0)

    def loss(heads: yz.YZ) -> Float[Array, ""]:
        return finite_length.mean_loss(finite_length.by_counts(heads, task, forward), task, context)

    grads = jax.grad(loss)(_heads(problem, factors, residual))
    G_Y, G_Z = grads.Y, grads.Z
    Q, K = factors.Z
    # C_qq G_Z K / sqrt(d) and C G_Z^T Q / sqrt(d), then C G_Y D and G_Y^T A, or C G_Y C if tied.
    dQ = scale * C_qq @ (G_Z @ K)
    dK = scale * C @ (jnp.swapaxes(G_Z, 1, 2) @ Q)
    names = ("W_V",)
    if len(factors.Y) == 2:
        A, D = factors.Y
        names = ("W_V", "D")
        decoder = (C @ (G_Y @ D), jnp.einsum("hlk,hld->kd", G_Y, A))
    else:
        decoder = (C @ G_Y @ C,)

    # With the weights behind it frozen, a factor stays where it is.
    def moving(names: tuple[str, ...], parts: tuple[Array, ...]) -> tuple[Array, ...]:
        pairs = zip(names, parts, strict=True)
        return tuple(jnp.zeros_like(part) if name in frozen else part for name, part in pairs)

    dQ, dK = moving(("W_Q", "W_K"), (dQ, dK))
    return Factors(moving(names, decoder), (dQ, dK))


def _heads(problem: Problem, factors: Factors, residual: bool) -> yz.YZ:
    """Return the layer with Y (H, M, M) and Z (H, Q, M) that the factors form."""
    Q, K = factors.Z
    Z = problem.scale * Q @ jnp.swapaxes(K, 1, 2)
    if len(factors.Y) == 1:
        return yz.YZ(factors.Y[0], Z, residual)
    A, D = factors.Y
    return yz.YZ(A @ D.T, Z, residual)


def _theory(finite: bool, inapplicable: Inapplicable = inapplicable) -> AnyTheory:
    assumes = "batch -> infinity, eta -> 0, U frozen (for Adam U = I), l2 normalisation by theory"
    solver = functools.partial(_solve, finite=finite)
    return computed("factors", "flow of the factors", f"T, {assumes}", solver, inapplicable)


FACTORS = _theory(finite=False)
# The reasons of the finite-T version include those of an expansion in 1/T.
_WITH_REASONS = of_finite_length(FACTORS, FACTORS.solve).inapplicable
FACTORS_FINITE = of_finite_length(FACTORS, _theory(finite=True, inapplicable=_WITH_REASONS).solve)
_FLOWS = (at(flow, "T -> infinity", length=math.inf) for flow in flows())
THEORIES = (FACTORS_FINITE, FACTORS, *_FLOWS)
"""The theories, most exact first: `factors-finite-t`, `factors`, then flows of all weights."""
