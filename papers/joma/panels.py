"""The six panels of the figure joma, and its tables."""

import numpy as np

import odes
from sweeps import drawing

SEQUENCES = {"bumps": "distinct tokens in bumps", "random": "random frequencies"}


def draw(along, toy, runs, growth):
    """Draw the correlations of `along`, the toy, and the runs of the sweeps, of which `growth` are
    those of Theorem 2."""
    figure, ((fig2, fig3, fig4), (two, *twenty)) = drawing.panels(2, 3)
    for i, (kind, values) in enumerate(along.items()):
        style = {"color": drawing.colour(i), "lw": 2, "label": SEQUENCES[kind]}
        fig2.plot(values.time[1:], values[1:], **style)
    fig2.axhline(1, color="k", ls="--", lw=1, label="Theorem 1")
    fig2.set(xscale="log", title="softmax, temperature 0.5, cross-entropy", ylim=(None, 1.001))
    finish(fig2, "correlation of $z$ and Theorem 1")
    theorem2(fig3, runs, growth)
    style = {"color": drawing.colour(0), "label": "recursion", **drawing.TRAINED}
    fig4.plot(toy["time"], toy["entropy"], **style)
    fig4.plot(toy["closed/time"], toy["closed/entropy"], "k--", lw=1, label="closed form")
    fig4.axhline(float(toy["end"]), color="0.5", ls=":", label=r"$v = \mu$")
    fig4.set(xlim=(0, toy["time"][-1]), title=r"toy, $v' = (\mu - v) \circ$ softmax$(v^2/3)$")
    finish(fig4, "entropy of attention (nat)", "time")
    entropies = {n.split("/")[1]: r.entropy for n, r in runs.items() if n.startswith("entropy/")}
    for i, (activation, entropy) in enumerate(entropies.items()):
        course = entropy.sel(temperature=0.5).isel(time=slice(1, None))
        style = {"color": drawing.colour(i), "lw": 2, "label": f"training, {activation}"}
        drawing.band(two, course.time, course, style, ddof=0)
    two.set(xscale="log", title="softmax, 2 classes, 4 seeds (band: sd)")
    finish(two, "entropy of attention (nat)")
    for ax, kind in zip(twenty, ("softmax-relu", "exp-relu"), strict=True):
        dense = {n: r.entropy for n, r in runs.items() if n.startswith(f"dense/{kind}/")}
        for i, (name, entropy) in enumerate(dense.items()):
            label = f"length {name.split('/')[2]}".replace("inf", "∞")
            for course in entropy.isel(time=slice(1, None)):
                ax.plot(course.time, course, color=drawing.colour(i), lw=1.5, label=label)
                label = None
        title = f"{kind.replace('-', ', ')}, 20 classes, each run"
        ax.set(xscale="log", title=title)
        finish(ax, "entropy of attention (nat)")
    return figure


def theorem2(ax, runs, growth):
    """Token weights during training with exp attention, and Theorem 2's prediction, of every third
    token by its last weight."""
    trained, theory = (runs[f"growth/{each}"].weight[0] for each in ("simulation", "erf"))
    tokens = np.argsort(-trained[-1].values)[[0, 3, 6, 9]]
    for i, token in enumerate(tokens):
        style = {"color": drawing.colour(i), "label": f"training, token {token}"}
        ax.plot(trained.time, trained[:, token], **style, **drawing.TRAINED)
    for token in tokens:
        label = "Theorem 2, erf" if token == tokens[0] else None
        ax.plot(theory.time, theory[:, token], "k--", lw=1, label=label)
    end = float(odes.joma.blow_up(*growth.built))  # the time t* of Theorem 2
    ax.axvline(end, color="0.5", ls=":", label="blow-up $t^*$")
    ax.set_title("exp attention, linear activation, fixed signal")
    finish(ax, "norm of the weights of a token")


def finish(ax, quantity, xlabel="optimiser steps"):
    """Axis labels, a grid and a legend."""
    drawing.finished(ax, {}, xlabel=xlabel, ylabel=quantity)
