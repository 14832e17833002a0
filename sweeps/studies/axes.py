"""Axes of figures, as options describe them: "eta_y:1e-2:1e2:256"."""

from collections.abc import Collection, Iterator
from typing import Annotated

import numpy as np

from dynsim import checks
from dynsim.decoding import Form
from sweeps.language.fields import LanguageError, Table, is_array
from sweeps.language.grammar import Path, Setting
from sweeps.language.tree import encode
from sweeps.systems.experiment import Experiment
from sweeps.systems.kinds import language
from sweeps.systems.registry import system_of

MOST_VALUES = 2**24
_RANGE = r"[^:]+:[^:]+:[^:]+(:\d+)?(:lin)?"
_TEXT = "NAME:FIRST:LAST or NAME:FIRST:LAST:NUMBER, then :lin for a linear axis"
AxisWord = Annotated[str, Form(_RANGE, _TEXT, setting=True)]
"""An axis as an option has it."""
SizesWord = Annotated[
    str, Form(rf"[^:]+:[-+.\w]+(,[-+.\w]+)*|{_RANGE}", f"NAME:V1,V2,... or {_TEXT}", setting=True)
]
"""The same, or a list of values."""
NUMBERS = {"number", "integer", "integer or inf"}


def axis(word: str, number: int, run: Experiment) -> tuple[str, tuple[float, ...]]:
    """Name and values of "eta_y:1e-2:1e2:256" or "momentum:0:0.9:10:lin", by default so many;
    `ValueError` for what cannot be read or is no number of the run."""
    name, *numbers = word.split(":")
    whole = is_whole(word, run)
    linear = is_linear(word)
    numbers = numbers[:-1] if linear else numbers
    first, last, count = 0.0, 0.0, 0
    try:
        first, last = (float(each) for each in numbers[:2])
        count = int(numbers[2]) if len(numbers) > 2 else number
    except ValueError:
        count = 0
    if count < 2 or len(numbers) > 3:
        raise ValueError(f"axis = {word!r}: must be {_TEXT}")
    if linear:
        checks.real(f"axis {name}", [first, last])
    else:
        checks.real(f"axis {name}", [first, last], 0, open_minimum=True)
    if first == last or count > MOST_VALUES:
        raise ValueError(
            f"axis = {word!r}: needs two ends, and at most {MOST_VALUES} values between them"
        )
    values = (np.linspace if linear else np.geomspace)(first, last, count)
    if whole:
        values = np.unique(np.rint(values)).astype(int)
    return name, tuple(values.tolist())


def is_linear(word: str) -> bool:
    """Whether an axis as it is written is linear."""
    return word.endswith(":lin")


def is_whole(word: str, run: Experiment) -> bool:
    """Whether the values of the axis in "batch:1:64" are integers; `ValueError` for a setting that
    has no numbers."""
    try:
        setting = _setting(run, word.split(":")[0])
    except LanguageError as error:
        raise ValueError(f"axis = {word!r}: {error.reason}") from None
    if setting.path == ("seed",):
        raise ValueError(
            f"axis = {word!r}: seeds have no order; --seeds gives each point several of them"
        )
    if not NUMBERS & {*setting.field.types}:
        raise ValueError(f"axis = {word!r}: {setting.name} has no numbers; must be a number")
    return "number" not in setting.field.types


def path(run: Experiment, name: str) -> Path:
    """The path to the setting of a name."""
    return _setting(run, name).path


def described(run: Experiment, axes: Collection[str]) -> str:
    """A run in a line: its problem, what is not usual about its settings, its steps and its batch,
    without those along axes."""
    varied = [("dtype",), ("seed",), *(path(run, name) for name in axes)]
    words = []
    for at, value in _settings(encode(language(), run, full=False)):
        if not any(at[: len(each)] == each for each in varied) and value is not None:
            if at == ("problem", "kind") and ":" in str(value):
                value = system_of(run).name
            words.append(str(value) if at[-1] == "kind" else f"{'.'.join(at[1:] or at)} = {value}")
    return ", ".join(words)


def _setting(run: Experiment, name: str) -> Setting:
    return language().resolve(encode(language(), run), name)


def _settings(table: Table, at: Path = ()) -> Iterator[tuple[Path, object]]:
    for name, value in table.items():
        if is_array(value):
            continue
        if isinstance(value, dict):
            yield from _settings(value, (*at, name))
        elif (*at, name) != ("kind",):
            yield (*at, name), value
