"""Words for what JAX rejects in its environment, in the process that meets it."""

import re
from pathlib import Path

import jax._src.config as config
import pytest

from sweeps.commands import environment


def raised(source: str, **values: object) -> Exception:
    """An error that a function of JAX's own configuration raises."""
    try:
        exec(source, {"__name__": config.__name__, **values})
    except ValueError as error:
        return error
    raise AssertionError


def test_what_jax_raises_names_the_variable_and_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_LOG_COMPILES", "perhaps")
    monkeypatch.setenv("JAX_LOG", "perhaps")
    monkeypatch.setenv("JAX_COMPILER", "")
    said = "invalid truth value 'perhaps' for environment 'JAX_LOG_COMPILES'"
    found = environment.reason(raised("raise ValueError(said)", said=said))
    # The longer of two names that both stand there.
    assert found == (
        "JAX_LOG_COMPILES = 'perhaps' in the environment: must be true or false; change it or "
        "unset it"
    )
    monkeypatch.setenv("JAX_DEPTH", "Many")
    found = environment.reason(raised("raise ValueError(said)", said="no number: many"))
    assert found.startswith("JAX_DEPTH = 'Many' in the environment: JAX rejects it (no number: ")
    # Its name counts for more than its value, which others may have as well.
    monkeypatch.setenv("JAX_A_LONG_NAME_WITH_ONE", "1")
    monkeypatch.setenv("JAX_B", "11")
    found = environment.reason(raised("raise ValueError(said)", said="jax_b: 11 is wrong"))
    assert found.startswith("JAX_B = '11'")


def test_other_errors_keep_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_DEPTH", "many")
    assert environment.reason(ValueError("many")) == "many"
    with pytest.raises(ValueError, match="many") as given:
        int("many")
    assert environment.reason(given.value) == str(given.value)
    assert environment.reason(raised("raise ValueError('few')")) == "few"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", None),
        (" ", None),
        # XLA itself tells of quotes without an end.
        ("--xla_dump_to='a", None),
        ("FILE", None),
        ("no/such/file", "must be flags, --NAME=VALUE, or a file that has them"),
        (f"--{environment.USUAL}=2 --xla_no_such=1 --xla_nor=2", "no flag xla_no_such, xla_nor;"),
    ],
)
def test_flags_that_xla_does_not_have_are_named(
    given: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "FILE").write_text("--any=1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", given)
    if told is None:
        environment.check_flags()
        return
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        environment.check_flags()
    assert str(error.value).startswith(f"XLA_FLAGS = {given!r} in the environment: ")
