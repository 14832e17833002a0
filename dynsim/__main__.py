"""`python -m dynsim`: the command line, which lives above this package."""

import pkgutil
import sys

sys.exit(pkgutil.resolve_name("sweeps.cli:main")())
