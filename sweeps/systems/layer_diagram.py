"""Phase diagrams of the attention layer: scanning and snapping, and where theory expects them."""

import dataclasses
import enum
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from scipy import optimize, special

import dynsim
from dynsim import Status
from dynsim.precision import precision
from dynsim.yz import finite_length
from odes import decoder, growth, symmetric
from odes.batch_noise import STD
from odes.hierarchy import applicable
from odes.solver.posed import Rescaled, why_not_described
from odes.symmetric import check_applicable, check_rule
from odes.symmetric.state import SymmetricTask
from odes.theory import error_message, named
from sweeps.systems.diagrams import Diagram, Line, Predictions, Regions, View
from sweeps.systems.experiment import Experiment
from sweeps.systems.reduction import NOISE, classes_of

LEARNED = 0.5
"""A run has learned once its loss is below this share of its loss at step 0."""
WINNERS = 2.0
"""If fewer tokens than this effectively share the attention, one of them has won."""


class Region(enum.IntEnum):
    """The state of the attention at the end of a run."""

    NOT_LEARNED = 0
    """The loss has not decreased to half its start: the decoder has hardly moved, or was lost."""
    SCANNING = 1
    """Learned, and the speed coefficient f . g has never been larger than at the end: the
    attention moves faster and faster (Theorem 1b, before the peak of gamma)."""
    SNAPPED = 2
    """Learned, and f . g is past its peak: the attention slows down and freezes."""
    WINNER_TAKE_ALL = 3
    """Learned, with less than two distinct tokens' worth of attention, exp(entropy) < 2; for fewer
    than three tokens see `winners`."""
    DIVERGED = 4
    """The run did not end well (see `dynsim.Status`)."""


def winners(tokens: Any) -> Any:
    """Return `WINNERS` for `tokens` that may share the attention: with fewer than three, it is
    halfway between their number and 1. A single token cannot win."""
    return np.minimum(WINNERS, (1 + tokens) / 2)


def classify(dataset: xr.Dataset) -> xr.DataArray:
    """Return the `Region` of each run of a sweep that recorded loss, speed and entropy over time,
    from step 0."""
    start, end = (dataset.isel(time=step, drop=True) for step in (0, -1))
    speed = dataset["speed"].mean("class")
    # A run that did not end well may have recorded nothing but NaN.
    rising = speed.argmax("time", skipna=False) == speed.sizes["time"] - 1
    codes = xr.where(rising, Region.SCANNING, Region.SNAPPED)
    # exp(entropy) is the effective number of tokens that share the attention.
    tokens, tokens_end = np.exp(start["entropy"]), np.exp(end["entropy"])
    codes = codes.where(~(tokens_end < winners(tokens)), Region.WINNER_TAKE_ALL)
    codes = codes.where(end["loss"] < LEARNED * start["loss"], Region.NOT_LEARNED)
    codes = codes.where(dataset["status"] == Status.OK, Region.DIVERGED)
    return codes.transpose(*dataset["status"].dims).astype(np.int8).rename("region")


REGIONS = Regions(
    record=("loss", "entropy", "speed"),
    classify=classify,
    legend={
        Region.NOT_LEARNED: ("not learned", "#f0f0f0"),
        Region.SCANNING: ("scanning", "#b7d3ea"),
        Region.SNAPPED: ("snapped", "#4c8bbe"),
        Region.WINNER_TAKE_ALL: ("winner take all", "#0b2545"),
        Region.DIVERGED: ("diverged", "#b0b0b0"),
    },
    failures=True,
)
STAGES = {
    "rise_end": (r"steps = $t_0'$", ":"),
    "peak": (r"steps = $t_{peak}$ of $\gamma$", "-"),
    "snap": (r"steps = $t_0$", "--"),
}
"""Labels and dashes of the lines on which a stage of the closed form ends at the last step."""
NOISE_LINE = ("noise", r"noise: $\sigma(z) = \max(|z|, \sigma_1)$")
TIES = ("unstable ties", r"unstable ties: $\sigma_u = 1$")
OVERSHOOT = ("steps overshoot", r"steps overshoot: $\eta_Z h = 2 (1 + \mu)$")
"""In place of unstable ties at infinite T, where no noise breaks ties."""
_ETA = ("rule", "eta")
TIE_AXES = {_ETA, (*_ETA, "Y"), (*_ETA, "Z"), ("rule", "momentum")}
"""Axes over which unstable ties are drawn."""
LOGIT = "z_top_distinct"
"""The observable whose standard deviation is compared with its mean, to find where noise rules."""
COARSE = 24
"""Approximate number of values of an axis at which the standard deviation is predicted."""
FLOWS_AT_ONCE = 64
"""Number of flows solved in lockstep; the stiffest one determines the number of solver steps."""


