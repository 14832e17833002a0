"""The page of errata, with the numbers that show them: `dynsim validate slips`.

The text is in slips.md, where `%(NAME.KEY).3f` stands for a number of the function NAME.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

import dynsim
from dynsim.precision import precision
from dynsim.yz import model as yz
from odes.formulas import coefficients, decoder, growth
from odes.formulas.omega import wrightomega
from odes.yz import eq10 as attention
from odes.yz import population
from odes.yz import theorem4 as single_common
from sweeps.runner import progress
from sweeps.studies.tables import slips_of_others
from sweeps.studies.tables.measurements import eq10_errors

Numbers = Mapping[str, SupportsFloat]
"""By their names in the text."""


def markdown() -> str:
    """The page of errata, with every number computed now."""
    own = (
        remark_1,
        sign_of_e_prime,
        eq10_clock,
        lemma_3,
        printed_bound,
        shared_query,
        c0,
        asymptotics,
        cancellation,
    )
    with precision("float64"):
        named = progress.each(own, "erratum", lambda slip: slip.__name__)
        found = {slip.__name__: slip() for slip in named}
        found |= {slip.__name__: slip() for slip in slips_of_others.SLIPS}
    numbers = {f"{slip}.{key}": n for slip, own in found.items() for key, n in own.items()}
    return Path(__file__).with_name("slips.md").read_text() % numbers


def remark_1() -> Numbers:
    """Norms of the sum of the zeta_n, and the loss that Remark 1's slower decoder has."""
    sums = {}
    for K, M in ((2, 34), (34, 34)):
        zeta = M / (M - 1) * (np.eye(M)[:K] - 1 / M)
        sums[K] = np.linalg.norm(zeta.sum(0))
    task, optimizer, times = dynsim.overlapping(2, 0.5), dynsim.sgd(1.0, 0.0), np.array([0, 20.0])
    want = population.solve(task, optimizer, times, record=["loss"])["loss"][-1]
    plain = attention.solve(task, optimizer, times, record=["loss"])["loss"][-1]
    slowed = attention.solve(task, optimizer, times, record=["loss"], remark_1=True)["loss"][-1]
    return {"two": sums[2], "all": sums[34], "flow": want, "slowed": slowed, "plain": plain}


def sign_of_e_prime() -> Numbers:
    """Largest deviation of I -+ E' from the inverse of I + E, for a random F."""
    f = np.random.default_rng(0).uniform(size=(4, 9))
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    inverse, identity = np.asarray(coefficients.gram_inverse(jnp.asarray(f))), np.eye(4)
    prime = identity - inverse
    signs = {"minus": identity - prime, "plus": identity + prime}
    return {name: np.abs((f @ f.T) @ each - identity).max() for name, each in signs.items()}


def eq10_clock() -> Numbers:
    """Errors of Eq. 10 by both clocks, in %, by the number of classes."""
    errors = {K: eq10_errors(K, 0.3) for K in (2, 5)}
    sgd = {f"sgd_{K}": 100 * e.finite_m for K, e in errors.items()}
    return sgd | {f"paper_{K}": 100 * e.finite_m_paper for K, e in errors.items()}


def lemma_3() -> Numbers:
    """Errors of Eq. 10 against both updates, in %, by overlap."""
    return {
        f"{name}_{rho:g}": 100 * getattr(errors, name)
        for rho in (0.01, 0.3)
        for errors in [eq10_errors(5, rho)]
        for name in ("logit", "speed", "finite_m")
    }


def printed_bound() -> Numbers:
    """B(0) at C0 = 5."""
    options = {"c0": 5.0, "clock": "paper"}
    return {
        name: growth.bound(0.0, 1.0, 1.0, 10, 1000, printed=name == "printed", **options)
        for name in ("exact", "printed")
    }


def shared_query() -> Numbers:
    """B and the logit of the common token where all classes share one query."""
    K = 6
    probs = np.zeros((K, 1 + 3 * K))
    probs[:, 0] = 1
    for n in range(K):
        probs[n, 1 + 3 * n : 4 + 3 * n] = 1
    task = dynsim.sequence_classes(probs / probs.sum(1, keepdims=True), query=[0] * K)
    optimizer, times = dynsim.sgd(1.0, 0.3), np.array([0.0, 30.0])
    record = ["B", "z_top_common"]
    flow = attention.solve(task, optimizer, times, record=record)
    ours = single_common.solve(task, optimizer, times, record=record)
    f = np.asarray(yz.normalise(jnp.asarray(task.probs)))
    c0 = growth.c0(1 / f[0, 0], K)
    printed = growth.bound(30.0, 1.0, 0.3, K, task.M, c0=c0, clock="paper")
    eq10, theorem = (np.mean(run["B"][-1]) for run in (flow, ours))
    common = flow["z_top_common"][-1, 0]
    return {"eq10": eq10, "common": common, "ours": theorem, "printed": printed}


def c0() -> Numbers:
    """xi over gamma of three classes that overlap by 0.1."""
    K, rho = 3, 0.1
    gram = (1 - rho) * np.eye(K) + rho
    return {
        "theorem_1": np.linalg.inv(gram)[0, 0] - 1,
        "printed": K * rho**2,
        "ours": (K - 1) * rho**2 / ((1 - rho) * (1 + (K - 1) * rho)),
    }


def asymptotics() -> Numbers:
    """gamma over eta_Y t / K for small t, and the factor that is not printed."""
    M, s = 34.0, 1e-4
    return {"ratio": decoder.gamma(s, 1.0, M) / s, "factor": ((M - 1) / M) ** 2}


def cancellation() -> Numbers:
    """M h at a late time: by the difference in float32, here in float32, and in float64."""
    M, t = 30.0, 1e8
    exact = decoder.scaled_h(t, M)
    A = (M * t + 1) / (M - 1)
    with jax.enable_x64(False):
        A32 = jnp.float32(A)
        naive = A32 - wrightomega(A32 - jnp.log(jnp.float32(M - 1)))
        ours = decoder.scaled_h(jnp.float32(t), jnp.float32(M))
    return {"naive": naive, "ours": ours, "exact": exact}
