"""Hidden nodes on attended tokens (Tian, Wang, Zhang, Chen, Du, arXiv:2310.00535, Eqn. 1).

For a sequence of class n with query m and frequencies x of contextual tokens

    b = s(z_m/T) o x / A,   h_k = phi(v_k . b + r_km),   v_k = U_C^T w_k,  r_km = w_k . u_m

with T the temperature; attention is linear (s(z) = z, A = 1), exp (s = exp, A = 1) or softmax
(s = exp, A = sum_l exp(z_ml/T) x_l). There is one node per class. The loss is the cross entropy
of h, or -sum_k g_kn h_k with the fixed signal g_kn = 1[k = n] - 1/K, which is minus its gradient at
h = 0. Both are averaged over sequences. For the 20 sequence classes of Fig. 2 we know the
distribution, but not the draws used in the paper. We reconstructed the model without the paper's
main text, and derived Theorem 1 ourselves.
"""

import math
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from dynsim import checks
from dynsim.classes.task import SequenceClasses, Task, sequence_classes
from dynsim.classes.tasks import SynMedium
from dynsim.decoding import Length, NotNegative, Positive
from dynsim.precision import AnyArray
from dynsim.yz.model import Examples, population, weights
from dynsim.yz.sampling import OnClasses

Frequencies = Literal["bumps", "random"]
NUM_CLASSES = 20


