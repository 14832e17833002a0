"""Print the lowest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *extras["test"]]
# What the tests install by the name of another extra.
own = [re.fullmatch(r"dynsim\[(\w+)\]", each) for each in wanted]
wanted = [each for each, extra in zip(wanted, own, strict=True) if extra is None]
wanted += [each for extra in own if extra for each in extras[extra[1]]]
for requirement in wanted:
    name, lowest = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", requirement).groups()
    print(f"{name}=={lowest}")
