"""Which method takes the place of the solver of theories, as a part of every key of JAX's caches: a
program of one method is never taken for one of another, and none need be dropped."""

import contextlib
import sys
from collections.abc import Iterator

import jax

# Made before anything is traced: keys without it would not be found again.
METHOD = jax.make_user_context("adaptive")


@contextlib.contextmanager
def solved_by(method: str) -> Iterator[None]:
    """What any thread traces meanwhile is of this method."""

    def drop_sweeps() -> None:
        if jobs := sys.modules.get("sweeps.runner.program.jobs"):
            jobs.PROGRAMS.clear()

    before = METHOD.get_global()
    drop_sweeps()
    METHOD.set_global(method)
    try:
        yield
    finally:
        METHOD.set_global(before)
        drop_sweeps()
