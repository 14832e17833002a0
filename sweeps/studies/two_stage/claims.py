"""The runs of a two-stage experiment, and tests of the paper's claims about them.

We reconstructed the claims from fragments of arXiv:2502.20681: "a.2" and the corollary are named
there, the other names are ours. `docs/systems/two_stage.md` has the provenance.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, NamedTuple, cast

import annotated_types as at
import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from dynsim import Annealed, Prompts, Status, checks
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ
from dynsim.two_stage.observables import (
    LEARNED,
    OBSERVABLES,
    RankCurves,
    first_below,
    rank_curves,
)
from dynsim.two_stage.task import sample_prompts
from odes.two_stage.loss import JENSEN_FLOOR
from sweeps.compare.scatter import average, spread
from sweeps.runner.spec import Sweep
from sweeps.systems.experiment import MOST_TIMES, Experiment

RECORD = (*OBSERVABLES, "eta_time")
LOG_2 = float(np.log(2))
CHANCE = (0.45, 0.57)
"""Range of chance accuracies and AUC on 2048 prompts; across seeds they scatter by about 0.012."""
NUM_PROMPTS = 2048
Times = Annotated[int, at.Ge(3), at.Le(MOST_TIMES)]
"""Number of recorded times, at least the start and the ends of both stages."""


def settings(training: Experiment) -> tuple[Prompts, Annealed]:
    """Return the `Prompts` and `Annealed` of an experiment; `ValueError` for any other."""
    checks.kind("problem", training.problem, Prompts)
    checks.kind("rule", training.rule, Annealed)
    return cast(tuple[Prompts, Annealed], (training.problem, training.rule))


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs of one experiment that ended well.

    Attributes:
        training: the experiment.
        steps: (S,) optimiser steps at which they recorded.
        eta_time: (S,) the same in eta-time, the time variable of the theory.
        values: (R, S, ...) observables by name, without runs that diverged.
        diverged: number of runs that diverged.
    """

    training: Experiment
    steps: Float[np.ndarray, " S"]
    eta_time: Float[np.ndarray, " S"]
    values: dict[str, np.ndarray]
    diverged: int

    @property
    def switch(self) -> int:
        """Index of the end of the first stage."""
        return int(np.argmin(np.abs(self.steps - float(self.stages.first))))

    @property
    def stages(self) -> Annealing:
        """The two stages of training."""
        return Annealing.of(self.training.rule)

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.values["K1"])

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the observable `name`."""
        return self.values[name]

    def mean(self, name: str) -> np.ndarray:
        """Mean of an observable over the runs; NaN without runs."""
        return average(self[name])

    def spread(self, name: str) -> np.ndarray:
        """Standard deviation (ddof 1) over the runs; NaN for fewer than two."""
        return spread(self[name])

    def learned(self, component: str) -> Float[np.ndarray, " R"]:
        """Eta-time at which the loss of component P falls below 0.2, or that of Q below 0.6; inf
        where it does not."""
        name, level = LEARNED[component]
        return first_below(self.eta_time, self[name], level)


def from_dataset(training: Experiment, dataset: xr.Dataset) -> Runs:
    """Read the runs of a dataset whose only axis is `seed`."""
    dataset = dataset.load()
    good = dataset["status"].values == Status.OK
    values = {name: dataset[name].values[good] for name in RECORD}
    # All seeds share the schedule and thus the times.
    steps, eta_time = (dataset[name].values[0] for name in ("time", "eta_time"))
    return Runs(training, steps, eta_time, values, int((~good).sum()))


def ode(runs: Runs) -> Sweep:
    """Return the sweep of the reduced ODE, with one `seed`."""
    return Sweep(runs.training, {"seed": {"range": 1}}, "ode", Prompts.COMPARED, len(runs.steps))


def theory_mean(prediction: xr.Dataset, name: str) -> np.ndarray:
    """(S,) mean of an observable over the solves that ended well."""
    return average(prediction[name].values[prediction["status"].values == Status.OK])


class Claim(NamedTuple):
    """A claim, the measured number, and the interval in which it must lie."""

    name: str
    text: str
    measured: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the measured number lies in its interval."""
        return bool(self.low <= self.measured <= self.high)


def truncations(runs: Runs, index: int, run: int = 0, largest: int | None = None) -> RankCurves:
    """Rank-preservation curves of the signal of one run at the recorded time `index`, on fresh
    prompts; see `dynsim.two_stage.observables.rank_curves`."""
    weights = PQ(runs.values["W_signal"][run, index], runs.values["V_signal"][run, index])
    batch = sample_prompts(settings(runs.training)[0], jax.random.key(run), NUM_PROMPTS)
    return jax.device_get(rank_curves(weights, batch, largest=largest))


