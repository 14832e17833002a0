"""Slips of the papers on in-context regression, sparse attention and JoMA."""

import jax
import jax.numpy as jnp
import numpy as np

import dynsim
from dynsim import Heads, Merged, Shape
from dynsim.joma.model import Hidden, Joint
from dynsim.training.descent import Descent
from odes import joma, linear_icl, sparse_attention
from odes.sparse_attention import ladder, symmetric

HEADER = """
Others, by arXiv number: 2501.16265 (in-context regression), 2505.17863 (sparse attention),
2310.00535 (JoMA, whose body was not at hand: what it prints is quoted from memory) and 2403.03507
(GaLore, appendix B.3, which restates JoMA).

| # | where | what is printed | what holds | evidence |
|---|---|---|---|---|"""


def rows() -> list[tuple[str, ...]]:
    """Where, what is printed, what holds, evidence; in float64."""
    return [_growing_part(), _shared_pull(), _escape(), _fixed_token(), *_attention_of_joma()]


def _growing_part() -> tuple[str, ...]:
    white, key = dynsim.regression(4, 31, "white"), jax.random.key(0)
    init = dynsim.initial_regression(white, key, Heads("merged", 8), 1e-3, "float64")
    assert isinstance(init, Merged)
    times = np.linspace(0.0, 8.0, 801)
    flow = linear_icl.solve(white, Descent(0.5), times, init=init, record="learned")
    half = float(np.interp(0.5, np.asarray(flow["learned"]).mean(1), times))
    root, end = 2.0, 2.0 / float(np.asarray(white.gain)[0])
    along = np.trace(np.asarray(init.U), axis1=1, axis2=2) / root
    part = float(np.linalg.norm(init.v + along)) / 2
    norm = float(np.linalg.norm(init.v))
    # Where the share of eq. 10 is one half.
    printed, ours = (float(np.log(end / w**2 - 1) / (2 * root)) for w in (norm, part))
    return (
        "2501.16265, eq. 10",
        "w_init is the norm of a layer at the start",
        "of what grows: the norm of (w_2 + W_1 u)/2, u the direction of E[y z]; the same for a "
        "balanced start",
        f"eight heads from N(0, 0.001^2), time in tau to half of what is learned: {half:.3f} "
        f"(flow), {printed:.3f} (norm of w_2), {ours:.3f} (what grows)",
    )


def _steps(name: str, T: int, d: int, B: int) -> float:
    """Steps at eta = 1 until the loss is at 0.8 of its start, by a theory."""
    task, times = dynsim.retrieval(T, d, B), np.arange(0.0, 2800, 2)
    loss = ladder.THEORIES[name].solve(task, Descent(1.0), times, record="loss")["loss"]
    return float(np.interp(-0.4, -np.asarray(loss), times))


def _shared_pull() -> tuple[str, ...]:
    cells = (
        f"B = {B}: {_steps('plain', 256, 64, B):.0f} and {_steps('printed', 256, 64, B):.0f}"
        for B in (1, 2, 4, 8)
    )
    return (
        "2505.17863, eq. 14",
        "Da' is minus the derivative of the loss by Da, so that B copies speed up like B",
        "Da' = -(T/(B(T-B))) dL/dDa, as B scores share the pull: like the root of B",
        f"steps to 0.8 of the loss, T = 256, d = 64, by the flow of all scores and as printed: "
        f"{'; '.join(cells)}",
    )


def _escape() -> tuple[str, ...]:
    task = dynsim.retrieval(256, 64)
    linear = float(sparse_attention.linear_escape_time(task, 0.2))
    closed = float(sparse_attention.escape_time(task))
    return (
        "2505.17863, eq. 6",
        "the plateau lasts (sqrt(d) T/2) ln(2 eps sqrt(d) T), from exp(Da) made linear",
        "attention blows up before, at sqrt(pi/2) sqrt(d) T, without a logarithm",
        f"eps = 0.2, T = 256, d = 64: {_steps('plain', 256, 64, 1):.0f} (flow), {linear:.0f} "
        f"(eq. 6), {closed:.0f} (closed form)",
    )


