"""The command `dynsim`: theory and simulation of attention's training dynamics."""

import json
import sys
from collections.abc import Sequence

import matplotlib as mpl
import tyro

from sweeps.compare import compare
from sweeps.config import Compare
from sweeps.report import table, write


def run_compare(config: Compare) -> None:
    """Run `dynsim compare`."""
    result = compare(config)
    paths = write(result)
    if config.json:
        print(json.dumps(result.report, indent=2))
    else:
        print(table(result))
        print("\nwrote " + ", ".join(map(str, paths)))


def parse(arguments: Sequence[str] | None = None) -> Compare:
    """The settings that a command line asks for."""
    return tyro.extras.subcommand_cli_from_dict(
        {"compare": Compare}, args=arguments, prog="dynsim", description=__doc__
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run it. Returns 0, or 2 when the input is bad."""
    mpl.use("Agg")
    config = parse(arguments)
    try:
        run_compare(config)
    except (ValueError, OSError) as error:
        print(f"dynsim: {error}", file=sys.stderr)
        return 2
    return 0
