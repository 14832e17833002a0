"""Mean and standard deviation across seeds to second order in 1/B, with the tails of the counts."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import xarray as xr

import dynsim
from odes.yz import spread
from sweeps.systems.yz.scatter import STD


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

    Standard deviations are called as those of the engine `spread`; `status` is that of descent.
    """
    task, key = dynsim.syn_small(), jax.random.key(0)
    found = [
        spread.solve(
            task,
            rule,
            [steps],
            batch=batch,
            length=length,
            record=list(record),
            squares=True,
            tails=True,
            draws=draws,
            key=key,
        )
        for rule in rules.values()
        for batch in batches
    ]
    place = "eta_z", "batch"
    sizes = len(rules), len(batches)

    def together(of: list[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
        array = np.stack(of).reshape(*sizes, *of[0].shape)
        return (*place, "class")[: array.ndim], array

    data = {"status": together([np.asarray(run.status) for run in found])}
    for name in record:
        data[name] = together([np.asarray(run[name])[-1] for run in found])
        data[name + STD] = together([np.asarray(run.std[name])[-1] for run in found])
    return xr.Dataset(data, {"eta_z": list(rules), "batch": list(batches)})
