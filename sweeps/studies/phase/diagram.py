"""The phase diagram of the attention layer: its settings, and the lines of theory."""

import dataclasses
import math
import sys
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy import optimize, special

import dynsim
from dynsim import checks
from dynsim.precision import precision
from dynsim.yz import finite_length
from dynsim.yz.layer import Layer
from odes import decoder, growth
from odes.batch_noise import STD
from odes.hierarchy import applicable
from odes.solver.posed import effective_rates, why_not_described
from odes.symmetric.state import SymmetricTask
from odes.theory import named, refusal
from sweeps.runner.spec import Sweep
from sweeps.studies.options import AxisWord, path
from sweeps.studies.phase.plane import NUM_TIMES, Plane, sweep
from sweeps.studies.phase.regions import Region, winners
from sweeps.systems import yz
from sweeps.systems.experiment import Experiment, experiment

DESCENT = "symmetric-descent"
LENGTH = ("problem", "length")
LOGIT = "z_top_distinct"
"""The observable whose standard deviation is compared with its mean, to find where noise rules."""
COARSE = 24
"""Approximate number of values of an axis at which the standard deviation is predicted."""
STAGES = ("rise_end", "peak", "snap")
"""The times of `odes.decoder.Stages` for which a line is drawn."""


@dataclasses.dataclass(frozen=True)
class Phase(Plane):
    """Draw a phase diagram: the outcome of training over a plane of two settings, with the
    transition lines that theory predicts.

    Attributes:
        run: the run whose settings each point changes; it is measured after its `steps`.
        theory: simulation; symmetric (exact, fast descent of a symmetric task with T and batch
            infinite); or another theory.
        against: a second one to draw next to the first, with the difference: best (the most exact
            flow that describes the runs), none, or a name. auto means best for a simulation, else
            none.
        noise: next to a theory, also predict where batch noise decides the outcome of training.
    """

    AGAINST: ClassVar = ("auto", "best", "none")
    ALIASES: ClassVar = {"symmetric": DESCENT}

    run: Experiment = dataclasses.field(default_factory=lambda: experiment(**Phase.RUN))
    x: AxisWord = "eta_y:1e-3:1e2"
    y: AxisWord = "eta_z:1e-2:1e2"
    against: str = "auto"
    observable: str = "entropy"
    noise: bool = True
    regions: str = "sweeps.studies.phase.regions:RULE"

    def times(self) -> tuple[int, ...]:
        """A few steps up to the last."""
        steps = checks.integer("steps", self.run.steps, 2)
        return tuple(dynsim.log_times(steps, min(NUM_TIMES, steps)).tolist())

    def theories(self) -> tuple[str, ...]:
        """The names of what is drawn, simulation or theories: one, or two to be compared."""
        first = self.ALIASES.get(self.theory, self.theory)
        against = self.against
        if against == "auto":
            against = "best" if first == "simulation" else "none"
        if against == "none":
            return (first,)
        if against != "best":
            return first, against
        wanted = sweep(self, "simulation")
        # Of the settings on the plane, only T determines which theories apply.
        layer, rule = wanted.plane(next(wanted.slices())).built
        finite = self._expands(layer)
        found = applicable(layer, rule, variants=True)
        # The reduced flow equals the matched one and is much cheaper.
        reduced = named("symmetric", finite)
        best = reduced if reduced in found else found[0]
        return (first,) if best == first else (first, best)

    def scatter(self) -> Sweep | None:
        """The sweep that predicts mean and standard deviation of `LOGIT` at the last step, on a
        coarser plane; None unless training and a theory are drawn, and T is infinite or an
        expansion in 1/T holds."""
        if not self.noise or self.against == "none" or math.isinf(self.run.batch):
            return None
        if "simulation" not in self.theories():
            return None
        layer = self.run.built[0]
        if math.isfinite(layer.length) and not self._expands(layer):
            return None
        coarse: dict[str, Any] = {
            name: values[:: -(-len(values) // COARSE)] for name, values in self.axes().items()
        }
        if self.random_start():
            coarse["seed"] = {"range": 1}
        if most_distinct(layer) < 2:
            # A single token has no competitor.
            return None
        return Sweep(self.run, coarse, "spread", (LOGIT, LOGIT + STD), "end")

    def _expands(self, layer: Layer) -> bool:
        """Whether all lengths T of the plane are finite, and long enough for theory."""
        axes = self.axes().items()
        varied = (values for name, values in axes if path(self.run, name) == LENGTH)
        return all(
            math.isfinite(T) and refusal(finite_length.check_length, layer.classes, T) is None
            for T in next(varied, (layer.length,))
        )

    def random_start(self) -> bool:
        """Whether a theory needs a seed, to start from the weights of a run."""
        return self.run.setting("start") != "zero"

    def lines(self) -> dict[str, np.ndarray]:
        """Closed-form quantities on the plane; see the function `lines`."""
        return lines(self)


def lines(config: Phase) -> dict[str, np.ndarray]:
    """Closed-form quantities on the plane, (y, x): `rise_end`, `peak` and `snap`, the times t0',
    t_peak and t0 relative to the run's steps (Theorem 1b, Lemma 9); `bound`, Theorem 4's final B.

    Theorem 4 assumes a single common token. With several, its C0 uses the most probable one alone,
    and `bound` is only a guide to the eye; with none it is NaN. Momentum multiplies the rates by
    1 / (1 - mu). For Adam, which the closed forms do not describe, all quantities are NaN.
    """
    plane = Sweep(config.run, config.axes())
    found = {name: np.full([dim.size for dim in plane.dims], np.nan) for name in (*STAGES, "bound")}
    if why_not_described(config.run.rule.build(), "the closed form") is None:
        with precision("float64"):
            # All runs of one task at once; the values of the other axes are arrays.
            for chosen in plane.slices():
                at = tuple(
                    dim.axes[dim.name].index(chosen[dim.name]) if dim.static else slice(None)
                    for dim in plane.dims
                )
                for name, value in closed_forms(plane.plane(chosen)).items():
                    found[name][at] = value
    return {name: values.T for name, values in found.items()}


def noise(dataset: xr.Dataset, scale: float) -> xr.DataArray:
    """Return log(std / max(|mean|, scale)) with the predicted mean and standard deviation of
    `LOGIT` over seeds. Where it is positive, noise decides which token wins."""
    mean, std = (dataset[name].mean("class") for name in (LOGIT, LOGIT + STD))
    found: xr.DataArray = xr.apply_ufunc(np.log, std / abs(mean).clip(min=scale))
    others = [dim for dim in found.dims if dim in ("seed", "time")]
    # If the derivative along descent overflows, noise certainly decides.
    return found.where(np.isfinite(found), np.log(sys.float_info.max)).mean(others)


def most_distinct(layer: Layer) -> int:
    """The largest number of distinct tokens of a class."""
    return int(np.asarray(layer.classes.distinct()).sum(1).max())


def winning_spread(tokens: int) -> float:
    """Return the standard deviation above which independent normal logits of two or more tokens
    have a winner, exp(entropy) < `winners(tokens)`, in more than half of all cases."""
    logits = np.random.default_rng(0).normal(size=(4096, tokens))

    def beyond(spread: float) -> float:
        entropy = special.entr(special.softmax(spread * logits, axis=1)).sum(1)
        return float(np.median(np.exp(entropy)) - winners(tokens))

    root: Any = optimize.brentq(beyond, 0.0, 1e3)
    return float(root)


def with_noise(areas: xr.DataArray, noise: xr.DataArray) -> xr.DataArray:
    """Set regions of a noiseless theory to `WINNER_TAKE_ALL` where it learns and noise decides."""
    near = noise.reindex({dim: areas[dim] for dim in areas.dims}, method="nearest")
    learned = ~areas.isin((Region.NOT_LEARNED, Region.DIVERGED))
    return areas.where(~(learned & (near > 0)), Region.WINNER_TAKE_ALL)


def closed_forms(run: Experiment) -> dict[str, jax.Array | float]:
    """The quantities of `lines` for one task; learning rates and momentum may be arrays."""
    task, steps = yz.classes_of(run), run.steps
    assert steps is not None
    if isinstance(task, SymmetricTask):
        # Too large for a table. All classes are alike, so one of them is enough.
        common = np.asarray(task.rho)
        p, rho = jnp.asarray(task.p), jnp.asarray(task.rho)
        norm = float(task.sum_distinct(p**2) + task.sum_common(rho**2)) ** 0.5
    else:
        probs = np.asarray(task.probs)[0]
        common, norm = probs[np.asarray(task.common())[0]], np.linalg.norm(probs)
    eta_y, eta_z = effective_rates(run.rule.build())
    stages = decoder.stages(eta_y, task.K, task.M)
    bound: Any = np.nan
    if common.size:
        rho_0 = norm / common.max()
        bound = growth.bound(
            steps,
            eta_y,
            eta_z,
            task.K,
            task.M,
            c0=growth.c0(rho_0, task.K),
            classes_per_query=task.K / task.num_queries,
        )
    return {**{name: getattr(stages, name) / steps for name in STAGES}, "bound": bound}
