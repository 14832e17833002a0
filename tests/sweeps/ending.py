"""How a command ends."""

from collections.abc import Sequence

from sweeps import cli


def ended(words: Sequence[str]) -> int | str | None:
    """The exit code of `dynsim` with these words."""
    try:
        return cli.main(words)
    except SystemExit as stop:
        return stop.code
