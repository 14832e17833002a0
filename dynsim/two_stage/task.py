"""In-context prompts with an elementary and a specialised component (arXiv:2502.20681).

A prompt has L labelled tokens of two blocks of d numbers; the last token is the query, whose
label is to be told from the others. Block 1 carries P, linearly separable with a margin along
w_star; block 2 carries Q, in which the negative class lies on both sides of the positive one.
The laws of motion are rotation invariant, so w_star = e_0 of block 1, zeta = r e_0 of block 2.

We reconstructed this task from fragments of the paper; it is not the authors' text. The page
`docs/systems/two_stage.md` lists which part of it is known.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Real

from dynsim import checks
from dynsim.precision import DType, Number, cast

Core = Literal["fresh", "fixed"]


class PromptBatch(NamedTuple):
    """N prompts: (N, L, d) tokens of either component and (N, L) labels in {-1, +1}."""

    P: Float[Array, "N L d"]
    Q: Float[Array, "N L d"]
    labels: Float[Array, "N L"]


class Prompts(eqx.Module):
    r"""The law of the prompts, and how the losses of the components are weighed.

    Build it with `prompts`. With independent :math:`g \sim \mathcal N(0, I_d)` for every token and
    block, tokens of P and of Q are

    .. math::

        \begin{align*}
        x &= y\, (\gamma_0 + s_1 |g_0|)\, e_0 + s_1 (0, g_1, \dots, g_{d-1}) \tag{P} \\
        x &= z + q\, r\, e_0, \qquad z = s_2 (0, g_1, \dots, g_{d-1}) \tag{Q}
        \end{align*}

    with q = 0 if y = +1, and q = +1 or -1 otherwise.

    Attributes:
        gamma0: margin :math:`\gamma_0` of P along w_star.
        s1, s2: standard deviation of the Gaussian part of P and of Q.
        r: length :math:`\lVert \zeta \rVert` of the shift that tells the negative class of Q.
        coupling: c in [0, 1] of the training loss :math:`(1 - c)(K_1 + K_2) + c J`: 0 trains the
            components on losses of their own, 1 on the literal loss of their sum.
        d: size of a block.
        length: tokens L of a prompt, the query included.
        core: "fresh" draws z for every token. "fixed" has the one vector
            :math:`z = s_2 \sqrt{d-1}\, e_1`, as long as a fresh one in the root mean square.
    """

    gamma0: Real[Number, "*#P"]
    s1: Real[Number, "*#P"]
    s2: Real[Number, "*#P"]
    r: Real[Number, "*#P"]
    coupling: Real[Number, "*#P"]
    d: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    core: Core = eqx.field(static=True, default="fresh")

    def astype(self, dtype: str) -> "Prompts":
        """The same task with its numbers as JAX arrays of `dtype`."""
        return jax.tree.map(lambda number: cast(number, dtype), self)

    @property
    def kappa(self) -> float:
        """(L - 1) / L: the outputs sum over L - 1 context tokens and divide by L."""
        return (self.length - 1) / self.length

    @property
    def mean_margin(self) -> Real[Number, "*#P"]:
        r""":math:`\bar p = \mathbb E[y\, x \cdot w_\star] = \gamma_0 + s_1 \sqrt{2/\pi}`."""
        return self.gamma0 + self.s1 * (2 / jnp.pi) ** 0.5

    @property
    def mean_square_margin(self) -> Real[Number, "*#P"]:
        r"""The mean square of the margin,

        .. math::

            \mathbb E[(x \cdot w_\star)^2] = \gamma_0^2 + 2 \gamma_0 s_1 \sqrt{2/\pi} + s_1^2.
        """
        return self.gamma0**2 + 2 * self.gamma0 * self.s1 * (2 / jnp.pi) ** 0.5 + self.s1**2


def prompts(
    d: int = 32,
    length: int = 129,
    *,
    gamma0: Real[Number, "*#P"] = 1.0,
    s1: Real[Number, "*#P"] = 1.0,
    s2: Real[Number, "*#P"] = 1.0,
    r: Real[Number, "*#P"] = 1.4,
    coupling: Real[Number, "*#P"] = 0.0,
    core: Core = "fresh",
) -> Prompts:
    """The task, checked; see `Prompts` for the meaning of its parameters.

    Raises:
        ValueError: unless d >= 2, length >= 2, r > 0, gamma0, s1, s2 >= 0 and
            0 <= coupling <= 1; or for an unknown core.
    """
    d, length = checks.integer("d", d, 2), checks.integer("length", length, 2)
    for name, value in (("gamma0", gamma0), ("s1", s1), ("s2", s2)):
        checks.real(name, value, 0)
    checks.real("r", r, 0, open_minimum=True)
    checks.real("coupling", coupling, 0, 1)
    checks.choice("core", core, ("fresh", "fixed"))
    return Prompts(gamma0, s1, s2, r, coupling, d, length, core)


class PromptDraws(NamedTuple):
    """What N prompts are made of before the numbers of a task are put in.

    Attributes:
        labels: (N, L) labels in {-1, +1}.
        sides: (N, L) in {-1, +1}: to which side zeta shifts a token of the negative class.
        P: (N, L, d) standard Gaussian numbers of component P.
        Q: the same of component Q; None where its core is fixed.
    """

    labels: Float[Array, "N L"]
    sides: Float[Array, "N L"]
    P: Float[Array, "N L d"]
    Q: Float[Array, "N L d"] | None


def draw_prompts(
    task: Prompts, key: PRNGKeyArray, num: int, dtype: DType = "float32"
) -> PromptDraws:
    """Draw what `num` prompts are made of. It depends on the sizes and the core of the task, and
    not on its numbers: tasks that differ in those alone share it."""
    label_key, sign_key, p_key, q_key = jax.random.split(key, 4)
    shape = (num, task.length)
    fresh = task.core == "fresh"
    return PromptDraws(
        jax.random.rademacher(label_key, shape, dtype),
        jax.random.rademacher(sign_key, shape, dtype),
        jax.random.normal(p_key, (*shape, task.d), dtype),
        jax.random.normal(q_key, (*shape, task.d), dtype) if fresh else None,
    )


def make_prompts(task: Prompts, draws: PromptDraws) -> PromptBatch:
    """The prompts that the numbers of `task` make of `draws`."""
    labels, sides, g, z = draws
    # Along w_star the Gaussian part has the sign of the label: |g_0| in place of rejection.
    margin = labels * (task.gamma0 + task.s1 * jnp.abs(g[..., 0]))
    P = (g * task.s1).at[..., 0].set(margin)
    if z is None:
        core = jnp.zeros_like(g).at[..., 1].set(task.s2 * (task.d - 1) ** 0.5)
    else:
        core = z * task.s2
    side = jnp.where(labels > 0, 0, sides)
    return PromptBatch(P.astype(g.dtype), core.at[..., 0].set(side * task.r), labels)


def sample_prompts(
    task: Prompts, key: PRNGKeyArray, num: int, dtype: DType = "float32"
) -> PromptBatch:
    """Draw `num` prompts. A call inside `jit`, `vmap` or `grad` is fine."""
    return make_prompts(task, draw_prompts(task, key, num, dtype))
