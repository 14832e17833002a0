"""`dynsim explain`: predicts a run from theory, with the error of each number."""

import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from dynsim import Problem, Rule, Status, Trajectory, log_times
from dynsim.precision import precision
from dynsim.problem.checks import has_population
from dynsim.schedules import Constant, Schedule
from dynsim.trajectory import crossings
from odes.batch_noise import THEORY as NOISE
from odes.batch_noise import size_of
from odes.theory import AnyTheory
from sweeps import output
from sweeps.commands.breakdown import MOST_WEIGHTS
from sweeps.commands.breakdown.noise import GROUPED, noise_rows
from sweeps.commands.breakdown.steps import against_descent
from sweeps.runner.progress import quiet, say
from sweeps.systems import registry
from sweeps.systems.base import Prediction, Row
from sweeps.systems.experiment import Experiment, as_experiment

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

LOSS_TIMES = 256
"""Number of recorded times of the loss, which is interpolated between them."""


@dataclasses.dataclass(frozen=True)
class Explain:
    """Predict a run from theory: a table of its loss and its transition times, the error of each,
    and the assumptions that it strains. Of the attention layer in Y and Z the prediction is for T,
    batch -> infinity.

    Attributes:
        run: what is predicted.
        json: print JSON instead of text.
    """

    RUN: ClassVar[Mapping[str, Any]] = {"problem": "yz"}

    run: Experiment
    json: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """The predictions of `explain`: a table, and the course of the loss.

    Attributes:
        about: the run: its problem, rule and steps.
        theory: title of the theory that computed the mean, the first applicable one.
        status: status of its solve.
        course: `time`, the predicted `loss`, and its `loss_error`, NaN where it is not known.
        rows: quantities with their prediction, its error, and the assumption that is strained.
        applicable: titles of the theories that describe the run, by name; empty if its system
            predicts it by itself, as that of the attention layer in Y and Z does.
        refused: reasons why the others do not apply, by name.
        compared: what linear noise was compared with; empty if it was not.

    Raises:
        KeyError: for a quantity that the table does not have.

    Example:
        >>> found = sweeps.explain("saxe", eta=0.1, steps=200)
        >>> found["loss at the end"].prediction, found["loss at the end"].error
        >>> figure = found.plot()
    """

    about: str
    theory: str
    status: str
    course: Mapping[str, np.ndarray]
    rows: tuple[Row, ...]
    applicable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    compared: str = ""

    def __getitem__(self, quantity: str) -> Row:
        """Return the row of a quantity."""
        rows = {row.quantity: row for row in self.rows}
        if quantity not in rows:
            raise KeyError(f"{quantity!r} is not in the table; it has: {', '.join(rows)}")
        return rows[quantity]

    @property
    def strained(self) -> tuple[str, ...]:
        """The assumptions that hold poorly for this run, one sentence each."""
        return tuple(row.strained for row in self.rows if row.strained)

    @property
    def dataset(self) -> "xr.Dataset":
        """The course of the loss over `time`, and the table over `quantity`: `prediction`, NaN
        where it is a word, `error` and the `strained` assumption."""
        # Takes as long to import as an explanation takes to compute.
        import xarray as xr

        rows = [row for row in self.rows if not isinstance(row.prediction, str)]
        names = ("prediction", "error", "strained")
        table = {n: ("quantity", [getattr(row, n) for row in rows]) for n in names}
        loss = {n: ("time", self.course[n]) for n in ("loss", "loss_error")}
        quantities = [row.quantity for row in rows]
        return xr.Dataset(loss | table, {"time": self.course["time"], "quantity": quantities})

    def plot(self) -> "Figure":
        """Draw the predicted loss over time, within its error, and the steps at which parts of its
        decrease are reached."""
        from sweeps.output import drawing

        figure, ((ax,),) = drawing.panels(1, 1, width=5, height=3.4)
        time, loss, error = (self.course[n] for n in ("time", "loss", "loss_error"))
        ax.plot(time, loss, label=self.theory)
        ax.fill_between(time, loss - error, loss + error, alpha=0.25, lw=0)
        for place, label in enumerate(("half", "90 %"), 1):
            step = self[f"{label} of the decrease by step"].prediction
            style = {"color": drawing.colour(place), "ls": drawing.DASHES[place]}
            ax.axvline(float(step), label=f"{label} of the decrease", **style)
        ax.set_title(textwrap.fill(self.about, 60))
        drawing.finished(ax, {}, xlabel="time (step)", ylabel="loss")
        return figure

    def __repr__(self) -> str:
        end = " ".join(format_row(self.rows[1])).strip()
        return f"<Explanation of {self.about}: {self.rows[1].quantity} {end} (with its error)>"

    def __str__(self) -> str:
        """Format the table as text."""
        lines = [self.about, ""]
        parts = {"theories that apply, those of the problem itself first:": self.applicable}
        parts["theories that do not apply:"] = self.refused
        for heading, theories in parts.items():
            if theories:
                listed = (f"  {name:<20}{text}" for name, text in theories.items())
                lines += [heading, *listed, ""]
        lines += [f"theory: {self.theory} ({self.status})"]
        if self.compared:
            lines += [f"linear noise: compared with {self.compared}"]
        table = [("quantity", "prediction", "error", "strained", "at step")]
        for row in self.rows:
            at = "" if math.isnan(row.worst) else f"{row.worst:.5g}"
            assumption = re.split(" \\(|: ", row.strained)[0]
            table.append((row.quantity, *format_row(row), assumption, at))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        aligned = zip("<>><>", widths, strict=True)
        form = "  ".join(f"{{:{side}{width}}}" for side, width in aligned)
        lines += ["", *(form.format(*cells).rstrip() for cells in table), ""]
        lines += ["strained assumptions:" if self.strained else "no assumption is strained"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.strained)])


