"""`dynsim validate`: measure how accurate the theories are."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import dynsim
from dynsim import Trajectory
from dynsim.precision import precision
from odes import predictions, symmetric
from odes.solver.tolerances import Tolerances
from odes.yz import eq10, lemma3, population
from sweeps import output
from sweeps.output import drawing
from sweeps.runner import progress

GRID = np.geomspace(0.01, 1, 12)
"""Learning rates of the maps, the same for Y and for Z."""
STEPS = (50, 100)
"""Steps at which a flow is compared with descent."""
SMALL = 0.3
"""Learning rate of Adam up to which training takes more than a few steps."""
TOP = "z_top_distinct"
"""The logit of the top distinct token."""
OVERLAPS = (0.01, 0.05, 0.1, 0.3, 0.6)
CLASSES = (2, 5, 10)
RATES, TRAINED, SEEDS = (1.0, 0.1), 1000, 8
"""Learning rates, steps and number of runs for the tests of Theorems 2 and 3."""

MOMENTUM = functools.partial(dynsim.sgd, momentum=0.9)

Errors = Float[np.ndarray, "Y Z"]


@dataclasses.dataclass(frozen=True)
class Validate:
    """Measure how far a theory holds; print the table and write it as Markdown, with its data.

    Attributes:
        what: matched or adam: flows against descent over a 12 x 12 grid of learning rates;
            correction: errors with and without the next order in eta; overlap: Eq. 10 against the
            population flow over overlap and number of classes; theorems: Theorems 2 and 3 along
            trajectories; size: seconds for K = 1e5, M = 1e6.
        out: folder for the table, the data and the figure.
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("what",)

    what: Literal["matched", "adam", "correction", "overlap", "theorems", "size"]
    out: Path = Path("out/validate")


class Outcome(NamedTuple):
    """A table in Markdown, the numbers behind it, and a figure or None."""

    text: str
    arrays: Mapping[str, np.ndarray] | None = None
    figure: Figure | None = None


def run(config: Validate) -> list[Path]:
    """Measure, write and print the table; return the paths written."""
    output.check_directory(config.out)
    text, arrays, figure = MEASUREMENTS[config.what]()
    paths = output.write(config.out, config.what, arrays=arrays, figure=figure, text={"md": text})
    print(text)
    return paths


def matched() -> Outcome:
    """Compare the flows of momentum with descent."""
    titles = {
        "matched": "matched flow",
        "corrected": "corrected flow",
        "heavy-ball": "heavy-ball flow",
    }
    return maps(titles, MOMENTUM)[0]


def adam() -> Outcome:
    """Compare the flows of Adam with descent."""
    titles = {
        "corrected-adam": "corrected Adam flow",
        "matched-adam": "matched Adam flow",
        "adam": "Adam's flow",
    }
    found, errors = maps(titles, dynsim.adam)
    lines = ["", f"Within 3 % where both rates are at most {SMALL:g}:", ""]
    for flow, error in errors.items():
        share = share_within(error[GRID <= SMALL][:, GRID <= SMALL], 0.03)
        lines.append(f"* `{flow}`: {100 * share:.1f} %")
    return found._replace(text=found.text + "\n".join(lines) + "\n")


def maps(
    titles: Mapping[str, str], optimizer: Callable[..., dynsim.Rule]
) -> tuple[Outcome, dict[str, Errors]]:
    """Compute the errors of flows over the learning rates; return tables and maps, and errors."""
    errors = {flow: flow_error(flow, optimizer) for flow in progress.each(tuple(titles))}
    rows = []
    for flow, error in errors.items():
        shares = (f"{100 * share_within(error, each):.1f} %" for each in (0.01, 0.03, 0.1))
        rows.append((f"`{flow}`", *shares, f"{100 * error.max():.2g} %"))
    head = ("flow", "within 1 %", "within 3 %", "within 10 %", "worst")
    lines = output.markdown_table(head, rows)
    for flow, error in errors.items():
        lines += ["", f"`{flow}`, error in %; eta_Y down, eta_Z across, 0.01 to 1:", ""]
        lines += ["    " + " ".join(f"{100 * value:7.2f}" for value in row) for row in error]
    arrays = {"rates": GRID, **{f"error/{flow}": error for flow, error in errors.items()}}
    return Outcome("\n".join(lines) + "\n", arrays, draw(titles, errors)), errors


def flow_error(flow: str, optimizer: Callable[..., dynsim.Rule]) -> Errors:
    """Largest relative error of the flow against descent on Syn-Small with infinite T and batch, in
    the logit of the top distinct token at `STEPS`; (eta_y, eta_z) over `GRID`."""
    task, times = symmetric.symmetric_task(dynsim.SynSmall().build()), np.array(STEPS)

    def one(eta_y: jax.Array, eta_z: jax.Array) -> jax.Array:
        rule = optimizer(eta_y, eta_z)
        solved = symmetric.solve(task, rule, times, flow=flow, record=(TOP,))
        descent = symmetric.descend(task, rule, steps=STEPS[-1], times=times, record=(TOP,))
        error = jnp.abs(solved[TOP] / descent[TOP] - 1)
        return jnp.where(solved.ok & descent.ok, jnp.max(error), jnp.inf)

    with precision("float64"):
        eta_y, eta_z = (
            jnp.asarray(rates.ravel()) for rates in np.meshgrid(GRID, GRID, indexing="ij")
        )
        errors = jax.vmap(one)(eta_y, eta_z)
    return np.asarray(errors).reshape(len(GRID), len(GRID))


