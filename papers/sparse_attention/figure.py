"""The loss rests on a plateau of about sqrt(d) T steps before attention finds its token.

We measure when the loss is 0.8 of its start: over sqrt(d) T as in Fig. 9, over the number of
copies, which shorten the plateau, and for three optimisers. We add the flow, reduced to four
numbers, and the closed form sqrt(pi / (2 B)) sqrt(d) T, both ours, and eqs. 13 and 14 as printed,
which describe a single copy.
"""

import math
from typing import Annotated

import annotated_types as at
import numpy as np

import sweeps
from papers import sparse_attention
from papers.sparse_attention import BATCH, COPIES, FALLEN, LADDER, LENGTHS, RULES, SIZES, THEORIES
from sweeps import drawing

ROOT = math.sqrt(math.pi / 2)


class SparseAttention(sweeps.Figure):
    """Length of the plateau against sqrt(d) T, repetition and the optimiser.

    Attributes:
        seeds: number of runs of each optimiser, and at T = d = 256, on samples; 2 or more.
        steps: length of the longest run in the first panel.
    """

    NAME = "sparse_attention"

    seeds: Annotated[int, at.Ge(2)] = 4
    steps: Annotated[int, at.Ge(1)] = 80_000

    def sweeps(self):
        run = sweeps.experiment("sparse_attention", batch=BATCH)
        long = run.at({"steps": self.steps, "batch": math.inf})
        seeds, lengths = {"seed": {"range": self.seeds}}, {"length": LENGTHS}
        square = run.at({"length": 256, "d": 256, "steps": 8000})
        plan = {
            "length/plain": (long, {**lengths, "d": SIZES}, "plain"),
            "length/simulation": (long, lengths, "simulation"),
            "wide/plain": (long.at({"d": 256}), {"length": LENGTHS[:-1]}, "plain"),
            "square/simulation": (square, seeds, "simulation"),
        }
        short = long.at({"length": 256, "steps": 4000})
        plan |= {f"copies/{theory}": (short, {"B": COPIES}, theory) for theory in THEORIES}
        for name, (rule, steps, flow, end) in RULES.items():
            sampled = run.at({"rule": rule, "steps": steps})
            plan[f"{name}/simulation"] = (sampled, seeds, "simulation")
            for T, d in LADDER:
                point = sampled.at({"length": T, "d": d, "steps": end})
                plan[f"{name}/{T}-{d}"] = (point, {"p": [0.0]}, flow)
        return {
            name: sweeps.Sweep(run, axes, theory, ("loss",), times=600)
            for name, (run, axes, theory) in plan.items()
        }

    def draw(self, data):
        losses = {name: sweeps.valid(each).loss for name, each in data.items()}
        steps = sparse_attention.lengths(losses)
        figure, ((sizes, copies, rules),) = drawing.panels(1, 3, height=4.6)
        points = {"marker": "o", "ms": 9, "ls": "none", "color": drawing.colour(0)}

        flows = sparse_attention.flows(steps)
        trained, square = steps["length/simulation"], steps["square/simulation"]
        sizes.plot(8 * trained.length, trained, label="descent, d = 64", **points)  # sqrt(d) = 8
        for marker, (d, flow) in zip("x+1", flows.items(), strict=True):
            sizes.plot(d**0.5 * flow.length, flow, "k" + marker, label=f"flow, d = {d}")
        style = {"fmt": "s", "color": drawing.colour(1), "ms": 5}
        label = "training, T = d = 256, mean ± sd"
        sizes.errorbar(4096, square.mean(), square.std(ddof=1), label=label, **style)
        ends = np.array([4 * LENGTHS[0], 8 * LENGTHS[-1]])
        sizes.plot(ends, ROOT * ends, "k--", lw=1, label=r"$\sqrt{\pi/2}\,\sqrt{d}\,T$")
        sizes.set(xscale="log", yscale="log", xlabel=r"$\sqrt{d}\,T$", title=r"SGD at $\eta = 1$")
        for axis in (sizes.xaxis, sizes.yaxis):
            drawing.ticks(axis, (2000, 5000, 10000, 20000))

        descent, flow, printed = (steps[f"copies/{name}"] for name in THEORIES)
        closed = [sparse_attention.closed_form(256, 64, B) for B in COPIES]
        copies.plot(COPIES, descent, label="descent", **points)
        copies.plot(COPIES, flow, "kx", label="flow")
        copies.plot(COPIES, closed, "k--", lw=1, label=r"closed form, $\propto 1/\sqrt{B}$")
        style = {"color": drawing.colour(1), "label": "eqs. 13, 14 as printed"}
        copies.plot(COPIES, printed, "s:", **style)
        copies.set(xscale="log", yscale="log", title="repetition, T = 256, d = 64")
        copies.set_xlabel("copies $B$")
        drawing.ticks(copies.xaxis, COPIES)
        drawing.ticks(copies.yaxis, (500, 1000, 2000))

        for i, (name, (rule, *_)) in enumerate(RULES.items()):
            style = {"color": drawing.colour(i), "lw": 3}
            style["label"] = f"training, {name}, $\\eta$ = {rule.eta.peak:g}"
            runs, flow = losses[f"{name}/simulation"], losses[f"{name}/64-64"][0]
            drawing.band(rules, runs.time, runs, style, ddof=0)
            rules.plot(flow.time, flow, "k--", lw=1, label="flow" * (i == 0))
        rules.set(xlabel="optimiser steps", title="T = d = 64", xlim=(0, 1500))
        until = f"steps until the loss is\n{FALLEN} of its initial value"
        labels = {sizes: until, copies: until, rules: "mean square error / 2"}
        for ax, label in labels.items():
            # The curves fill the panels.
            legend = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
            drawing.finished(ax, legend, ylabel=label)

        slope, r2 = sparse_attention.law(flows)
        one = float(square.mean()), float(square.std(ddof=1)), float(flows[256].sel(length=256))
        text = [
            f"flow: {slope:.4f} sqrt(d) T steps, R^2 = {r2:.6f}; closed form: {ROOT:.4f}",
            "T = d = 256: training {:.1f} ± {:.1f}, flow {:.1f}".format(*one),
        ]
        for table in sparse_attention.tables(steps):
            text.append(table.to_string(float_format="%.5g", na_rep="-"))
        arrays = {name: {"loss": each.loss, "time": each.time} for name, each in data.items()}
        return sweeps.Picture(figure, arrays, "\n".join(text))