def fig2(frequencies: Frequencies = "bumps") -> SequenceClasses:
    """Build 20 classes over 20 tokens.

    Args:
        frequencies: "random" numbers, or "bumps" over the classes for the first ten tokens, the
            distinct tokens of this task.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    checks.choice("frequencies", frequencies, get_args(Frequencies))
    # Seed 0 stands for the draws of the paper, which we do not know.
    X = np.random.default_rng(0).random((NUM_CLASSES, NUM_CLASSES)) / 2
    if frequencies == "bumps":
        tokens, classes = np.arange(10)[:, None], np.arange(NUM_CLASSES)[None]
        X[:10] = np.exp(-((tokens - 10 * classes / NUM_CLASSES) ** 2) / 30)
    return sequence_classes((X / X.sum(0)).T, [0] * NUM_CLASSES, range(NUM_CLASSES))


class JoMAClasses(Task):
    """The classes of JoMA's Fig. 2: 20 classes of one query over 20 tokens.

    Attributes:
        frequencies: random, or bumps over the classes for the first ten tokens, which are then
            distinct.

    Raises:
        ValueError: for unknown frequencies.

    Example:
        >>> dynsim.JoMAClasses().build().K
        20
    """

    frequencies: Frequencies = eqx.field(static=True, default="bumps")

    def build(self) -> SequenceClasses:
        return fig2(self.frequencies)

    @property
    def sizes(self) -> tuple[int, int]:
        return NUM_CLASSES, NUM_CLASSES


Attention = Literal["linear", "exp", "softmax"]
Activation = Literal["linear", "relu", "tanh", "quadratic"]
Head = Literal["cross-entropy", "signal"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda u: u,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "quadratic": lambda u: u**2 / 2,
}


class Hidden(eqx.Module):
    """Weights of the MLP in terms of tokens: V (K, M), and r (K, Q) for the residual."""

    V: Float[AnyArray, "K M"]
    r: Float[AnyArray, "K Q"]


class Joint(eqx.Module):
    """All weights: `Y`, with the learning rate eta_Y, and the attention logits `Z` (Q, M).

    Example:
        >>> problem = dynsim.JoMA(dynsim.SynMedium(1))
        >>> isinstance(problem.init(jax.random.key(0)), dynsim.Joint)
        True
    """

    Y: Hidden
    Z: Float[AnyArray, "Q M"]


class JoMASnapshot(NamedTuple):
    """Weights at one time, and b (K, M) of each class for sequences of infinite length."""

    problem: "JoMA"
    params: Joint
    b: Float[Array, "K M"]


class JoMA(OnClasses):
    """An MLP layer with one node per class, and the attention layer below it.

    Attributes:
        task: the sequence classes, or a description of them.
        length: sequence length T including the query; inf replaces sampled counts by P(l|n).
        attention: kind of attention.
        activation: activation of the hidden nodes.
        head: cross-entropy of the nodes, or a fixed signal.
        scale: standard deviation of the starting weights.
        temperature: temperature T of the attention.
        batch_loss: loss of the next batch [nat].
        entropy: entropy of attention [nat].
        logits: logits of the attention [nat].
        correlation: correlation of both sides of Theorem 1.
        weight: norm of the weights of a token.

    A run that blows up, as exp attention does in finite time, has `Status.DIVERGED` from that step.
    `batch = math.inf` needs infinite length, as assumed by the theories.

    Raises:
        ValueError: naming the field, its value and what is allowed.

    Example:
        >>> problem = dynsim.JoMA(dynsim.SynMedium(1), activation="tanh", scale=0.1)
        >>> rule = dynsim.sgd({"Y": 0.1, "Z": 0.1})
        >>> run = dynsim.train(problem, rule, jax.random.key(0), steps=10, batch=math.inf)
    """

    NAME: ClassVar = "joma"
    RECORD: ClassVar = ("loss", "entropy", "correlation", "weight")
    RUN_DEFAULTS: ClassVar = {
        "rule": {"kind": "sgd", "eta": {"Y": 0.1, "Z": 0.1}},
        "batch": "inf",
    }

    task: Task = SynMedium(num_queries=1)
    length: Length = eqx.field(static=True, default=math.inf)
    attention: Attention = "softmax"
    activation: Activation = "linear"
    head: Head = "cross-entropy"
    scale: NotNegative = 0.01
    temperature: Positive = 1.0

    def init(self, key: PRNGKeyArray) -> Joint:
        """Independent N(0, scale^2) weights; logits of linear attention are shifted by 1."""
        K, M, Q = self.classes.K, self.classes.M, self.classes.num_queries
        V, r, Z = (
            jax.random.normal(k, shape) * self.scale
            for k, shape in zip(jax.random.split(key, 3), ((K, M), (K, Q), (Q, M)), strict=True)
        )
        # At z = 0 linear attention would attend to nothing.
        return Joint(Hidden(V, r), Z + (1 if self.attention == "linear" else 0))

    def attended(self, Z: Float[AnyArray, "Q M"], examples: Examples) -> Float[Array, "E M"]:
        """The attended frequencies b of each example."""
        z = jnp.asarray(Z)[self.classes.query_index][examples.classes] / self.temperature
        x = examples.counts / jnp.sum(examples.counts, axis=1, keepdims=True)
        if self.attention == "linear":
            return z * x
        if self.attention == "exp":
            return jnp.exp(z) * x
        # Absent tokens must not determine the largest exponent.
        largest = jnp.max(jnp.where(x > 0, z, -jnp.inf), axis=1, keepdims=True)
        weight = jnp.where(x > 0, jnp.exp(z - jax.lax.stop_gradient(largest)), 0) * x
        return weight / jnp.sum(weight, axis=1, keepdims=True)

    def losses(self, params: Joint, examples: Examples) -> Float[Array, " E"]:
        """Loss of each example."""
        b = self.attended(params.Z, examples)
        query = jnp.asarray(self.classes.query_index)[examples.classes]
        u = b @ jnp.asarray(params.Y.V).T + jnp.asarray(params.Y.r).T[query]
        h = ACTIVATIONS[self.activation](u)
        # Class n has the node n.
        own = jnp.take_along_axis(h, examples.classes[:, None], axis=1)[:, 0]
        if self.head == "signal":
            # -sum_k g_kn h_k with g_kn = 1[k = n] - 1/K.
            return jnp.mean(h, axis=1) - own
        return jax.nn.logsumexp(h, axis=1) - own

    def loss(self, params: Joint, data: Examples | Int[Array, " N"]) -> Float[Array, ""]:
        """Mean loss of a batch."""
        examples = self.examples(data, jnp.result_type(params.Z).name)
        losses = self.losses(params, examples)
        return jnp.sum(weights(examples, losses.dtype) * losses)

    def population_loss(self, params: Joint) -> Float[Array, ""]:
        """The loss at infinite batch and length."""
        losses = self.losses(params, population(self.classes))
        return jnp.sum(jnp.asarray(self.classes.prior) * losses)

    def check_population(self) -> None:
        """Raise `ValueError` for sequences of finite length."""
        if not math.isinf(self.length):
            raise ValueError(f"batch = inf: needs length = inf, got length = {self.length}")

    def invariant(self, params: Joint) -> Float[Array, " M"]:
        """Half the sum of squares of V for each token (M,). Theorem 1 relates it to the attention
        of all queries:

            linear   sum_m z_m^2/2           = (1/2) sum_k v_k^2 + c
            exp      T sum_m z_m             = (1/2) sum_k v_k^2 + c
            softmax  T z_m                   = (1/2) sum_k (v_k^2 - |v_k|^2 b_m) + c,  b_m at Z = 0

        elementwise, for equal rates of V and z. The softmax line is approximate, and uses the mean
        b over all sequences here. The other two are exact for any activation and loss [ours: also
        for the sum over several queries].
        """
        square = jnp.asarray(params.Y.V) ** 2
        # Only the softmax line has a second term, with b at Z = 0: the frequencies themselves.
        if self.attention != "softmax":
            return jnp.sum(square, axis=0) / 2
        uniform = jnp.asarray(self.classes.prior) @ jnp.asarray(self.classes.probs)
        mean = jnp.sum(square, axis=1, keepdims=True) * uniform[None]
        return jnp.sum(square - mean, axis=0) / 2

    def conserved(self, params: Joint) -> Float[Array, " M"]:
        """Return the (M,) other side of the equations of `invariant`."""
        z = jnp.asarray(params.Z)
        # The sum over the queries m, as the rows of V belong to none of them.
        by_query = z**2 / 2 if self.attention == "linear" else self.temperature * z
        return jnp.sum(by_query, axis=0)

    def snapshot(self, params: Joint) -> tuple[JoMASnapshot]:
        """The arguments of the observables."""
        return (JoMASnapshot(self, params, self.attended(params.Z, population(self.classes))),)

    def observables(self) -> dict[str, Callable[[JoMASnapshot], Array]]:
        """The functions in `OBSERVABLES`."""
        return OBSERVABLES

    def divergence_limit(self) -> float:
        """Loss in nat above which a run counts as diverged."""
        return 1e6


def entropy(s: JoMASnapshot) -> Float[Array, ""]:
    """Entropy of |b| over its sum in nat, averaged over classes by their prior."""
    size = jnp.abs(s.b)
    share = size / jnp.sum(size, axis=1, keepdims=True)
    entropies = jnp.sum(jax.scipy.special.entr(share), axis=1)
    return jnp.sum(jnp.asarray(s.problem.classes.prior) * entropies)


def correlation(s: JoMASnapshot) -> Float[Array, ""]:
    """Correlation over tokens of the two sides of Theorem 1. Initial values are not subtracted, so
    they lower it. It is 0 if a side does not vary."""
    left, right = s.problem.conserved(s.params), s.problem.invariant(s.params)
    left, right = left - jnp.mean(left), right - jnp.mean(right)
    norm = jnp.sqrt(jnp.sum(left**2) * jnp.sum(right**2))
    return jnp.where(norm > 0, jnp.sum(left * right) / jnp.where(norm > 0, norm, 1), 0)


OBSERVABLES: dict[str, Callable[[JoMASnapshot], Array]] = {
    "loss": lambda s: s.problem.population_loss(s.params),
    "entropy": entropy,
    "correlation": correlation,
    "conserved": lambda s: s.problem.conserved(s.params) - s.problem.invariant(s.params),
    "weight": lambda s: jnp.sqrt(jnp.sum(jnp.asarray(s.params.Y.V) ** 2, axis=0)),
    "logits": lambda s: jnp.asarray(s.params.Z),
    "attended": lambda s: s.b,
}
"""All observables by name: population `loss` and `entropy` in nat, and `correlation`, of shape ();
`conserved` (M,), the left side of Theorem 1 minus the right one; `weight` (M,), the norm of the
weights of each token; `logits` (Q, M); and `attended` (K, M)."""
