"""Where the paper is loose or misprinted, and the numbers that show it: `dynsim validate slips`."""

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

HEADER = """# Slips of the papers

What Scan and Snap (arXiv:2305.16380) prints and what the numbers say. This page is written by

```bash
dynsim validate slips --out docs/results
```

| # | where | what is printed | what holds | evidence |
|---|---|---|---|---|"""

FOOTER = """
What could not be matched to the published plots: Figs. 3 and 9 depend on C0 and on f_nl0(0), which
are not given, and Fig. 9 on K. `dynsim figure 3` and `dynsim figure 9` take them as options; the
defaults are C0 = 1 and, for Fig. 9, K = 1, with which the latest transition just fits the published
time ranges. Changing C0 shifts and bends B but moves no transition time."""


def markdown() -> str:
    """The page of slips, with every number computed now."""
    with precision("float64"):
        slips = (
            _remark_1,
            _sign_of_e_prime,
            _eq10_clock,
            _lemma_3,
            _printed_bound,
            _shared_query,
            _c0,
            _asymptotics,
            _cancellation,
        )
        named = progress.each(slips, "slip", lambda slip: slip.__name__.strip("_"))
        rows = [slip() for slip in named]
        others = slips_of_others.rows()
    table = [f"| {i} | " + " | ".join(row) + " |" for i, row in enumerate([*rows, *others], 1)]
    own, more = table[: len(rows)], table[len(rows) :]
    return "\n".join([HEADER, *own, FOOTER, slips_of_others.HEADER, *more, ""])


def _remark_1() -> tuple[str, ...]:
    sums = {}
    for K, M in ((2, 34), (34, 34)):
        zeta = M / (M - 1) * (np.eye(M)[:K] - 1 / M)
        sums[K] = np.linalg.norm(zeta.sum(0))
    task, optimizer, times = dynsim.overlapping(2, 0.5), dynsim.sgd(1.0, 0.0), np.array([0, 20.0])
    want = population.solve(task, optimizer, times, record=["loss"])["loss"][-1]
    plain = attention.solve(task, optimizer, times, record=["loss"])["loss"][-1]
    slowed = attention.solve(task, optimizer, times, record=["loss"], remark_1=True)["loss"][-1]
    return (
        "Remark 1",
        "overlaps rho slow the decoder down to (1 - rho) eta_Y, as the zeta_n sum to 0",
        "the sum over n in [K] is 0 for K = M only; the symmetric reduction is exact",
        f"norm of the sum: {sums[2]:.3f} for K = 2, M = 34; {sums[34]:.0e} for K = M = 34. Loss at "
        f"t = 20 with rho = 0.5, K = 2, fixed attention: {float(want):.4f} (flow), "
        f"{float(slowed):.4f} (Remark 1), {float(plain):.4f} (without it)",
    )


def _sign_of_e_prime() -> tuple[str, ...]:
    f = np.random.default_rng(0).uniform(size=(4, 9))
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    inverse, identity = np.asarray(coefficients.gram_inverse(jnp.asarray(f))), np.eye(4)
    prime = identity - inverse
    right = np.abs((f @ f.T) @ (identity - prime) - identity).max()
    wrong = np.abs((f @ f.T) @ (identity + prime) - identity).max()
    return (
        "Appendix D, notation",
        "(I + E)^-1 = I + E'",
        "(I + E)^-1 = I - E', as in Lemma 14",
        f"random F: largest deviation {right:.0e} with minus, {wrong:.2g} with plus",
    )


def _eq10_clock() -> tuple[str, ...]:
    errors = {K: eq10_errors(K, 0.3) for K in (2, 5)}
    shown = "; ".join(
        f"K = {K}: {100 * e.finite_m:.0e} % (sgd), {100 * e.finite_m_paper:.3g} % (paper)"
        for K, e in errors.items()
    )
    return (
        "Eq. 10",
        "z' is the sum over the classes of a query, while the decoder runs at t/K",
        'a step of SGD moves z by the average over classes: `clock="sgd"`',
        "error of Eq. 10 at finite M, logit of a distinct token, against the flow under Lemma 3's "
        f"update, overlap 0.3: {shown}",
    )