def share_within(errors: Errors, tolerance: float) -> float:
    """Share of the map whose relative error is at most `tolerance`."""
    return float(np.mean(errors <= tolerance))


def draw(titles: Mapping[str, str], errors: Mapping[str, Errors]) -> Figure:
    """Draw one error map per flow."""
    figure, axes = drawing.panels(1, len(titles))
    for ax, (flow, error) in zip(axes[0], errors.items(), strict=True):
        plot_map(error, ax=ax).set_title(titles[flow])
    return figure


def plot_map(error: Errors, ax: Axes) -> Axes:
    """Draw the relative error over the learning rates on a logarithmic colour scale."""
    percent = 100 * np.clip(error, 1e-4, 1)
    style = {"norm": LogNorm(0.01, 100), "cmap": "cividis_r", "rasterized": True}
    mesh = ax.pcolormesh(GRID, GRID, percent, shading="nearest", **style)
    ax.set(xscale="log", yscale="log", xlabel=r"$\eta_Z$", ylabel=r"$\eta_Y$")
    ax.figure.colorbar(mesh, ax=ax, label="relative error (%)")
    return ax


def correction() -> Outcome:
    """Compare the plain and the corrected flow with descent: relative error at step 100 in the
    logit of the top distinct token on Syn-Small."""
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    rules = {
        "sgd": (dynsim.sgd, ("plain", "corrected")),
        "momentum 0.9": (MOMENTUM, ("matched", "corrected")),
    }
    rates = ((0.1, 0.1), (1.0, 1.0), (3.0, 1.0), (5.0, 1.0), (10.0, 1.0))
    rows = []
    for name, (eta_y, eta_z) in progress.each(tuple(itertools.product(rules, rates)), "case"):
        rule, flows = rules[name]
        optimizer = rule(eta_y, eta_z)
        want = symmetric.descend(task, optimizer, steps=100, times=[100])[TOP]
        found = (symmetric.solve(task, optimizer, [0, 100], flow=flow)[TOP][-1] for flow in flows)
        errors = (f"{100 * float((each / want).item() - 1):+.3f} %" for each in found)
        rows.append((name, f"{eta_y:g}", f"{eta_z:g}", *errors))
    head = ("rule", "eta_Y", "eta_Z", "usual flow", "corrected flow")
    return Outcome("\n".join(output.markdown_table(head, rows)) + "\n")


class Eq10Errors(NamedTuple):
    """Relative l2 errors over time; logits are those of a distinct token.

    Attributes:
        speed: gamma(t) against f.g of the population flow.
        logit, logit_paper: Eq. 10 against the population flow, in the time of SGD and of the paper.
        lemma3: Eq. 10 against the flow under Lemma 3's update, in the time of SGD.
        finite_m, finite_m_paper: Eq. 10 with the finite-M terms against that flow, in both times.
    """

    speed: float
    logit: float
    logit_paper: float
    lemma3: float
    finite_m: float
    finite_m_paper: float


def eq10_errors(K: int, overlap: float) -> Eq10Errors:
    """Errors of Eq. 10 on `dynsim.Overlapping`, at 40 logarithmically spaced times from 0.1 to 12 K
    ln M steps (about 4 t0), with eta_Y = 1 and eta_Z = 0.1."""
    task, optimizer = dynsim.Overlapping(K, overlap).build(), dynsim.sgd(1.0, 0.1)
    times = np.r_[0, np.geomspace(0.1, 12 * K * np.log(task.M), 40)]
    record = ("speed", TOP)
    flow = population.solve(task, optimizer, times, record=record)
    modified = lemma3.solve(task, optimizer, times, record=record)
    sgd, paper, finite, finite_paper = (
        eq10.solve(task, optimizer, times, convention=convention, finite_m=finite_m, record=record)
        for finite_m, convention in itertools.product((False, True), ("sgd", "paper"))
    )

    def error(got: Trajectory, want: Trajectory, name: str = TOP) -> float:
        return float(np.linalg.norm(got[name] - want[name]) / np.linalg.norm(want[name]))

    return Eq10Errors(
        error(sgd, flow, "speed"),
        error(sgd, flow),
        error(paper, flow),
        error(sgd, modified),
        error(finite, modified),
        error(finite_paper, modified),
    )


