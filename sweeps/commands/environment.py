"""Checks of environment variables with values that JAX or XLA do not accept.

JAX raises errors of its own when it is imported. XLA ends the process with a C++ traceback as soon
as it uses a device.
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
"""A flag of every XLA build. A library without its name does not reveal other flags either."""


def reason(error: Exception) -> str:
    """Return the message of an error. For JAX errors about the environment, it names the variable,
    its value and the allowed values."""
    said = str(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_globals.get("__name__") != "jax._src.config":
        return said
    given = {n: v for n, v in os.environ.items() if n.startswith("JAX_") and v}
    found = [n for n, v in given.items() if v.casefold() in said.casefold()]
    # JAX's message about an invalid number contains only the value.
    name = max(found, key=lambda n: (n.casefold() in said.casefold(), len(n)), default=None)
    if name is None:
        return said
    takes = "must be true or false" if "truth value" in said else f"JAX rejects it ({said})"
    return f"{name} = {given[name]!r} in the environment: {takes}; change it or unset it"


def check_flags() -> None:
    """Raise `ValueError` for flags in the environment that this XLA does not have."""
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
        # XLA reports unclosed quotes itself.
        return
    if lacking := _lacking(word.lstrip("-").partition("=")[0] for word in words):
        raise ValueError(
            f"{FLAGS} = {given!r} in the environment: XLA of this version has no flag "
            f"{', '.join(lacking)}; change it or unset it"
        )


def _lacking(names: Iterable[str]) -> list[str]:
    """Return the flag names that do not occur in the XLA library. Reading it takes a fraction of a
    second, but only users who set flags wait for it."""
    left = dict.fromkeys(names)
    found = importlib.util.find_spec("jaxlib") if left else None
    folder = Path(found.origin or "").parent if found else Path("jaxlib")
    for path in folder.glob("*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            if code.find(f"{USUAL}\0".encode()) >= 0:
                return [name for name in left if code.find(f"{name}\0".encode()) < 0]
    return []
