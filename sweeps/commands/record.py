"""Records of the settings that produced a command's files, written next to them.

A command overwrites results of the same settings, but others only with --overwrite.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from sweeps.commands.table import file_name
from sweeps.language.fields import Value
from sweeps.lines import explained

IGNORED = ("out", "json")
"""Settings that do not affect the results."""
PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of output files; all other outputs are folders."""


class Record(NamedTuple):
    """The settings of a command.

    Attributes:
        command: name of the command.
        settings: as JSON values.
        path: path of the record.
    """

    command: str
    settings: dict[str, Any]
    path: Path

    @classmethod
    def of(cls, command: str, config: Any) -> Self:
        """Return the record of a command whose settings have a directory or file `out`.

        Raises:
            ValueError: if the settings name a file that cannot be read.
        """
        # This import takes as long as JAX, which help must avoid.
        from sweeps import output
        from sweeps.language.grammar import flattened
        from sweeps.language.tree import encode
        from sweeps.runner import cluster
        from sweeps.runner.program.identity import problem_hashes
        from sweeps.systems.experiment import file_hashes
        from sweeps.systems.kinds import language

        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        parts: dict[str, Any] = {n: v for n, v in fields.items() if dataclasses.is_dataclass(v)}
        settings = {n: _as_json(v) for n, v in fields.items() if n not in (*IGNORED, *parts)}
        if parts:
            # Building their arrays starts JAX, which fixes the number of devices.
            cluster.use_all_cores()
        for name, part in parts.items():
            settings |= dict(flattened(name, encode(language(), part))) | file_hashes(part)
        settings |= problem_hashes(parts["run"]) if "run" in parts else {}
        out = output.folder(Path(config.out))
        if out.suffix in PICTURES:
            return cls(command, settings, out.with_suffix(".run.json"))
        return cls(command, settings, out / f"{file_name(command)}.run.json")

    def check(self) -> None:
        """Raise `ValueError` for results of other settings, or a folder that cannot be created."""
        from sweeps import output

        # The folder must exist or be creatable, which only an attempt shows. Nothing stays behind.
        new = []
        try:
            for folder in reversed(self.path.parents):
                if not folder.exists():
                    folder.mkdir()
                    new.append(folder)
        except OSError as error:
            raise ValueError(f"out = {explained(error)}") from None
        finally:
            for folder in reversed(new):
                folder.rmdir()
        try:
            os.stat(self.path)
        # Writers of results report a file in place of the folder.
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ValueError(f"out = {explained(error)}") from None
        try:
            with output.reading(self.path):
                content = json.loads(self.path.read_text())
        except ValueError as error:
            raise ValueError(f"out = {error}; --overwrite replaces it") from None
        # A record of another form counts as one of other settings.
        there = content.get("settings", {}) if isinstance(content, Mapping) else {}
        differ = [
            f"{name} = {there.get(name)!r}, not {self.settings.get(name)!r}"
            for name in dict.fromkeys((*there, *self.settings))
            if there.get(name) != self.settings.get(name)
        ]
        if differ:
            raise ValueError(
                f"out = {self.path.parent}: contains results of dynsim {self.command} with "
                f"{'; '.join(differ[:3])}{' ...' * (len(differ) > 3)}; choose another --out, or "
                "replace them with --overwrite"
            )

    def write(self, seconds: float) -> None:
        """Write the record, with the environment and the run time."""
        from sweeps import output

        if not self.path.parent.is_dir():
            return
        about = {
            "command": f"dynsim {self.command}",
            "settings": self.settings,
            "environment": output.environment(),
            "seconds": round(seconds, 2),
        }
        content = json.dumps(about, indent=2).encode()
        output.write_whole(self.path, lambda file: file.write(content))


def _as_json(value: object) -> Value:
    """Convert a setting to its form after a JSON round trip."""
    if isinstance(value, tuple | list):
        return [_as_json(entry) for entry in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return repr(value) if isinstance(value, float) else str(value)
