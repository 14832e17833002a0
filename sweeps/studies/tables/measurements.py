"""Measurements of how far each theory holds, against descent or a more exact theory."""

import functools
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import dynsim
from dynsim.precision import precision
from odes import symmetric
from odes.yz import eq10 as attention
from odes.yz import lemma3, population
from sweeps.runner import progress

GRID = np.geomspace(0.01, 1, 12)
"""Learning rates of the maps, the same for Y and for Z."""
STEPS = (50, 100)
OVERLAPS = (0.01, 0.05, 0.1, 0.3, 0.6)
CLASSES = (2, 5, 10)


def keys(number: int) -> PRNGKeyArray:
    """Keys of so many runs, those of the first seeds of a sweep whose root is 0."""
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(number))


def flow_error(flow: str, optimizer: Callable[..., dynsim.Rule]) -> np.ndarray:
    """Largest relative error of the flow against descent with T and batch infinite, on Syn-Small,
    in the logit of the top distinct token at steps 50 and 100: (eta_y, eta_z) over `GRID`."""
    task = symmetric.symmetric_task(dynsim.syn_small())
    record = ("z_top_distinct",)
    times = np.array(STEPS)

    def one(eta_y: jax.Array, eta_z: jax.Array) -> jax.Array:
        rule = optimizer(eta_y, eta_z)
        solved = symmetric.solve(task, rule, times, flow=flow, record=record)
        descent = symmetric.descend(task, rule, steps=STEPS[-1], times=times, record=record)
        error = jnp.abs(solved[record[0]] / descent[record[0]] - 1)
        return jnp.where(solved.ok & descent.ok, jnp.max(error), jnp.inf)

    with precision("float64"):
        pairs = jnp.asarray(np.stack(np.meshgrid(GRID, GRID, indexing="ij"), -1).reshape(-1, 2))
        errors = jax.vmap(one)(pairs[:, 0], pairs[:, 1])
    return np.asarray(errors).reshape(len(GRID), len(GRID))


def share_within(errors: np.ndarray, tolerance: float) -> float:
    """Share of the map with a relative error of at most `tolerance`."""
    return float(np.mean(errors <= tolerance))


def correction_errors() -> dict[tuple[str, float, float], tuple[float, float]]:
    """Relative error at step 100 in the logit of the top distinct token (Syn-Small) of the usual
    and of the corrected flow, by (rule, eta_y, eta_z)."""
    task = symmetric.symmetric_task(dynsim.syn_small())
    found = {}
    rules = {
        "sgd": (dynsim.sgd, ("plain", "corrected")),
        "momentum 0.9": (dynsim.momentum, ("matched", "corrected")),
    }
    rates = ((0.1, 0.1), (1.0, 1.0), (3.0, 1.0), (5.0, 1.0), (10.0, 1.0))
    for name, (eta_y, eta_z) in progress.each(tuple(itertools.product(rules, rates)), "case"):
        rule, flows = rules[name]
        optimizer = rule(eta_y, eta_z)
        want = symmetric.descend(task, optimizer, steps=100, times=[100])["z_top_distinct"]
        errors = [
            symmetric.solve(task, optimizer, [0, 100], flow=flow)["z_top_distinct"][-1] / want
            for flow in flows
        ]
        found[name, eta_y, eta_z] = tuple(float(e.item() - 1) for e in errors)
    return found


class Eq10Errors(NamedTuple):
    """Relative l2 errors over time; logits are those of a distinct token.

    Attributes:
        speed: f.g of the population flow by gamma(t).
        logit, logit_paper: of the population flow by Eq. 10, sgd and paper's clock.
        lemma3: of the flow under Lemma 3's update by Eq. 10, sgd clock.
        finite_m, finite_m_paper: of that flow by Eq. 10 with the finite-M terms, both clocks.
    """

    speed: float
    logit: float
    logit_paper: float
    lemma3: float
    finite_m: float
    finite_m_paper: float


def eq10_errors(K: int, overlap: float) -> Eq10Errors:
    """Errors of Eq. 10 on `dynsim.overlapping`, at 40 logarithmic times from 0.1 to 12 K ln M steps
    (about 4 t0), eta_Y = 1, eta_Z = 0.1."""
    task, optimizer = dynsim.overlapping(K, overlap), dynsim.sgd(1.0, 0.1)
    times = np.r_[0, np.geomspace(0.1, 12 * K * np.log(task.M), 40)]
    record = ("speed", "z_top_distinct")
    flow = population.solve(task, optimizer, times, record=record)
    modified = lemma3.solve(task, optimizer, times, record=record)
    sgd = attention.solve(task, optimizer, times, record=record)
    paper = attention.solve(task, optimizer, times, clock="paper", record=record)
    finite, finite_paper = (
        attention.solve(task, optimizer, times, clock=clock, finite_m=True, record=record)
        for clock in ("sgd", "paper")
    )

    def error(got: dynsim.Trajectory, want: dynsim.Trajectory, name: str) -> float:
        return float(np.linalg.norm(got[name] - want[name]) / np.linalg.norm(want[name]))

    logit = "z_top_distinct"
    return Eq10Errors(
        error(sgd, flow, "speed"),
        error(sgd, flow, logit),
        error(paper, flow, logit),
        error(sgd, modified, logit),
        error(finite, modified, logit),
        error(finite_paper, modified, logit),
    )


def huge_task_seconds() -> tuple[float, str]:
    """Warm seconds, and status, of the symmetric reduction for K = 1e5, M = 1e6 to t = 1e8."""
    small = symmetric.symmetric_task(dynsim.syn_small())
    task = symmetric.symmetric_profiles(small.p, small.rho, 10**5, 10**6, 10**5)
    times = np.r_[0, np.geomspace(1, 1e8, 30)]
    run = functools.partial(symmetric.solve, task, times=times)
    jax.block_until_ready(run(optimizer=dynsim.sgd(1.0, 1.0)))
    seconds = []
    for eta in progress.each((0.9, 1.1, 1.0), "run"):
        begin = time.perf_counter()
        result = jax.block_until_ready(run(optimizer=dynsim.sgd(eta, eta)))
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds)), dynsim.Status(int(result.status)).name
