"""`dynsim figure optimum`: the best learning rate against another setting, rule by rule."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dynsim import checks
from dynsim.decoding import Positive
from sweeps import output
from sweeps.runner.files import from_table
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed, settings
from sweeps.studies.optimum import report
from sweeps.studies.optimum.best import FEWEST, best
from sweeps.studies.optimum.panels import draw
from sweeps.studies.optimum.transfer import transfer
from sweeps.studies.options import Several
from sweeps.studies.phase.plane import axis
from sweeps.systems import registry

LIMITS = ("descent-finite-t", "descent")
"""Training at infinite batch: what stands for theory unless another one is asked for. A flow knows
no divergence, so that its best rate is often the largest."""
VALUES, RATES = 6, 23
"""Values of the axes, unless they say how many."""


class Usual(NamedTuple):
    """What is drawn of a system unless asked otherwise.

    Attributes:
        rate: the axis of the learning rate.
        settings: of every run.
        observable: what is best.
        along: the other axis.
    """

    rate: str
    settings: Mapping[str, Any] = {}
    observable: str = "loss"
    along: str = "batch:4:128"


USUAL = {
    # Starting weights so large that training leaves the first plateau soon, whatever the seed.
    "linear_icl": Usual("eta:1e-3:30", {"steps": 200, "scale": 0.5, "heads": 8}),
    # Longer sequences show their class, so that every rate above some trains to a loss of 0.
    "yz": Usual("eta_z:0.03:1000", {"steps": 100, "ratio": 1.0, "length": 4}, "relative_loss"),
}


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Find the best learning rate of several update rules against another setting, with its error
    over seeds, the range that is nearly as good, the edge of divergence and a power law.

    Attributes:
        system: linear_icl, yz, or any other with one learning rate eta, or with eta_z and the
            ratio of two.
        along: the other setting, NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER; logarithmic, or linear
            with :lin at the end. By default the batch.
        rate: learning rates to try, in the same form. By default eta, or eta_z at a fixed ratio.
        rules: update rules, one panel each.
        set: other settings of the runs, such as steps=300 D=8.
        observable: what is to be small, or large if it is an accuracy. By default the loss; for yz
            relative_loss, the loss of the last 20 steps over that of the first.
        theory: engine to draw next to training; auto for descent at infinite batch, best for the
            most exact theory of each rule, or none.
        seeds: number of runs at each point.
        within: how much worse than the best, as a share, the shaded range is.
        out: folder for the figure, optimum.npz and .json, and the stored sweeps, from which the
            command resumes.
    """

    system: str = "linear_icl"
    along: str = ""
    rate: str = ""
    rules: tuple[str, ...] = ("sgd", "momentum", "adam")
    set: tuple[str, ...] = ()
    observable: str = ""
    theory: str = "auto"
    seeds: Several = 4
    within: Positive = 0.01
    out: Path = Path("out/optimum")

    @property
    def usual(self) -> Usual:
        """What was not asked for."""
        fields = registry.system(self.system).run.AXES.names
        two = "eta" not in fields and "ratio" in fields
        other = Usual("eta_z:1e-3:30", {"ratio": 1.0}) if two else Usual("eta:1e-3:30")
        return USUAL.get(self.system, other)

    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of the other setting and of the rate, by name; `ValueError` for bad ones."""
        fields = registry.system(self.system).run.AXES
        found = {}
        for option, number in (("along", VALUES), ("rate", RATES)):
            word = getattr(self, option) or getattr(self.usual, option)
            name, values = axis(word, number, fields)
            if len(values) < FEWEST:
                raise ValueError(
                    f"{option} = {word!r}: has {len(values)} values; needs {FEWEST} or more"
                )
            if name in found:
                raise ValueError(f"along = {self.along!r}: is the axis of the rate as well")
            found[name] = values
        return found

    def settings(self) -> dict[str, Any]:
        """Of every run, without what is an axis; `ValueError` for what cannot be read."""
        return settings(self.usual.settings, self.set, self.axes())

    def sweep(self, engine: str, rules: tuple[str, ...], without: str = "") -> Sweep:
        """The runs by some rules, by an engine; `without` one of the axes."""
        axes = {"optimizer": rules, **self.axes(), "seed": {"range": self.seeds}}
        return from_table(
            {
                "system": self.system,
                "engine": engine,
                "record": [self.observable or self.usual.observable],
                "run": self.settings(),
                "axes": {name: values for name, values in axes.items() if name != without},
            }
        )

    def theories(self) -> tuple[dict[str, Sweep], dict[str, str]]:
        """Sweeps of the theory by rule, and why there is none for the other rules."""
        known = tuple(registry.engines(registry.system(self.system)))
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
    settings = ", ".join(f"{name} = {value}" for name, value in config.settings().items())
    title = f"{config.system}: {settings}{', ' * bool(settings)}mean of {config.seeds} seeds"
    figure = draw(found["training"], trained, predicted, laws, ", ".join(titles), title)
    arrays: dict[str, Any] = {"training": trained, "law": laws.drop_vars("verdict")}
    arrays |= {f"theory/{rule}": each for rule, each in predicted.items()}
    arrays |= {name: found["training"][name] for name in (along, over)}
    return output.write(
        config.out, "optimum", figure=figure, arrays=arrays, report={"lines": lines}
    )