def format_row(row: Row) -> tuple[str, str]:
    """Return the prediction, with the digits that its error leaves, and the error."""
    value, error = row.prediction, row.error
    if isinstance(value, str):
        return value, ""
    if not math.isfinite(value):
        return "-", ""
    if not 0 < error < math.inf:
        return f"{value:.5g}", "0" if error == 0 else "-"
    digits = 5
    if value:
        # Down to the second digit of the error.
        digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2
    return f"{value:.{min(max(digits, 1), 5)}g}", f"{error:.2g}"


def run(config: Explain) -> None:
    """Predict and print."""
    config.run.check(rounded=False)
    explanation = _explain(config.run)
    if config.json:
        fields = dataclasses.fields(explanation)
        table = {field.name: getattr(explanation, field.name) for field in fields}
        table["rows"] = [row._asdict() for row in explanation.rows]
        table["strained"] = explanation.strained
        del table["course"]
        print(json.dumps(output.as_json(table), indent=2))
    else:
        print(explanation)


def explain(run: Any = "yz", rule: Any = None, /, **settings: Any) -> Explanation:
    """Predict a run from the first applicable theory, with the errors of the prediction and the
    assumptions that the run strains.

    Args:
        run: a `sweeps.Experiment`; or a problem or its name, as in `sweeps.experiment`.
        rule: the update rule; by default that of the problem.
        settings: settings of the run, by name.

    Returns:
        A table: see `Explanation`. `print` shows all of it, and `plot()` draws the loss.

    Raises:
        ValueError: naming the setting, its value and what is allowed; or if no theory describes the
            run.

    Example:
        >>> found = sweeps.explain("yz", eta_y=1.0, eta_z=0.1, steps=50)
    """
    experiment = as_experiment(run, rule, **settings)
    experiment.check(rounded=False)
    with quiet():
        return _explain(experiment)


def _explain(run: Experiment) -> Explanation:
    with precision("float64"):
        # The theory: the system's own prediction, or the first theory of the loss.
        system, theories, reasons = registry.system_of(run), {}, {}
        if system.predict is not None:
            predicted = system.predict(run)
        else:
            theories, reasons = registry.applicable(run)
            say("compiling, or loading what is kept: a theory, and training to compare it with")
            predicted = _solve(run, theories)

        # Linear noise against short trainings. Without a population loss, it also has a mean.
        training = predicted.training if predicted else run.training()
        problem, rule, steps = training.problem, training.rule, training.steps
        has_loss = isinstance(problem, Problem)
        key = lambda: jax.random.fold_in(jax.random.key(0), run.seed)  # noqa: E731  (takes 0.2 s)
        noise, compared, mean = [], "", None
        if has_loss and steps and not NOISE.why_not(problem, rule, training.batch, steps):
            batch = int(training.batch)
            noise, compared, mean = noise_rows(problem, rule, key(), steps, batch)
        if predicted is None:
            if mean is None:
                unique = dict.fromkeys(("no theory describes its loss", *reasons.values()))
                raise ValueError(f"{run.about}: {'; '.join(unique)}")
            predicted = Prediction(NOISE.title, training, mean, has_limit=False)
        # In NumPy: JAX would compile each operation on its own.
        theory, solved = predicted.theory, jax.device_get(predicted.solved)
        predicted = predicted._replace(solved=solved)
        times, loss = np.asarray(solved.times), np.asarray(solved["loss"])

        # Descent, up to the edge of stability. Of an exact theory only the edge is new.
        step_error, descent = None, []
        limit = has_loss and steps and predicted.has_limit and has_population(problem)
        if limit and (not predicted.exact or size_of(problem) <= MOST_WEIGHTS):
            step_error, descent = against_descent(problem, rule, key(), theory, times, loss)

        # The loss, and when it decreases.
        unknown = np.where((times == 0) | predicted.exact, 0.0, math.nan)
        error = np.asarray((solved.mean_error or {}).get("loss", unknown))
        course = {"time": times, "loss": loss, "loss_error": error}
        rows = _loss_rows(predicted, error, step_error)
        rows[1] = descent.pop(0) if descent else rows[1]
        if (last := solved.times[-1]) < (steps or last):
            rows[1] = rows[1]._replace(quantity=f"loss at step {last:g}")
        if (status := Status(int(solved.status))) != Status.OK:
            bad, ended = int(solved.first_bad_step), f"its solve ends {status.name}"
            sentence = f"{theory}: {ended}; it has no prediction from step {bad} on"
            rows[1] = rows[1]._replace(strained=sentence, worst=float(bad))
        jumps = {float(jump) for schedule in _changing(rule) for jump in schedule.jumps()}
        if changes := sorted(jump for jump in jumps if 0 < jump < (steps or last)):
            listed = ", ".join(f"{step:g}" for step in changes)
            rows.append(Row("the rate has kinks or jumps at step", listed))

        # What the system adds.
        rows += [*descent, *noise, *system.rows(run, predicted)]
    about = f"{run.about}: {predicted.sizes}" if predicted.sizes else run.about
    about = " ".join(f"{about}, {run.rule}, {steps or last:g} steps".split())
    titles = {name: theory.title or name for name, theory in theories.items()}
    rows = tuple(rows)
    return Explanation(about, theory, status.name, course, rows, titles, reasons, compared)


