"""Finite-size scaling in words and numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from sweeps import output
from sweeps.runner.labels import shown
from sweeps.studies.transitions.scaling.analysis import Scaling

GOOD = 3.0
"""Misfit up to which curves are said to collapse."""


def lines(found: Scaling, values: xr.DataArray, linear: bool) -> list[str]:
    """The step of each size, what it follows, and the verdict.

    Places are in the unit of the rate. For a logarithmic axis their errors, and the widths, are
    those of the natural logarithm of the rate.
    """
    size, rate = (str(dim) for dim in values.dims[:2])
    x, back = (rate, np.asarray) if linear else (f"ln {rate}", np.exp)
    rows: list[Sequence[str]] = [
        (size, rate, "error", f"width in {x}", "error", "chi", "Binder crossing")
    ]
    chi = np.fmax.reduce(found.moments.susceptibility, axis=-1)
    columns = (
        back(found.places),
        found.place_errors,
        found.widths,
        found.width_errors,
        chi,
        back(np.append(np.nan, found.crossings)),
    )
    for value, *numbers in zip(values[size].values, *columns, strict=True):
        rows.append((shown(value), *map(_number, numbers)))
    said = [*output.aligned(rows, 10, 12, 10, 12 + len(x), 10, 10, 18), ""]
    said.append(f"largest chi ~ {size}^({_sure(found.peak.exponent, found.peak.error)})")
    place = found.place
    if place.drift:
        said.append(
            f"the step keeps moving: {x} = {place.place:.3g} + s ln {size}, s = "
            f"{_sure(place.drift, place.drift_error)}"
        )
    elif np.isfinite(place.error):
        at = _number(float(back(place.place)))
        said.append(f"{rate} of the step for infinite {size}: {at}, {x} ± {place.error:.2g}")
    if found.collapse is not None:
        c = found.collapse
        moving = f" of {x} - s ln {size}" * bool(place.drift)
        known = c.inverse_nu > 2 * c.errors[1]
        critical = f"x_c = {c.x_c:.3g} ± {c.errors[0]:.2g}, " * bool(known)
        poor = "" if known else "; one curve fits without a critical point"
        poor = "; curves do not collapse" if c.misfit > GOOD else poor
        said.append(
            f"collapse{moving}: {critical}1/nu = {_sure(c.inverse_nu, c.errors[1])}, "
            f"beta/nu = {_sure(c.beta_nu, c.errors[2])}, misfit {c.misfit:.2g}{poor}"
        )
    return [*said, f"{found.verdict}: with L = {size}, {found.why}"]


def plain(found: Scaling) -> dict[str, Any]:
    """All but the moments as dicts, for JSON."""
    named = found._asdict()
    del named["moments"], named["errors"]
    return {n: v._asdict() if hasattr(v, "_asdict") else v for n, v in named.items()}


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def _sure(value: float, error: float) -> str:
    return f"{value:.2f} ± {error:.2f}"
