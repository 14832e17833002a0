"""Where each theory of the layer holds, and whether Assumption 1(c) marks the boundary.

According to the paper its Assumption 1(c), a decoder faster than the attention, matters from
eta_Y / eta_Z of about 2 on. We draw the relative error of the logit of the top distinct token: on
Syn-Small over learning rates, and at fixed rates over the overlap and the number of classes.
"""

import math
import textwrap
from typing import Annotated

import annotated_types as at
import numpy as np

import sweeps
from sweeps import drawing

QUANTITY, NOISE = "z_top_distinct", "symmetric-noise"
RATIO = 2.0
LEVELS = {0.05: "-", 0.2: "--"}


class Validity(sweeps.Figure):
    """Relative error of each theory in the attention logit of the top distinct token.

    Attributes:
        resolution: number of values of eta_Y / eta_Z and of eta_Z.
        seeds: number of runs at each point, whose mean the theories are compared with.
        length: sequence length T of the runs; with inf, the errors of most theories, which describe
            T = inf, do not include the effect of finite T.
        theories: names of theories; symmetric-noise is descent with batch noise, reduced.
    """

    NAME = "validity"

    resolution: Annotated[int, at.Ge(2)] = 13
    seeds: Annotated[int, at.Ge(1)] = 4
    length: int | float = math.inf
    theories: tuple[str, ...] = ("plain", "corrected", NOISE, "eq10", "lemma3")

    def sweeps(self):
        rates = {"ratio": [0.1, 100, self.resolution], "eta_z": [0.01, 3, self.resolution]}
        planes = {
            "rates": ({"eta": "ratio"}, {name: {"logspace": ends} for name, ends in rates.items()}),
            "overlap": (
                {"task": "overlapping"},
                {"K": [2, 5, 10], "overlap": [0.01, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6]},
            ),
        }
        all_sweeps = {}
        for plane, (settings, axes) in planes.items():
            run = sweeps.experiment(steps=200, length=self.length, batch=128, **settings)
            for name in ("simulation", *self.theories):
                # The other theories start from zero weights, whatever the seed.
                seeds = {"seed": {"range": self.seeds}} if name in ("simulation", NOISE) else {}
                all_sweeps[f"{plane}/{name}"] = sweeps.Sweep(
                    run, axes | seeds, name, (QUANTITY,), 16
                )
        return all_sweeps

    def draw(self, data):
        errors = {}
        for place, theory in data.items():
            plane, name = place.split("/")
            if name == "simulation":
                continue
            # The reduction has the mean over the classes, which are alike.
            theory = theory.isel({"class": 0}, drop=True) if name == NOISE else theory
            training = data[f"{plane}/simulation"]
            errors[place] = sweeps.relative_error(theory, training, QUANTITY)
        columns, planes = len(self.theories), self.sweeps()
        figure, axes = drawing.panels(2, columns, max(6.0, 2.6 * columns) / columns, 3.4)
        for (upper, lower), name in zip(axes.T, self.theories, strict=True):
            mesh = drawing.error_map(upper, errors[f"rates/{name}"], LEVELS)
            upper.axvline(RATIO, color="k", ls=":", path_effects=drawing.cased())
            title = planes[f"rates/{name}"].method.title
            title = "descent with noise, reduced" if name == NOISE else title
            upper.set(title=textwrap.fill(title, 20), xlabel=r"$\eta_Y/\eta_Z$")
            cells = errors[f"overlap/{name}"]
            across, up = ([f"{each:g}" for each in cells[dim].values] for dim in ("overlap", "K"))
            drawing.table(lower, cells.values, percent, across, up, **drawing.ERRORS)
            lower.tick_params(axis="x", rotation=90)
            lower.set(xlabel=r"overlap $f_n \cdot f_{n'}$ at the start")
        axes[0, 0].set_ylabel(r"$\eta_Z$ (1/step)")
        axes[1, 0].set_ylabel("number of classes $K$")
        figure.colorbar(mesh, ax=axes, label="relative error of the logit over time", extend="both")
        keys = [drawing.key(f"error {100 * level:g} %", ls=ls) for level, ls in LEVELS.items()]
        keys.append(drawing.key("ratio of the paper's Assumption 1(c)", ls=":"))
        figure.legend(handles=keys, loc="outside upper center", ncols=3, frameon=False)
        axes = {dim: each[dim] for each in errors.values() for dim in each.dims}
        text = "\n".join(shares(name, errors[f"rates/{name}"]) for name in self.theories)
        return sweeps.Picture(figure, {**errors, **axes}, text)


def percent(error):
    """An error in %, short enough for a cell; a dash for NaN."""
    if np.isnan(error):
        return "-"
    if error > 0.995:
        return ">99"
    return f"{100 * error:.0f}" if error >= 0.095 else f"{100 * error:.1g}"


def shares(name, error):
    """The shares of the plane within the contours, below and above the paper's ratio."""
    small = error.ratio < RATIO
    parts = []
    for level in LEVELS:
        below, above = (100 * float((error[side] <= level).mean()) for side in (small, ~small))
        side = f"{below:.0f} % of the plane at eta_Y/eta_Z < {RATIO:g}, {above:.0f} % above"
        parts.append(f"within {100 * level:g} %: {side}")
    return f"{name:<14} {', '.join(parts)}"