def best(plane: Any) -> str:
    """Return the name of the most exact theory that describes the runs of a sweep."""
    # Of the settings on a plane, only T determines which theories apply.
    layer, rule = plane.plane(next(plane.slices())).built
    names = applicable(layer, rule, variants=True)
    # The reduced flow equals the matched one and is much cheaper.
    reduced = named("symmetric", _expands(plane))
    return reduced if reduced in names else next(iter(names), "none")


def predict(view: View) -> Predictions:
    """Return the times of closed forms; and next to training and a theory, where noise decides the
    outcome and where steps are too large for a flow, with the regions of flows corrected there."""
    closed = closed_forms(view.plane)
    lines = [
        Line(name, text, xr.apply_ufunc(np.log, closed[name]), ("k", dashes, 1.4))
        for name, (text, dashes) in STAGES.items()
    ]
    levels = ("iso-lines of Theorem 4's B", "B = %.2g", closed["bound"])
    arrays: dict[str, Any] = {
        "closed_form": {name: closed[name].values.T for name in (*STAGES, "bound")}
    }
    if not _has_noise(view):
        return Predictions(lines, {}, levels, arrays)

    # Each point costs a backward pass, and the standard deviation varies slowly over the plane.
    coarse = {name: v[:: -(-len(v) // COARSE)] for name, v in view.plane.fields.items()}
    spread = dataclasses.replace(
        view.plane,
        axes={**coarse, "seed": {"range": 1}},
        theory="spread",
        record=(LOGIT, LOGIT + STD),
        times="end",
    )
    scale = winning_spread(_most_distinct(view.plane.first.built[0]))
    noise = relative_noise(view.run(spread, "spread"), scale)
    ties = tie_line(dataclasses.replace(view.plane, axes=coarse))
    lines += [Line(*NOISE_LINE, noise, ("#c2185b", "-", 1.4)), *([ties] if ties else [])]
    for name, values in (("noise", noise), *([("ties", ties.values)] if ties else [])):
        arrays |= {name: values, **{f"{name}/{dim}": values[dim] for dim in values.dims}}

    # A flow does not describe steps that pass the peak at once, or that make ties unstable.
    large = closed["first"] < 1
    if ties:
        nearest = ties.values.reindex({dim: large[dim] for dim in large.dims}, method="nearest")
        large = large | (nearest > 0)
    regions: dict[str, tuple[str, xr.DataArray]] = {}
    for name, theory in view.maps.items():
        # A theory with seeds has noise and steps already.
        if name == "simulation" or "share" in theory:
            continue
        region = theory["region"]
        if view.regions is REGIONS:
            regions[f"{name} with noise"] = ("with noise", with_noise(region, noise))
        points = np.argwhere(large.transpose(*region.dims).values)
        codes = view.solve(NOISE, points, f"{name}-with-steps") if len(points) else None
        if codes is not None:
            stepped = region.copy()
            stepped.values[tuple(points.T)] = codes
            text = f"{name} with steps where they are large"
            regions[text] = ("with large steps", stepped)
    return Predictions(lines, regions, levels, arrays)


def _has_noise(view: View) -> bool:
    """Return whether training and a theory are drawn, and linear noise describes the runs."""
    run = view.plane.run
    if not view.noise or "simulation" not in view.maps or math.isinf(run.batch):
        return False
    layer = run.built[0]
    # A single token has no competitor.
    has_rivals = _most_distinct(layer) > 1
    return has_rivals and (math.isinf(layer.length) or _expands(view.plane))


def _expands(plane: Any) -> bool:
    """Return whether all lengths T of the plane are finite, and long enough for theory."""
    layer = plane.run.built[0]
    lengths = (layer.length,)
    for name, axis in plane.varied.named.items():
        if axis.path == ("problem", "length"):
            lengths = plane.fields[name]
    return all(
        math.isfinite(T) and error_message(finite_length.check_length, layer.classes, T) is None
        for T in lengths
    )


def _most_distinct(layer: dynsim.Layer) -> int:
    """Return the largest number of distinct tokens of a class."""
    return int(np.asarray(layer.classes.distinct()).sum(1).max())


def relative_noise(dataset: xr.Dataset, scale: float) -> xr.DataArray:
    """Return log(std / max(|mean|, scale)) with the predicted mean and standard deviation of
    `LOGIT` over seeds. Where it is positive, noise decides which token wins."""
    mean, std = (dataset[name].mean("class") for name in (LOGIT, LOGIT + STD))
    ratio: xr.DataArray = xr.apply_ufunc(np.log, std / abs(mean).clip(min=scale))
    # If the derivative along descent overflows, noise certainly decides.
    ratio = ratio.where(np.isfinite(ratio), np.log(sys.float_info.max))
    return ratio.mean([dim for dim in ratio.dims if dim in ("seed", "time")])


def winning_spread(tokens: int) -> float:
    """Return the standard deviation above which independent normal logits of two or more tokens
    have a winner, exp(entropy) < `winners(tokens)`, in more than half of all cases."""
    logits = np.random.default_rng(0).normal(size=(4096, tokens))

    def excess(std: float) -> float:
        entropy = special.entr(special.softmax(std * logits, axis=1)).sum(1)
        return float(np.median(np.exp(entropy)) - winners(tokens))

    root: Any = optimize.brentq(excess, 0.0, 1e3)
    return float(root)


def with_noise(regions: xr.DataArray, noise: xr.DataArray) -> xr.DataArray:
    """Set regions of a noiseless theory to `WINNER_TAKE_ALL` where it learns and noise decides."""
    nearest = noise.reindex({dim: regions[dim] for dim in regions.dims}, method="nearest")
    learned = ~regions.isin((Region.NOT_LEARNED, Region.DIVERGED))
    return regions.where(~(learned & (nearest > 0)), Region.WINNER_TAKE_ALL)


def closed_forms(plane: Any) -> dict[str, xr.DataArray]:
    """Return closed-form quantities over the plane of a sweep: `rise_end`, `peak` and `snap`, the
    times t0', t_peak and t0 relative to the run's steps (Theorem 1b, Lemma 9); `bound`, Theorem 4's
    final B; and `first`, t_peak in steps at the rate of the first one, without momentum.

    Theorem 4 assumes a single common token. With several, its C0 uses the most probable one alone,
    and `bound` is only a guide to the eye; with none it is NaN. Momentum multiplies the rates by
    1 / (1 - mu). For Adam, which the closed forms do not describe, all quantities are NaN.
    """
    axes = {dim.name: list(dim.axes[dim.name]) for dim in plane.dims}
    empty = xr.DataArray(np.nan, axes, tuple(axes))
    arrays = {name: empty.copy() for name in (*STAGES, "bound", "first")}
    if why_not_described(plane.run.rule.build(), "the closed form") is not None:
        return arrays
    with precision("float64"):
        # All runs of one task at once; the values of the other axes are arrays.
        for chosen in plane.slices():
            index = tuple(
                axes[dim.name].index(chosen[dim.name]) if dim.static else slice(None)
                for dim in plane.dims
            )
            for name, value in _closed_forms(plane.plane(chosen)).items():
                arrays[name].values[index] = value
    return arrays


def _closed_forms(run: Experiment) -> dict[str, Any]:
    """Return `closed_forms` of one task; rates and momentum may be arrays."""
    task, steps, rescaled = classes_of(run), run.steps, Rescaled.of(run.rule.build())
    assert steps is not None
    if isinstance(task, SymmetricTask):
        # Too large for a table. All classes are alike, so one of them is enough.
        common = np.asarray(task.rho)
        p, rho = jnp.asarray(task.p), jnp.asarray(task.rho)
        norm = float(task.sum_distinct(p**2) + task.sum_common(rho**2)) ** 0.5
    else:
        probs = np.asarray(task.probs)[0]
        common, norm = probs[np.asarray(task.common())[0]], np.linalg.norm(probs)
    rate = jnp.asarray(rescaled.rate)
    eta_y, eta_z = rate * jnp.asarray(rescaled.eta_y), rate * jnp.asarray(rescaled.eta_z)
    stages = decoder.stages(eta_y, task.K, task.M)
    values: dict[str, Any] = {name: getattr(stages, name) / steps for name in STAGES}
    # The first step has no momentum.
    values["first"] = stages.peak * rate
    if common.size:
        c0, share = growth.c0(norm / common.max(), task.K), task.K / task.num_queries
        values["bound"] = growth.bound(
            steps, eta_y, eta_z, task.K, task.M, c0=c0, classes_per_query=share
        )
    return values


def tie_line(plane: Any) -> Line | None:
    """Return the line where ties become unstable: zeros of the log of the largest standard
    deviation of a tie between tokens, over tokens and steps along the flow, in linear theory; at
    infinite T, of the log of how far steps overshoot.

    Args:
        plane: sweep of the attention layer over a few values of learning rates and momentum. None
            is returned for other axes, and where the theory does not apply.
    """
    run = plane.run
    if not {axis.path for axis in plane.varied.named.values()} <= TIE_AXES:
        return None
    layer, rule = run.built
    infinite_length = math.isinf(layer.length)
    if infinite_length:
        reason = error_message(check_rule, rule)
    else:
        reason = error_message(check_applicable, rule, run.batch, layer.length)
    if error_message(symmetric.symmetric_task, layer.classes) or reason:
        return None
    reduced = symmetric.merged(symmetric.symmetric_task(layer.classes))
    axes = {name: list(values) for name, values in plane.fields.items()}
    shape = tuple(map(len, axes.values()))
    with precision("float64"):
        rules = jax.tree.map(
            lambda number: jnp.broadcast_to(number, shape).ravel(),
            plane.plane({}).rule.build().astype("float64"),
        )

        def largest_log(rule: dynsim.Rule) -> Array:
            if not infinite_length:
                options: dict[str, Any] = {"batch": run.batch, "length": layer.length}
                return symmetric.instability(reduced, rule, steps=run.steps, **options).max()
            overshoot = symmetric.overshoot(reduced, rule, steps=run.steps).max()
            # There is no attention at the first step.
            return jnp.log(jnp.maximum(overshoot, jnp.finfo(overshoot.dtype).tiny))

        solve = jax.jit(lambda rules: jax.lax.map(largest_log, rules, batch_size=FLOWS_AT_ONCE))
        values = np.asarray(solve(rules)).reshape(shape)
    # A flow that fails counts as beyond the line.
    values = np.where(np.isfinite(values), values, np.log(np.finfo(float).max))
    name_and_text = OVERSHOOT if infinite_length else TIES
    return Line(*name_and_text, xr.DataArray(values, axes, tuple(axes)), ("C0", "-", 1.6))


DIAGRAM = Diagram(
    x="eta_y:1e-3:1e2",
    y="eta_z:1e-2:1e2",
    observable="entropy",
    regions=REGIONS,
    titles={
        "symmetric-descent": "descent, T and batch infinite",
        "symmetric": "exact flow",
        "symmetric-finite-t": "flow at finite T",
        NOISE: "descent with noise",
    },
    # Descent takes the steps of training, and is as fast as the flow.
    aliases={"symmetric": "symmetric-descent"},
    best=best,
    predict=predict,
    # Sequences too short for an expansion in 1/T have the flow of infinite ones.
    flow={"length": math.inf},
)