def _lemma_3() -> tuple[str, ...]:
    errors = {rho: eq10_errors(5, rho) for rho in (0.01, 0.3)}
    shown = "; ".join(
        f"overlap {rho:g}: Eq. 10 is off by {100 * e.logit:.2g} %, its gamma by "
        f"{100 * e.speed:.2g} %; from the flow under Lemma 3's update Eq. 10 at finite M "
        f"differs by {100 * e.finite_m:.0e} %"
        for rho, e in errors.items()
    )
    return (
        "Lemma 3",
        "the modified update of Y stands for the real one",
        "for the speed gamma nearly, for the attention not: Theorem 1 and Eq. 10 are right about "
        "the modified update, and xi under the real one is another function of overlap and time",
        f"logit of a distinct token against the population flow, K = 5. {shown}",
    )


def _printed_bound() -> tuple[str, ...]:
    options = {"c0": 5.0, "clock": "paper"}
    exact, printed = (
        float(growth.bound(0.0, 1.0, 1.0, 10, 1000, printed=p, **options)) for p in (False, True)
    )
    return (
        "(14), (124), (129)",
        "B = 1/4 ln(C0 + ...)",
        "B = 1/4 ln(1 + .../C0): the printed form drops -1/4 ln C0",
        f"B(0) at C0 = 5: {printed:.4f} as printed, {exact:.0f} exactly",
    )


def _shared_query() -> tuple[str, ...]:
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
    numbers = [float(np.mean(run["B"][-1])) for run in (flow, ours)]
    return (
        "Theorem 4",
        "with a single query, B_n = -z_c",
        "all q classes of a query move z_c, each distinct token only its own class: B_n = -z_c / q",
        f"one query, K = 6, t = 30: Eq. 10 gives B = {numbers[0]:.3f} and z_c = "
        f"{float(flow['z_top_common'][-1, 0]):.3f}; B = {numbers[1]:.3f} with q = K, "
        f"{float(printed):.3f} as printed",
    )


def _c0() -> tuple[str, ...]:
    K, rho = 3, 0.1
    gram = (1 - rho) * np.eye(K) + rho
    exact = np.linalg.inv(gram)[0, 0] - 1
    return (
        "Theorem 4",
        "xi = gamma / C0 with C0 = rho_0^4 / K",
        "K - 1 in place of K: xi = gamma (K-1) rho^2 / ((1-rho)(1+(K-1) rho)), rho = rho_0^-2",
        f"K = 3, rho = 0.1: xi/gamma = {exact:.5f} from Theorem 1, {K * rho**2:.5f} as printed, "
        f"{(K - 1) * rho**2 / ((1 - rho) * (1 + (K - 1) * rho)):.5f} by the exact form",
    )


def _asymptotics() -> tuple[str, ...]:
    M, s = 34.0, 1e-4
    ratio = float(decoder.gamma(s, 1.0, M)) / s
    return (
        "Theorem 1b, Lemma 9",
        "gamma ~ eta_Y t / K, and its decay likewise",
        "both lack the factor ((M-1)/M)^2",
        f"M = 34: gamma K / (eta_Y t) tends to {ratio:.4f} as t -> 0; ((M-1)/M)^2 = "
        f"{((M - 1) / M) ** 2:.4f}",
    )


def _cancellation() -> tuple[str, ...]:
    M, t = 30.0, 1e8
    exact = float(decoder.scaled_h(t, M))
    A = (M * t + 1) / (M - 1)
    with jax.enable_x64(False):
        A32 = jnp.float32(A)
        naive = float(A32 - wrightomega(A32 - jnp.log(jnp.float32(M - 1))))
        ours = float(decoder.scaled_h(jnp.float32(t), jnp.float32(M)))
    return (
        "(45), our own notes",
        "M h = A - omega(A - ln(M-1))",
        "true, but it cancels; ln(M-1) + ln omega and two Newton steps do not",
        f"M = 30, t = 1e8 in float32: {naive:.4g} by the difference, {ours:.6g} here, {exact:.6g} "
        "in float64",
    )
