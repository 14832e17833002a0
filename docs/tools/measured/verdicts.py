"""How often the verdict of `dynsim figure scaling` is false: `make tables TABLES=verdicts`.

The order parameter of each seed jumps from 0 to 1 at its own threshold, drawn from a logistic
distribution: the mean over seeds is a smooth step, whose width we choose for each size. For a fixed
width, thresholds also have a Gumbel distribution, whose step is steeper on one side. Widths that
level off fall as L^(-1/2) up to the middle size and then stay, or approach half of the first width
as 1/L.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import lambertw

from sweeps import output
from sweeps.runner import progress
from sweeps.studies import scaling
from sweeps.studies.scaling import Verdict, verdict_on
from sweeps.studies.scaling.laws import weights

FIRST, LAST = 8, 128
"""Smallest and largest size."""
NUMBERS, SEEDS = (3, 5, 8), (8, 32, 128)
LEVELS = (0.025, 0.005)
DRAWS, RESAMPLED = 100, 50
POINTS = np.linspace(-6, 6, 49)
WIDTH = 4.0
"""Width of the step of the smallest size."""


def power(exponent: float, sizes: Any) -> Any:
    """Return widths that fall as L^-exponent."""
    return WIDTH * (sizes / FIRST) ** -exponent


def stops(sizes: Any) -> Any:
    """Return widths that fall as L^(-1/2) up to the middle of the sizes, and then stay."""
    return power(0.5, np.minimum(sizes, (FIRST * LAST) ** 0.5))


def approaches(sizes: Any) -> Any:
    """Return widths that approach half of the first one."""
    return WIDTH * (1 + FIRST / sizes) / 2


Widths = Callable[[Any], Any]
COLUMNS: dict[str, tuple[str, Widths]] = {
    "a = 0": ("logistic", functools.partial(power, 0.0)),
    "a = 0, skewed": ("gumbel", functools.partial(power, 0.0)),
    "stops": ("logistic", stops),
    "approaches 1/2": ("logistic", approaches),
    "a = 0.1": ("logistic", functools.partial(power, 0.1)),
    "a = 0.25": ("logistic", functools.partial(power, 0.25)),
    "a = 0.5": ("logistic", functools.partial(power, 0.5)),
}
"""Distribution of the thresholds, and widths as a function of the sizes."""
UNITS = {
    "logistic": 2 * np.log(3 + np.sqrt(8)),
    "gumbel": np.log(np.divide(*(lambertw(-0.5 / np.e, k).real for k in (-1, 0)))),
}
"""Widths of the densities of thresholds at half height."""


def steps(
    rng: np.random.Generator, curve: str, widths: Float[np.ndarray, " N"], seeds: int
) -> Float[np.ndarray, "N P S"]:
    """Draw order parameters at `POINTS` for sizes with steps of these widths."""
    drawn = getattr(rng, curve)(size=(len(widths), 1, seeds))
    thresholds = drawn * widths[:, None, None] / UNITS[curve]
    return (POINTS[:, None] > thresholds).astype(float)


def shares(
    number: int,
    seeds: int,
    widths: Widths,
    draws: int = DRAWS,
    curve: str = "logistic",
) -> dict[float, dict[Verdict, float]]:
    """Return the share of each verdict at each of `LEVELS`, for a number of sizes and seeds."""
    rng, resampled = np.random.default_rng(0), weights(seeds, RESAMPLED)
    sizes = np.geomspace(FIRST, LAST, number)
    found: dict[float, list[Verdict]] = {level: [] for level in LEVELS}
    for _ in range(draws):
        measured = scaling.steps(POINTS, steps(rng, curve, widths(sizes), seeds), resampled)
        for level, verdicts in found.items():
            verdicts.append(verdict_on(sizes, measured, seeds, level)[2])
    return {
        level: {verdict: each.count(verdict) / draws for verdict in Verdict}
        for level, each in found.items()
    }


def markdown() -> str:
    """Return a table of the shares of transitions and crossovers for each level."""
    head = ("sizes", "seeds", *COLUMNS)
    cases = [(number, seeds) for number in NUMBERS for seeds in SEEDS]
    rows: dict[float, list[tuple[str, ...]]] = {level: [] for level in LEVELS}
    for number, seeds in progress.track(cases, "case"):
        found = [shares(number, seeds, law, curve=curve) for curve, law in COLUMNS.values()]
        for level in LEVELS:
            cells = (
                f"{100 * each[level][Verdict.TRANSITION]:.0f}, "
                f"{100 * each[level][Verdict.CROSSOVER]:.0f}"
                for each in found
            )
            rows[level].append((str(number), str(seeds), *cells))
    lines = []
    for level in LEVELS:
        lines += [f"Level {100 * level:g} %, transitions and crossovers in %:", ""]
        lines += [*output.markdown_table(head, rows[level]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