def stages(runs: Runs, a_ode: float, k2_ode: float) -> list[Claim]:
    """Claims about the two stages, on means over runs. From theory come a at the end of the first
    stage and K2 at the end."""

    def mean(at: int, name: str) -> float:
        return float(runs.mean(name)[at])

    first, end = (functools.partial(mean, at) for at in (runs.switch, -1))
    with np.errstate(invalid="ignore"):  # inf / inf where neither is ever learned
        gap = float(np.median(runs.learned("Q")) / np.median(runs.learned("P")))
    share = first("V_signal_norm") / first("W_signal_norm")
    growth = end("V_signal_norm") / first("V_signal_norm")
    moved = end("W_trace") / first("W_trace") - 1
    floor = float(runs["K2"].min()) - JENSEN_FLOOR
    quiet, grown, off = first("K2_signal"), first("W_trace") / a_ode, end("K2") - k2_ode
    change = end("K1") - first("K1")
    return [
        Claim("a.1", "V's signal stays small in stage 1: |Vbar| / |Wbar|", share, 0, 0.2),
        Claim("a.2", "Q is not learned in stage 1: K2 of the signal", quiet, LOG_2 - 0.01, inf),
        Claim("a.2", "K2 with the noise, minus log 2", first("K2") - LOG_2, 0.01, 0.05),
        Claim("a.2", "AUC of Q", first("auc_Q"), *CHANCE),
        Claim("a.2", "sign accuracy of Q", first("accuracy_Q"), *CHANCE),
        Claim("b.1", "W grows in stage 1: Tr Wbar / a of the ODE", grown, 0.9, 1.1),
        Claim("b.2", "P is learned in stage 1: K1", first("K1"), 0, 0.12),
        Claim("b.2", "accuracy of P", first("accuracy_P"), 0.985, 1),
        Claim("c.1", "V's signal grows in stage 2, by the factor", growth, 5, inf),
        Claim("c.2", "Q is learned in stage 2: K2 minus that of the ODE", off, -0.02, 0.02),
        Claim("c.2", "smallest K2 of any run, over its floor", floor, 0, inf),
        Claim("c.2", "AUC of Q", end("auc_Q"), 0.99, 1),
        Claim("c.2", "best-threshold accuracy of Q", end("best_accuracy_Q"), 0.99, 1),
        Claim("d.1", "P is preserved in stage 2: K1 changes by", change, -inf, 0.01),
        Claim("d.1", "accuracy of P", end("accuracy_P"), 0.985, 1),
        Claim("d.2", "Tr Wbar changes by the share", moved, -0.25, 0.25),
        Claim("gap", "P long before Q: t_Q / t_P (medians)", gap, 10, inf),
    ]


def corollary(runs: Runs) -> list[Claim]:
    """Claims of the trace corollary, on means and run by run: P's trace is above Q's after stage 1
    and below it at the end."""
    margin = runs["W_trace"] - runs["V_trace_abs"]
    first, last = margin[:, runs.switch], margin[:, -1]
    return [
        Claim("trace", "after stage 1, Tr Wbar - |Tr Vbar|", float(first.mean()), 0, inf),
        Claim("trace", "share of runs in which it is > 0", float((first > 0).mean()), 1, 1),
        Claim("trace", "at the end, Tr Wbar - |Tr Vbar|", float(last.mean()), -inf, 0),
        Claim("trace", "share of runs in which it is < 0", float((last < 0).mean()), 1, 1),
    ]


def spectral(runs: Runs) -> list[Claim]:
    """Claims that the largest singular direction carries P after stage 1 and Q at the end. Losses
    and AUC are medians over runs: in a run with another largest direction, all of them change."""
    first, last = (
        [truncations(runs, at, i, largest=2) for i in range(runs.count)] for at in (runs.switch, -1)
    )

    def share(curves: list[RankCurves], block: int) -> float:
        return float(np.mean([c.block[0] == block for c in curves]))

    def kept(k: int, name: str) -> float:
        return float(np.median([c.kept[name][k] for c in last]))

    def without(name: str, curves: list[RankCurves] = last) -> float:
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
        Claim("spectral", "K1 with the top direction alone", kept(1, "K1"), *lost),
        Claim("spectral", "AUC of Q with it alone", kept(1, "auc_Q"), 0.99, 1),
        Claim("spectral", "K1 with the top two", kept(2, "K1"), 0, 0.12),
        Claim("spectral", "AUC of Q with the top two", kept(2, "auc_Q"), 0.99, 1),
    ]


def large_rate_alone(forever: Runs) -> list[Claim]:
    """Claims about the control that keeps the large rate: it learns P but not Q."""
    auc, K1 = (float(forever.mean(name)[-1]) for name in ("auc_Q", "K1"))
    text = "AUC of Q with the large rate to the end"
    return [Claim("threshold", text, auc, *CHANCE), Claim("threshold", "its K1", K1, 0, 0.12)]


def tested(
    found: Mapping[str, Runs], predicted: Mapping[str, xr.Dataset]
) -> dict[str, list[Claim]]:
    """The claims by experiment: all for the preset, the applicable ones for the joint loss."""
    verdicts = {}
    for name in ("preset", "joint"):
        runs = found[name]
        a, k2 = (theory_mean(predicted[name], observable) for observable in ("W_trace", "K2"))
        verdicts[name] = stages(runs, float(a[runs.switch]), float(k2[-1]))
        verdicts[name] += corollary(runs) + spectral(runs)
    verdicts["preset"] += large_rate_alone(found["forever"])
    return verdicts


def table(claims: Sequence[Claim]) -> str:
    """Format the claims as a table."""
    lines = [f"{'claim':<10}{'':<64}{'measured':>10}  {'wanted':<20}verdict"]
    for c in claims:
        wanted = f"[{c.low:.3g}, {c.high:.3g}]"
        verdict = "holds" if c.holds else "FAILS"
        lines.append(f"{c.name:<10}{c.text:<64}{c.measured:>10.4g}  {wanted:<20}{verdict}")
    return "\n".join(lines)


def as_records(claims: Sequence[Claim]) -> list[dict[str, object]]:
    """Convert the claims to JSON values."""
    return [{**c._asdict(), "holds": c.holds} for c in claims]
