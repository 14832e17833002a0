"""Errata of the papers on in-context regression, sparse attention and GaLore, and which of two
forms of JoMA's theorems holds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dynsim
import odes
from dynsim import JoMA, Merged
from dynsim.joma.model import Hidden, Joint
from dynsim.training import keys
from odes import joma, sparse_attention
from odes.sparse_attention import symmetric

HEADER = """
## Other papers

[arXiv:2501.16265](https://arxiv.org/abs/2501.16265) is on
[in-context regression](../systems/linear_icl.md),
[arXiv:2505.17863](https://arxiv.org/abs/2505.17863) on
[sparse attention](../systems/sparse_attention.md), and
[arXiv:2403.03507](https://arxiv.org/abs/2403.03507) is GaLore, whose appendix B.3 restates
[JoMA](../systems/joma.md).

| # | where | as printed | what holds | evidence |
|---|---|---|---|---|"""

UNCHECKED = """
## JoMA: which form holds

These are not errata. We have not compared them with the text of JoMA
([arXiv:2310.00535](https://arxiv.org/abs/2310.00535)), and nothing here says what it prints. The
table has two similar forms of two of its statements, and the number that decides between them.

| statement | this form does not hold | this form holds | evidence |
|---|---|---|---|"""


class Rows(NamedTuple):
    """Rows of the tables.

    Attributes:
        printed: where, as printed, what holds, evidence.
        unchecked: of JoMA: statement, a form that does not hold, one that does, evidence.
    """

    printed: list[tuple[str, ...]]
    unchecked: list[tuple[str, ...]]


def rows() -> Rows:
    """All rows, in float64."""
    forms, sharing = _attention_of_joma()
    return Rows([_growing_part(), _shared_pull(), _escape(), _fixed_token(), sharing], forms)


def _growing_part() -> tuple[str, ...]:
    white = dynsim.regression(4, 31, "white", attention="merged", heads=8, scale=1e-3)
    init = white.init(keys.split(jax.random.key(0))[0])
    assert isinstance(init, Merged)
    times = np.linspace(0.0, 8.0, 801)
    flow = odes.flow(white, dynsim.sgd(0.5), times, init=init, record="learned")
    half = float(np.interp(0.5, np.asarray(flow["learned"]).mean(1), times))
    root, end = 2.0, 2.0 / float(np.asarray(white.gain)[0])
    along = np.trace(np.asarray(init.U), axis1=1, axis2=2) / root
    part = float(np.linalg.norm(init.v + along)) / 2
    norm = float(np.linalg.norm(init.v))
    # Where the share of eq. 10 is one half.
    printed, ours = (float(np.log(end / w**2 - 1) / (2 * root)) for w in (norm, part))
    return (
        "2501.16265, eq. 10",
        r"$w_\text{init}$ is the norm of a layer at the start",
        r"it is the norm of the part that grows, $(w_2 + W_1 u)/2$ with $u$ the direction of "
        r"$\mathbb E[y z]$; the two agree for a balanced start",
        r"eight heads from $\mathcal N(0, 0.001^2)$, time in $\tau$ to half of what is learned: "
        f"{half:.3f} (flow), {printed:.3f} (norm of $w_2$), {ours:.3f} (part that grows)",
    )


def _steps(name: str, T: int, d: int, B: int) -> float:
    """Steps at eta = 1 until the loss is at 0.8 of its start, by a theory."""
    task, times = dynsim.retrieval(T, d, B), np.arange(0.0, 2800, 2)
    theory = sparse_attention.LADDER.built_in[name]
    loss = theory.solve(task, dynsim.sgd(1.0), times, record="loss")["loss"]
    return float(np.interp(-0.4, -np.asarray(loss), times))


def _shared_pull() -> tuple[str, ...]:
    cells = (
        f"$B = {B}$: {_steps('plain', 256, 64, B):.0f} and {_steps('printed', 256, 64, B):.0f}"
        for B in (1, 2, 4, 8)
    )
    return (
        "2505.17863, eq. 14",
        r"$\Delta a' = -\partial L/\partial \Delta a$, so that $B$ copies speed up training "
        "like $B$",
        r"$\Delta a' = -\frac{T}{B(T-B)}\, \partial L/\partial \Delta a$, because $B$ scores share "
        r"the pull: like $\sqrt B$",
        "steps to 0.8 of the loss at $T = 256$, $d = 64$, by the flow of all scores and as "
        f"printed: {'; '.join(cells)}",
    )


def _escape() -> tuple[str, ...]:
    task = dynsim.retrieval(256, 64)
    linear = float(sparse_attention.linear_escape_time(task, 0.2))
    closed = float(sparse_attention.escape_time(task))
    return (
        "2505.17863, eq. 6",
        r"the plateau lasts for $\tfrac12 \sqrt d\, T \ln(2 \varepsilon \sqrt d\, T)$, by "
        r"linearising $e^{\Delta a}$",
        r"attention blows up before, at $\sqrt{\pi/2}\, \sqrt d\, T$, without a logarithm",
        rf"$\varepsilon = 0.2$, $T = 256$, $d = 64$: {_steps('plain', 256, 64, 1):.0f} (flow), "
        f"{linear:.0f} (eq. 6), {closed:.0f} (closed form)",
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
        "2505.17863, exit time at $p > 0$",
        r"proportional to $\sqrt d\, T / \sqrt{p^2 d + (1-p)^2}$",
        "$1 + (d-1)\\, p^2$ under the root, from the moments of the token",
        "growth rate around zero times $T$, at $T = 16384$, $d = 16$, $p = 0.3$, without the "
        f"damping by other tokens: {undamped * T:.4f} (flow), {printed * T:.4f} (as printed), "
        f"{ours * T:.4f} (what holds)",
    )


def _attention_of_joma() -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    # Equal sequences of two classes make what Theorem 1 assumes exact but for the change of b.
    same = dynsim.sequence_classes(
        [[0.5, 0.3, 0.2]] * 2, [0, 0], next_token=[0, 1], prior=[0.8, 0.2]
    )
    rng = np.random.default_rng(3)
    init = Joint(Hidden(rng.normal(size=(2, 3)) / 2, rng.normal(size=(2, 1)) / 2), np.zeros((1, 3)))
    flow = odes.flow(JoMA(same, head="signal"), dynsim.sgd(0.1), [0.0, 4.0], init=init)
    V, Z = np.asarray(flow.params.Y.V), np.asarray(flow.params.Z)[0]
    b = np.asarray(same.probs)[0]
    square, first = (np.asarray(x) ** 2 for x in (V, init.Y.V))
    one, two = np.sum(square - first, 0), np.sum(square - first) * b
    errors = [np.linalg.norm(Z - z) / np.linalg.norm(Z) for z in (one / 2 - two, (one - two) / 2)]

    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0], [0.2, 0.1, 0.3, 0.4]], [0, 0])
    zero = Joint(Hidden(np.zeros((2, 4)), np.zeros((2, 1))), np.zeros((1, 4)))
    rates, problem = dynsim.sgd(1.0), JoMA(task, attention="exp", head="signal")
    late = 0.9 * float(joma.blow_up(problem, rates))
    run = odes.flow(problem, rates, [late], init=zero, record=("weight", "logits"))
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
    forms = [
        (
            "Theorem 1, softmax",
            r"$z = \tfrac12 \sum_k v_k^2 - \lVert v_k \rVert^2\, b$",
            r"$z = \tfrac12 \sum_k \left( v_k^2 - \lVert v_k \rVert^2\, b \right)$, as in the "
            "public code and by derivation",
            "equal sequences, while $b$ hardly changes: off by "
            f"{100 * errors[0]:.0f} % and {100 * errors[1]:.1f} % of how far $z$ moves",
        ),
        (
            "Theorem 2",
            r"$\operatorname{erf}(v_l/2)/\Delta_l$ is the same for all tokens",
            r"$\operatorname{erf}(v_l/\sqrt2)/\Delta_l$ is, and equals $\sqrt{2/\pi}\, t$",
            r"four tokens at 0.9 of the blow-up, in units of $\sqrt{2/\pi}\, t$: "
            f"{spread[0].min():.3f} to {spread[0].max():.3f}, and {spread[1].min():.6f} to "
            f"{spread[1].max():.6f}",
        ),
    ]
    sharing = (
        "2403.03507, eq. 44",
        "the exponent of node $j$ has $v_j^2/2$ alone",
        "the exponent has the sum over all nodes, because they share $z$",
        f"two nodes at 0.9 of the blow-up: $z$ is off by {100 * own[0]:.0f} % with $v_j^2/2$, and "
        f"by {100 * own[1]:.0e} % with the sum",
    )
    return forms, sharing
