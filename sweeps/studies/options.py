"""Helpers that tools share: axes such as "eta_y:1e-2:1e2:256", runs in a line, and maps."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import xarray as xr
from annotated_types import Ge, Le
from scipy import stats

from dynsim import checks
from dynsim.decoding import Form
from sweeps.language import fields
from sweeps.language.fields import LanguageError, Table, is_array
from sweeps.language.tree import encode
from sweeps.output.cells import cell_edges
from sweeps.systems.experiment import Experiment
from sweeps.systems.kinds import language
from sweeps.systems.registry import system_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

Several = Annotated[int, Ge(2), Le(2**31 - 1)]
"""An integer of at least 2, for settings that count something."""
Style = dict[str, Any]
"""Keyword arguments of a function of matplotlib."""
TWO_ERRORS = float(stats.norm.sf(2))
"""Probability that a normal variable lies more than two standard errors above its mean."""


def student(free: int, level: float = TWO_ERRORS) -> float:
    """Return the factor that widens a standard error from `free` degrees of freedom, so that it is
    exceeded with probability `level` as for a normal distribution; NaN for `free` = 0."""
    return float(stats.t.isf(level, free) / stats.norm.isf(level))


def heat_map(
    ax: "Axes", values: xr.DataArray, scale: str | None = None, **options: Any
) -> "QuadMesh":
    """Draw values (across, up) as coloured cells around their coordinates (see `cell_edges`).
    Values that are not finite get the colour of bad values. Returns the mesh, for a colour bar."""
    edges = (cell_edges(values[dim], scale) for dim in values.dims)
    return ax.pcolormesh(*edges, values.values.T, rasterized=True, **options)


MOST_AXIS_VALUES = 2**24
_RANGE = r"[^:]+:[^:]+:[^:]+(:\d+)?(:lin)?"
_TEXT = "NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER, then :lin for a linear axis"
AxisWord = Annotated[str, Form(_RANGE, _TEXT, setting=True)]
"""An axis as written in an option."""
SizesWord = Annotated[
    str, Form(rf"[^:]+:[-+.\w]+(,[-+.\w]+)*|{_RANGE}", f"NAME:V1,V2,... or {_TEXT}", setting=True)
]
"""An axis, or a list of values."""
NUMBER_TYPES = {"number", "integer", "integer or inf"}


def axis(word: str, number: int, run: Experiment) -> tuple[str, tuple[float, ...]]:
    """Parse an axis such as "eta_y:1e-2:1e2:256", "momentum:0:0.9:10:lin" or "K:2,4,8" into its
    name and values. `number` is the default number of values. Raises `ValueError` for text that
    cannot be parsed and for settings that are not numbers."""
    name, *numbers = word.split(":")
    try:
        setting = _setting(run, name)
    except LanguageError as error:
        raise ValueError(f"axis = {word!r}: {error.reason}") from None
    if setting.path == ("seed",):
        raise ValueError(
            f"axis = {word!r}: seeds have no order; --seeds gives each point several of them"
        )
    if not NUMBER_TYPES & {*setting.field.types}:
        raise ValueError(f"axis = {word!r}: {setting.name} has no numbers; must be a number")
    whole, linear = "number" not in setting.field.types, is_linear(word)
    numbers = numbers[:-1] if linear else numbers
    listed = len(numbers) == 1 and "," in numbers[0]
    try:
        ends = [float(text) for text in (numbers[0].split(",") if listed else numbers[:2])]
        count = int(numbers[2]) if len(numbers) > 2 else number
    except ValueError:
        ends, count = [], 0
    if len(ends) < 2 or count < 2 or len(numbers) > 3:
        lists = "NAME:V1,V2,... or " * listed
        raise ValueError(f"axis = {word!r}: must be {lists}{_TEXT}")
    if linear:
        checks.real(f"axis {name}", ends)
    else:
        checks.real(f"axis {name}", ends, 0, open_minimum=True)
    if listed:
        # Values that are not whole are left for the sweep to reject.
        return name, tuple(int(v) if whole and v == int(v) else v for v in ends)
    first, last = ends
    if first == last or count > MOST_AXIS_VALUES:
        raise ValueError(
            f"axis = {word!r}: needs two ends, and at most {MOST_AXIS_VALUES} values between them"
        )
    values = (np.linspace if linear else np.geomspace)(first, last, count)
    if whole:
        # Several of the evenly spaced values may round to the same integer.
        values = np.unique(np.rint(values)).astype(int)
    return name, tuple(values.tolist())


def is_linear(word: str) -> bool:
    """Return whether the text of an axis specifies linear spacing."""
    return word.endswith(":lin")


def run_title(run: Experiment, axes: Collection[str]) -> str:
    """Describe a run in one line: its problem, settings that differ from their defaults, steps and
    batch, without the settings that vary along `axes`."""
    varied = [("dtype",), ("seed",), *(_setting(run, name).path for name in axes)]
    table, words = encode(language(), run, full=False), []
    groups = language().run_defaults(table)[1] or ()
    for path, value in _settings(table):
        swept = any(path[: len(prefix)] == prefix for prefix in varied)
        # A rate of all groups is the rate of none if the axes have all groups.
        swept |= bool(groups) and all((*path, group) in varied for group in groups)
        if not swept and value is not None:
            # A problem of somebody's package is named by its file and class.
            if path == ("problem", "kind") and ":" in str(value):
                value = system_of(run).name
            name = ".".join(path[1:] or path)
            words.append(str(value) if path[-1] == "kind" else f"{name} = {value}")
    return ", ".join(words)


def _setting(run: Experiment, name: str) -> fields.Setting:
    return language().resolve(encode(language(), run), name)


def _settings(table: Table, prefix: fields.Path = ()) -> Iterator[tuple[fields.Path, object]]:
    for name, value in table.items():
        # Data does not fit on a line.
        if is_array(value):
            continue
        if isinstance(value, dict):
            yield from _settings(value, (*prefix, name))
        elif (*prefix, name) != ("kind",):
            yield (*prefix, name), value
