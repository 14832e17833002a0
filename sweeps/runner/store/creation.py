"""Making the store of a sweep."""

import functools
from collections.abc import Mapping
from pathlib import Path

from sweeps.runner import labels
from sweeps.runner.axes import Layout
from sweeps.runner.spec import Sweep
from sweeps.runner.store.store import Store, Variable


def create(
    path: Path | None, sweep: Sweep, layout: Layout, variables: Mapping[str, Variable]
) -> Store:
    """An empty store for a sweep, or the one that another process has made for it meanwhile.

    Args:
        path: where; None keeps it in memory.
        sweep: what it will hold.
        layout: how the array of runs is cut into chunks.
        variables: the arrays that the runs record.

    Raises:
        StoreError: when another process has made a store of another sweep there.
    """
    config = sweep.as_json()
    try:
        return Store.create(
            path,
            config,
            sweep.dims,
            layout,
            variables,
            labels.coordinates(sweep),
            functools.partial(labels.about, sweep.system),
            sweep.dtype,
        )
    except FileExistsError:
        if path is None:
            raise
        store = Store.open(path)
        store.require(config)
        return store
