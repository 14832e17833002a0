"""Compile every theory, and training, for an accelerator that need not be present, and inspect the
programs. Runs that resume from a checkpoint are compiled as well. With `here`, run all of them on
the device of this machine instead, and compare the results with those of the host's CPU. With
`measure`, find out within six minutes what that device computes correctly, and how fast:

    python -m tests.devices h100
    python -m tests.devices here
    python -m tests.devices measure

Columns of a compiled program: seconds to compile; bytes of device memory per run, and the estimate
of a sweep before compilation; kernels, conditionals and loops of unknown length (the device waits
for its host at each of the last two) in the loop with the most kernels, which is a training step;
calls of the host in the whole program.
"""

import argparse

from sweeps import cli
from tests.devices import measure


def main() -> None:
    """Compile, run or measure what is selected on the command line."""
    parser = argparse.ArgumentParser(
        "python -m tests.devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", choices=("h100", "tpu-v5e", "here", "measure"))
    parser.add_argument("--systems", nargs="*", default=())
    parser.add_argument("--theories", nargs="*", default=())
    parts = {"nargs": "+", "choices": [*measure.BUDGETS], "default": ()}
    parser.add_argument("--only", **parts, help="measure: some of its parts")
    parser.add_argument("--small", action="store_true", help="measure: sizes for a CPU")
    parser.add_argument("--minutes", type=float, default=measure.MINUTES, help="measure: at most")
    asked = parser.parse_args()
    if asked.target == "measure":
        measure.measure(asked.only, asked.small, asked.minutes)
        return
    # Before the import of Equinox, which would otherwise let solvers call the host.
    cli.set_environment()
    from tests.devices import check

    try:
        if asked.target == "here":
            check.present(asked.systems, asked.theories)
        else:
            check.compiled(asked.target, asked.systems, asked.theories)
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
