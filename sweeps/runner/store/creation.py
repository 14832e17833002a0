"""Making the store of a sweep."""

import functools
from collections.abc import Mapping

from sweeps.runner import labels
from sweeps.runner.axes import Layout
from sweeps.runner.spec import Sweep
from sweeps.runner.store.base import Place, Report, Variable
from sweeps.runner.store.store import Store


def create(
    where: str | Place,
    sweep: Sweep,
    layout: Layout,
    variables: Mapping[str, Variable],
    report: Report | None = None,
) -> Store:
    """An empty store for a sweep, or the one that another process has made for it meanwhile.

    Args:
        where: the place, or its address.
        sweep: what it will hold.
        layout: how the array of runs is cut into chunks.
        variables: the arrays that the runs record.
        report: called with lines for people, as when somebody else has to be waited for.

    Raises:
        StoreError: when another process has made a store of another sweep there, or a bucket cannot
            be written.
    """
    config = sweep.as_json()
    try:
        return Store.create(
            where,
            config,
            sweep.dims,
            layout,
            variables,
            labels.coordinates(sweep),
            functools.partial(labels.about, sweep.system),
            sweep.dtype,
            report,
        )
    except FileExistsError:
        store = Store.open(where)
        store.require(config)
        return store
