"""`dynsim figure optimum`: the best learning rate against another setting, rule by rule."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dynsim import checks
from dynsim.decoding import Positive
from sweeps import output
from sweeps.runner.spec import Sweep
from sweeps.studies.axes import AxisWord, axis, described
from sweeps.studies.computing import computed
from sweeps.studies.optimum import report
from sweeps.studies.optimum.best import FEWEST, best
from sweeps.studies.optimum.panels import draw
from sweeps.studies.optimum.transfer import transfer
from sweeps.studies.options import Several
from sweeps.systems import registry
from sweeps.systems.experiment import Experiment, experiment

LIMITS = ("descent-finite-t", "descent")
"""Training at infinite batch: what stands for theory unless another one is asked for. A flow knows
no divergence, so that its best rate is often the largest."""
VALUES, RATES = 6, 23
"""Values of the axes, unless they say how many."""


MOMENTUM = 0.9
"""Of the rules with momentum, unless the run has another one."""


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Find the best learning rate of several update rules against another setting, with its error
    over seeds, the range that is nearly as good, the edge of divergence and a power law.

    Attributes:
        run: of which every point is a variation.
        along: the other setting, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear
            with :lin at the end.
        rate: learning rates to try, in the same form.
        rules: update rules, one panel each; momentum and nesterov are sgd with momentum.
        observable: what is to be small, or large if it is an accuracy.
        theory: engine to draw next to training; auto for descent at infinite batch, best for the
            most exact theory of each rule, or none.
        seeds: number of runs at each point.
        within: how much worse than the best, as a share, the shaded range is.
        out: folder for the figure, optimum.npz and .json, and the stored sweeps, from which the
            command resumes.
    """

    # Starting weights so large that training leaves the first plateau soon, whatever the seed.
    RUN: ClassVar[Mapping[str, Any]] = {
        "problem": "linear_icl",
        "steps": 200,
        "scale": 0.5,
        "heads": 8,
    }

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Optimum.RUN))
    along: AxisWord = "batch:4:128"
    rate: AxisWord = "eta:1e-3:30"
    rules: tuple[str, ...] = ("sgd", "momentum", "adam")
    observable: str = "loss"
    theory: str = "auto"
    seeds: Several = 4
    within: Positive = 0.01
    out: Path = Path("out/optimum")

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the other setting and of the rate, by name; `ValueError` for bad ones."""
        found = {}
        for option, number in (("along", VALUES), ("rate", RATES)):
            word = getattr(self, option)
            name, values = axis(word, number, self.run)
            if len(values) < FEWEST:
                raise ValueError(
                    f"{option} = {word!r}: has {len(values)} values; needs {FEWEST} or more"
                )
            if name in found:
                raise ValueError(f"along = {self.along!r}: is the axis of the rate as well")
            found[name] = values
        return found

    def sweep(self, engine: str, rules: tuple[str, ...], without: str = "") -> Sweep:
        """The runs by some rules, by an engine; `without` one of the axes."""
        named = {rule: self._settings(rule) for rule in rules}
        axes = {"rule": named, **self.axes(), "seed": {"range": self.seeds}}
        axes = {name: values for name, values in axes.items() if name != without}
        return Sweep(self.run, axes, engine, (self.observable,))

    def _settings(self, rule: str) -> Any:
        """The rule that a word stands for."""
        if rule not in ("momentum", "nesterov"):
            return rule
        momentum = getattr(self.run.rule, "momentum", None) or MOMENTUM
        return {"kind": "sgd", "momentum": momentum, "nesterov": rule == "nesterov"}

    def theories(self) -> tuple[dict[str, Sweep], dict[str, str]]:
        """Sweeps of the theory by rule, and why there is none for the other rules."""
        known = tuple(registry.engines(registry.system_of(self.run)))
        if self.theory not in ("auto", "best", "none"):
            checks.choice("theory", self.theory, ("auto", "best", "none", *known))
        engines = tuple(name for name in LIMITS if name in known)
        engines = {"auto": engines, "none": ()}.get(self.theory, (self.theory,))
        found, refused = {}, {}
        for rule in self.rules if engines else ():
            for engine in engines:
                try:
                    # Theory knows no batch but the infinite one.
                    made = self.sweep(engine, (rule,), "batch")
                    made.check()
                except ValueError as error:
                    refused.setdefault(rule, str(error))
                    continue
                found[rule] = made
                refused.pop(rule, None)
                break
        return found, refused

    def sweeps(self) -> dict[str, Sweep]:
        """Training, and theory by rule."""
        training = self.sweep("simulation", self.rules)
        training.check()
        theories, _ = self.theories()
        return {"training": training, **{f"theory/{rule}": s for rule, s in theories.items()}}


@dataclasses.dataclass(frozen=True)
class OptimumOfLayer(Optimum):
    """Find the best learning rate of the attention layer in Y and Z, at a fixed ratio of its two
    rates, on short sequences. Longer ones show their class, so that every rate above some trains
    to a loss of 0.

    Attributes:
        observable: what is to be small, or large if it is an accuracy; relative_loss is the loss of
            the last 20 steps over that of the first.
    """

    RUN: ClassVar[Mapping[str, Any]] = {
        "problem": "yz",
        "eta": {"kind": "ratio", "ratio": 1.0},
        "steps": 100,
        "length": 4,
    }

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**OptimumOfLayer.RUN))
    rate: AxisWord = "eta_z:0.03:1000"
    observable: str = "relative_loss"


def run(config: Optimum) -> list[Path]:
    """Compute or resume, print the best rates and what they follow, draw and write."""
    found = computed(config)
    along, over = config.axes()
    theories, refused = config.theories()
    options: dict[str, Any] = {"over": over, "within": config.within}
    trained = best(found["training"], **options)
    predicted = {rule: best(found[f"theory/{rule}"], **options) for rule in theories}
    laws = transfer(trained, along)
    titles = dict.fromkeys(each.rules.title or each.engine for each in theories.values())
    lines = [*report.table(trained, predicted, along), ""]
    lines += report.verdicts(trained, predicted, laws, along)
    lines += [f"{rule}: no theory; {why}" for rule, why in refused.items()]
    print("\n".join(lines))
    title = f"{described(config.run, ('rule', along, over))}, mean of {config.seeds} seeds"
    figure = draw(found["training"], trained, predicted, laws, ", ".join(titles), title)
    arrays: dict[str, Any] = {"training": trained, "law": laws.drop_vars("verdict")}
    arrays |= {f"theory/{rule}": each for rule, each in predicted.items()}
    arrays |= {name: found["training"][name] for name in (along, over)}
    return output.write(
        config.out, "optimum", figure=figure, arrays=arrays, report={"lines": lines}
    )