def _solve(run: Experiment, theories: Mapping[str, AnyTheory]) -> Prediction | None:
    """Solve the first of the theories that predicts the loss, if there is any."""
    from sweeps.runner.run import run as run_sweep
    from sweeps.runner.spec import Sweep

    training = run.training()
    problem, rule, steps = training.problem, training.rule, training.steps
    names = (n for n, theory in theories.items() if "loss" in theory.observables(problem).names())
    if (name := next(names, None)) is None:
        return None
    record_at: int | tuple[int, ...] = LOSS_TIMES
    if steps is not None and (changing := _changing(rule)):
        # Also where the weights move: a pulse is shorter than the times between others.
        sums = [np.asarray(schedule.flow_time(np.arange(steps + 1))) for schedule in changing]
        moving = [np.searchsorted(u, np.linspace(0, u[-1], LOSS_TIMES // 2)) for u in sums]
        record_at = tuple(np.unique([*log_times(steps, LOSS_TIMES), *np.ravel(moving)]).tolist())
    sweep = Sweep(run, {"seed": [run.seed]}, name, ("loss",), record_at)
    dataset = run_sweep(sweep).load().isel(seed=0)
    times, loss, status, bad = (
        dataset[n].values for n in ("time", "loss", "status", "first_bad_step")
    )
    # Equations of the problem's own may hold at any rate and batch: their assumptions say so.
    own = (t for t in problem.theories() if t.name == name and "batch" in t.needs)
    limit = all("eta ->" in theory.assumes or "batch ->" in theory.assumes for theory in own)
    solved = Trajectory(times, {"loss": np.asarray(loss, np.float64)}, None, status, bad)
    return Prediction(theories[name].title or name, training, solved, has_limit=limit)


def _changing(rule: Rule) -> list[Schedule]:
    return [x for x in rule.schedules.values() if x.warmup or not isinstance(x, Constant)]


def _loss_rows(
    predicted: Prediction, error: np.ndarray, step_error: Callable[[float], float] | None
) -> list[Row]:
    """Return rows of the loss at both ends, and of the steps at which parts of its decrease are
    reached; `step_error` returns by how much descent reaches a level at another step."""
    solved = predicted.solved
    times, loss = np.asarray(solved.times), np.asarray(solved["loss"])
    groups = np.asarray(solved.observables.get(GROUPED, np.zeros((len(times), 0))))

    def sampling_error(statistic: Callable[[np.ndarray], float]) -> float:
        # The standard error of a mean over groups of examples.
        values = [statistic(group) for group in groups.T]
        return float(np.std(values, ddof=1) / len(values) ** 0.5) if values else 0.0

    rows = []
    for name, i in (("start", 0), ("end", -1)):
        unsure = math.hypot(error[i], sampling_error(lambda loss, i=i: loss[i]))
        rows.append(Row(f"loss at the {name}", float(loss[i]), unsure))
    for label, share in (("half", 0.5), ("90 %", 0.9)):

        def crossing(loss: np.ndarray, times: np.ndarray = times, share: float = share) -> float:
            return float(crossings(times, loss, loss[0] - share * (loss[0] - loss[-1])))

        step, unsure = math.nan, math.nan
        if loss[-1] < loss[0]:
            step = crossing(loss)
            # An error of the loss moves the step by its ratio to the slope there.
            i = int(np.searchsorted(times, step).clip(1))
            slope = (loss[i] - loss[i - 1]) / (times[i] - times[i - 1])
            shift = math.hypot(np.interp(step, times, error), share * error[-1]) / abs(slope)
            if step_error:
                shift = step_error(float(loss[0] - share * (loss[0] - loss[-1])))
            # Linear interpolation is off by a third of its change with every other time.
            other = np.r_[0 : len(times) - 1 : 2, len(times) - 1]
            between = (crossing(loss[other], times[other]) - step) / 3
            unsure = math.hypot(shift, between, sampling_error(crossing))
        rows.append(Row(f"{label} of the decrease by step", step, unsure))
    return rows
