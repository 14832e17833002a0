"""`dynsim validate`: measure how far the theories hold, and write the tables of the docs."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import dynsim
from sweeps import output
from sweeps.output import drawing
from sweeps.runner import progress
from sweeps.studies.tables import measurements, rules, slips, tails, theorems, verdicts

SMALL = 0.3
"""Up to here the rates of Adam are those of training that takes more than a few steps."""
What = Literal[
    "matched",
    "adam",
    "correction",
    "overlap",
    "theorems",
    "size",
    "slips",
    "rules",
    "tails",
    "verdicts",
]


@dataclasses.dataclass(frozen=True)
class Validate:
    """Measure how far a theory holds; print the table and write it as Markdown, with its data.

    Attributes:
        what: matched or adam: flows against descent over a 12 x 12 grid of learning rates;
            correction: what the next order in eta removes; overlap: Eq. 10 against the population
            flow over overlap and number of classes; theorems: Theorems 2 and 3 along
            trajectories; size: seconds for K = 1e5, M = 1e6; slips: the page on the papers' slips;
            rules: every flow against descent by its rule, with schedules and weight decay;
            tails: theories of the loss late in training, with and without rare sequences, against
            96 runs; verdicts: how often figure scaling is wrong.
        out: directory for the table, the data and the picture.
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("what",)

    what: What
    out: Path = Path("out/validate")


class Outcome(NamedTuple):
    """A table in Markdown, the numbers behind it, and a picture if there is one."""

    text: str
    arrays: Mapping[str, np.ndarray] | None = None
    figure: Figure | None = None


def run(config: Validate) -> list[Path]:
    """Measure, write and print the table; returns the paths written."""
    output.check_directory(config.out)
    outcome = MEASUREMENTS[config.what]()
    paths = output.write(
        config.out,
        config.what,
        arrays=outcome.arrays,
        figure=outcome.figure,
        text={"md": outcome.text},
    )
    print(outcome.text)
    return paths


def _maps(flows: Mapping[str, str], optimizer: Callable[..., dynsim.Rule]) -> Outcome:
    errors: dict[str, np.ndarray] = {
        flow: measurements.flow_error(flow, optimizer) for flow in progress.each(tuple(flows))
    }
    rows = []
    for flow, error in errors.items():
        shares = (measurements.share_within(error, t) for t in (0.01, 0.03, 0.1))
        cells = (f"{100 * share:.1f} %" for share in shares)
        rows.append((f"`{flow}`", *cells, f"{100 * error.max():.2g} %"))
    head = ("flow", "within 1 %", "within 3 %", "within 10 %", "worst")
    lines = output.markdown_table(head, rows)
    for flow, error in errors.items():
        lines += ["", f"`{flow}`, error in %; eta_Y down, eta_Z across, 0.01 to 1:", ""]
        lines += ["    " + " ".join(f"{100 * value:7.2f}" for value in row) for row in error]
    arrays = {"rates": measurements.GRID, **{f"error/{f}": e for f, e in errors.items()}}
    return Outcome("\n".join(lines) + "\n", arrays, draw(flows, errors))


def draw(flows: Mapping[str, str], errors: Mapping[str, np.ndarray]) -> Figure:
    """A map of errors for each flow."""
    figure, axes = drawing.panels(1, len(flows))
    for ax, (flow, error) in zip(axes[0], errors.items(), strict=True):
        plot_map(error, ax=ax).set_title(flows[flow])
    return figure


def plot_map(error: np.ndarray, ax: Axes) -> Axes:
    """Relative error over the learning rates, on a logarithmic colour scale."""
    percent = 100 * np.clip(error, 1e-4, 1)
    rates = measurements.GRID
    mesh = ax.pcolormesh(
        rates, rates, percent, norm=LogNorm(0.01, 100), shading="nearest", rasterized=True
    )
    ax.set(xscale="log", yscale="log", xlabel=r"$\eta_Z$", ylabel=r"$\eta_Y$")
    ax.figure.colorbar(mesh, ax=ax, label="relative error (%)")
    return ax


def _matched() -> Outcome:
    titles: dict[str, str] = {
        "matched": "matched flow",
        "corrected": "corrected flow",
        "heavy-ball": "heavy-ball flow",
    }
    return _maps(titles, dynsim.momentum)


def _adam() -> Outcome:
    titles: dict[str, str] = {
        "corrected-adam": "corrected Adam flow",
        "matched-adam": "matched Adam flow",
        "adam": "Adam's flow",
    }
    found = _maps(titles, dynsim.adam)
    small, errors = measurements.GRID <= SMALL, found.arrays or {}
    lines = ["", f"Within 3 % where both rates are at most {SMALL:g}:", ""]
    for flow in titles:
        share = measurements.share_within(errors[f"error/{flow}"][small][:, small], 0.03)
        lines.append(f"* `{flow}`: {100 * share:.1f} %")
    return found._replace(text=found.text + "\n".join(lines) + "\n")


def _correction() -> Outcome:
    rows = (
        (rule, f"{eta_y:g}", f"{eta_z:g}", *(f"{100 * error:+.3f} %" for error in errors))
        for (rule, eta_y, eta_z), errors in measurements.correction_errors().items()
    )
    head = ("rule", "eta_Y", "eta_Z", "usual flow", "corrected flow")
    return Outcome("\n".join(output.markdown_table(head, rows)) + "\n")


def _overlap() -> Outcome:
    rows = []
    cases = tuple(itertools.product(measurements.CLASSES, measurements.OVERLAPS))
    for K, overlap in progress.each(cases, "case", lambda case: f"K={case[0]}, overlap={case[1]}"):
        e = measurements.eq10_errors(K, overlap)
        shown = (e.speed, e.logit, e.logit_paper, e.lemma3, e.finite_m)
        rows.append((str(K), f"{overlap:g}", *(f"{100 * error:.2g} %" for error in shown)))
    clocks = ("sgd clock", "paper's clock", "sgd clock, Lemma 3", "finite M, Lemma 3")
    lines = output.markdown_table(("K", "overlap", "gamma against f.g", *clocks), rows)
    lines += [
        "",
        "Relative l2 error over time of Eq. 10. First three columns: against the population flow,",
        "in the speed coefficient, then in the logit of a distinct token by each clock. Last two:",
        "logit against the flow under Lemma 3's modified update, which Eq. 10 really describes.",
    ]
    return Outcome("\n".join(lines) + "\n")


def _size() -> Outcome:
    seconds, status = measurements.huge_task_seconds()
    return Outcome(f"K = 1e5, M = 1e6, t = 1e8: {seconds:.3f} s warm, {status}\n")


MEASUREMENTS: dict[What, Callable[[], Outcome]] = {
    "matched": _matched,
    "adam": _adam,
    "correction": _correction,
    "overlap": _overlap,
    "theorems": lambda: Outcome(theorems.markdown()),
    "size": _size,
    "slips": lambda: Outcome(slips.markdown()),
    "rules": lambda: Outcome(rules.markdown()),
    "tails": lambda: Outcome(tails.markdown()),
    "verdicts": lambda: Outcome(verdicts.markdown()),
}
