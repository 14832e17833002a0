"""`python -m dynsim`: the command line, which lives above this package."""

import os
import pkgutil
import sys

# This package, and with it Equinox and JAX, is there before this module runs: what `sweeps.cli`
# tells them by the environment would come too late for this process.
if "EQX_ON_ERROR" not in os.environ:
    # JAX has set it by now, unless the user did.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "1":
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    pkgutil.resolve_name("sweeps.cli:tell")()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
sys.exit(pkgutil.resolve_name("sweeps.cli:main")())
