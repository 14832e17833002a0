"""How much a finite length and batch change the two stages [ours].

Without the variance of the outputs over contexts, the loss of L tokens is off by O(1/L); with it,
as in the reduced ODE, by O(1/L^2). The variance of the gradient of a prompt, over the batch size,
adds to the noise that training injects. Both are sampled at weights along the reduced ODE, by
`odes.two_stage.finite_length`.
"""

from typing import Annotated

import annotated_types as at
import jax
import numpy as np
import pandas as pd
from scipy import stats

import dynsim
import sweeps
from odes import two_stage
from sweeps import drawing

ENTRIES = ("a", "b", "W[0,1:]", "W[1:,:]", "V[0,1:]", "V[1:,0]", "V[1:,1:]")


class TwoStageFinite(sweeps.Figure):
    """Effects of a finite length and batch along the reduced ODE.

    Attributes:
        run: the run along whose reduced ODE they are measured.
        samples: prompts on which the loss is measured at each length.
        prompts: prompts whose gradients are taken at each moment.
    """

    NAME = "two_stage_finite"
    RUN = {"problem": "two_stage"}
    LENGTHS = (17, 33, 65, 129, 257)
    MOMENTS = ("start", "end of stage 1", "end of stage 2")

    run: sweeps.Experiment = sweeps.experiment(**RUN)
    samples: Annotated[int, at.Ge(2)] = 60_000
    prompts: Annotated[int, at.Ge(2)] = 4096

    def draw(self, data):
        (task, rule), annealed = self.run.built, self.run.rule
        if not isinstance(annealed, dynsim.Annealed):
            raise ValueError(f"rule = {annealed!r}: must be a dynsim.Annealed")
        stages = annealed.stages
        times = np.array([0, stages.first, stages.last])
        states = two_stage.solve(task, rule, times, record="state")["state"]
        rng = np.random.default_rng(0)
        weights = [two_stage.ReducedState(*np.asarray(s)).sample(task.d, rng) for s in states]
        errors, measured, closed = {}, [], []
        for moment, U in zip(self.MOMENTS[1:], weights[1:], strict=True):
            for loss in ("K1", "K2"):
                errors[f"{loss}, {moment}"] = two_stage.finite_length.loss_errors(
                    task, U, loss, self.LENGTHS, self.samples, rng
                )
        for U in weights:
            variances = two_stage.finite_length.gradient_variances(task, U, self.prompts)
            measured.append(jax.tree.leaves(variances))
            with jax.enable_x64(True):
                state = two_stage.ReducedState.from_weights(U.W, U.V)
                closed.append(two_stage.thresholds.gradient_variance(state, task))
        measured, closed = np.array(measured), np.array(closed)
        arrays = {**errors, "length": self.LENGTHS, "variance": measured, "closed_form": closed}
        noise = float(self.run.batch * stages.noise**2)  # B tau_xi^2
        table = pd.DataFrame(measured.T, ENTRIES, self.MOMENTS)
        known = pd.DataFrame(closed.T, ["a, closed form", "b, closed form"], self.MOMENTS)
        lines = [
            "Relative error of the loss in %: without variance, Gaussian, reduced, sampling error.",
            *(line for name, each in errors.items() for line in self.rows(name, each)),
            "\nVariance C of the gradient over prompts, in entries of a block:",
            pd.concat([table, known]).to_string(float_format="{:.3g}".format),
            "\nC / (B tau_xi^2) in %:",
            (100 * table / noise).to_string(float_format="{:.2g}".format),
        ]
        report = {name: each._asdict() for name, each in errors.items()}
        return sweeps.Picture(self.panels(errors), arrays, "\n".join(lines), report=report)

    def rows(self, name, errors):
        """Errors at each length, and the exponents of those that sampling cannot have made."""
        yield name
        for length, *row in zip(self.LENGTHS, *errors, strict=True):
            yield f"  L = {length}: " + ", ".join(f"{100 * each:.3g}" for each in row)
        for kind in ("infinite", "gaussian"):
            size = abs(getattr(errors, kind))
            if (size > 2 * errors.error).all():
                slope = stats.linregress(np.log(self.LENGTHS), np.log(size))[0]
                yield f"  {kind} like L^{slope:.2f}"

    def panels(self, errors):
        """Errors over the length in a panel for each moment, with the slopes -1 and -2."""
        figure, axes = drawing.panels(1, 2, width=4.2, height=4.2, sharey=True)
        first, last = self.LENGTHS[0], self.LENGTHS[-1]
        for ax, moment in zip(axes[0], self.MOMENTS[1:], strict=True):
            for place, loss in enumerate(("K1", "K2")):
                r, style = errors[f"{loss}, {moment}"], {"color": drawing.colour(place)}
                without, label = f"{loss}, without variance", f"{loss}, with variance"
                ax.plot(self.LENGTHS, abs(r.infinite), "o:", label=without, **style)
                style |= {"fmt": "s-", "label": label}
                ax.errorbar(self.LENGTHS, abs(r.gaussian), r.error, **style)
            drawing.power(ax, first, last, 0.1 * first / last, "L", 1)
            drawing.power(ax, first, last, 0.003 * (first / last) ** 2, "L", 2)
            drawing.finished(ax, xscale="log", yscale="log", title=moment, xlabel="tokens L")
            ax.set_ylabel("relative error of the loss")
            drawing.ticks(ax.xaxis, self.LENGTHS)
        drawing.below(figure, axes[0, 0].get_legend_handles_labels()[0], 2)
        return figure
