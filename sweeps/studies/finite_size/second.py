"""Mean and standard deviation across seeds to second order in 1/B, with the tails of the counts."""

import functools
import itertools
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import xarray as xr

import dynsim
from dynsim.precision import precision
from odes.batch_noise import STD
from odes.yz import spread

GROUPS = 8
"""Of draws, from whose differences their error follows."""
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
    """What Syn-Small has after `steps` steps, for each rule, by its rate eta_Z, and each batch.

    Standard deviations are called as those of the engine `spread`, and with `DRAWN` at the end of
    their names have their relative errors by the draws; `status` is that of descent.
    """
    task, keys = dynsim.syn_small(), jax.random.split(jax.random.key(0), GROUPS)
    found = []
    with precision("float64"):
        for rule, batch in itertools.product(rules.values(), batches):
            # What does not depend on the draws is computed once.
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
