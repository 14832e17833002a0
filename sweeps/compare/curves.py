"""Runs and theories in one panel, as every figure of a comparison draws them."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from sweeps.compare.comparison import Comparison
from sweeps.output import drawing

MARKS = 15
"""Marks of the mean of the runs on a curve, about."""


def plot(
    result: Comparison,
    times: Float[np.ndarray, " S"],
    mean: Float[np.ndarray, " S"],
    around: Float[np.ndarray, " S"],
    predicted: Callable[[str], Float[np.ndarray, " S"]],
    runs: int,
    ax: Axes,
) -> None:
    """Mean of the runs as circles, their standard deviation `around` it as a band, and what each
    theory predicted as a line."""
    ax.fill_between(times, mean - around, mean + around, color="0.82", lw=0)
    styles = drawing.nested(len(result.predictions))
    for theory, style in zip(result.predictions, styles, strict=True):
        ax.plot(times, predicted(theory), label=result.about(theory)[0], **style)
    every = max(times.size // MARKS, 1)
    marks = {"ls": "", "marker": "o", "ms": 5, "mfc": "none", "color": "black"}
    label = f"simulation, {runs} runs: mean, sd as band"
    ax.plot(times[::every], mean[::every], label=label, **marks)
