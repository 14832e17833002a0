"""Which GPUs this process may use, without starting anything on them."""

import os
from pathlib import Path


def visible() -> list[str]:
    """Names of the NVIDIA GPUs that are visible, as CUDA_VISIBLE_DEVICES takes them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((number for number in numbers if number.isdecimal()), key=int)
