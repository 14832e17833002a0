"""Theorems 2 and 3 along trajectories: `dynsim validate theorems`.

Their signs and laws are exact on the Eq. 10 flow. How far they bend elsewhere is measured on the
population flow and on simulation.
"""

import jax
import numpy as np

import dynsim
from dynsim import Trajectory
from dynsim.precision import precision
from odes.formulas import predictions
from odes.solver.tolerances import Tolerances
from odes.yz import eq10 as attention
from odes.yz import population
from sweeps import output
from sweeps.studies.tables import measurements

RATES = (1.0, 0.1)
STEPS = 1000
SEEDS = 8


def markdown() -> str:
    """A table of how often signs are right, and how far the laws are missed."""
    task, optimizer = dynsim.syn_small(), dynsim.sgd(*RATES)
    times = dynsim.log_times(STEPS, 40)
    record = ("z", "xi")
    sharp = Tolerances(1e-10, 1e-12)
    with precision("float64"):
        eq10 = attention.solve(task, optimizer, times, record=(*record, "B"), tolerances=sharp)
        flow = population.solve(task, optimizer, times, record=record, tolerances=sharp)
        runs = jax.vmap(
            lambda key: dynsim.train(
                task,
                optimizer,
                key,
                steps=STEPS,
                batch=128,
                times=times,
                record=record,
                dtype="float64",
            )
        )(measurements.keys(SEEDS))
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], runs) for i in range(SEEDS)]
    measured = {
        "Eq. 10 flow": [_measure(task, times, eq10, np.asarray(eq10["B"]))],
        "population flow": [_measure(task, times, flow)],
        f"simulation, T = 128, {SEEDS} runs": [_measure(task, times, run) for run in members],
    }
    rows = []
    for name, runs in measured.items():
        shares = (f"{100 * share:.1f} %" for share in np.mean([m[:2] for m in runs], axis=0))
        worst = np.max([m[2] for m in runs])
        margins = (f"{margin:+.1e}" for margin in np.min([m[3:] for m in runs], axis=0))
        rows.append((name, *shares, f"{100 * worst:.2g} %", *margins))
    signs = ("distinct gain (Thm 2)", "common lose (Cor. 2)", "r = r(0) chi missed by")
    bounds = ("lower bound: least margin", "upper bound: least margin")
    lines = [
        f"Syn-Small, SGD, eta_Y = {RATES[0]:g}, eta_Z = {RATES[1]:g}, {STEPS} steps.",
        "",
        *output.markdown_table(("trajectory", *signs, *bounds), rows),
        "",
        "Shares are over tokens and intervals between recorded times. Margins are in nat, over",
        "all times and classes: the bounds of Theorem 3 hold where they are not negative. B is a",
        "state of the Eq. 10 flow; elsewhere it is the trapezoidal integral of the measured xi.",
    ]
    return "\n".join(lines) + "\n"


def _measure(
    task: dynsim.SequenceClasses,
    times: np.ndarray,
    run: Trajectory,
    B: np.ndarray | None = None,
) -> tuple[float, ...]:
    z = np.asarray(run["z"])
    signs = predictions.agreement(task, times, z)
    if B is None:
        xi = np.asarray(run["xi"])
        B = predictions.bound_from_xi(times, xi, RATES[1], np.asarray(task.prior))
    margins = predictions.sandwich(task, z, B)
    error = predictions.relative_gain_error(task, z)
    # At the start all margins are 0.
    least = (float(margin[1:].min()) for margin in margins)
    return (signs.distinct, signs.common, float(np.nanmax(error)), *least)
