"""Words for what JAX rejects in its environment, in the process that meets it."""

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
