"""`dynsim figure edge`: the sharpness of training, next to gradient flow and central flow."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import xarray as xr

import dynsim
from dynsim import Status, checks
from sweeps import output
from sweeps.runner.spec import Sweep
from sweeps.studies.computing import computed
from sweeps.studies.transitions.edge import diagram, panels
from sweeps.studies.transitions.edge.cases import CASES, Case
from sweeps.studies.transitions.edge.measure import errors, sharpness_of_mean
from sweeps.systems.experiment import Experiment

ENGINES = {"training": "simulation", "flow": "flow", "central": "central"}
"""What is drawn, and the engine that computes it."""
LOSSES = {"training": "loss", "flow": "loss", "central": "averaged_loss"}
"""What each calls the loss averaged over oscillations."""


@dataclasses.dataclass(frozen=True)
class Edge:
    """Follow the sharpness at several learning rates, against the edge of stability: training on
    all of the data, gradient flow and central flow; and map where training oscillates.

    Attributes:
        system: network (a tanh network on 24 examples), linear_icl, yz (Syn-Small) or two_stage
            (64 prompts).
        rates: learning rates; by default five, from below the edge to beyond.
        steps: optimiser steps at each rate; 0 for as many as the system needs.
        resolution: number of points on each axis of the map, learning rate and scale of the
            starting weights; 0 for none. Only network and linear_icl have one.
        out: folder for the figure, edge.npz, edge.json and the stored sweeps, from which the
            command resumes.
    """

    system: str = "network"
    rates: tuple[float, ...] = ()
    steps: int = 0
    resolution: int = 24
    out: Path = Path("out/edge")

    def case(self) -> Case:
        """What is drawn; `ValueError` for settings that describe none."""
        case = CASES[checks.choice("system", self.system, tuple(CASES))]()
        for rate in self.rates:
            checks.real("rates", rate, 0, open_minimum=True)
        checks.integer("steps", self.steps, 0)
        checks.integer("resolution", self.resolution, 0)
        rates = tuple(sorted({*self.rates})) or case.rates
        return case._replace(rates=rates, steps=self.steps or case.steps)

    def sweeps(self) -> dict[str, Sweep]:
        """All runs, by the name of what is drawn of them."""
        case = self.case()
        found = {name: followed(case, name) for name in ENGINES}
        if self.resolution and case.scale is not None:
            found |= diagram.sweeps(case, self.resolution)
        return found


def followed(case: Case, name: str) -> Sweep:
    """The runs at all rates, recorded at every step."""
    record = dict.fromkeys(("loss", LOSSES[name], "preconditioned_sharpness", "params"))
    made: Any = Sweep(
        Experiment(case.begun(), dynsim.sgd(1.0), case.steps, math.inf),
        {"eta": case.rates},
        engine=ENGINES[name],
        record=tuple(record),
        times=tuple(range(case.steps + 1)),
        rtol=case.rtol if name == "flow" else None,
    )
    return made


def run(config: Edge) -> list[Path]:
    """Run or resume the sweeps, print the errors of both flows, draw and write the figure."""
    case, found = config.case(), computed(config)
    rows = [row(case, found, rate) for rate in case.rates]
    lines = table(rows)
    maps = diagram.maps(found) if "map-training" in found else None
    if maps is not None:
        lines += ["", *diagram.report(maps)]
    print("\n".join(lines))
    arrays = {f"{name}/{n}": v for name in ENGINES for n, v in found[name].variables.items()}
    report = {"system": config.system, "rates": rows}
    if maps is not None:
        arrays |= {f"map/{name}": values for name, values in maps.variables.items()}
        report["map"] = diagram.shares(maps)
    figure = panels.draw({name: found[name] for name in ENGINES}, LOSSES, maps, config.system)
    return output.write(config.out, "edge", figure=figure, arrays=arrays, report=report)


def row(case: Case, found: dict[str, xr.Dataset], rate: float) -> dict[str, Any]:
    """The errors of both flows at a learning rate."""
    runs = {name: found[name].sel(eta=rate, method="nearest") for name in ENGINES}
    training = runs["training"]
    ended = {name: Status(int(each.status)).name for name, each in runs.items()}
    mean = sharpness_of_mean(case.problem, training)
    measured = {"eta": rate, "ended": ended, "sharpness": mean}
    flows = {n: errors(training, runs[n], LOSSES[n])._asdict() for n in ("flow", "central")}
    return {**measured, **flows}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The errors as lines of text."""
    head = ("eta", "sharpness", "flow", "central", "weights off", "central", "loss off", "central")
    lines = []
    for each in rows:
        flow, central = each["flow"], each["central"]
        numbers = (each["sharpness"], flow["sharpness"], central["sharpness"])
        off = (flow["apart"], central["apart"], flow["loss"], central["loss"])
        cells = [f"{each['eta']:g}", *(f"{n:.3f}" for n in (*numbers, *off))]
        ended = ", ".join(f"{name}: {how}" for name, how in each["ended"].items() if how != "OK")
        lines.append([*cells, f"  {ended}"])
    return output.aligned([[*head, ""], *lines], 8, *[12] * 7)
