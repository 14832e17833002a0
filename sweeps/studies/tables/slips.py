"""The page of errata, with the numbers that show them: `dynsim validate slips`."""

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

HEADER = """# Errata

Formulas of the papers that do not hold as printed, or only under a condition that is not stated,
each with the number that shows it. If you compare dynsim with a paper and the two disagree, look
here first. The command

```bash
dynsim validate slips --out docs/results
```

computes every number anew and writes this page.

## Scan and Snap

[arXiv:2305.16380](https://arxiv.org/abs/2305.16380)

| # | where | as printed | what holds | evidence |
|---|---|---|---|---|"""

FOOTER = r"""
**Published plots that could not be matched.** Figs. 3 and 9 depend on $C_0$ and on $f_{nl_0}(0)$,
which are not given, and Fig. 9 on $K$. `dynsim figure 3` and `dynsim figure 9` have options for
them. The defaults are $C_0 = 1$ and, for Fig. 9, $K = 1$, with which the latest transition just
fits the published time ranges. Changing $C_0$ shifts and bends $B$ but moves no transition time."""


def markdown() -> str:
    """The page of errata, with every number computed now."""
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
        named = progress.each(slips, "erratum", lambda slip: slip.__name__.strip("_"))
        rows = [slip() for slip in named]
        others = slips_of_others.rows()
    printed = enumerate([*rows, *others.printed], 1)
    table = [f"| {i} | " + " | ".join(row) + " |" for i, row in printed]
    own, more = table[: len(rows)], table[len(rows) :]
    unchecked = ["| " + " | ".join(row) + " |" for row in others.unchecked]
    joma = [slips_of_others.UNCHECKED, *unchecked]
    return "\n".join([HEADER, *own, FOOTER, slips_of_others.HEADER, *more, *joma, ""])


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
        r"overlaps $\rho$ slow the decoder down to $(1 - \rho)\,\eta_Y$, because the $\zeta_n$ sum "
        "to 0",
        "the sum over $n \\in [K]$ is 0 only for $K = M$; the symmetric reduction is exact",
        f"norm of the sum: {sums[2]:.3f} for $K = 2$, $M = 34$; {sums[34]:.0e} for $K = M = 34$. "
        rf"Loss at $t = 20$ with $\rho = 0.5$, $K = 2$, fixed attention: {float(want):.4f} (flow), "
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
        "$(I + E)^{-1} = I + E'$",
        "$(I + E)^{-1} = I - E'$, as in Lemma 14",
        f"random $F$: largest deviation {right:.0e} with minus, {wrong:.2g} with plus",
    )


def _eq10_clock() -> tuple[str, ...]:
    errors = {K: eq10_errors(K, 0.3) for K in (2, 5)}
    shown = "; ".join(
        f"$K = {K}$: {100 * e.finite_m:.0e} % (sgd), {100 * e.finite_m_paper:.3g} % (paper)"
        for K, e in errors.items()
    )
    return (
        "Eq. 10",
        "$z'$ is the sum over the classes of a query, while the decoder runs at $t/K$",
        'a step of SGD moves $z$ by the average over classes: `clock="sgd"`',
        "error of Eq. 10 at finite $M$ in the logit of a distinct token, against the flow under "
        f"Lemma 3's update, at overlap 0.3: {shown}",
    )


def _lemma_3() -> tuple[str, ...]:
    errors = {rho: eq10_errors(5, rho) for rho in (0.01, 0.3)}
    shown = ". ".join(
        rf"At overlap {rho:g} Eq. 10 is off by {100 * e.logit:.2g} % and its $\gamma$ by "
        f"{100 * e.speed:.2g} %; at finite $M$ it differs from the flow under Lemma 3's update "
        f"by {100 * e.finite_m:.0e} %"
        for rho, e in errors.items()
    )
    return (
        "Lemma 3",
        "the modified update of $Y$ stands for the true one",
        r"nearly so for the speed $\gamma$, not for the attention: Theorem 1 and Eq. 10 hold for "
        r"the modified update; under the true one $\xi$ is another function of overlap and time",
        f"logit of a distinct token against the population flow, $K = 5$. {shown}",
    )


def _printed_bound() -> tuple[str, ...]:
    options = {"c0": 5.0, "clock": "paper"}
    exact, printed = (
        float(growth.bound(0.0, 1.0, 1.0, 10, 1000, printed=p, **options)) for p in (False, True)
    )
    return (
        "(14), (124), (129)",
        r"$B = \tfrac14 \ln(C_0 + \dots)$",
        r"$B = \tfrac14 \ln(1 + \dots/C_0)$: the printed form drops $-\tfrac14 \ln C_0$",
        f"$B(0)$ at $C_0 = 5$: {printed:.4f} as printed, {exact:.0f} exactly",
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
        "with a single query, $B_n = -z_c$",
        "$B_n = -z_c/q$: all $q$ classes of a query move $z_c$, but each distinct token is moved "
        "by its own class alone",
        f"one query, $K = 6$, $t = 30$: Eq. 10 gives $B$ = {numbers[0]:.3f} and $z_c$ = "
        f"{float(flow['z_top_common'][-1, 0]):.3f}; $B$ = {numbers[1]:.3f} with $q = K$, "
        f"{float(printed):.3f} as printed",
    )


def _c0() -> tuple[str, ...]:
    K, rho = 3, 0.1
    gram = (1 - rho) * np.eye(K) + rho
    exact = np.linalg.inv(gram)[0, 0] - 1
    return (
        "Theorem 4",
        r"$\xi = \gamma / C_0$ with $C_0 = \rho_0^4 / K$",
        r"$K - 1$ in place of $K$: $\xi = \gamma\, \dfrac{(K-1) \rho^2}{(1-\rho)(1 + (K-1) \rho)}$ "
        r"with $\rho = \rho_0^{-2}$",
        rf"$K = 3$, $\rho = 0.1$: $\xi/\gamma$ = {exact:.5f} from Theorem 1, {K * rho**2:.5f} as "
        f"printed, {(K - 1) * rho**2 / ((1 - rho) * (1 + (K - 1) * rho)):.5f} by the exact form",
    )


def _asymptotics() -> tuple[str, ...]:
    M, s = 34.0, 1e-4
    ratio = float(decoder.gamma(s, 1.0, M)) / s
    return (
        "Theorem 1b, Lemma 9",
        r"$\gamma \sim \eta_Y t / K$, and its decay likewise",
        r"both lack the factor $\left(\frac{M-1}{M}\right)^2$",
        rf"$M = 34$: $\gamma K / (\eta_Y t)$ tends to {ratio:.4f} as $t \to 0$; the factor is "
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
        "(45), in closed form",
        r"not printed; $M h = A - \omega(A - \ln(M-1))$ with Wright's $\omega$ follows from it",
        r"correct, but the difference cancels in floating point; $\ln(M-1) + \ln\omega$ with two "
        "Newton steps does not",
        f"$M = 30$, $t$ = 1e8 in float32: {naive:.4g} by the difference, {ours:.6g} here, "
        f"{exact:.6g} in float64",
    )
