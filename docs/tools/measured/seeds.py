"""Two-stage training against its theories over eta-time: `make tables TABLES=seeds`."""

import numpy as np

import sweeps
from dynsim.two_stage.annealing import Annealing
from sweeps import output
from sweeps.comparison.errors import TRAINING, Comparison

SEEDS = 24
"""Number of runs, which determines their standard deviation to 15 %."""
NAMES = {
    "K1": "$K_1$",
    "K2": "$K_2$",
    "W_norm": "norm of $W$",
    "V_norm": "norm of $V$",
    "W_trace": "$\\operatorname{Tr}\\bar W$",
    "V_trace_abs": "$\\lvert\\operatorname{Tr}\\bar V\\rvert$",
}
RESAMPLES = 1000
"""Number of sets of paths for the quantile of the error of a mean."""


def markdown() -> str:
    """Return the errors of theories, and standard deviations across seeds, in % in the L2 norm over
    eta-time."""
    theories = ("ode", "anchored", "sde", "seeds")
    made = sweeps.compare("two_stage", seeds=SEEDS, times=128, theories=theories)
    head = "", *NAMES.values()
    rows = [(title, *cells) for title, cells in {**errors(made), **deviations(made)}.items()]
    return "\n".join((f"{SEEDS} runs.", "", *output.markdown_table(head, rows))) + "\n"


def errors(made: Comparison) -> dict[str, list[str]]:
    """Return rows: the standard error of the mean of the runs, and the errors of theories."""
    found = {"standard error": [_shown(_std(made, TRAINING, n) / SEEDS**0.5) for n in NAMES]}
    for theory in ("ode", "anchored", "sde"):
        apart = (_of(made, theory, n).mean(0) - _of(made, TRAINING, n).mean(0) for n in NAMES)
        found[theory] = [
            _shown(_norm(made, x) / _norm(made, _of(made, TRAINING, n).mean(0)))
            for x, n in zip(apart, NAMES, strict=True)
        ]
    return found


def deviations(made: Comparison) -> dict[str, list[str]]:
    """Return rows: standard deviations across seeds, predicted and of the runs; for the first 6 and
    for all seeds the error of their mean, as root mean square and 95 % quantile, next to that of
    the ODE; and the error of the ODE that more seeds would not remove."""
    found = {"one seed, predicted": [_shown(_std(made, "seeds", n)) for n in NAMES]}
    for number in (SEEDS, 6):
        cells = [_shown(_std(made, TRAINING, n, number)) for n in NAMES]
        found[f"one seed, {number} runs"] = cells
    for number in (6, SEEDS):
        cells = []
        for name in NAMES:
            paths = _of(made, "seeds", name)
            mean = paths.mean(0)
            drawn = np.random.default_rng(0).integers(len(paths), size=(RESAMPLES, number))
            apart = [_norm(made, paths[rows].mean(0) - mean) / _norm(made, mean) for rows in drawn]
            rms = _std(made, "seeds", name) / number**0.5
            cells.append(f"{_shown(rms)} / {_shown(float(np.quantile(apart, 0.95)))}")
        found[f"mean of {number}, predicted rms / 95 % quantile"] = cells
        means = (
            (_of(made, "ode", n).mean(0), _of(made, TRAINING, n)[:number].mean(0)) for n in NAMES
        )
        found[f"ODE against the mean of {number} runs"] = [
            _shown(_norm(made, a - b) / _norm(made, b)) for a, b in means
        ]
    means = ((_of(made, "ode", n).mean(0), _of(made, "seeds", n).mean(0)) for n in NAMES)
    shift = [_shown(_norm(made, a - b) / _norm(made, b)) for a, b in means]
    return {**found, "ODE against the mean of the predicted seeds": shift}


def _of(made: Comparison, side: str, name: str) -> np.ndarray:
    return made.runs(side, name).values


def _std(made: Comparison, side: str, name: str, number: int | None = None) -> float:
    runs = _of(made, side, name)[:number]
    return _norm(made, runs.std(0, ddof=1)) / _norm(made, runs.mean(0))


def _norm(made: Comparison, curve: np.ndarray) -> float:
    """Return the L2 norm over eta-time, whatever the density of records in each stage."""
    times = Annealing.of(made.run.rule).flow_time(made.sides[TRAINING]["time"].values)
    return float(np.sqrt(np.trapezoid(curve**2, np.asarray(times))))


def _shown(share: float) -> str:
    return f"{100 * share:.2g}"


if __name__ == "__main__":
    print(markdown())
