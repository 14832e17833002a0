"""The scaling collapse: one curve for all sizes, and the exponents that make it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from sweeps.studies.transitions.scaling.moments import error

NEAR = 1.0
"""How far from its place a step is used, in its widths: further away there is no scaling."""
ROUGH = 0.01
"""Accuracy with which points are compared, over the range of all, at best: curves are linear
between points, and scaling has corrections."""


class Collapse(NamedTuple):
    """m L^(beta/nu) = f((x - x_c) L^(1/nu)), with standard errors by halves of the seeds.

    Attributes:
        x_c: critical value of the control parameter.
        inverse_nu: 1/nu.
        beta_nu: beta/nu.
        errors: errors of these three.
        misfit: mean square distance of points from other sizes' curves, over that of their errors:
            about 1 for a collapse.
    """

    x_c: float
    inverse_nu: float
    beta_nu: float
    errors: tuple[float, float, float]
    misfit: float


def misfit(
    fit: Float[np.ndarray, " 3"],
    sizes: Float[np.ndarray, " N"],
    curves: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> float:
    """Mean square distance of points (x, m, error) of each size from the curves of the others,
    linear between their points, over that of the errors (Houdayer and Hartmann, 2004). Large where
    less than half of the points lie on another size's curve."""
    x_c, inverse_nu, beta_nu = fit
    ratios = sizes / sizes[-1]
    grow = ratios**beta_nu
    moved = [
        ((x - x_c) * ratio**inverse_nu, m * g, e * g)
        for ratio, g, (x, m, e) in zip(ratios, grow, curves, strict=True)
    ]
    total, compared, points = 0.0, 0, 0
    for i, (u, m, e) in enumerate(moved):
        others = [each for j, each in enumerate(moved) if j != i]
        inside = np.array([(u >= other[0][0]) & (u <= other[0][-1]) for other in others])
        curve = np.array([np.interp(u, other[0], other[1]) for other in others])
        rough = np.array([np.interp(u, other[0], other[2]) for other in others])
        total += float((((m - curve) ** 2 / (e**2 + rough**2)) * inside).sum())
        compared += int(inside.sum())
        points += len(u) * len(others)
    return total / compared if 2 * compared >= points else 1e9 * (1 - compared / points)


def collapse(
    x: Float[np.ndarray, "N P"],
    sizes: Float[np.ndarray, " N"],
    mean: Float[np.ndarray, "R N P"],
    places: Float[np.ndarray, " N"],
    widths: Float[np.ndarray, " N"],
    seeds: int,
) -> Collapse | None:
    """The exponents for which the curves of the order parameter, which is zero in the phase
    without order, lie on one another best; None for fewer than two sizes with a step that several
    points resolve. `x` may differ by size."""
    used = np.flatnonzero(np.isfinite(places))
    if len(used) < 2:
        return None
    window = [
        np.flatnonzero((np.abs(x[i] - places[i]) <= NEAR * widths[i]) & np.isfinite(mean[0, i]))
        for i in used
    ]
    if min(map(len, window)) < 3:
        return None
    spread = error(mean, seeds)
    rough = ROUGH * np.ptp(
        np.concatenate([mean[0, i, w] for i, w in zip(used, window, strict=True)])
    )

    def fitted(row: int, start: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, float]:
        curves = [
            (x[i, w], mean[row, i, w], np.hypot(spread[i, w], rough))
            for i, w in zip(used, window, strict=True)
        ]
        simplex = start + np.concatenate([np.zeros((1, 3)), np.diag(size)])
        options = {"initial_simplex": simplex, "xatol": 1e-3 * size[0], "fatol": 1e-4}
        found = minimize(misfit, start, (sizes[used], curves), "Nelder-Mead", options=options)
        return found.x, float(found.fun)

    largest = used[-1]
    step = np.array([widths[largest] / 2, 0.2, 0.1])
    # From several exponents: the misfit has shallow minima of its own.
    starts = [np.array([places[largest], exponent, 0.0]) for exponent in (0.25, 0.5, 1.0)]
    best, least = min((fitted(0, start, step) for start in starts), key=lambda found: found[1])
    drawn = [fitted(row, best, step / 2)[0] for row in range(1, len(mean))]
    errors = error(np.stack([best, *drawn]), seeds)
    return Collapse(*map(float, best), errors=tuple(errors.tolist()), misfit=least)
