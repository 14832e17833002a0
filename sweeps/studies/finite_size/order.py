"""Errors of descent at infinite T and to first order in 1/T, against quadratures of the finite-T
loss; mean and standard deviation across seeds to second order in 1/B, with the counts' tails."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PyTree

import dynsim
from dynsim.classes.task import SequenceClasses
from dynsim.precision import precision
from dynsim.training.loop import by_rule, train
from dynsim.training.rule import of_layer
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from odes.batch_noise import STD
from odes.yz import spread

NEGLIGIBLE = 1e-20
"""Count vectors less probable than this are left out of an enumeration."""
RECORD = ("loss", "z_top_distinct")


class Errors(NamedTuple):
    """Relative errors at the end for L lengths T, in the order of `RECORD`.

    Attributes:
        infinite: (L, 2) for descent at infinite T.
        finite: (L, 2) for descent to first order in 1/T; NaN for T too small for the expansion.
        reference: (L, 2) uncertainty of the quadrature; 0 for enumeration.
    """

    infinite: Float[np.ndarray, "L 2"]
    finite: Float[np.ndarray, "L 2"]
    reference: Float[np.ndarray, "L 2"]


def small_task() -> SequenceClasses:
    """Return a task of two classes of three tokens, one common, small enough to enumerate."""
    return dynsim.sequence_classes([[0.5, 0.3, 0.2, 0, 0], [0.5, 0, 0, 0.3, 0.2]], [0, 1])


def enumerated(task: SequenceClasses, length: int) -> yz.Examples:
    """Return all count vectors of `length` - 1 contextual tokens, weighted by probability."""
    classes, counts, weight = [], [], []
    total = length - 1
    for n, (p, prior) in enumerate(
        zip(np.asarray(task.probs), np.asarray(task.prior), strict=True)
    ):
        tokens = np.flatnonzero(p)
        # Stars and bars: positions of the bars between the counts of successive tokens.
        inner = itertools.combinations(range(total + tokens.size - 1), tokens.size - 1)
        bars = np.array(list(inner), np.int64).reshape(-1, tokens.size - 1)
        edges = np.pad(
            bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, total + len(tokens) - 1))
        )
        found = np.diff(edges, axis=1) - 1
        log = math.lgamma(total + 1) - _log_factorial(found).sum(1) + found @ np.log(p[tokens])
        kept = log > math.log(NEGLIGIBLE)
        spread = np.zeros((kept.sum(), task.M))
        spread[:, tokens] = found[kept]
        classes.append(np.full(len(spread), n))
        counts.append(spread)
        weight.append(prior * np.exp(log[kept]))
    return yz.Examples(*(np.concatenate(part) for part in (classes, counts, weight)))


def sampled(task: SequenceClasses, length: int, number: int, seed: int) -> yz.Examples:
    """Sample `number` count vectors of each class."""
    rng = np.random.default_rng(seed)
    p = np.asarray(task.probs, np.float64)
    counts = np.concatenate([rng.multinomial(length - 1, row / row.sum(), number) for row in p])
    weight = np.repeat(np.asarray(task.prior) / number, number)
    return yz.Examples(np.repeat(np.arange(task.K), number), counts.astype(np.float64), weight)


def against_enumeration(optimizer: dynsim.Rule, lengths: Sequence[int], steps: int) -> Errors:
    """Measure errors on the small task against the exact loss."""
    task = small_task()
    exact = [_descend(task, optimizer, enumerated(task, T), steps) for T in lengths]
    return _errors(task, optimizer, lengths, steps, np.array(exact), np.zeros((len(lengths), 2)))


def against_samples(
    task: SequenceClasses,
    optimizer: dynsim.Rule,
    lengths: Sequence[int],
    steps: int,
    number: int,
) -> Errors:
    """Measure errors on a task too large to enumerate. The reference is the mean of descents on two
    samples of `number` count vectors per class; its uncertainty is half of their distance."""
    found = np.array(
        [
            [_descend(task, optimizer, sampled(task, T, number, seed), steps) for seed in (0, 1)]
            for T in lengths
        ]
    )
    mean = found.mean(1)
    return _errors(
        task, optimizer, lengths, steps, mean, np.abs(found[:, 0] - found[:, 1]) / 2 / np.abs(mean)
    )


def slope(lengths: Sequence[int], errors: Float[np.ndarray, " L"], least: int = 64) -> float:
    """Fit the exponent of the errors' power law in T, for T >= `least`."""
    far = np.asarray(lengths) >= least
    return float(np.polyfit(np.log(np.asarray(lengths)[far]), np.log(errors[far]), 1)[0])


