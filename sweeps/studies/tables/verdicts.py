"""How often the verdict of `dynsim figure scaling` is false: `dynsim validate verdicts`.

The order parameter of a seed jumps from 0 to 1 at a threshold of its own, which is logistic: the
mean over the seeds is a smooth step, whose width is chosen for each size.
"""

import numpy as np
from jaxtyping import Float

from sweeps import output
from sweeps.runner import progress
from sweeps.studies.transitions.scaling.analysis import Verdict, judged
from sweeps.studies.transitions.scaling.moments import weights

FIRST, LAST = 8, 128
"""Smallest and largest size."""
NUMBERS, SEEDS = (3, 5, 8), (8, 32, 128)
EXPONENTS = (0.0, 0.1, 0.25, 0.5)
LEVELS = (0.025, 0.005)
DRAWS, RESAMPLED = 200, 50
POINTS = np.linspace(-6, 6, 49)
WIDTH = 4.0
"""Of the step of the smallest size."""
UNIT = 2 * np.log(3 + np.sqrt(8))
"""Width at half height of the slope of the logistic function."""


def steps(
    rng: np.random.Generator, widths: Float[np.ndarray, " N"], seeds: int
) -> Float[np.ndarray, "N P S"]:
    """Order parameters at `POINTS` of sizes with steps of these widths."""
    thresholds = rng.logistic(size=(len(widths), 1, seeds)) * widths[:, None, None] / UNIT
    return (POINTS[:, None] > thresholds).astype(float)


def shares(
    number: int, seeds: int, exponent: float, level: float, draws: int = DRAWS
) -> dict[Verdict, float]:
    """Share of each verdict on so many sizes and seeds, whose width falls as L^-exponent."""
    rng, resampled = np.random.default_rng(0), weights(seeds, RESAMPLED)
    sizes = np.geomspace(FIRST, LAST, number)
    widths = WIDTH * (sizes / FIRST) ** -exponent
    found = [
        judged(POINTS, sizes, steps(rng, widths, seeds), resampled, level).verdict
        for _ in range(draws)
    ]
    return {verdict: found.count(verdict) / draws for verdict in Verdict}


def markdown() -> str:
    """Tables of the shares of transitions and crossovers that are found, for each level."""
    head = ("sizes", "seeds", *(f"a = {exponent:g}" for exponent in EXPONENTS))
    lines = []
    cases = [(level, n, seeds) for level in LEVELS for n in NUMBERS for seeds in SEEDS]
    rows: dict[float, list[tuple[str, ...]]] = {level: [] for level in LEVELS}
    for level, n, seeds in progress.each(cases, "case"):
        found = [shares(n, seeds, exponent, level) for exponent in EXPONENTS]
        cells = (
            f"{100 * each[Verdict.TRANSITION]:.0f}, {100 * each[Verdict.CROSSOVER]:.0f}"
            for each in found
        )
        rows[level].append((str(n), str(seeds), *cells))
    for level in LEVELS:
        lines += [f"Level {100 * level:g} %, transitions and crossovers in %:", ""]
        lines += [*output.markdown_table(head, rows[level]), ""]
    return "\n".join(lines)
