"""Environment variables that JAX and XLA read, where they have a value that neither takes.

JAX raises an error in words of its own when it is imported. XLA ends the process, with a trace of
C++, as soon as it starts on a device.
"""

import importlib.util
import mmap
import os
import shlex
import traceback
from collections.abc import Iterable
from pathlib import Path

FLAGS = "XLA_FLAGS"
USUAL = "xla_force_host_platform_device_count"
"""A flag that every XLA has: a library without its name does not show those of others either."""


def reason(error: Exception) -> str:
    """The words of an error. One that JAX raises about its environment names the variable, its
    value and what is allowed."""
    said = str(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_globals.get("__name__") != "jax._src.config":
        return said
    given = {n: v for n, v in os.environ.items() if n.startswith("JAX_") and v}
    found = [n for n, v in given.items() if v.casefold() in said.casefold()]
    # What JAX says of a number has the value alone.
    name = max(found, key=lambda n: (n.casefold() in said.casefold(), len(n)), default=None)
    if name is None:
        return said
    takes = "must be true or false" if "truth value" in said else f"JAX rejects it ({said})"
    return f"{name} = {given[name]!r} in the environment: {takes}; change it or unset it"


def check_flags() -> None:
    """Raise `ValueError` for flags of XLA in the environment that this XLA does not have."""
    given = os.environ.get(FLAGS, "").strip()
    if given and not given.startswith("-"):
        if not Path(given).is_file():
            raise ValueError(
                f"{FLAGS} = {given!r} in the environment: must be flags, --NAME=VALUE, or a file "
                "that has them; change it or unset it"
            )
        return
    try:
        words = shlex.split(given)
    except ValueError:
        # A quote that is not closed is for XLA to judge.
        return
    if lacking := _lacking(word.lstrip("-").partition("=")[0] for word in words):
        raise ValueError(
            f"{FLAGS} = {given!r} in the environment: XLA of this version has no flag "
            f"{', '.join(lacking)}; change it or unset it"
        )


def _lacking(names: Iterable[str]) -> list[str]:
    """Which names of flags stand nowhere in the library that has XLA. To read that takes part of a
    second, which only those who give flags wait for."""
    left = dict.fromkeys(names)
    found = importlib.util.find_spec("jaxlib") if left else None
    folder = Path(found.origin or "").parent if found else Path("jaxlib")
    for path in folder.glob("*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            if code.find(f"{USUAL}\0".encode()) >= 0:
                return [name for name in left if code.find(f"{name}\0".encode()) < 0]
    return []