def _errors(
    task: SequenceClasses,
    optimizer: dynsim.Rule,
    lengths: Sequence[int],
    steps: int,
    exact: Float[np.ndarray, "L 2"],
    reference: Float[np.ndarray, "L 2"],
) -> Errors:
    def theory(length: float) -> np.ndarray:
        try:
            finite_length.check_length(task, length)
        except ValueError:
            return np.full(2, np.nan)
        found = dynsim.train(
            dynsim.Layer(task, length),
            optimizer,
            jax.random.key(0),
            steps=steps,
            batch=math.inf,
            times=[steps],
            record=RECORD,
            dtype="float64",
        )
        return np.array([found["loss"][-1], found["z_top_distinct"][-1, 0]])

    finite = np.array([theory(T) for T in lengths])
    return Errors(np.abs(theory(math.inf) / exact - 1), np.abs(finite / exact - 1), reference)


def _descend(
    task: SequenceClasses, optimizer: dynsim.Rule, examples: yz.Examples, steps: int
) -> np.ndarray:
    """Return loss and logit after descent on the loss of `examples`."""
    with precision("float64"):
        task, optimizer = task.astype("float64"), optimizer.astype("float64")
        return np.asarray(_run(task, optimizer, jax.tree.map(jnp.asarray, examples), steps))


@jax.jit
def _run(
    task: SequenceClasses,
    optimizer: dynsim.Rule,
    examples: yz.Examples,
    steps: Int[Array, ""],
) -> Float[Array, "2"]:
    start: PyTree = yz.init_zero(task, "float64")
    found = train(
        start,
        optimizer.init(start),
        by_rule(
            lambda params, _: yz.loss_and_grad(params, task, examples),
            optimizer,
            groups=of_layer(start),
        ),
        lambda params, memory, k, seen: (
            {
                name: observables.OBSERVABLES[name](task, observables.measure(task, params))
                for name in RECORD
            },
            seen,
        ),
        jnp.asarray(steps, jnp.int32)[None],
        steps=None,
        limit=math.inf,
        dtype="float64",
    )
    return jnp.stack([found["loss"][-1], found["z_top_distinct"][-1, 0]])


def _log_factorial(counts: Int[np.ndarray, "E S"]) -> Float[np.ndarray, "E S"]:
    table = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, counts.max() + 1)))])
    return table[counts]


GROUPS = 8
"""Number of groups of draws, whose differences give the sampling error."""
DRAWN = STD + "_drawn"


def second_order(
    rules: Mapping[float, dynsim.Rule],
    batches: Sequence[int],
    *,
    steps: int,
    length: int,
    draws: int,
    record: Sequence[str],
) -> xr.Dataset:
    """Solve Syn-Small for `steps` steps, for each rule (by its rate eta_Z) and each batch.

    Standard deviations are named as in the theory `spread`; their relative errors from the draws
    have `DRAWN` appended to the name. `status` is that of descent.
    """
    task, keys = dynsim.SynSmall().build(), jax.random.split(jax.random.key(0), GROUPS)
    found = []
    with precision("float64"):
        for rule, batch in itertools.product(rules.values(), batches):
            # Parts that do not depend on the draws are computed once.
            solve = functools.partial(
                spread.solve,
                task,
                rule,
                [steps],
                batch=batch,
                length=length,
                record=list(record),
                squares=True,
                tails=True,
                draws=-(-draws // GROUPS),
            )
            run = jax.vmap(lambda key, solve=solve: solve(key=key))(keys)
            found.append((run, run.std))
    place = "eta_z", "batch"
    sizes = len(rules), len(batches)

    def together(of: list[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
        array = np.stack(of).reshape(*sizes, *of[0].shape)
        return (*place, "class")[: array.ndim], array

    data = {"status": together([np.asarray(run.status)[0] for run, _ in found])}
    for name in record:
        data[name] = together([np.asarray(run[name])[:, -1].mean(0) for run, _ in found])
        variances = [np.asarray(std[name])[:, -1] ** 2 for _, std in found]
        data[name + STD] = together([each.mean(0) ** 0.5 for each in variances])
        errors = [each.std(0, ddof=1) / GROUPS**0.5 / each.mean(0) / 2 for each in variances]
        data[name + DRAWN] = together(errors)
    return xr.Dataset(data, {"eta_z": list(rules), "batch": list(batches)})
