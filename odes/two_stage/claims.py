"""Claims of the paper about the two stages, tested on runs (arXiv:2502.20681).

A claim is a measured number and the interval in which it must lie. We reconstructed the claims from
fragments of the paper: "a.2" and the corollary are named there, the other names are ours.
`docs/systems/two_stage.md` has the provenance.

Runs are arrays by name, such as the dataset of a sweep over seeds: (R, S) values of each observable
in R runs at S times, (R, S) `eta_time`, and (R, S, d, d) `W_signal` and `V_signal`. `switch` is the
index of the end of the first stage among the times; the last one ends the second stage.

Example:
    >>> claim = odes.two_stage.claims.Claim("d.1", "accuracy of P", 0.99, 0.985, 1)
    >>> claim.holds
    True
"""

from collections.abc import Mapping, Sequence
from math import inf, log
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from dynsim.two_stage.model import PQ
from dynsim.two_stage.observables import LEARNED, RankCurves, first_below, rank_curves
from dynsim.two_stage.task import Prompts, sample_prompts
from odes.two_stage.loss import JENSEN_FLOOR

LOG_2 = log(2)
CHANCE = (0.45, 0.57)
"""Range of chance accuracies and AUC on 2048 prompts; across seeds they scatter by about 0.012."""
NUM_PROMPTS = 2048
Runs = Mapping[Any, Any]
"""Arrays by the name of their observable."""


