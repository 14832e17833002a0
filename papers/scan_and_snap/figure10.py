"""Fig. 10: a larger learning rate leaves attention on text with a lower entropy.

The entropy on held-out text after training a transformer with one layer, at rates from 1 to 5. A
larger rate also gets further in the same number of steps. So we add the trend at equal products of
rate and steps, which shows whether larger rates only get further along the same path.
"""

from typing import Annotated

import annotated_types as at
import matplotlib.pyplot as plt
import numpy as np

import sweeps
from papers.scan_and_snap import text
from sweeps import drawing

RECORD = ("loss", "entropy", "top", "change")
ENTROPY = "entropy of attention (nat)"


class Figure10(sweeps.Figure):
    """Entropy of a one-layer transformer's attention on held-out text against the learning rate.

    Attributes:
        run: the run at all rates.
        eta: learning rates.
        seeds: number of runs at each rate.
    """

    NAME = "fig10"
    RUN = text.RUN

    run: sweeps.Experiment = sweeps.experiment(**RUN)
    eta: tuple[Annotated[float, at.Gt(0)], ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    seeds: Annotated[int, at.Ge(1)] = 5

    def sweeps(self):
        if len({*self.eta}) < 2:
            raise ValueError(f"eta = {self.eta}: needs at least two different learning rates")
        axes = {"eta": list(self.eta), "seed": {"range": self.seeds}}
        return {"simulation": text.training(self.run, axes, RECORD)}

    def draw(self, data):
        data = sweeps.valid(data["simulation"])
        rates, entropy = data.eta.values, data.entropy
        model, steps = text.model_of(self.run), self.run.steps or 0
        final, reach = entropy.isel(time=-1).values, float(rates.min() * steps)
        equal_steps = text.line(rates, final)
        equal_product = text.line(rates, at_products(entropy, [reach])[0])
        # Up to the largest product that three rates reach.
        last = np.sort(rates)[-min(3, len(rates))] * steps
        products = np.linspace(0, last, 2 * text.INTERVALS + 1)[1:]
        lines = [text.line(rates, each) for each in at_products(entropy, products)]
        slopes = np.array([[each["slope"], each["standard_error"]] for each in lines])
        diverged = int(np.isnan(final).sum())

        figure = plt.figure(figsize=(9.6, 5), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=(5, 3))
        left, right = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
        below = figure.add_subplot(grid[1, 1], sharex=right)
        end = sweeps.moments(data.isel(time=-1), "entropy")
        left.plot(rates, final[:, 0], ".", color="grey", label="runs")
        left.plot(rates, final[:, 1:], ".", color="grey")
        style = {"fmt": "o", "capsize": 4, "color": drawing.colour(0)}
        left.errorbar(rates, end["mean"], end["std"], label="mean, standard deviation", **style)
        slope, error, intercept, *_ = equal_steps.values()
        label = rf"slope ${slope:.3f} \pm {error:.3f}$ nat per unit of rate"
        fitted = intercept + slope * rates
        left.plot(rates, fitted, "--", color=drawing.colour(1), label=label)
        uniform = model.uniform_entropy
        left.axhline(uniform, color="black", lw=0.8, ls=":", label="uniform attention")
        legend = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
        labels = {"xlabel": r"learning rate $\eta$ (1/step)", "title": f"after {steps} steps"}
        drawing.finished(left, {**legend, "frameon": False}, ylabel=ENTROPY, **labels)
        for one, colour in zip(entropy, drawing.shades(len(rates)), strict=True):
            if (runs := one.dropna("seed")).seed.size:
                style = {"color": colour, "label": rf"$\eta = {float(one.eta):g}$"}
                drawing.band(right, one.eta * one.time, runs, style)
        title = r"at equal $\eta\,\times$ steps"
        drawing.finished(right, {} if right.lines else None, ylabel=ENTROPY, title=title)
        right.tick_params(labelbottom=False)
        low, high = (slopes @ [1, sign * text.SIGNIFICANT] for sign in (-1, 1))
        below.fill_between(products, low, high, color="0.8", lw=0, label="± 2 standard errors")
        below.plot(products, slopes[:, 0], color="k")
        below.axhline(0, color="0.4", lw=0.8)
        labels = {"xlabel": r"$\eta\,\times$ steps", "ylabel": "slope in the rate\n(nat per unit)"}
        drawing.finished(below, {}, **labels)
        failed = f"{diverged} of {final.size} runs diverged"
        figure.suptitle(f"{text.describe(self.run)}\nlayers: {model.layers}; {failed}")

        arrays = {name: data[name] for name in (*RECORD, "eta", "time")}
        arrays |= {"product": products, "slope": slopes}
        report = {"equal steps": equal_steps, "equal eta-time": equal_product}
        report |= {"diverged": diverged, "final_entropy": final, "eta_time": reach}
        printed = (
            "entropy against the learning rate:\n"
            f"after {steps} steps: {text.trend(equal_steps)}\n"
            f"at eta times steps = {reach:g}: {text.trend(equal_product)}\n{failed}"
        )
        return sweeps.Picture(figure, arrays, printed, report=report)


def at_products(entropy, products):
    """Entropy (rate, seed) at each product of rate and steps; NaN for rates that end before."""
    products, curves = np.asarray(products), []
    for one in entropy:
        progress = (one.eta * one.time).values
        runs = [np.interp(products, progress, run) for run in one.values]
        curves.append(np.where(products <= progress[-1] * (1 + 1e-9), runs, np.nan))
    return np.moveaxis(np.array(curves), -1, 0)