def _fixed_token() -> tuple[str, ...]:
    T, d, p = 2**14, 16, 0.3
    task = dynsim.retrieval(T, d, 1, p)
    zero = symmetric.Alike(*4 * (jnp.zeros(()),))
    descent = lambda state: jax.tree.map(jnp.negative, symmetric.gradient(task, state))  # noqa: E731
    jacobian = jax.jacobian(descent)(zero)
    names = symmetric.Alike.__annotations__
    matrix = np.array([[float(getattr(getattr(jacobian, a), b)) for b in names] for a in names])
    rate = float(np.linalg.eigvals(matrix).real.max())
    # The other tokens' noise damps W at the rate 1/(d T).
    undamped = float(np.sqrt(rate * (rate + 1 / (d * T))))
    ours = float(np.sqrt((1 + (d - 1) * p**2) / d)) / T
    printed = float(np.sqrt((p**2 * d + (1 - p) ** 2) / d)) / T
    return (
        "2505.17863, exit time at p > 0",
        "in proportion to sqrt(d) T / sqrt(p^2 d + (1-p)^2)",
        "1 + (d-1) p^2 under the root, from the moments of the token",
        "growth rate around zero times T, at T = 16384, d = 16, p = 0.3, without the damping by "
        f"other tokens: {undamped * T:.4f} (flow), {printed * T:.4f} (as printed), {ours * T:.4f}",
    )


def _attention_of_joma() -> list[tuple[str, ...]]:
    # Equal sequences of two classes make what Theorem 1 assumes exact but for the change of b.
    same = dynsim.sequence_classes(
        [[0.5, 0.3, 0.2]] * 2, [0, 0], next_token=[0, 1], prior=[0.8, 0.2]
    )
    rng = np.random.default_rng(3)
    init = Joint(Hidden(rng.normal(size=(2, 3)) / 2, rng.normal(size=(2, 1)) / 2), np.zeros((1, 3)))
    shape = Shape("softmax", "linear", "signal")
    flow = joma.solve(same, dynsim.sgd(0.1, 0.1), [0.0, 4.0], init=init, shape=shape)
    V, Z = np.asarray(flow.params.Y.V), np.asarray(flow.params.Z)[0]
    b = np.asarray(same.probs)[0]
    square, first = (np.asarray(x) ** 2 for x in (V, init.Y.V))
    one, two = np.sum(square - first, 0), np.sum(square - first) * b
    errors = [np.linalg.norm(Z - z) / np.linalg.norm(Z) for z in (one / 2 - two, (one - two) / 2)]

    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0], [0.2, 0.1, 0.3, 0.4]], [0, 0])
    zero = Joint(Hidden(np.zeros((2, 4)), np.zeros((2, 1))), np.zeros((1, 4)))
    rates, shape = dynsim.sgd(1.0, 1.0), Shape("exp", "linear", "signal")
    late = 0.9 * float(joma.blow_up(task, rates))
    run = joma.solve(task, rates, [late], init=zero, shape=shape, record=("weight", "logits"))
    v, z = np.asarray(run["weight"])[0], np.asarray(run["logits"])[0, 0]
    size = np.linalg.norm(np.asarray(joma.discriminancy(task)), axis=0)
    erf = jax.scipy.special.erf
    spread = [
        np.asarray(erf(jnp.asarray(v / by)) / size) * np.sqrt(np.pi / 2) / late
        for by in (2.0, np.sqrt(2.0))
    ]
    V = np.asarray(run.params.Y.V)
    halves = V[0] ** 2 / 2, np.sum(V**2, 0) / 2
    own = [np.abs(z - each).max() / np.abs(z).max() for each in halves]
    return [
        (
            "2310.00535, Theorem 1, softmax",
            "z = 1/2 sum v_k^2 - |v_k|^2 b",
            "1/2 on both terms, as in the code and by derivation",
            f"equal sequences, while b hardly changes: off by {100 * errors[0]:.0f} % of how far z "
            f"goes as printed, {100 * errors[1]:.1f} % with 1/2 on both",
        ),
        (
            "2310.00535, Theorem 2",
            "erf(v_l/2)/Delta_l is the same for all tokens",
            "erf(v_l/sqrt 2)/Delta_l = sqrt(2/pi) t",
            f"four tokens at 0.9 of the blow-up, over sqrt(2/pi) t: {spread[0].min():.3f} to "
            f"{spread[0].max():.3f} as printed, {spread[1].min():.6f} to {spread[1].max():.6f}",
        ),
        (
            "2403.03507, eq. 44",
            "the exponent of node j has v_j^2/2 alone",
            "the sum over all nodes, as they share z",
            f"two nodes at 0.9 of the blow-up: z is off by {100 * own[0]:.0f} % with v_j^2/2, "
            f"{100 * own[1]:.0e} % with the sum",
        ),
    ]
