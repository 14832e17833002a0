"""Finite T and batch: the order of our theory in 1/T, and its standard deviation across seeds.

Scan and Snap assumes infinite T and batch (Lemma 2). To first order in 1/T the error of the theory
falls like 1/T^2. Linear noise predicts the scatter of logits and entropy, not that of the loss; the
second order in 1/B, with the tails of the counts, predicts that too.
"""

from typing import Annotated, Any, ClassVar, Literal

import annotated_types as at
import numpy as np

import dynsim
import sweeps
from papers.scan_and_snap import finite_length, noise
from sweeps import drawing

LENGTHS = np.array([8, 16, 32, 64, 128, 256, 512, 1024])
SAMPLED_LENGTHS = np.array([20, 24, 32, 64, 128, 256])
BATCHES = (32, 128)
RULES = {
    "sgd": (lambda eta: dynsim.sgd(dynsim.Ratio(eta, 10.0), momentum=0.0), (0.1, 0.3, 1.0)),
    "momentum": (lambda eta: dynsim.sgd(dynsim.Ratio(eta, 1.0), momentum=0.9), (0.1, 0.3, 1.0)),
    "adam": (lambda eta: dynsim.adam(dynsim.Ratio(eta, 1.0)), (0.003, 0.01, 0.03)),
}
"""Each rule at a rate eta_Z, with a fixed eta_Y / eta_Z, and the usual rates."""


class FiniteSize(sweeps.Figure):
    """Measure where the theory of finite T and batch holds.

    Attributes:
        seeds: number of runs for each rule, rate and batch size.
        steps: optimiser steps of these runs.
        length: sequence length T of these runs.
        draws: number of noise paths for the theory of second order in 1/B.
        rules: update rules whose standard deviation across seeds is measured; all if omitted.
        rates: learning rates eta_Z of these rules; three per rule if omitted.
    """

    NAME = "finite-size"
    SAMPLES: ClassVar[int] = 4000

    seeds: Annotated[int, at.Ge(2)] = 256
    steps: Annotated[int, at.Ge(1)] = 100
    length: Annotated[int, at.Ge(2)] = 128
    draws: Annotated[int, at.Ge(2 * noise.GROUPS)] = 512
    rules: tuple[Literal["sgd", "momentum", "adam"], ...] = ()
    rates: tuple[Annotated[float, at.Ge(0)], ...] = ()

    def by_rate(self):
        return {
            name: {eta_z: rule(eta_z) for eta_z in self.rates or usual}
            for name, (rule, usual) in RULES.items()
            if name in (self.rules or RULES)
        }

    def sweeps(self):
        plan, record = {}, [name + end for end in ("", "_std") for name in noise.OBSERVABLES]
        for name, rules in self.by_rate().items():
            rule = next(iter(rules.values()))
            run = sweeps.experiment(rule=rule, steps=self.steps, length=self.length)
            axes = {"eta_z": [*rules], "batch": BATCHES}
            seeds = axes | {"seed": {"range": self.seeds}}
            plan[f"{name}/simulation"] = sweeps.Sweep(run, seeds, record=[*noise.OBSERVABLES])
            theory = "spread-squares" if name == "adam" else "spread"
            plan[f"{name}/spread"] = sweeps.Sweep(run, axes, theory, record)
        return plan

    def draw(self, data):
        small, syn = finite_length.small_task(), dynsim.SynSmall().build()
        errors = finite_length.errors
        results: dict[str, Any] = {
            "small": errors(
                small,
                dynsim.sgd(1.0, 1.0),
                30,
                LENGTHS,
                lambda T: [finite_length.enumerated(small, T)],
            ),
            "syn-small": errors(
                syn,
                dynsim.sgd(1.0, 0.1),
                200,
                SAMPLED_LENGTHS,
                lambda T: [finite_length.sampled(syn, T, self.SAMPLES, seed) for seed in (0, 1)],
            ),
        }
        for name, rules in self.by_rate().items():
            runs, first = data[f"{name}/simulation"], data[f"{name}/spread"]
            size = {"steps": self.steps, "length": self.length, "draws": self.draws}
            built = {eta_z: rule.build() for eta_z, rule in rules.items()}
            second = noise.second_order(built, BATCHES, **size)
            results[name] = noise.ratio(runs, first)
            results[f"{name}/second"] = noise.ratio(runs, second)
            results[f"{name}/mean"] = noise.distance(runs, {"first": first, "second": second})
        figure, (axes,) = drawing.panels(1, 3, height=4.4)
        finite_length.plot(LENGTHS, results["small"], axes[0])
        finite_length.plot(SAMPLED_LENGTHS, results["syn-small"], axes[1])
        noise.plot_ratios(results, [*self.by_rate()], axes[2])
        axes[0].set_title("three tokens per class, enumerated")
        axes[1].set_title("Syn-Small, sampled quadratures")
        # Legends go below the panels; within them they would hide marks.
        for ax in axes:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
        arrays = results | {"small/length": LENGTHS, "syn-small/length": SAMPLED_LENGTHS}
        slopes = finite_length.exponents(LENGTHS, results["small"])
        text = [f"Powers of T of the error:\n{slopes}"]
        text.append(f"Errors in %:\n{finite_length.table(SAMPLED_LENGTHS, results['syn-small'])}")
        text += noise.tables(results, [*self.by_rate()])
        return sweeps.Picture(figure, arrays, "\n\n".join(text), report=slopes.to_dict())
