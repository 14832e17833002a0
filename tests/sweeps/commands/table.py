"""The options of all commands as their settings have them: writes the table that is read first."""

import json

from sweeps.commands.parsing.offers import offered
from sweeps.commands.parsing.options import FILE

from sweeps.commands.parsing import words
from sweeps.commands.table import COMMANDS, FOR_SYSTEMS
from sweeps.systems.built_in import BUILT_IN


def written() -> str:
    """What the file of the table has to hold."""
    asked = [f"{first} {system}" for first in FOR_SYSTEMS for system in BUILT_IN]
    options = {name: words.options(offered(name).options) for name in (*COMMANDS, *asked)}
    lines = [f"{json.dumps(name)}: {json.dumps(each._asdict())}" for name, each in options.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written())
