"""Statistical induction heads (Edelman et al., arXiv:2402.11004): unigrams, then bigrams.

Each sequence comes from its own Markov chain. A minimal transformer predicts the next token: the
first layer looks back with attention a = softmax(v) over lags, the same at all positions, and the
second layer, which is linear, compares its output with the last token x_T,

    logits_y = mean over j of [x_j = y] (W s_j)_(x_T),  s_j = sum over m of a_m e(x_(j - m)).

W first learns the frequencies of tokens, then v learns to look at the previous token. In long
contexts the mean is the average over a chain with transitions P and frequencies pi (derived by us),

    logits_y = sum over m and x of a_m W_(x_T, x) pi_x (P^m)_xy,

and the loss is an integral over both transition probabilities, which are uniform.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp
import numpy as np

import dynsim
import odes

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


class Chains(dynsim.Problem):
    """Two layers that learn to continue Markov chains of two tokens in context.

    Attributes:
        context: number of tokens that the second layer sees.
        lags: number of distances at which the first layer looks, from 0, the token itself, on.
        previous: attention of the first layer to the previous token.
        match: how much larger the weight in W is if two tokens are the same.
        risk: mean loss in long contexts.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 1.0}, "steps": 1000, "batch": 128}

    context: Annotated[int, at.Ge(1)] = 200
    lags: Annotated[int, at.Ge(2)] = 20

    def init(self, key):
        return {"W": jnp.full((2, 2), 0.01), "v": jnp.zeros(self.lags)}

    def sequences(self, key, batch):
        """Draw (batch, lags + context) tokens; the last one is to be predicted."""
        u = jax.random.uniform(key, (3 + self.lags + self.context, batch))  # p, q, start, steps

        def step(x, changes):
            return x ^ (changes < jnp.where(x, u[1], u[0])), x  # flips with chance q or p

        return jax.lax.scan(step, u[2] * (u[0] + u[1]) > u[1], u[3:])[1].T.astype(int)

    def draw(self, key, batch):
        tokens = self.sequences(key, batch)
        e, n = jax.nn.one_hot(tokens[:, :-1], 2), self.context
        lagged = jnp.stack([e[:, k : k + n] for k in range(self.lags)][::-1], axis=1)
        return jnp.einsum("bmjx,bjy->bmxy", lagged, lagged[:, 0]) / n, tokens[:, -2], tokens[:, -1]

    def loss(self, params, data):
        return -jnp.mean(log_chances(params, data[0])[jnp.arange(len(data[1])), *data[1:]])

    def observables(self):
        return {
            "previous": lambda self, params: jax.nn.softmax(params["v"])[1],
            "match": lambda self, params: jnp.trace(params["W"]) - params["W"].sum() / 2,
            "risk": lambda self, params: risk(params),
        }

    @classmethod
    def theories(cls):
        return (LONG,)


def log_chances(params, pairs):
    """Log-probabilities (..., last token, next token) from pair frequencies (..., lag, x, y)."""
    seen = jnp.einsum("m,...mxy->...xy", jax.nn.softmax(params["v"]), pairs)  # sum of a_m
    return jax.nn.log_softmax(params["W"] @ seen)


def risk(params):
    p, q = np.stack(np.meshgrid(NODES, NODES)).reshape(2, -1) / 2 + 0.5
    P, pi = np.array([[1 - p, p], [q, 1 - q]]).T.mT, (np.array([q, p]) / (p + q)).T
    far, lags = pi[:, None, None], np.arange(len(params["v"]))[:, None, None]
    # P^m is 1 pi^T + (1 - p - q)^m (1 - 1 pi^T).
    powers = far + (1 - p - q)[:, None, None, None] ** lags * (np.eye(2) - far)
    chances = log_chances(params, jnp.asarray(pi[:, None, :, None] * powers))
    shares = np.outer(WEIGHTS, WEIGHTS).reshape(-1, 1, 1) / 4 * pi[:, :, None] * P  # pi_x P_xy
    return -jnp.sum(jnp.asarray(shares) * chances)


LONG = odes.system(
    "long",
    "long contexts",
    "context -> infinity, eta -> 0, batch -> infinity",
    lambda t, w, training: jax.tree.map(lambda g: -training.rate(t) * g, jax.grad(risk)(w)),
    lambda training, w: w,
    lambda t, w, run: {n: f(run.problem, w) for n, f in run.problem.observables().items()},
)
