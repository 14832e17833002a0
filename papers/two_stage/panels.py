"""The panels of the figure two_stage: means of runs as wide lines with bands, theory as thin ones.

Runs and theory are datasets by experiment; time 0 is left out, as the axes are logarithmic.
"""

import math

from matplotlib.ticker import LogLocator

from sweeps import drawing

P, Q, BEST, AUC, JOINT = range(5)
"""Indices of colours: of components, of other measures of Q, and of the joint loss."""
CONTROLS = {
    "forever": (P, "large rate throughout"),
    "small": (BEST, "small rate throughout"),
    "smallinit": (AUC, "the same from smaller weights"),
}
"""Colour index and label of each control."""
STAGE = {"lw": 0.8, "ls": (0, (1, 4))}
THEORY = {"ls": "-", "lw": 1.3}


def draw(experiments, runs, theory):
    """Draw six panels."""
    figure, axes = drawing.panels(2, 3, height=3.8)
    keys = {"training, mean ± sd": drawing.TRAINED, "reduced ODE": THEORY, "end of stage 1": STAGE}
    drawing.below(figure, [drawing.key(text, **style) for text, style in keys.items()], 3)
    main, solved = runs["preset"], theory["preset"]
    losses(axes[0, 0], main, solved, "component losses", {"$K^1$": P, "$K^2$": Q})
    accuracies(axes[0, 1], main)
    traces = {r"Tr $\overline{W}$": ("W_trace", P), r"|Tr $\overline{V}$|": ("V_trace_abs", Q)}
    for label, (name, place) in traces.items():
        curve(axes[0, 2], main, name, place, label, theory=solved)
    finish(axes[0, 2], main, "trace of the signal", "traces of the signal")
    norms(axes[1, 0], main, solved)
    for name, (place, label) in {"preset": (Q, "two stages"), **CONTROLS}.items():
        curve(axes[1, 1], runs[name], "K2", place, label, theory=theory[name])
    finish(axes[1, 1], main, "$K^2$ (nat)", "$K^2$ of the controls", ylim=(0.3, 0.9))
    joint = experiments["joint"].problem
    title = f"joint loss: r = {joint.r:g}, c = {joint.coupling:g}"
    names = {"$K^1$": P, "$K^2$": Q, "$J$": JOINT}
    losses(axes[1, 2], runs["joint"], theory["joint"], title, names)
    number = main.sizes["seed"]
    figure.suptitle(
        f"{experiments['preset'].about}, {number} {'run' if number == 1 else 'runs'}: mean (wide "
        f"lines) ± sd\n{about(experiments['preset'])}"
    )
    return figure


def curve(ax, runs, name, place, label, ls="-", theory=None):
    """An observable of the runs, and of the theory with a white edge that sets it off."""
    colour, times = drawing.colour(place), runs.eta_time[0, 1:]
    style = {"color": colour, "ls": ls, "label": label, **drawing.TRAINED}
    drawing.band(ax, times, runs[name][:, 1:], style)
    if theory is not None:
        edge = drawing.cased(0.6)
        ax.plot(times, theory[name][1:], color=colour, zorder=2.1, path_effects=edge, **THEORY)


def losses(ax, runs, theory, title, names):
    """Losses by label, with the loss of chance and the floor of K2."""
    for label, place in names.items():
        curve(ax, runs, label.strip("$").replace("^", ""), place, label, theory=theory)
    for text, nat, ls in (("log 2", math.log(2), "-"), ("log(2)/2", math.log(2) / 2, "-.")):
        ax.axhline(nat, color="grey", lw=0.8, ls=ls)
        options = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        ax.annotate(text, (0.99, nat + 0.01), **options)
    # Random weights start with a loss above this range.
    finish(ax, runs, "logistic loss (nat)", title, (0, 0.9), loc="lower left")


def accuracies(ax, runs):
    """Sign accuracies, and the accuracy of the best threshold on N_V."""
    curve(ax, runs, "accuracy_P", P, "P, sign")
    curve(ax, runs, "accuracy_Q", Q, "Q, sign")
    curve(ax, runs, "best_accuracy_Q", BEST, "Q, best threshold")
    curve(ax, runs, "auc_Q", AUC, "Q, AUC", "--")
    ax.axhline(0.75, color="grey", lw=0.8)
    # The legend lies below chance, where no curve is.
    legend = {"loc": "lower right", "ncols": 2}
    finish(ax, runs, "accuracy, AUC", "accuracies", (0.2, 1.03), **legend)


def norms(ax, runs, theory):
    """Frobenius norms of the weights and of their signal and noise parts."""
    for block, place in (("W", P), ("V", Q)):
        curve(ax, runs, f"{block}_norm", place, rf"$\|{block}\|_F$", theory=theory)
        for part, ls, mark in (("signal", "--", "overline"), ("noise", ":", "widetilde")):
            mean = runs[f"{block}_{part}_norm"].mean("seed")[1:]
            style = {"color": drawing.colour(place), "ls": ls, "lw": 2.5}
            style["label"] = rf"$\|\{mark}{{{block}}}\|_F$"
            ax.plot(runs.eta_time[0, 1:], mean, **style)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    ax.yaxis.set_minor_formatter("{x:g}")
    finish(ax, runs, "Frobenius norm", "norms")


def finish(ax, runs, ylabel, title, ylim=None, **legend):
    """Labels, a legend, and a line at the end of the first stage."""
    time = runs.eta_time[0]
    ax.axvline(time[runs.switch], color="k", **STAGE)
    ncols = 1 if len(ax.get_legend_handles_labels()[0]) < 5 else 2
    style = {"framealpha": 0.7, "ncols": ncols, "columnspacing": 1, "handlelength": 1.6, **legend}
    labels = {"xlabel": r"$\eta$-time", "ylabel": ylabel, "title": title, "ylim": ylim}
    drawing.finished(ax, style, xscale="log", xlim=(time[1], time[-1]), **labels)


def about(run):
    """The task and the batch in a line, then the rule."""
    task, rule = run.problem, run.rule
    return (
        f"d = {task.d}, L = {task.length}, $\\gamma_0$ = {task.gamma0:g}, $s_1$ = {task.s1:g}, "
        f"$s_2$ = {task.s2:g}, r = {task.r:g}, c = {task.coupling:g}, batch {run.batch}\n"
        f"$\\eta_1$ = {rule.eta_1:g}, $\\eta_2$ = {rule.eta_2:g}, $\\lambda$ = {rule.decay:g}, "
        f"$\\tau$ = {rule.tau:g}, stage 2 of {rule.stage_2:g}/$\\lambda$"
    )
