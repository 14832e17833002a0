"""The map of Lewkowycz et al. 2020 (arXiv:2003.02218), by which `papers.catapult` descends.

The width is that of the network by default: a step of gradient descent is

    f <- f (1 - eta l + eta^2 f^2 / n),     l <- l + (eta f^2 / n) (eta l - 4)
"""

import numpy as np

WIDTH = 16


def descended(eta: float, norm: float, output: float, steps: int) -> np.ndarray:
    """(steps + 1, 2) f and l of the map."""
    found = [(output, norm)]
    for _ in range(steps):
        f, lam = found[-1]
        push = eta * f**2 / WIDTH
        found.append((f * (1 - eta * lam + eta * push), lam + push * (eta * lam - 4)))
    return np.array(found)
