"""`dynsim explain`: predicts a run from theory, with the error of each number."""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

import dynsim
from dynsim import Rule, Trajectory, checks
from dynsim.precision import precision
from dynsim.problem.checks import has_population
from dynsim.schedules import Constant
from dynsim.trajectory import crossings
from odes import symmetric
from odes.batch_noise import THEORY as NOISE
from odes.batch_noise import size_of
from odes.symmetric.solve import inapplicable
from odes.symmetric.state import SymmetricTask
from odes.theory import Training
from odes.yz import population
from sweeps import output
from sweeps.commands import noise as scatter
from sweeps.commands import strain
from sweeps.commands.noise import Mean
from sweeps.commands.regime import final_of, regime, stages_of, strained
from sweeps.commands.strain import Row
from sweeps.compare.stages import Task, check_moves
from sweeps.runner.progress import quiet, say
from sweeps.systems import registry, yz
from sweeps.systems.experiment import Experiment, made

DESCENT_STEPS = 100_000
"""Maximum number of steps to solve descent of a symmetric task, which is exact for any rate."""
FLOW = "population flow"
"""The theory of all other tasks; it is compared with descent over the first steps."""
TIMES = 64
"""Number of recorded times of the flow."""
LOSSES = 256
"""Number of recorded times of the loss of any other problem, which is interpolated between them."""

