"""Eq. 10 against the population flow, and Theorems 2 and 3 along trajectories:
`make tables TABLES=eq10`."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

import dynsim
from dynsim import Trajectory
from dynsim.precision import precision
from odes import predictions
from odes.solver.tolerances import Tolerances
from odes.yz import eq10, lemma3, population
from sweeps import output
from sweeps.runner import progress

TOP = "z_top_distinct"
"""The logit of the top distinct token."""
OVERLAPS, CLASSES = (0.01, 0.05, 0.1, 0.3, 0.6), (2, 5, 10)
RATES, STEPS, SEEDS = (1.0, 0.1), 1000, 8
"""Learning rates, steps and number of runs for the tests of Theorems 2 and 3."""


class Eq10Errors(NamedTuple):
    """Relative l2 errors over time; logits are those of a distinct token.

    Attributes:
        speed: gamma(t) against f.g of the population flow.
        logit, logit_paper: Eq. 10 against the population flow, in the time of SGD and of the paper.
        lemma3: Eq. 10 against the flow under Lemma 3's update, in the time of SGD.
        finite_m, finite_m_paper: Eq. 10 with the finite-M terms against that flow, in both times.
    """

    speed: float
    logit: float
    logit_paper: float
    lemma3: float
    finite_m: float
    finite_m_paper: float


def markdown() -> str:
    """Return both tables."""
    conventions = ("time of SGD", "time of the paper", "time of SGD, Lemma 3", "finite M, Lemma 3")
    overlaps = output.markdown_table(("K", "overlap", "gamma against f.g", *conventions), overlap())
    signs = ("distinct gain (Thm 2)", "common lose (Cor. 2)", "r = r(0) chi missed by")
    bounds = ("lower bound: least margin", "upper bound: least margin")
    along = output.markdown_table(("trajectory", *signs, *bounds), theorems())
    return "\n".join([*overlaps, "", *along])


def eq10_errors(K: int, overlap: float) -> Eq10Errors:
    """Errors of Eq. 10 on `dynsim.Overlapping`, at 40 logarithmically spaced times from 0.1 to 12 K
    ln M steps (about 4 t0), with eta_Y = 1 and eta_Z = 0.1."""
    task, optimizer = dynsim.Overlapping(K, overlap).build(), dynsim.sgd(1.0, 0.1)
    times = np.r_[0, np.geomspace(0.1, 12 * K * np.log(task.M), 40)]
    record = ("speed", TOP)
    flow = population.solve(task, optimizer, times, record=record)
    modified = lemma3.solve(task, optimizer, times, record=record)
    sgd, paper, finite, finite_paper = (
        eq10.solve(task, optimizer, times, convention=convention, finite_m=finite_m, record=record)
        for finite_m, convention in itertools.product((False, True), ("sgd", "paper"))
    )

    def error(solved: Trajectory, exact: Trajectory, name: str = TOP) -> float:
        return float(np.linalg.norm(solved[name] - exact[name]) / np.linalg.norm(exact[name]))

    return Eq10Errors(
        error(sgd, flow, "speed"),
        error(sgd, flow),
        error(paper, flow),
        error(sgd, modified),
        error(finite, modified),
        error(finite_paper, modified),
    )


def overlap() -> Iterator[tuple[str, ...]]:
    """Yield the errors of Eq. 10 over the number of classes and their overlap."""
    cases = tuple(itertools.product(CLASSES, OVERLAPS))
    for K, rho in progress.track(cases, "case", lambda case: f"K={case[0]}, overlap={case[1]}"):
        # The last error, finite_m_paper, has no column.
        errors = (f"{100 * error:.2g} %" for error in eq10_errors(K, rho)[:-1])
        yield str(K), f"{rho:g}", *errors


def theorems() -> Iterator[tuple[str, ...]]:
    """Yield how often the signs of Theorem 2 and Corollary 2 are right, and the errors of the laws
    of Theorem 3. They are exact on the Eq. 10 flow, and approximate on the population flow and in
    training."""
    task, optimizer = dynsim.SynSmall().build(), dynsim.sgd(*RATES)
    times, record = dynsim.log_times(STEPS, 40), ("z", "xi")
    sharp = Tolerances(1e-10, 1e-12)
    with precision("float64"):
        closed = eq10.solve(task, optimizer, times, record=(*record, "B"), tolerances=sharp)
        flow = population.solve(task, optimizer, times, record=record, tolerances=sharp)

        def trained(seed: jax.Array) -> Trajectory:
            key = jax.random.fold_in(jax.random.key(0), seed)
            options = {"steps": STEPS, "batch": 128, "times": times, "dtype": "float64"}
            return dynsim.train(dynsim.Layer(task), optimizer, key, record=record, **options)

        runs = jax.vmap(trained)(np.arange(SEEDS))
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], runs) for i in range(SEEDS)]
    trajectories = {
        "Eq. 10 flow": [closed],
        "population flow": [flow],
        f"simulation, T = 128, {SEEDS} runs": members,
    }
    for name, each in trajectories.items():
        measured = [tested(task, times, run) for run in each]
        shares = (f"{100 * share:.1f} %" for share in np.mean([m[:2] for m in measured], axis=0))
        worst = np.max([m[2] for m in measured])
        margins = (f"{margin:+.1e}" for margin in np.min([m[3:] for m in measured], axis=0))
        yield name, *shares, f"{100 * worst:.2g} %", *margins


def tested(
    task: dynsim.SequenceClasses, times: np.ndarray, run: Trajectory
) -> tuple[float, float, float, float, float]:
    """Return the shares of distinct and of common tokens with the right sign, the largest relative
    error of the gain, and the smallest margins of the lower and the upper bound, along a
    trajectory. B is the state of Eq. 10, elsewhere the integral of the measured xi."""
    z = np.asarray(run["z"])
    if "B" in run.observables:
        B = np.asarray(run["B"])
    else:
        xi = np.asarray(run["xi"])
        B = predictions.bound_from_xi(times, xi, RATES[1], np.asarray(task.prior))
    signs = predictions.agreement(task, times, z)
    error = float(np.nanmax(predictions.relative_gain_error(task, z)))
    # All margins are 0 at the start.
    lower, upper = (float(each[1:].min()) for each in predictions.sandwich(task, z, B))
    return signs.distinct, signs.common, error, lower, upper


if __name__ == "__main__":
    print(markdown())
