"""In-context prompts with an elementary and a specialised component (arXiv:2502.20681).

A prompt has L labelled tokens of two blocks of d numbers; the last token is the query, whose
label is to be predicted from the others. Block 1 contains P, linearly separable with a margin along
w_star; block 2 contains Q, in which the negative class lies on both sides of the positive one.
The equations of motion are rotation invariant, so w_star = e_0 of block 1, zeta = r e_0 of block 2.

We reconstructed this task from fragments of the paper and chose all numbers ourselves; it is not
the authors' text. The page `docs/systems/two_stage.md` lists which part of it is known.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import annotated_types as at
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Real

from dynsim import checks
from dynsim.decoding import Count, NotNegative, Positive, Share, Size, Tokens
from dynsim.precision import DType, Number, on_cpu
from dynsim.problem.base import Measured, Problem
from dynsim.training.rule import UpdateRule
from dynsim.two_stage import model
from dynsim.two_stage.annealing import Annealed, Control
from dynsim.two_stage.model import PQ, CpuLayout, PromptBatch, Split, data_loss
from dynsim.two_stage.observables import (
    DEFAULT_RECORD,
    LEARNED,
    OBSERVABLES,
    PromptSnapshot,
    first_below,
    measure,
)

Core = Literal["fresh", "fixed"]
BlockSize = Annotated[Size, at.Ge(2)]
"""Size of a block of a token."""


class PromptDraws(NamedTuple):
    """Random draws for N prompts, independent of the task's numbers: labels and the `sides` to
    which zeta shifts tokens of the negative class, both -1 or +1, and standard Gaussian numbers of
    the components; None for Q if its core is fixed."""

    labels: Float[Array, "N L"]
    sides: Float[Array, "N L"]
    P: Float[Array, "N L d"]
    Q: Float[Array, "N L d"] | None


class Shared(NamedTuple):
    """Random draws of a run, made before it begins: draws for its pool and for its fresh prompts,
    and the key of its steps."""

    pool: PromptDraws
    test: PromptDraws
    steps: PRNGKeyArray


class RunPrompts(NamedTuple):
    """The prompts of a run: the pool, in the layout for steps, and fresh ones to measure on; and
    the key of its steps."""

    pool: PromptBatch | CpuLayout
    test: PromptBatch
    steps: PRNGKeyArray


class Prompts(Problem):
    r"""Normalised-ReLU attention on prompts of two components.

    With independent :math:`g \sim \mathcal N(0, I_d)` for every token and
    block, tokens of P and of Q are

    .. math::

        \begin{align*}
        x &= y\, (\gamma_0 + s_1 |g_0|)\, e_0 + s_1 (0, g_1, \dots, g_{d-1}) \tag{P} \\
        x &= z + q\, r\, e_0, \qquad z = s_2 (0, g_1, \dots, g_{d-1}) \tag{Q}
        \end{align*}

    with q = 0 if y = +1, and q = +1 or -1 otherwise.

    Train it with `dynsim.Annealed`: gradients move the group "signal" of the weights, and noise
    moves the group "noise".

    Attributes:
        d: size of each of the two blocks of a token.
        length: tokens L of a prompt, the query included.
        gamma0: margin of P along w_star.
        s1: standard deviation of the Gaussian part of P.
        s2: standard deviation of the Gaussian part of Q.
        r: length of the shift that marks the negative class of Q.
        coupling: c of the loss (1 - c)(K1 + K2) + c J: 0 trains the components on losses of their
            own, 1 on the loss of their sum.
        core: Gaussian part of Q: fresh for every token, or one fixed vector along e_1, as long as a
            fresh one in the root mean square.
        tau_0: standard deviation of the starting weights; if omitted, the stationary one of the
            rule, a `dynsim.Annealed`.
        pool: number of training prompts, drawn once; batches are drawn from it with replacement.
        num_test: number of fresh prompts on which losses and accuracies are measured.
        bias: whether to train a scalar that is added to the output of Q, the group "bias" of the
            weights.
        held: the prompts of a run, while it runs.
        eta_time: sum of the learning rates so far.
        K1: logistic loss of component P [nat].
        K2: logistic loss of component Q [nat].
        J: logistic loss of the sum of the components [nat].
        auc_Q: area under the ROC curve of component Q.
        W_trace: trace of the signal part of W.
        K1_signal: logistic loss of component P by the signal part alone [nat].
        K2_signal: logistic loss of component Q by the signal part alone [nat].
        K2_gated: logistic loss of component Q by the signal part, gated by all [nat].
        K2_pos: logistic loss of component Q on positive labels [nat].
        K2_neg: logistic loss of component Q on negative labels [nat].
        V_trace: trace of the signal part of V, whose sign is random.
        V_trace_abs: modulus of the trace of the signal part of V.

    Raises:
        ValueError: unless d >= 2, length >= 2, num_test >= 2, r > 0, gamma0, s1, s2, tau_0 >= 0 and
            0 <= coupling <= 1; or for an unknown core.

    Example:
        >>> task = dynsim.Prompts(d=8, length=17, r=1.6, pool=32, num_test=32)
        >>> rule = dynsim.Annealed(eta_1=0.2, eta_2=0.1, decay=0.1, tau=0.3, stage_2=0.5)
        >>> times = rule.stages.times(8)
        >>> key = jax.random.key(0)
        >>> run = dynsim.train(task, rule, key, steps=None, times=times, batch=16)
    """

    NAME: ClassVar = "two_stage"
    RECORD: ClassVar = DEFAULT_RECORD
    COMPARED: ClassVar = ("K1", "K2", "J", "W_norm", "V_norm", "W_trace", "V_trace_abs", "auc_Q")
    LEFT_OUT_AT_ZERO: ClassVar = ("coupling",)
    RUN_DEFAULTS: ClassVar = {"rule": {"kind": "annealed"}, "batch": 128, "steps": None}

    # Static, so that a task can be the argument of a compiled function.
    d: BlockSize = eqx.field(static=True, default=32)
    length: Tokens = eqx.field(static=True, default=129)
    gamma0: NotNegative = 1.0
    s1: NotNegative = 1.0
    s2: NotNegative = 1.0
    r: Positive = 1.4
    coupling: Share = 0.0
    core: Core = eqx.field(static=True, default="fresh")
    tau_0: NotNegative | None = None
    pool: Count = eqx.field(static=True, default=4096)
    num_test: Annotated[Count, at.Ge(2)] = eqx.field(static=True, default=2048)
    bias: bool = eqx.field(static=True, default=False)
    # Not a setting. With `default`, a class attribute, `eqx.tree_at` would not see the field.
    held: Any = eqx.field(default_factory=lambda: None, init=False, repr=False)

    def build(self, rule: UpdateRule) -> "Prompts":
        """Return the prompts with the rule's stationary `tau_0`, if they have none.

        Raises:
            ValueError: if `tau_0` is None and the rule is not an `Annealed`.
        """
        if self.tau_0 is not None:
            return self
        # Stationary noise: its size does not change in the first stage.
        noise = rule.tau_0 if isinstance(rule, Annealed) else self.starting_noise
        return eqx.tree_at(lambda task: task.tau_0, self, noise, is_leaf=lambda x: x is None)

    @property
    def starting_noise(self) -> Real[Number, "*#P"]:
        """`tau_0`; raises `ValueError` if it is None."""
        if self.tau_0 is None:
            raise ValueError(
                "tau_0 = None: only a `dynsim.Annealed` determines it; give tau_0 for other rules"
            )
        return self.tau_0

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
        r"""Mean square :math:`\gamma_0^2 + 2 \gamma_0 s_1 \sqrt{2/\pi} + s_1^2` of the margin."""
        return self.gamma0**2 + 2 * self.gamma0 * self.s1 * (2 / jnp.pi) ** 0.5 + self.s1**2

    def init(self, key: PRNGKeyArray) -> Split:
        """Zero signal, and noise with standard deviation tau_0 in every entry."""
        noise = PQ(*jax.random.normal(key, (2, self.d, self.d)) * self.starting_noise)
        none = jnp.zeros_like(noise.W)
        return Split(PQ(none, none, jnp.zeros(()) if self.bias else None), noise)

    def groups(self, params: Split) -> PyTree:
        """The groups "signal", "noise" and, if it is trained, "bias"."""
        signal = jax.tree.map(lambda _: "signal", params.signal)
        if self.bias:
            signal = eqx.tree_at(lambda weights: weights.beta, signal, "bias")
        noise = jax.tree.map(lambda _: "noise", params.noise)
        return eqx.tree_at(lambda weights: (weights.signal, weights.noise), params, (signal, noise))

    def draw(self, key: PRNGKeyArray, batch: int) -> PromptBatch:
        """Draw fresh prompts."""
        return sample_prompts(self, key, batch)

    def loss(self, params: Split, data: PromptBatch) -> Float[Array, ""]:
        """Return `data_loss` of the sum of signal and noise, as a function of the signal alone."""
        # Gradients move only the signal, at the full weights.
        # The noise is moved by the noise of the gradient alone.
        fixed = Split(params.signal, jax.lax.stop_gradient(params.noise))
        return data_loss(fixed.total, self.coupling, data)

    def observables(self) -> dict[str, Measured]:
        """The observables of `dynsim.two_stage.observables`."""
        return OBSERVABLES

    def prepare(self, key: PRNGKeyArray, shared: Shared | None = None) -> tuple["Prompts", Shared]:
        """Return the problem with a pool and fresh prompts, and the draws they are made from."""
        if shared is None:
            _, pool, test, steps = jax.random.split(key, 4)
            shared = Shared(
                self.draw_numbers(pool, self.pool), self.draw_numbers(test, self.num_test), steps
            )
        pool, test = self.prompts(shared.pool), self.prompts(shared.test)
        prompts = RunPrompts(model.cpu_layout(pool) if on_cpu() else pool, test, shared.steps)
        task = eqx.tree_at(lambda task: task.held, self, prompts, is_leaf=lambda x: x is None)
        return task, shared

    def batches(self, key: PRNGKeyArray, steps: int | None, batch: int) -> Callable[[Array], Array]:
        """Return the indices into the pool of each step's prompts, as a function of the step."""
        # `prepare` has split the key of the run.
        del key, steps

        def indices(k: Array) -> Array:
            batch_key, _ = jax.random.split(jax.random.fold_in(self.held.steps, k))
            return jax.random.randint(batch_key, (batch,), 0, self.pool)

        return indices

    def loss_and_gradient(
        self, params: Split, data: PromptBatch | Array
    ) -> tuple[Float[Array, ""], Split]:
        """Return loss and gradient on prompts, or on those of the pool with these indices."""
        if isinstance(data, PromptBatch):
            return super().loss_and_gradient(params, data)
        total = Split(params.signal, jax.lax.stop_gradient(params.noise)).total
        loss, slope = model.loss_and_gradient(
            total, self.coupling, self.length, self.held.pool, data
        )
        return loss, Split(slope, jax.tree.map(jnp.zeros_like, params.noise))

    def normal_noise(self, key: PRNGKeyArray, k: Array, like: Split) -> Split:
        """Draw noise for the group "noise", the only one with noise."""
        del key
        _, noise_key = jax.random.split(jax.random.fold_in(self.held.steps, k))
        # Not for the signal, which has no noise and would need as many numbers again.
        xi = jax.random.normal(noise_key, (2, self.d, self.d), like.noise.W.dtype)
        return Split(like.signal, PQ(*xi))

    def snapshot(self, params: Split) -> tuple[PromptSnapshot]:
        """Outputs on the fresh prompts of the run."""
        # Outside of a run, as in a test of observables, the prompts are those of key 0.
        task = self if self.held is not None else self.prepare(jax.random.key(0))[0]
        return (measure(params, task.held.test),)

    def summary(
        self, times: Float[np.ndarray, " S"], recorded: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The steps at which P and Q are learned: at which K1 falls below 0.2, and K2 below 0.6."""
        return {
            f"{component} is learned at step": float(first_below(times, recorded[loss], level))
            for component, (loss, level) in LEARNED.items()
        }

    def divergence_limit(self) -> Real[Number, ""]:
        """Infinite, because large weights have a large loss. Only weights that are not finite end a
        run."""
        return jnp.inf

    def draw_numbers(self, key: PRNGKeyArray, num: int, dtype: DType = "float32") -> PromptDraws:
        """Make the random draws for `num` prompts. They depend only on the sizes and the core."""
        label_key, sign_key, p_key, q_key = jax.random.split(key, 4)
        shape = (num, self.length)
        return PromptDraws(
            jax.random.rademacher(label_key, shape, dtype),
            jax.random.rademacher(sign_key, shape, dtype),
            jax.random.normal(p_key, (*shape, self.d), dtype),
            jax.random.normal(q_key, (*shape, self.d), dtype) if self.core == "fresh" else None,
        )

    def prompts(self, draws: PromptDraws) -> PromptBatch:
        """Compute the prompts from `draws` and the task's numbers."""
        labels, sides, g, z = draws
        # Along w_star the Gaussian part has the sign of the label: |g_0| replaces rejection.
        margin = labels * (self.gamma0 + self.s1 * jnp.abs(g[..., 0]))
        P = (g * self.s1).at[..., 0].set(margin)
        if z is None:
            # sqrt(d - 1) is the length of a fresh core in the root mean square.
            core = jnp.zeros_like(g).at[..., 1].set(self.s2 * (self.d - 1) ** 0.5)
        else:
            core = z * self.s2
        side = jnp.where(labels > 0, 0, sides)
        return PromptBatch(P.astype(g.dtype), core.at[..., 0].set(side * self.r), labels)


def sample_prompts(
    task: Prompts, key: PRNGKeyArray, num: int, dtype: DType = "float32"
) -> PromptBatch:
    """Draw `num` prompts; may be called inside `jit`, `vmap` or `grad`."""
    return task.prompts(task.draw_numbers(key, num, dtype))


Preset = Literal["default", "fast", "joint"]


class FastPrompts(Prompts):
    """Prompts that are smaller and faster to train on.

    Raises:
        ValueError: as `Prompts`.

    Example:
        >>> dynsim.FastPrompts().length
        65
    """

    RUN_DEFAULTS: ClassVar = {
        "rule": {"kind": "annealed", "eta_2": 0.04, "decay": 0.0125, "tau": 0.3, "stage_2": 2.0},
        "batch": 64,
        "steps": None,
    }

    d: BlockSize = eqx.field(static=True, default=16)
    length: Tokens = eqx.field(static=True, default=65)
    r: Positive = 1.6
    pool: Count = eqx.field(static=True, default=2048)


class JointPrompts(Prompts):
    """Prompts for the loss of the sum of the components, with a larger shift of Q.

    Raises:
        ValueError: as `Prompts`.

    Example:
        >>> dynsim.JointPrompts().coupling
        1.0
    """

    RUN_DEFAULTS: ClassVar = {**Prompts.RUN_DEFAULTS, "rule": {"kind": "annealed", "tau": 0.2}}

    r: Positive = 2.4
    coupling: Share = 1.0


class TwoStage(NamedTuple):
    """Arguments of `dynsim.train` for a two-stage experiment, except for the key and times."""

    task: Prompts
    optimizer: Annealed
    batch: int


def two_stage(preset: Preset = "default", control: Control = "none", **settings: Any) -> TwoStage:
    """Set up the two-stage experiment of a preset, or one of its controls (see `Annealed`).

    Args:
        preset: "default" trains both components separately, as `Prompts` does; "joint" trains on
            the loss of their sum, like `JointPrompts`; "fast" is small, like `FastPrompts`.
        **settings: settings of `Prompts`.

    Raises:
        ValueError: for an unknown preset or control, or invalid settings.

    Example:
        >>> task, rule, batch = dynsim.two_stage("fast")
        >>> batch
        64
    """
    classes = {"default": Prompts, "fast": FastPrompts, "joint": JointPrompts}
    cls = classes[checks.choice("preset", preset, tuple(classes))]
    rates = {name: value for name, value in cls.RUN_DEFAULTS["rule"].items() if name != "kind"}
    rule = Annealed(**rates, control=control)
    return TwoStage(cls(**settings).build(rule), rule, cls.RUN_DEFAULTS["batch"])
