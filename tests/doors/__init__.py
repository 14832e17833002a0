"""Bad input, one table for each door: Python by package, the command line, files, data, stores.

A row is what a user does wrong and what the error has to name: the field, the value, what is
allowed. Sentences may change; these may not.
"""

from collections.abc import Callable

import pytest


def refuses(call: Callable[[], object], *named: str, error: type[Exception] = ValueError) -> None:
    """Fails unless `call` raises `error` with all of `named` in its text."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    missing = [words for words in named if words not in text]
    assert not missing, f"{missing} not in: {text}"
