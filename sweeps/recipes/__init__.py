"""The paper's sweeps, and the error for a sweep file that is not there."""

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the built-in sweeps."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def missing(path: str | Path) -> ValueError:
    """The error for a sweep file that does not exist."""
    return ValueError(f"sweep file {path}: no such file; built-in sweeps: {', '.join(names())}")
