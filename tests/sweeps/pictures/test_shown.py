"""Pictures of the same made-up data show what they showed when somebody last looked at them."""

import json

import pytest

from tests.sweeps.pictures import printed, shown

KEPT = json.loads(shown.RECORD.read_text())


@pytest.mark.parametrize("name", shown.RECORDED)
@pytest.mark.more
def test_a_picture_shows_what_is_recorded(name: str) -> None:
    """Words, places and looks of all its parts. After a change that you wanted, look at the picture
    and run `python -m tests.sweeps.pictures.shown`."""
    found = shown.drawn(name)
    assert len(found) == len(KEPT[name])
    for place, (panel, recorded) in enumerate(zip(found, KEPT[name], strict=True)):
        assert shown.differences(panel, recorded, f"panel {place}") == []


@pytest.mark.parametrize("name", printed.EXAMPLES)
@pytest.mark.more
def test_a_study_prints_what_is_recorded(name: str) -> None:
    assert printed.EXAMPLES[name]() == KEPT[f"{name}, printed"]


def test_one_of_many_numbers_is_seen() -> None:
    """Of any size, place and sign, so that no part of a curve may change."""
    curve = [[1e-6, 0.3, 7e4], [-2.0, 0.0, -5e3]]
    same = shown.number(curve)
    assert shown.differences([same * (1 + 1e-6)], [same], "") == []
    for row in range(2):
        for column in range(3):
            other = [[*each] for each in curve]
            other[row][column] = 1.01 * other[row][column] + 1e-6
            assert shown.differences([shown.number(other)], [same], "") != []
    assert shown.differences([shown.number([curve[1], curve[0]])], [same], "") != []
