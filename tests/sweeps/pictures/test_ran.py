"""Figures print and write of made-up sweeps what they did when somebody last looked at it."""

import json

import pytest

from tests.sweeps.pictures import ran
from tests.sweeps.pictures.shown import differences

KEPT = json.loads(ran.RECORD.read_text())


@pytest.mark.parametrize("name", ran.EXAMPLES)
@pytest.mark.more
def test_a_figure_prints_and_writes_what_is_recorded(name: str) -> None:
    """After a change that you wanted, run `python -m tests.sweeps.pictures.ran`."""
    found = json.loads(json.dumps(ran.EXAMPLES[name]()))
    assert len(found) == len(KEPT[name])
    for place, (part, recorded) in enumerate(zip(found, KEPT[name], strict=True)):
        assert alike(part, recorded, f"part {place}") == []


def alike(found: object, recorded: object, place: str) -> list[str]:
    """Differences by more than rounding, by name where there are names."""
    if isinstance(found, dict) and isinstance(recorded, dict) and list(found) == list(recorded):
        pairs = [(name, found[name], recorded[name]) for name in found]
        return [line for name, *pair in pairs for line in alike(*pair, f"{place}, {name}")]
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        pairs = enumerate(zip(found, recorded, strict=True))
        return [line for i, pair in pairs for line in alike(*pair, f"{place}, {i}")]
    return differences(found, recorded, place)