READY = "compiling, or loading what is kept"


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


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The predictions of `explain`, a table.

    Attributes:
        about: the run: its problem, rule and steps.
        theory: title of the theory that computed the mean, the first applicable one.
        status: status of its solve.
        rows: quantities with their prediction, its error, and the assumption that is strained.
        applicable: titles of the theories that describe the run, by name; empty for the attention
            layer in Y and Z, whose theories have a page of their own.
        refused: reasons why the others do not apply, by name.
        compared: what linear noise was compared with; empty if it was not.

    Raises:
        KeyError: for a quantity that the table does not have.

    Example:
        >>> found = sweeps.explain("saxe", eta=0.1, steps=200)
        >>> found["loss at the end"].prediction, found["loss at the end"].error
    """

    about: str
    theory: str
    status: str
    rows: tuple[Row, ...]
    applicable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    compared: str = ""

    def __getitem__(self, quantity: str) -> Row:
        """Return the row of a quantity."""
        found = {row.quantity: row for row in self.rows}
        if quantity not in found:
            raise KeyError(f"{quantity!r} is not in the table; it has: {', '.join(found)}")
        return found[quantity]

    @property
    def strained(self) -> tuple[str, ...]:
        """The assumptions that hold poorly for this run, one sentence each."""
        return tuple(row.strained for row in self.rows if row.strained)

    def text(self) -> str:
        """Format the table as text."""
        lines = [self.about, ""]
        parts = {"theories that apply:": self.applicable}
        parts["theories that do not apply:"] = self.refused
        for heading, theories in parts.items():
            if theories:
                each = (f"  {name:<20}{said}" for name, said in theories.items())
                lines += [heading, *each, ""]
        lines += [f"theory: {self.theory} ({self.status})"]
        if self.compared:
            lines += [f"linear noise: compared with {self.compared}"]
        table = [("quantity", "prediction", "error", "strained", "at step")]
        for row in self.rows:
            at = "" if math.isnan(row.worst) else f"{row.worst:.5g}"
            assumption = re.split(" \\(|: ", row.strained)[0]
            table.append((row.quantity, *shown(row), assumption, at))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        aligned = zip("<>><>", widths, strict=True)
        form = "  ".join(f"{{:{side}{width}}}" for side, width in aligned)
        lines += ["", *(form.format(*cells).rstrip() for cells in table), ""]
        lines += ["strained assumptions:" if self.strained else "no assumption is strained"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.strained)])


def shown(row: Row) -> tuple[str, str]:
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
    found = _explained(config.run)
    if config.json:
        table = dataclasses.asdict(found) | {"strained": found.strained}
        print(json.dumps(output.as_json(table), indent=2))
    else:
        print(found.text())


def explain(run: Any = "yz", /, **settings: Any) -> Explanation:
    """Predict a run from the best applicable theory, with the errors of the prediction and the
    assumptions that the run strains.

    Args:
        run: a `sweeps.Experiment`; or a problem or its name, as in `sweeps.experiment`.
        settings: settings of the run, by name.

    Returns:
        A table: see `Explanation`.

    Raises:
        ValueError: naming the setting, its value and what is allowed; or if no theory describes the
            run.

    Example:
        >>> found = sweeps.explain("yz", eta_y=1.0, eta_z=0.1, steps=50)
    """
    asked = made(run, **settings)
    asked.check(rounded=False)
    with quiet():
        return _explained(asked)


def _explained(run: Experiment) -> Explanation:
    layer = registry.system_of(run).name == "yz"
    with precision("float64"):
        return _of_layer(run) if layer else _of_problem(run)


def _of_layer(run: Experiment) -> Explanation:
    """Return the prediction of the attention layer in Y and Z, from the closed form and a flow or
    descent at T, batch -> infinity."""
    steps, rule = checks.steps("steps", run.steps), run.rule.build()
    layer = run.bare
    if layer.start != "zero":
        raise ValueError(f"start = {layer.start!r}: the prediction starts from zero weights")
    check_moves(run)
    task = yz.classes_of(run)
    say(f"{READY}: closed form; descent, or a flow and its first steps")
    record = ("loss", "accuracy", "entropy", "z_top_distinct", "z_top_common", "speed")
    theory, solved = _solve(task, rule, steps, record)
    status = dynsim.Status(int(solved.status))
    stages, final = stages_of(task, rule), final_of(solved)
    rows = []
    if stages:
        names = {"peak": "gamma peaks at step", "peak_gamma": "gamma at its peak"}
        names |= {"rise_end": "rise ends about step (t0')", "snap": "decay begins about step (t0)"}
        rows += [Row(label, stages[name]) for name, label in names.items()]
        rows += [Row("regime", regime(steps, stages, final) or "")]
    # Descent is exact at T, batch -> infinity; of a flow the error of the loss is measured.
    exact = 0.0 if "step by step" in theory else math.nan
    final |= {"effective_tokens": math.exp(final["entropy"])}
    ends = {name: Row(f"{name} at the end", value, exact) for name, value in final.items()}
    checked = []
    if not isinstance(task, SymmetricTask):
        # It starts from zero weights and needs no key.
        whole = dynsim.layer(task, length=math.inf, start="zero")
        if theory == FLOW or size_of(whole) <= strain.LARGEST:
            curve = np.asarray(solved.times), np.asarray(solved["loss"])
            key = jax.random.key(0)
            _, (ends["loss"], *checked) = strain.against_descent(whole, rule, key, theory, *curve)
    rows += [*ends.values(), *strained(layer.length, task, rule, stages), *checked]
    sizes = f"K = {int(task.K)}, M = {int(task.M)}"
    about = f"{run.about}: {sizes}, {rule}, {steps} steps"
    return Explanation(about, theory, status.name, tuple(rows))


def _solve(
    task: Task, optimizer: Rule, steps: int, record: tuple[str, ...]
) -> tuple[str, Trajectory]:
    """Return the most exact prediction available, and the title of its theory."""
    large = isinstance(task, SymmetricTask)
    if large or inapplicable(Training(task, optimizer)) is None:
        reduced = task if large else symmetric.symmetric_task(task)
        if steps <= DESCENT_STEPS:
            times = [steps] if large else dynsim.log_times(steps, TIMES)
            run = symmetric.descend(reduced, optimizer, steps=steps, times=times, record=record)
            return "symmetric reduction, step by step", run
        solved = symmetric.solve(reduced, optimizer, np.array([0.0, steps]), record=record)
        return "symmetric reduction, flow", solved
    times = dynsim.log_times(steps, TIMES)
    return FLOW, population.solve(task, optimizer, times, record=record)


def _of_problem(run: Experiment) -> Explanation:
    """Return the prediction of any other problem, from the first applicable theory of its loss."""
    # Their imports take half as long as the layer's prediction.
    from sweeps.runner.run import run as run_sweep
    from sweeps.runner.spec import Sweep

    theories, refused = registry.applicable(run)
    problem, rule = run.built
    key, steps = jax.random.fold_in(jax.random.key(0), run.seed), run.steps
    predicting = (n for n, each in theories.items() if "loss" in each.observables(problem).names())
    known = {name: theories[name] for name in predicting}
    means = [each.title or name for name, each in known.items()][:1]
    say(f"{READY}: {'; '.join([*means, NOISE.title, 'training to compare them with'])}")
    noise, checked, apart = scatter.noise(problem, rule, key, steps, run.batch), [], None
    if known:
        name, best = next(iter(known.items()))
        times: Any = LOSSES
        changing = [x for x in rule.schedules.values() if x.warmup or not isinstance(x, Constant)]
        if steps is not None and changing:
            # Also where the weights move: a pulse is shorter than the times between others.
            sums = [np.asarray(each.flow_time(np.arange(steps + 1))) for each in changing]
            moved = [np.searchsorted(u, np.linspace(0, u[-1], LOSSES // 2)) for u in sums]
            times = tuple(np.unique([*dynsim.log_times(steps, LOSSES), *np.ravel(moved)]).tolist())
        sweep = Sweep(run, {"seed": [run.seed]}, name, ("loss",), times)
        solved = run_sweep(sweep).load().isel(seed=0)
        theory, status, bad = best.title or name, int(solved.status), int(solved.first_bad_step)
        times, loss = solved.time.values, np.asarray(solved["loss"].values, np.float64)
        mean = Mean(times, loss, np.where(times == 0, 0.0, math.nan))
        # A theory that depends on the batch is no limit of large batches and small steps.
        limit = not any(each.name == name and "batch" in each.needs for each in problem.theories())
        if steps is not None and has_population(problem) and limit:
            apart, checked = strain.against_descent(problem, rule, key, theory, times, loss)
    elif noise.mean:
        theory, status, bad, mean = NOISE.title, noise.status, noise.first_bad_step, noise.mean
    else:
        reasons = dict.fromkeys(("no theory describes its loss", *refused.values()))
        raise ValueError(f"{run.about}: {'; '.join(reasons)}")
    rows = _of_loss(mean, apart)
    if checked:
        rows[1] = checked.pop(0)
    if (last := mean.times[-1]) < (steps or last):
        rows[1] = dataclasses.replace(rows[1], quantity=f"loss at step {last:g}")
    if status != dynsim.Status.OK:
        ended = dynsim.Status(status).name
        said = f"{theory}: its solve ends {ended}; it has no prediction from step {bad} on"
        rows[1] = dataclasses.replace(rows[1], strained=said, worst=float(bad))
    jumps = {float(jump) for each in rule.schedules.values() for jump in each.jumps()}
    if changes := sorted(jump for jump in jumps if 0 < jump < (steps or last)):
        listed = ", ".join(f"{step:g}" for step in changes)
        rows.append(Row("the rate has kinks or jumps at step", listed))
    return Explanation(
        f"{run.about}, {' '.join(str(run.rule.build()).split())}, {steps or last:g} steps",
        theory,
        dynsim.Status(status).name,
        (*rows, *checked, *noise.rows),
        {name: each.title or name for name, each in theories.items()},
        refused,
        noise.compared,
    )


def _of_loss(mean: Mean, apart: Callable[[float], float] | None) -> list[Row]:
    """Return rows of the loss at the start and at the end, and of the steps at which it has fallen
    by parts of its decrease; `apart` returns by how much these are off at small rates."""
    times, loss, error = mean.times, mean.loss, mean.error
    rows = [
        Row(f"loss at the {name}", float(loss[i]), math.hypot(error[i], mean.sampled(value)))
        for name, i, value in (("start", 0, lambda t, x: x[0]), ("end", -1, lambda t, x: x[-1]))
    ]

    def fallen(times: np.ndarray, loss: np.ndarray, share: float) -> float:
        return float(crossings(times, loss, loss[0] - share * (loss[0] - loss[-1])))

    for label, share in (("half", 0.5), ("90 %", 0.9)):
        step, unsure = math.nan, math.nan
        if loss[-1] < loss[0]:
            step = fallen(times, loss, share)
            i = int(np.searchsorted(times, step).clip(1))
            slope = (loss[i] - loss[i - 1]) / (times[i] - times[i - 1])
            shift = math.hypot(np.interp(step, times, error), share * error[-1]) / abs(slope)
            if apart:
                shift = apart(float(loss[0] - share * (loss[0] - loss[-1])))
            # Linear interpolation is off by a third of its change with every other time.
            other = np.r_[0 : len(times) - 1 : 2, len(times) - 1]
            between = (fallen(times[other], loss[other], share) - step) / 3
            sampled = mean.sampled(functools.partial(fallen, share=share))
            unsure = math.hypot(shift, between, sampled)
        rows.append(Row(f"{label} of the decrease by step", step, unsure))
    return rows
