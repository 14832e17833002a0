"""Sequences of finite length of a small Y/Z task, all of them, in NumPy as the paper writes it."""

import itertools

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, log_softmax

import dynsim

# Queries of two classes and of one, unequal priors, supports of different sizes, unused tokens.
TASK = dynsim.sequence_classes(
    np.pad([[0.5, 0.3, 0.2, 0, 0], [0.2, 0, 0, 0.8, 0], [0.3, 0, 0.25, 0, 0.45]], ((0, 0), (0, 3))),
    query=[0, 0, 1],
    prior=[0.5, 0.3, 0.2],
)


def weights(seed: int = 0, *, residual: bool = False) -> dynsim.YZ:
    """Weights of order one."""
    rng = np.random.default_rng(seed)
    return dynsim.YZ(rng.normal(size=(8, 8)), rng.normal(size=(2, 8)), residual)


def enumerated(n: int, total: int) -> tuple[Float[np.ndarray, "R M"], Float[np.ndarray, " R"]]:
    """All counts that `total` contextual tokens of class n can have, with their probabilities."""
    p = np.asarray(TASK.probs)[n]
    tokens = np.flatnonzero(p)
    found = [
        (*first, total - sum(first))
        for first in itertools.product(range(total + 1), repeat=tokens.size - 1)
        if sum(first) <= total
    ]
    counts = np.zeros((len(found), TASK.M))
    counts[:, tokens] = found
    log = gammaln(total + 1) - gammaln(counts + 1).sum(1)
    return counts, np.exp(log + counts[:, tokens] @ np.log(p[tokens]))


def attention(
    params: dynsim.YZ, n: int, counts: Float[np.ndarray, "R M"]
) -> Float[np.ndarray, "R M"]:
    """f = a / |a| of class n for each row of counts."""
    w = counts * np.exp(np.asarray(params.Z)[int(TASK.query_index[n])])
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def losses_of(
    params: dynsim.YZ, n: int, counts: Float[np.ndarray, "R M"]
) -> Float[np.ndarray, " R"]:
    """Loss of class n for each row of counts."""
    h = attention(params, n, counts)
    if params.residual:
        h[:, int(TASK.query[n])] += 1
        h /= np.linalg.norm(h, axis=1, keepdims=True)
    return -log_softmax(h @ np.asarray(params.Y), axis=1)[:, int(TASK.next_token[n])]


def slopes_of(
    params: dynsim.YZ, n: int, counts: Float[np.ndarray, "R M"], along: dynsim.YZ
) -> Float[np.ndarray, " R"]:
    """Derivative of `losses_of` along a direction of the weights, by Lemma 1."""
    Y, f = np.asarray(params.Y), attention(params, n, counts)
    residual = np.eye(TASK.M)[int(TASK.next_token[n])] - np.exp(log_softmax(f @ Y, axis=1))
    g = residual @ Y.T
    by_z = f * (g - f * (f * g).sum(1, keepdims=True))
    of_y = ((f @ np.asarray(along.Y)) * residual).sum(1)
    return -of_y - by_z @ np.asarray(along.Z)[int(TASK.query_index[n])]
