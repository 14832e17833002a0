"""What signatures and lists of names look like to those who read them."""

import inspect
from collections.abc import Callable

import pytest

import dynsim
import odes
from dynsim import checks


@pytest.mark.parametrize(
    "function", [dynsim.sgd, dynsim.adam, dynsim.train, dynsim.sequence_classes, odes.flow]
)
def test_help_begins_with_the_arguments(function: Callable[..., object]) -> None:
    # Types by the names that they have, which fit, instead of all that they stand for.
    shown = str(inspect.signature(function))
    assert len(shown) < 600
    assert "jaxlib" not in shown


def test_a_long_list_of_names_has_an_ending_once() -> None:
    names = [f"{letter * 9}{end}" for letter in "abcdefghijklmnop" for end in ("-late", "", "-x")]
    names += ["alone", "alone-x-late"]
    with pytest.raises(ValueError, match="must be one of ") as error:
        checks.choice("name", 3, names)
    listed = str(error.value).partition("must be one of ")[2].split(", ")
    assert listed[:2] == ["aaaaaaaaa[-late]", "aaaaaaaaa-x"]
    assert listed[-2:] == ["alone", "alone-x-late"]
    assert len(listed) == 2 * 16 + 2
    with pytest.raises(ValueError, match=r"must be one of a, a-late$"):
        checks.choice("name", 3, ("a", "a-late"))
