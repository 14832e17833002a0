"""Packages of somebody else, as pip would leave them."""

from collections.abc import Mapping
from pathlib import Path

from dynsim import plugins
from sweeps.systems import kinds


def write(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    entries: Mapping[str, Mapping[str, str]] | None = None,
    modules: str = "",
) -> None:
    """Write what says that `folder` holds a package, with entry points by group."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in (entries or {}).items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    (about / "top_level.txt").write_text(modules)


def forget() -> None:
    """Let what is installed be looked up anew."""
    plugins.entry_points.cache_clear()
    plugins.load.cache_clear()
    kinds.names.cache_clear()
