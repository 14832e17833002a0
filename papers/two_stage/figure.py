"""P is learned under the large rate, and Q only after annealing, while P is preserved.

Six panels over eta-time, the sum of the learning rates so far: training, the reduced ODE of
`odes.two_stage`, the controls with one rate throughout, and training on the loss of the sum. The
claims of the paper (see `odes.two_stage.claims`) are printed with what we measure.
"""

from typing import Annotated

import annotated_types as at

import dynsim
import sweeps
from papers import two_stage
from papers.two_stage import panels


class FigureTwoStage(sweeps.Figure):
    """Two-stage training against the reduced ODE, its controls, and the claims one by one.

    Attributes:
        run: the run trained in two stages and, for comparison, under each control.
        seeds: number of these runs, and of those of two_stage-joint.
        control_seeds: number of runs of each control.
        times: number of recorded times, a third of them in the first stage.
    """

    NAME = "two_stage"
    RUN = {"problem": "two_stage"}

    run: sweeps.Experiment = sweeps.experiment(**RUN)
    seeds: Annotated[int, at.Ge(1)] = 6
    control_seeds: Annotated[int, at.Ge(1)] = 2
    times: Annotated[int, at.Ge(3)] = 128

    def experiments(self):
        controls = {name: self.run.at({"control": name}) for name in panels.CONTROLS}
        return {"preset": self.run, "joint": sweeps.experiment("two_stage-joint"), **controls}

    def sweeps(self):
        plan = {}
        for name, run in self.experiments().items():
            seeds = self.control_seeds if name in panels.CONTROLS else self.seeds
            plan[name] = two_stage.training(run, seeds, self.times)
            plan[f"ode/{name}"] = two_stage.ode(run, self.times)
        return plan

    def draw(self, data):
        experiments = self.experiments()
        runs = {name: two_stage.ended(data[name], run) for name, run in experiments.items()}
        theory = {name: sweeps.valid(data[f"ode/{name}"]).isel(seed=0) for name in runs}
        verdicts = two_stage.verdicts(experiments, runs, theory)
        arrays = {}
        for name, each in runs.items():
            names = [*experiments[name].problem.observables(), "eta_time"]
            arrays[name] = {**each[names], "time": each.eta_time[0]}
            arrays |= {f"{name}/ode/{o}": theory[name][o] for o in dynsim.Prompts.COMPARED}
        text = "\n\n".join(
            f"{name}: {runs[name].sizes['seed']} runs\n{two_stage.claims.table(each)}"
            for name, each in verdicts.items()
        )
        report = {name: [c.as_record() for c in each] for name, each in verdicts.items()}
        figure = panels.draw(experiments, runs, theory)
        return sweeps.Picture(figure, arrays, text, report=report)