class Claim(NamedTuple):
    """A claim, the measured number, and the interval in which it must lie.

    Attributes:
        name: of the claim, such as "a.2".
        text: what is measured.
        measured: the number.
        low, high: the ends of the interval, which belong to it.
    """

    name: str
    text: str
    measured: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the measured number lies in its interval."""
        return bool(self.low <= self.measured <= self.high)

    def as_record(self) -> dict[str, Any]:
        """Return the claim and its verdict as JSON values."""
        return {**self._asdict(), "holds": self.holds}


def stages(runs: Runs, switch: int, theory: Runs) -> list[Claim]:
    """Return the claims about both stages, on means over runs.

    Args:
        runs: the runs.
        switch: index of the end of the first stage.
        theory: (S,) `W_trace` and `K2` of the reduced ODE, which are a and the loss of Q.
    """
    mean = {name: np.asarray(runs[name]).mean(0) for name in runs if np.ndim(runs[name]) == 2}
    first, end = ({name: float(m[at]) for name, m in mean.items()} for at in (switch, -1))
    t_P, t_Q = (np.median(learning_times(runs, component)) for component in "PQ")
    with np.errstate(invalid="ignore"):  # inf / inf where neither is ever learned
        gap = float(t_Q / t_P)
    # Each number is that of one claim below, in their order.
    share = first["V_signal_norm"] / first["W_signal_norm"]
    growth = end["V_signal_norm"] / first["V_signal_norm"]
    moved = end["W_trace"] / first["W_trace"] - 1
    floor = float(np.asarray(runs["K2"]).min()) - JENSEN_FLOOR
    grown = first["W_trace"] / float(theory["W_trace"][switch])
    off, change = end["K2"] - float(theory["K2"][-1]), end["K1"] - first["K1"]
    quiet, noisy = first["K2_signal"], first["K2"] - LOG_2
    return [
        Claim("a.1", "V's signal stays small in stage 1: |Vbar| / |Wbar|", share, 0, 0.2),
        Claim("a.2", "Q is not learned in stage 1: K2 of the signal", quiet, LOG_2 - 0.01, inf),
        Claim("a.2", "K2 with the noise, minus log 2", noisy, 0.01, 0.05),
        Claim("a.2", "AUC of Q", first["auc_Q"], *CHANCE),
        Claim("a.2", "sign accuracy of Q", first["accuracy_Q"], *CHANCE),
        Claim("b.1", "W grows in stage 1: Tr Wbar / a of the ODE", grown, 0.9, 1.1),
        Claim("b.2", "P is learned in stage 1: K1", first["K1"], 0, 0.12),
        Claim("b.2", "accuracy of P", first["accuracy_P"], 0.985, 1),
        Claim("c.1", "V's signal grows in stage 2, by the factor", growth, 5, inf),
        Claim("c.2", "Q is learned in stage 2: K2 minus that of the ODE", off, -0.02, 0.02),
        Claim("c.2", "smallest K2 of any run, over its floor", floor, 0, inf),
        Claim("c.2", "AUC of Q", end["auc_Q"], 0.99, 1),
        Claim("c.2", "best-threshold accuracy of Q", end["best_accuracy_Q"], 0.99, 1),
        Claim("d.1", "P is preserved in stage 2: K1 changes by", change, -inf, 0.01),
        Claim("d.1", "accuracy of P", end["accuracy_P"], 0.985, 1),
        Claim("d.2", "Tr Wbar changes by the share", moved, -0.25, 0.25),
        Claim("gap", "P long before Q: t_Q / t_P (medians)", gap, 10, inf),
    ]


def learning_times(runs: Runs, component: str) -> Float[np.ndarray, " R"]:
    """Return the eta-time at which each run learns component "P" or "Q", whose loss then falls
    below 0.2 or 0.6; inf where it does not."""
    name, level = LEARNED[component]
    return first_below(np.asarray(runs["eta_time"])[0], np.asarray(runs[name]), level)


def traces(runs: Runs, switch: int) -> list[Claim]:
    """Return the claims of the trace corollary, on means and run by run: P's trace is above Q's
    after stage 1 and below it at the end."""
    margin = np.asarray(runs["W_trace"]) - np.asarray(runs["V_trace_abs"])
    first, last = margin[:, switch], margin[:, -1]
    return [
        Claim("trace", "after stage 1, Tr Wbar - |Tr Vbar|", float(first.mean()), 0, inf),
        Claim("trace", "share of runs in which it is > 0", float((first > 0).mean()), 1, 1),
        Claim("trace", "at the end, Tr Wbar - |Tr Vbar|", float(last.mean()), -inf, 0),
        Claim("trace", "share of runs in which it is < 0", float((last < 0).mean()), 1, 1),
    ]


def truncations(
    task: Prompts, runs: Runs, index: int, largest: int | None = None
) -> list[RankCurves]:
    """Return what remains of each run's signal at the time `index` if only its `largest` singular
    directions are kept, or dropped; on fresh prompts. See
    `dynsim.two_stage.observables.rank_curves`."""
    curves = []
    signals = (np.asarray(runs[f"{block}_signal"])[:, index] for block in "WV")
    for run, (W, V) in enumerate(zip(*signals, strict=True)):
        batch = sample_prompts(task, jax.random.key(run), NUM_PROMPTS)
        curves.append(jax.device_get(rank_curves(PQ(W, V), batch, largest=largest)))
    return curves


def directions(first: Sequence[RankCurves], last: Sequence[RankCurves]) -> list[Claim]:
    """Return the claims of the spectral corollary, that the largest singular direction carries P
    after stage 1 and Q at the end.

    Losses and AUC are medians over runs: in a run with another largest direction, all of them
    change.

    Args:
        first: `truncations` of all runs at the end of the first stage, of 2 directions or more.
        last: the same at the end.
    """

    def share(curves: Sequence[RankCurves], block: int) -> float:
        return float(np.mean([c.block[0] == block for c in curves]))

    def with_largest(k: int, name: str) -> float:
        return float(np.median([c.kept[name][k] for c in last]))

    def without(name: str, curves: Sequence[RankCurves] = last) -> float:
        return float(np.median([c.dropped[name][1] for c in curves]))

    lost, of_W, K1 = (LOG_2 - 0.01, LOG_2 + 0.01), share(first, 0), without("K1", first)
    change = float(np.median([c.dropped["K1"][1] - c.dropped["K1"][0] for c in last]))
    return [
        Claim("spectral", "after stage 1, share of runs with W's direction on top", of_W, 1, 1),
        Claim("spectral", "after stage 1, K1 without the top direction", K1, *lost),
        Claim("spectral", "at the end, share of runs with V's on top", share(last, 1), 1, 1),
        Claim("spectral", "K2 without the top direction", without("K2"), *lost),
        Claim("spectral", "and AUC of Q", without("auc_Q"), *CHANCE),
        Claim("spectral", "while K1 changes by", change, -0.001, 0.001),
        Claim("spectral", "K1 with the top direction alone", with_largest(1, "K1"), *lost),
        Claim("spectral", "AUC of Q with it alone", with_largest(1, "auc_Q"), 0.99, 1),
        Claim("spectral", "K1 with the top two", with_largest(2, "K1"), 0, 0.12),
        Claim("spectral", "AUC of Q with the top two", with_largest(2, "auc_Q"), 0.99, 1),
    ]


def large_rate_alone(runs: Runs) -> list[Claim]:
    """Return the claims about the control that keeps the large rate: it learns P but not Q."""
    auc, K1 = (float(np.asarray(runs[name])[:, -1].mean()) for name in ("auc_Q", "K1"))
    text = "AUC of Q with the large rate to the end"
    return [Claim("threshold", text, auc, *CHANCE), Claim("threshold", "its K1", K1, 0, 0.12)]


def table(claims: Sequence[Claim]) -> str:
    """Format the claims as a table."""
    lines = [f"{'claim':<10}{'':<64}{'measured':>10}  {'wanted':<20}verdict"]
    for c in claims:
        wanted = f"[{c.low:.3g}, {c.high:.3g}]"
        verdict = "holds" if c.holds else "FAILS"
        lines.append(f"{c.name:<10}{c.text:<64}{c.measured:>10.4g}  {wanted:<20}{verdict}")
    return "\n".join(lines)
