"""What is told of options before anything is imported."""

import contextlib
import io
import re

import pytest
import tyro
from sweeps.commands.parsing.offers import offered

from dynsim import decoding
from sweeps.commands.parsing import options
from sweeps.commands.parsing.words import whole_numbers
from tests.sweeps.commands.table import written


def test_the_table_is_that_of_the_settings() -> None:
    assert options.FILE.read_text() == written(), "run python -m tests.sweeps.commands.table"


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        ("steps", ["1", "1e3", "None"], ["x", "1.5", "inf", "nan", "adam"]),
        ("batch", ["1", "inf", "2e2"], ["x", "1.5", "nan"]),
        ("scale", ["1", "1e-3", "-1"], ["x", "1,5"]),
        ("optimizer", ["adam", "None"], ["Adam", "adamm", "1"]),
        ("out", ["x", "1"], []),
    ],
)
def test_what_is_refused_at_once_the_parser_refuses_as_well(
    option: str, taken: list[str], refused: list[str]
) -> None:
    settings = offered("compare linear_icl").options
    takes = options.known("compare linear_icl").takes[option]
    assert all(options.fits(value, takes) for value in taken)
    for value in refused:
        assert not options.fits(value, takes), value
        words = whole_numbers(settings, [f"--{option}", value])
        # By the parser, or when what it has read is checked.
        with (
            pytest.raises((SystemExit, ValueError)),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            decoding.check(tyro.cli(settings, args=words))


def test_values_are_those_behind_their_options() -> None:
    found = options.known("compare")
    found.check("compare", ["--steps", "3", "--momentum=0.5", "--theories", "plain", "--no-quiet"])
    for words, message in (
        (["--theories", "--steps", "3"], "compare: option --theories needs at least one value"),
        (["--steps", "3", "--eta-y=x"], "eta_y = 'x': must be a number, in 1/step"),
        (["--layout", "Paper"], "layout = 'Paper': did you mean 'paper'? It must be one of"),
        (["--steps", "-x"], "steps = '-x': must be an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            found.check("compare", words)
    assert options.known("compare my.package:Model") is None
