"""`dynsim schema`: a JSON Schema of sweep files."""

import dataclasses
import json
from pathlib import Path

from sweeps import output
from sweeps.language.pages import json_schema
from sweeps.systems.kinds import language


@dataclasses.dataclass(frozen=True)
class Schema:
    """Write a JSON Schema of sweep files, with which an editor completes and checks them.

    Attributes:
        out: file to write it to.
    """

    out: Path = Path("sweep.schema.json")


def run(config: Schema) -> list[Path]:
    """Write the file.

    Raises:
        ValueError: if its folder does not exist.
    """
    if not config.out.parent.is_dir():
        raise ValueError(f"out = {config.out}: there is no folder {config.out.parent}")
    content = json.dumps(json_schema(language()), indent=2).encode()
    output.write_whole(config.out, lambda file: file.write(content))
    return [config.out]
