"""Associative memories (Cabannes, Simsek, Bietti, arXiv:2402.18724).

A matrix W stores which of C classes follows each of n tokens. The logits of token x are W e_x, and
W is trained with the cross-entropy on tokens with unequal frequencies p_x. With orthogonal
embeddings tokens do not interact. The margin m of a token, its correct logit minus the others, has

    m' = p C / (C - 1 + exp m),   (C - 1) m + exp m = 1 + p C tau,

and grows as ln(p C tau): a token that is ten times rarer needs ten times longer. With fewer
dimensions than tokens, embeddings overlap, and frequent tokens interfere with rare ones.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class Memories(dynsim.Problem):
    """A matrix that stores the class of each token; frequent tokens are learned first.

    Attributes:
        tokens: number of tokens, one for each class; token k has a frequency like 1 / k.
        dimension: dimension of the embeddings; they are orthogonal unless it is less than tokens.
        margin: logit of the right class of each token less the largest other one.
    """

    RUN_DEFAULTS = {"rule": {"kind": "sgd", "eta": 1.0}, "steps": 2000, "batch": 32}

    tokens: Annotated[int, at.Ge(2)] = 5
    dimension: Annotated[int, at.Ge(1)] = 5

    def frequencies(self):
        p = 1 / jnp.arange(1, self.tokens + 1)
        return p / p.sum()

    def embeddings(self):
        """Unit vectors, one row per token; the same in every run and precision."""
        if self.dimension >= self.tokens:
            return jnp.eye(self.tokens, self.dimension)
        e = jax.random.normal(jax.random.key(0), (self.tokens, self.dimension), "float32")
        return e / jnp.linalg.norm(e, axis=1, keepdims=True)

    def init(self, key):
        return jnp.zeros((self.tokens, self.dimension))

    def draw(self, key, batch):
        return jax.random.choice(key, self.tokens, (batch,), p=self.frequencies())

    def scores(self, W):
        """(tokens, classes) log-probabilities."""
        return jax.nn.log_softmax(self.embeddings() @ W.T, axis=1)

    def loss(self, W, x):
        return -jnp.mean(self.scores(W)[x, x])  # class k follows token k

    def population_loss(self, W):
        return -self.frequencies() @ jnp.diag(self.scores(W))

    def observables(self):
        return {"margin": lambda self, W: margins(self.scores(W))}

    @classmethod
    def theories(cls):
        return (MARGINS,)


def margins(scores):
    others = jnp.where(jnp.eye(len(scores), dtype=bool), -jnp.inf, scores)
    return jnp.diag(scores) - others.max(axis=1)


def by_token(problem, init, time):
    C, p = problem.tokens, problem.frequencies()
    reached = 1 + p * C * time
    m = jnp.log(reached)
    for _ in range(30):  # Newton's method, starting above the root of a convex function
        m = m - ((C - 1) * m + jnp.exp(m) - reached) / (C - 1 + jnp.exp(m))
    loss = p @ jnp.log1p((C - 1) * jnp.exp(-m))  # the other logits are equal
    return {"margin": m, "loss": loss}


MARGINS = odes.closed_form(
    "margins",
    "token by token",
    "eta -> 0, batch -> infinity, orthogonal embeddings",
    by_token,
    inapplicable=lambda training: (
        "dimension: is less than tokens, so that embeddings overlap"
        if training.problem.dimension < training.problem.tokens
        else None
    ),
)
