"""Prompts of the two-stage system: their outputs by the equations, on grids in NumPy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import erf

from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes.two_stage.loss import Rule

RULE = Rule(24, 12, 24, 12)
"""Nodes that are exact to less than the grids here are."""


NORMAL = np.linspace(-6, 6, 41)
DENSITY = np.exp(-(NORMAL**2) / 2) / np.exp(-(NORMAL**2) / 2).sum()


class Output(NamedTuple):
    """Of y N for queries on a grid: their weights, mean and variance over contexts, and mean and
    standard deviation of the score of a token of the context."""

    weight: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    m: np.ndarray
    s: np.ndarray

    def mean_of(self, logistic: Callable[[float, np.ndarray], np.ndarray]) -> float:
        """The mean of logistic(0, -y N)."""
        score = self.mean[..., None] + np.sqrt(self.variance)[..., None] * NORMAL
        return float(np.sum(self.weight * (logistic(0, -score) @ DENSITY)))


def folded(m: np.ndarray, s: np.ndarray | float) -> np.ndarray:
    """The mean of |N(m, s^2)|."""
    z = m / s
    return s * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2) + m * erf(z / np.sqrt(2))


def on_grids(task: Prompts, x: Float[np.ndarray, "7"]) -> tuple[Output, Output, Output]:
    """The outputs of P, over g and h, and of Q for y = 1 and for y = -1, over e."""
    a, b, h2, w2, e2, u2, m2 = x
    d, L, r, s1, s2 = task.d, task.length, task.r, task.s1, task.s2
    g = np.linspace(0, 6, 81)
    half = np.exp(-(g**2) / 2)
    half[0] *= 0.5
    half /= half.sum()
    pbar = task.gamma0 + s1 * np.sqrt(2 / np.pi)
    p2 = task.gamma0**2 + 2 * task.gamma0 * s1 * np.sqrt(2 / np.pi) + s1**2
    p = (task.gamma0 + s1 * g)[:, None]
    w = a * p + np.sqrt(h2 * (d - 1)) * s1 * NORMAL
    across = s1**2 * (d - 1) * w2 * (p**2 + s1**2 * (d - 1))
    kappa = 1 - 1 / L
    variance = kappa / L * ((p2 * w**2 + across) / 2 - (pbar * w / 2) ** 2)
    s = np.sqrt(across + (p2 - pbar**2) * w**2)
    found = [Output(np.outer(half, DENSITY), kappa * pbar * w / 2, variance, pbar * w, s)]
    for y in (1, -1):
        m = r * s2 * np.sqrt((d - 1) * e2) * NORMAL + (y < 0) * r**2 * b
        s = s2 * np.sqrt(s2**2 * (d - 1) ** 2 * m2 + (y < 0) * (d - 1) * r**2 * u2)
        D = folded(m, s) - s * np.sqrt(2 / np.pi)
        variance = kappa / L * (s**2 / 2 + m**2 / 4 - D**2 / 16)
        found.append(Output(DENSITY, -y * kappa * D / 4, variance, m, np.asarray(s)))
    return found[0], found[1], found[2]


def variance_of_noise(task: Prompts, stages: Annealing, times: np.ndarray) -> np.ndarray:
    """Variance after some optimiser steps of weights on which the loss does not act, v' = -2 decay
    v + eta noise^2, stage by stage."""
    before = np.minimum(times, stages.first) * stages.eta_1
    after = np.maximum(times - stages.first, 0) * stages.eta_2
    found = np.asarray(task.starting_noise) ** 2
    for eta, elapsed in ((stages.eta_1, before), (stages.eta_2, after)):
        end = eta * stages.noise**2 / (2 * stages.decay)
        found = end + (found - end) * np.exp(-2 * stages.decay * elapsed)
    return found
