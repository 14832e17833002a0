"""Finite-length and finite-batch effects in the two-stage system, against Monte Carlo sampling."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from dynsim.precision import precision
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ, data_loss
from dynsim.two_stage.observables import reduced_state
from dynsim.two_stage.task import PromptBatch, Prompts, sample_prompts
from odes import two_stage
from odes.two_stage.loss import D, ReducedState, losses, normal_nodes
from odes.two_stage.thresholds import gradient_variance
from sweeps import output
from sweeps.output import drawing
from sweeps.studies.finite_size.order import slope
from sweeps.studies.options import Several, begin
from sweeps.systems.experiment import experiment

LENGTHS = (17, 33, 65, 129, 257)
MOMENTS = ("start", "end of stage 1", "end of stage 2")
CHUNK = 256
"""Number of prompts whose gradients are in memory at once."""
Scores = Float[np.ndarray, " N"]
"""A score for each of N queries."""
ENTRIES = ("a", "b", "W[0,1:]", "W[1:,:]", "V[0,1:]", "V[1:,0]", "V[1:,1:]")


@dataclasses.dataclass(frozen=True)
class TwoStageFinite:
    """Measure the effects of a finite length, batch and pool along the reduced ODE.

    Attributes:
        samples: prompts on which the loss is measured at each length.
        prompts: prompts whose gradients are taken at each moment.
        out: folder for the figure, two_stage_finite.npz and .json.
    """

    samples: Several = 60_000
    prompts: Several = 4096
    out: Path = Path("out/two_stage_finite")


class Remainder(NamedTuple):
    """Signed relative error of three approximations of a loss at each length.

    Attributes:
        infinite: (L,) with the mean of the output over contexts only.
        gaussian: (L,) with the variance of the output at finite L as well.
        reduced: (L,) with that variance from seven numbers, which assume isotropic blocks.
        error: (L,) sampling error of all three.
    """

    infinite: Float[np.ndarray, " L"]
    gaussian: Float[np.ndarray, " L"]
    reduced: Float[np.ndarray, " L"]
    error: Float[np.ndarray, " L"]


def run(config: TwoStageFinite) -> list[Path]:
    """Compute the errors, print the tables and write the figure."""
    begin(config)
    training = experiment("two_stage")
    task, rule = training.built
    assert isinstance(task, Prompts)
    stages = Annealing.of(rule)
    times = np.array([0, stages.first, stages.last])
    states = np.asarray(two_stage.solve(task, rule, times, record="state")["state"])
    rng = np.random.default_rng(0)
    drawn = [weights(ReducedState(*state), task.d, rng) for state in states]
    found = {
        f"{loss}, {moment}": remainders(task, drawn[k], loss, config.samples, rng)
        for k, moment in enumerate(MOMENTS)
        if k
        for loss in ("K1", "K2")
    }
    variances = np.array([variance(task, U, config.prompts) for U in drawn])
    with precision("float64"):
        predicted = np.array([gradient_variance(projected(U), task) for U in drawn])
    scale = float(training.batch * stages.noise**2)
    print("\n".join([*length_lines(found), "", *batch_lines(variances, predicted, scale)]))
    arrays = {**found, "length": LENGTHS, "variance": variances, "closed_form": predicted}
    report, figure = {name: r._asdict() for name, r in found.items()}, draw(found)
    return output.write(config.out, "two_stage_finite", figure=figure, arrays=arrays, report=report)


def draw(found: Mapping[str, Remainder]) -> Figure:
    """Draw errors over the length in a panel for each moment, with the slopes -1 and -2."""
    figure, axes = drawing.panels(1, 2, width=4.2, height=4.2, sharey=True)
    first, last = LENGTHS[0], LENGTHS[-1]
    for ax, moment in zip(axes[0], MOMENTS[1:], strict=True):
        here = {name: r for name, r in found.items() if name.endswith(moment)}
        for place, (name, r) in enumerate(here.items()):
            style: dict[str, Any] = {"color": drawing.colour(place)}
            loss = name.split(",")[0]
            ax.plot(LENGTHS, np.abs(r.infinite), "o:", label=f"{loss}, without variance", **style)
            style |= {"fmt": "s-", "label": f"{loss}, with variance"}
            ax.errorbar(LENGTHS, np.abs(r.gaussian), r.error, **style)
        drawing.power(ax, first, last, 0.1 * first / last, "L", 1)
        drawing.power(ax, first, last, 0.003 * (first / last) ** 2, "L", 2)
        labels: dict[str, Any] = {"xlabel": "tokens L", "ylabel": "relative error of the loss"}
        drawing.finished(ax, xscale="log", yscale="log", **labels)
        drawing.ticks(ax.xaxis, LENGTHS)
        ax.set_title(moment)
    drawing.below(figure, axes[0, 0].get_legend_handles_labels()[0], 2)
    return figure


def weights(state: ReducedState, d: int, rng: np.random.Generator) -> PQ:
    """Draw W and V (d, d) with independent normal entries whose mean squares `state` gives."""
    W, V = rng.normal(size=(2, d, d))
    W[0] *= state.v_h**0.5
    W[1:] *= state.v_W**0.5
    V[0] *= state.v_e**0.5
    V[1:, 0] *= state.v_u**0.5
    V[1:, 1:] *= state.v_M**0.5
    W[0, 0], V[0, 0] = state.a, state.b
    return PQ(W, V)


def projected(U: PQ) -> ReducedState:
    """Return the seven numbers of the reduced state of weights."""
    return ReducedState(*np.asarray(reduced_state(U), np.float64))


def remainders(
    task: Prompts, U: PQ, loss: str, samples: int, rng: np.random.Generator
) -> Remainder:
    """Errors of K1 or K2 over `LENGTHS` for given weights. A token enters only through its score,
    whose exact distribution needs at most two random numbers."""
    query = sample_prompts(dataclasses.replace(task, length=2), jax.random.key(0), samples)
    y = np.asarray(query.labels[:, -1], np.float64)
    on_P = loss == "K1"
    x = np.asarray((query.P if on_P else query.Q)[:, -1], np.float64)
    score = x @ np.asarray(U.W if on_P else U.V).T
    across = (task.s1 if on_P else task.s2) * np.linalg.norm(score[:, 1:], axis=1)
    state = projected(U)
    rows = []
    for length in LENGTHS:
        here = dataclasses.replace(task, length=length)
        mean, sd = moments(here, score[:, 0], across, on_P)
        parts = zip(*(np.array_split(each, 200) for each in (score[:, 0], across)), strict=True)
        outputs = np.concatenate([contexts(here, a, b, on_P, rng) for a, b in parts])
        margin, shift = y * mean, y * (outputs - mean)
        f, of_f = normal_nodes(12)
        gaussian = np.logaddexp(0, -(margin[:, None] + sd[:, None] * f)) @ of_f
        plain = np.logaddexp(0, -margin)
        gate = 1 / (1 + np.exp(margin))
        # A control variate: terms of mean zero that remove most of the sampling error.
        known = -gate * shift + gate * (1 - gate) * (shift**2 - sd**2) / 2
        left = gaussian - (np.logaddexp(0, -(margin + shift)) - known)
        true = np.mean(gaussian - left)
        with precision("float64"):
            both = [losses(state, here, finite_length=finite) for finite in (True, False)]
            reduced, without = (float(getattr(each, loss)) for each in both)
        # On the same queries: of the reduction, only the effect of the variance is tested.
        plain_error = plain.mean() - true
        judged = (plain_error, left.mean(), plain_error + reduced - without)
        rows.append(np.array([*judged, left.std() / math.sqrt(samples)]) / true)
    return Remainder(*np.array(rows).T)


def moments(task: Prompts, score: Scores, across: Scores, on_P: bool) -> tuple[Scores, Scores]:
    """Exact mean and standard deviation of the output over contexts, for each query."""
    if on_P:
        mean = np.asarray(task.mean_margin) * score / 2
        square = (task.mean_square_margin * score**2 + across**2) / 2
    else:
        with precision("float64"):
            mean = -np.asarray(D(task.r * score, across)) / 4
        square = across**2 / 2 + (task.r * score) ** 2 / 4
    deviation = np.sqrt(task.kappa / task.length * np.asarray(square - mean**2))
    return np.asarray(task.kappa * mean), deviation


def contexts(
    task: Prompts, score: Scores, across: Scores, on_P: bool, rng: np.random.Generator
) -> Scores:
    """Draw a context for each query and return the outputs."""
    shape = (len(score), task.length - 1)
    labels = rng.choice([-1.0, 1.0], size=shape)
    if on_P:
        along = labels * (task.gamma0 + task.s1 * np.abs(rng.normal(size=shape)))
    else:
        along = np.where(labels > 0, 0, task.r * rng.choice([-1.0, 1.0], size=shape))
    scores = along * score[:, None] + across[:, None] * rng.normal(size=shape)
    return (labels * np.maximum(scores, 0)).sum(1) / task.length


def variance(task: Prompts, U: PQ, prompts: int) -> Float[np.ndarray, " 7"]:
    """Variance of the gradient over prompts, averaged over each block of `ENTRIES`."""

    def gradient(prompt: PromptBatch) -> PQ:
        one = jax.tree.map(lambda leaf: leaf[None], prompt)
        return jax.grad(data_loss)(U, task.coupling, one)

    each = jax.jit(jax.vmap(gradient))
    sums = np.zeros((2, 2, task.d, task.d))
    count = max(prompts // CHUNK, 1)
    for key in jax.random.split(jax.random.key(1), count):
        found = each(sample_prompts(task, key, CHUNK))
        G = np.stack([found.W, found.V]).astype(np.float64)
        sums += [G.sum(1), (G**2).sum(1)]
    mean, square = sums / (count * CHUNK)
    W, V = square - mean**2
    blocks = (W[0, 0], V[0, 0], W[0, 1:], W[1:], V[0, 1:], V[1:, 0], V[1:, 1:])
    return np.array([np.mean(block) for block in blocks])


def length_lines(found: dict[str, Remainder]) -> list[str]:
    """Tabulate the errors by length, with their exponents."""
    lines = ["Relative error in % of the loss: outputs without variance / Gaussian / reduced."]
    lines.append(f"{'L':<22}" + "".join(f"{length:>35}" for length in LENGTHS))
    for name, r in found.items():
        rows = 100 * np.array(r).T
        cells = (f"{i:.3g} / {g:.3g} / {s:.3g} (±{e:.1g})" for i, g, s, e in rows)
        lines.append(f"{name:<22}" + "".join(f"{cell:>35}" for cell in cells))
        for kind in ("infinite", "gaussian"):
            size = np.abs(getattr(r, kind))
            # Errors within the sampling error have no exponent.
            if np.all(size > 2 * r.error):
                lines[-1] += f"  {kind} like L^{slope(LENGTHS, size, least=LENGTHS[0]):.2f}"
    return lines


def batch_lines(
    variances: Float[np.ndarray, "T 7"], predicted: Float[np.ndarray, "T 2"], scale: float
) -> list[str]:
    """Tabulate the variances of gradients over prompts, with the closed forms."""
    rows: list[tuple[str, ...]] = [("", *MOMENTS)]
    for k, name in enumerate(ENTRIES):
        rows.append((name, *(f"{r[k]:.3g} ; {100 * r[k] / scale:.2g} %" for r in variances)))
        if k < 2:
            rows.append((" closed", *(f"{r[k]:.3g}" for r in predicted)))
    title = "Variance C of the gradient over prompts, in entries of a block; C / (B tau_xi^2)."
    return [title, *output.aligned(rows, 10, 24)]
