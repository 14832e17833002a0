"""Old names are refused with the new ones, and no old name is a name."""

import inspect
from collections.abc import Callable

import pytest

import dynsim
import odes
from dynsim import checks


def test_an_argument_by_its_old_name_is_told_the_new_one() -> None:
    with pytest.raises(TypeError, match="syn: argument 'vocabulary' is called 'M'"):
        dynsim.syn(1, 2, vocabulary=90)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="overlapping: argument 'num_classes' is called 'K'"):
        dynsim.overlapping(num_classes=2, overlap=0.1)  # type: ignore[call-arg]
    # What never was a name is told by Python, and signatures stay as they are.
    with pytest.raises(TypeError, match="unexpected keyword argument 'magic'"):
        dynsim.syn(1, 2, magic=90)  # type: ignore[call-arg]
    assert list(inspect.signature(dynsim.overlapping).parameters) == ["K", "overlap"]


def test_the_new_name_is_one_that_is_known_there() -> None:
    assert checks.called_now("horizon", ("steps", "eta_time")) == "steps"
    assert checks.called_now("horizon", ("eta_time",)) == "eta_time"
    assert checks.called_now("seed", ("seeds", "steps")) is None
    assert checks.called_now(["seed"], ("root",)) is None
    with pytest.raises(ValueError, match=r"key = 'seed': is called 'root'"):
        checks.choice("key", "seed", ("axes", "root"))
    # A name that is right where it stands is no old one.
    assert checks.choice("axes", "seed", ("root", "seed")) == "seed"


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
