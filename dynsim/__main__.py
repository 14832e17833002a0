"""`python -m dynsim`: run the command line, which is implemented in `sweeps`."""

import os
import pkgutil
import sys

# Equinox and JAX are already imported when this module runs, too late for the environment variables
# that `sweeps.cli` sets for them. So the program is restarted with these.
if "EQX_ON_ERROR" not in os.environ:
    # JAX has set it itself, unless the user did.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "1":
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    pkgutil.resolve_name("sweeps.cli:set_environment")()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
sys.exit(pkgutil.resolve_name("sweeps.cli:main")())
