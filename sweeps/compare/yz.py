"""The command `dynsim compare`, for the attention layer in Y and Z."""

import json
from pathlib import Path

from sweeps.compare import report
from sweeps.compare.compare import compare
from sweeps.compare.settings import Compare

__all__ = ["Compare", "run"]


def run(config: Compare) -> list[Path] | None:
    """Compare, write the files, and print the table, or the report as JSON."""
    result = compare(config)
    paths = report.write(result)
    if config.json:
        print(json.dumps(result.report, indent=2))
        return None
    print(report.table(result))
    return paths
