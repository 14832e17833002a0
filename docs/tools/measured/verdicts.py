"""How often the verdict of `dynsim figure scaling` is false: `make tables TABLES=verdicts`.

The order parameter of a seed jumps from 0 to 1 at a threshold of its own, which is logistic: the
mean over the seeds is a smooth step, whose width is chosen for each size. Steps of fixed width are
also drawn from Gumbel's distribution, whose step is steeper on one side.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import lambertw

from sweeps import output
from sweeps.runner import progress
from sweeps.studies.transitions.scaling.analysis import Verdict, judged
from sweeps.studies.transitions.scaling.moments import weights

FIRST, LAST = 8, 128
"""Smallest and largest size."""
NUMBERS, SEEDS = (3, 5, 8), (8, 32, 128)
COLUMNS = {
    "a = 0": ("logistic", 0.0),
    "a = 0, skewed": ("gumbel", 0.0),
    "a = 0.1": ("logistic", 0.1),
    "a = 0.25": ("logistic", 0.25),
    "a = 0.5": ("logistic", 0.5),
}
"""Distribution of the thresholds, and the exponent with which the width falls."""
LEVELS = (0.025, 0.005)
DRAWS, RESAMPLED = 200, 50
POINTS = np.linspace(-6, 6, 49)
WIDTH = 4.0
"""Of the step of the smallest size."""
UNITS = {
    "logistic": 2 * np.log(3 + np.sqrt(8)),
    "gumbel": np.log(np.divide(*(lambertw(-0.5 / np.e, k).real for k in (-1, 0)))),
}
"""Widths of the densities of thresholds at half height."""


def steps(
    rng: np.random.Generator, curve: str, widths: Float[np.ndarray, " N"], seeds: int
) -> Float[np.ndarray, "N P S"]:
    """Order parameters at `POINTS` of sizes with steps of these widths."""
    drawn = getattr(rng, curve)(size=(len(widths), 1, seeds))
    thresholds = drawn * widths[:, None, None] / UNITS[curve]
    return (POINTS[:, None] > thresholds).astype(float)


def shares(
    number: int,
    seeds: int,
    exponent: float,
    level: float,
    draws: int = DRAWS,
    curve: str = "logistic",
) -> dict[Verdict, float]:
    """Share of each verdict on so many sizes and seeds, whose width falls as L^-exponent."""
    rng, resampled = np.random.default_rng(0), weights(seeds, RESAMPLED)
    sizes = np.geomspace(FIRST, LAST, number)
    widths = WIDTH * (sizes / FIRST) ** -exponent
    found = [
        judged(POINTS, sizes, steps(rng, curve, widths, seeds), resampled, level).verdict
        for _ in range(draws)
    ]
    return {verdict: found.count(verdict) / draws for verdict in Verdict}


def markdown() -> str:
    """Tables of the shares of transitions and crossovers that are found, for each level."""
    head = ("sizes", "seeds", *COLUMNS)
    lines = []
    cases = [(level, n, seeds) for level in LEVELS for n in NUMBERS for seeds in SEEDS]
    rows: dict[float, list[tuple[str, ...]]] = {level: [] for level in LEVELS}
    for level, n, seeds in progress.each(cases, "case"):
        found = [shares(n, seeds, a, level, curve=curve) for curve, a in COLUMNS.values()]
        cells = (
            f"{100 * each[Verdict.TRANSITION]:.0f}, {100 * each[Verdict.CROSSOVER]:.0f}"
            for each in found
        )
        rows[level].append((str(n), str(seeds), *cells))
    for level in LEVELS:
        lines += [f"Level {100 * level:g} %, transitions and crossovers in %:", ""]
        lines += [*output.markdown_table(head, rows[level]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
