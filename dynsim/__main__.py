"""`python -m dynsim`: the command line, which lives above this package."""

import os
import pkgutil
import sys

# This package, and with it Equinox, is there before this module runs: what `sweeps.cli` tells
# Equinox by the environment would come too late for this process.
if "EQX_ON_ERROR" not in os.environ:
    os.environ["EQX_ON_ERROR"] = "nan"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
sys.exit(pkgutil.resolve_name("sweeps.cli:main")())
