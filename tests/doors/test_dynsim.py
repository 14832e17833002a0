"""Bad input to `dynsim` in Python."""

from collections.abc import Callable

import pytest

import dynsim
from tests.doors import refuses

ROWS: list[tuple[Callable[[], object], tuple[str, ...]]] = [
    (lambda: dynsim.SGD(eta=0.1, momentum=1.0), ("momentum", "1.0", "[0, 1)")),
]


@pytest.mark.parametrize(("call", "named"), ROWS)
def test_error_names_field_value_and_what_is_allowed(
    call: Callable[[], object], named: tuple[str, ...]
) -> None:
    refuses(call, *named)
