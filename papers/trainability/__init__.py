"""Which learning rates train at all, and how rough is the boundary (Sohl-Dickstein 2024)?

The boundary between learning rates that train and those that diverge is fractal, over ten decades
of scale, for small networks (arXiv:2402.06184, Figs. 1 and 2). Here it is that of the attention
layer over eta_Y and eta_Z. A coarse grid is refined where the outcome changes. Pieces that are not
connected to those on the coarse grid are missed, so counts of boundary cells are lower bounds.
"""

import dataclasses
from typing import Annotated, Any, Literal

import annotated_types as at
import numpy as np
from scipy import stats

import sweeps
from papers.trainability import picture
from sweeps import drawing

CELLS = 16
CORNERS = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
Rate = Annotated[float, at.Gt(0)]


class Trainability(sweeps.Figure):
    """Map of trained and untrained runs over both learning rates, refined at its boundary.

    Attributes:
        run: the run of the attention layer that is varied; all runs share its seed. With the
            default length, some sequences show no token of their class.
        theory: simulation, or a theory, which assumes infinite T and batch.
        eta_y: first and last learning rate of Y (1/step).
        eta_z: first and last learning rate of Z (1/step).
        levels: number of refinements of 16 x 16 cells, each of which doubles the resolution.
        edge: also draw the edge of stability, at the start and along the flow of all weights.
    """

    NAME = "trainability"
    RUN = {"problem": "yz", "steps": 100, "length": 4, "batch": 32}

    run: sweeps.Experiment = sweeps.experiment(**RUN)
    theory: Literal["simulation", "descent", "symmetric-descent"] = "simulation"
    eta_y: tuple[Rate, Rate] = (30.0, 1e4)
    eta_z: tuple[Rate, Rate] = (1e-3, 1e5)
    levels: Annotated[int, at.Ge(3), at.Le(12)] = 4
    edge: bool = False

    def rates(self, places):
        """(eta_Y, eta_Z) at places in [0, 1] x [0, 1]."""
        low, high = np.log([self.eta_y, self.eta_z]).T
        return np.exp(low + places * (high - low))

    def axes(self, cells):
        """Rates at the corners of `cells` cells along each side."""
        eta_y, eta_z = self.rates(np.linspace([0, 0], 1, cells + 1)).T
        return {"eta_y": eta_y, "eta_z": eta_z}

    def computed(self):
        super().computed()
        for name in ("eta_y", "eta_z"):
            if not np.less(*(ends := getattr(self, name))):
                raise ValueError(f"{name} = {ends}: must increase")
        rule = dataclasses.replace(self.run.rule, eta={"Y": 1.0, "Z": 1.0})
        side, trained = CELLS * 2**self.levels, sweeps.diagrams.TRAINED
        run, axes = dataclasses.replace(self.run, rule=rule), self.axes(side)
        axes["seed"] = [run.seed]
        plane = sweeps.Sweep(run, axes, self.theory, trained.record, title=self.NAME)

        def measure(name, points):
            part = sweeps.diagrams.at_points(plane, points, name)
            data = sweeps.run(part, self.out / name).load().isel(seed=0)
            return trained.classify(data).values, data.relative_loss.values

        lattice = sweeps.diagrams.Lattice((side, side), (CELLS, CELLS), self.levels)
        return sweeps.diagrams.Refinement(lattice, measure)

    def draw(self, data: Any):
        levels, fit = data.levels(), None
        eps, cells = np.array([(each.eps, len(each.boundary)) for each in levels]).T
        text = f"no boundary: {'every' if levels[0].region.all() else 'no'} run trained"
        if cells[0]:
            fit: Any = stats.linregress(-np.log(eps[1:]), np.log(cells[1:]))  # N = C eps^-slope
            text = f"box-counting slope {fit.slope:.2f} ± {fit.stderr:.2f}"
        arrays = {"eps": eps, "N": cells.astype(int), "fit": np.array([1, self.levels])}
        arrays["dimension"] = np.array([fit.slope, fit.stderr] if fit else [np.nan] * 2)
        for i, each in enumerate(levels):
            eta_y, eta_z = self.rates(each.places).T
            corners = self.rates((each.boundary[:, None] + CORNERS) * each.eps)
            arrays[f"level-{i}"] = {"eta_y": eta_y, "eta_z": eta_z, "relative_loss": each.value}
            arrays[f"level-{i}"] |= {"trained": each.region == 1, "boundary": corners}
        figure, ((left, right),) = drawing.panels(1, 2, 5, 4.4, width_ratios=[1.6, 1])
        picture.losses(left, data, self.axes(CELLS * 2**self.levels))
        picture.counts(right, eps, cells, fit)
        length, batch = self.run.setting("length"), self.run.batch
        figure.suptitle(f"{self.theory}: {self.run.steps} steps, batch {batch}, length {length}")
        left.set_title(f"{text} (levels 1 to {self.levels})" if fit else text)
        trained = np.zeros((CELLS + 1, CELLS + 1), bool)
        trained[tuple(np.rint(levels[0].places * CELLS).astype(int).T)] = levels[0].region == 1
        report, axes = [text], dict(reversed(self.axes(CELLS).items()))
        lines = sweeps.diagrams.edges(self.run, axes, self.out) if self.edge else []
        for line in picture.lines(left, lines):
            right = 100 * ((line.values.values < 0) == trained).mean()
            report.append(
                f"line {line.name}: {right:.1f} % of the coarse grid trained below it or did not "
                f"beyond it (trained at all: {100 * trained.mean():.1f} %)"
            )
        arrays["line"] = {line.name: line.values.values for line in lines}
        return sweeps.Picture(figure, arrays, "\n".join(report))
