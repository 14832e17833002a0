"""Three phases of gradient descent, by the learning rate eta and the curvature lambda at the start.

The paper claims (section 2) that descent is lazy below eta = 2 / lambda, where the curvature stays;
that it is catapulted up to 4 / lambda, where the loss grows until the curvature is below 2 / eta;
and that it diverges beyond.
"""

from typing import Annotated

import annotated_types as at
import numpy as np

import sweeps
from sweeps import drawing

SHOWN = (1.5, 2.5, 3.0, 3.5)
"""Rates of the first two panels."""


class Catapult(sweeps.Figure):
    """Loss and curvature of a two-layer linear network, over steps and learning rates.

    Attributes:
        points: number of learning rates between 0 and 4.5 / lambda.
    """

    NAME = "catapult"

    points: Annotated[int, at.Ge(2)] = 90

    def sweeps(self):
        run = sweeps.experiment("catapult", dtype="float64", steps=400)
        shown, scan = {"eta": SHOWN}, {"eta": {"linspace": [4.5 / self.points, 4.5, self.points]}}
        record = ("loss", "curvature")
        return {
            f"{name}/{theory}": sweeps.Sweep(run, axes, theory, record, times)
            for name, axes, times in (("steps", shown, (*range(31),)), ("rates", scan, (400,)))
            for theory in ("simulation", "map")
        }

    def draw(self, data):
        runs = {name: sweeps.valid(each) for name, each in data.items()}
        figure, ((losses, edge, ends),) = drawing.panels(1, 3, 4.2, 3.4)
        for i, eta in enumerate(SHOWN):
            trained, exact = (runs[f"steps/{name}"].sel(eta=eta) for name in ("simulation", "map"))
            style = {"color": drawing.colour(i), "label": rf"$\eta\lambda_0$ = {eta:g}"}
            losses.plot(trained.time, trained.loss, **style, **drawing.TRAINED)
            edge.plot(trained.time, eta * trained.curvature, **style, **drawing.TRAINED)
            losses.plot(exact.time, exact.loss, "k--", lw=1)
            edge.plot(exact.time, eta * exact.curvature, "k--", lw=1)
        trained, exact = runs["rates/simulation"].curvature, runs["rates/map"].curvature
        ends.plot(trained.eta, trained, ".", label="training")
        ends.plot(exact.eta, exact, "k--", lw=1, label="exact map")
        rates = np.linspace(1.5, 4.5)
        ends.plot(rates, 2 / rates, ":", color="0.4", label=r"$2/\eta$")
        for claim in (2, 4):  # the borders of section 2
            ends.axvline(claim, color="0.4", lw=0.8)
        edge.axhline(2, color="0.4", lw=0.8)
        steps = {"xlabel": "optimiser steps"}
        scale = {"yscale": "log", "ylim": (1e-9, 1e3)}
        drawing.finished(losses, {}, ylabel="loss", title="loss", **scale, **steps)
        drawing.finished(edge, None, ylabel=r"$\eta\lambda$", title="curvature", **steps)
        labels = {"xlabel": r"$\eta\lambda_0$", "ylabel": r"$\lambda/\lambda_0$ at the end"}
        drawing.finished(ends, {}, title="lazy, catapulted, diverged", **labels)
        diverged, flatter = trained.eta[trained.isnull()], trained.eta[trained < 0.98]
        edges = float(flatter.min()), float(diverged.min()), float((flatter * trained).max())
        claims = (
            "the curvature falls by 2 % or more from eta lambda = {:.2f} on; in the paper beyond 2",
            "training diverges from eta lambda = {:.2f} on; in the paper beyond 4",
            "after a catapult eta lambda is at most {:.2f}; in the paper it is below 2",
        )
        text = "\n".join(map(str.format, claims, edges))
        return sweeps.Picture(figure, {**data, **trained.coords}, text)