def overlap() -> Outcome:
    """Tabulate the errors of Eq. 10 over the number of classes and their overlap."""
    rows = []
    cases = tuple(itertools.product(CLASSES, OVERLAPS))
    for K, overlap in progress.each(cases, "case", lambda case: f"K={case[0]}, overlap={case[1]}"):
        # The last error, finite_m_paper, has no column.
        errors = (f"{100 * error:.2g} %" for error in eq10_errors(K, overlap)[:-1])
        rows.append((str(K), f"{overlap:g}", *errors))
    conventions = ("time of SGD", "time of the paper", "time of SGD, Lemma 3", "finite M, Lemma 3")
    lines = output.markdown_table(("K", "overlap", "gamma against f.g", *conventions), rows)
    lines += [
        "",
        "Relative l2 error over time of Eq. 10. First three columns: against the population flow,",
        "in the speed coefficient, then in the logit of a distinct token by convention. Last two:",
        "logit against the flow under Lemma 3's modified update, which Eq. 10 really describes.",
    ]
    return Outcome("\n".join(lines) + "\n")


def theorems() -> Outcome:
    """Tabulate how often the signs of Theorem 2 and Corollary 2 are right, and the errors of the
    laws of Theorem 3. They are exact on the Eq. 10 flow, and approximate on the population flow and
    in training."""
    task, optimizer = dynsim.SynSmall().build(), dynsim.sgd(*RATES)
    times, record = dynsim.log_times(TRAINED, 40), ("z", "xi")
    sharp = Tolerances(1e-10, 1e-12)
    training = {"steps": TRAINED, "batch": 128, "times": times, "dtype": "float64"}
    with precision("float64"):
        closed = eq10.solve(task, optimizer, times, record=(*record, "B"), tolerances=sharp)
        flow = population.solve(task, optimizer, times, record=record, tolerances=sharp)
        runs = jax.vmap(
            lambda key: dynsim.train(dynsim.Layer(task), optimizer, key, record=record, **training)
        )(keys(SEEDS))
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], runs) for i in range(SEEDS)]
    trajectories = {
        "Eq. 10 flow": [closed],
        "population flow": [flow],
        f"simulation, T = 128, {SEEDS} runs": members,
    }
    rows = []
    for name, each in trajectories.items():
        measured = [tested(task, times, run) for run in each]
        shares = (f"{100 * share:.1f} %" for share in np.mean([m[:2] for m in measured], axis=0))
        worst = np.max([m[2] for m in measured])
        margins = (f"{margin:+.1e}" for margin in np.min([m[3:] for m in measured], axis=0))
        rows.append((name, *shares, f"{100 * worst:.2g} %", *margins))
    signs = ("distinct gain (Thm 2)", "common lose (Cor. 2)", "r = r(0) chi missed by")
    bounds = ("lower bound: least margin", "upper bound: least margin")
    lines = [
        f"Syn-Small, SGD, eta_Y = {RATES[0]:g}, eta_Z = {RATES[1]:g}, {TRAINED} steps.",
        "",
        *output.markdown_table(("trajectory", *signs, *bounds), rows),
        "",
        "Shares are over tokens and intervals between recorded times. Margins are in nat, over",
        "all times and classes: the bounds of Theorem 3 hold where they are not negative. B is a",
        "state of the Eq. 10 flow; elsewhere it is the trapezoidal integral of the measured xi.",
    ]
    return Outcome("\n".join(lines) + "\n")


def keys(number: int) -> PRNGKeyArray:
    """Keys of the first `number` seeds of a sweep whose root is 0."""
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(number))


def tested(
    task: dynsim.SequenceClasses, times: np.ndarray, run: Trajectory
) -> tuple[float, float, float, float, float]:
    """Return the shares of distinct and of common tokens with the right sign, the largest relative
    error of the gain, and the smallest margins of the lower and the upper bound, along a
    trajectory."""
    z = np.asarray(run["z"])
    if "B" in run.observables:
        B = np.asarray(run["B"])
    else:
        xi = np.asarray(run["xi"])
        B = predictions.bound_from_xi(times, xi, RATES[1], np.asarray(task.prior))
    signs = predictions.agreement(task, times, z)
    error = float(np.nanmax(predictions.relative_gain_error(task, z)))
    # All margins are 0 at the start.
    lower, upper = (float(each[1:].min()) for each in predictions.sandwich(task, z, B))
    return signs.distinct, signs.common, error, lower, upper


def size() -> Outcome:
    """Time the compiled symmetric reduction for K = 1e5, M = 1e6 up to t = 1e8."""
    small = symmetric.symmetric_task(dynsim.SynSmall().build())
    task = symmetric.symmetric_profiles(small.p, small.rho, 10**5, 10**6, 10**5)
    times = np.r_[0, np.geomspace(1, 1e8, 30)]
    solve = functools.partial(symmetric.solve, task, times=times)
    jax.block_until_ready(solve(optimizer=dynsim.sgd(1.0, 1.0)))
    seconds = []
    for eta in progress.each((0.9, 1.1, 1.0), "run"):
        begin = time.perf_counter()
        result = jax.block_until_ready(solve(optimizer=dynsim.sgd(eta, eta)))
        seconds.append(time.perf_counter() - begin)
    status = dynsim.Status(int(result.status)).name
    return Outcome(f"K = 1e5, M = 1e6, t = 1e8: {np.median(seconds):.3f} s warm, {status}\n")


MEASUREMENTS: dict[str, Callable[[], Outcome]] = {
    "matched": matched,
    "adam": adam,
    "correction": correction,
    "overlap": overlap,
    "theorems": theorems,
    "size": size,
}
