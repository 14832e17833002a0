"""Waiting times of users: wall and CPU seconds, each in a fresh process; with `old`, alternating
with another checkout. With `profile`, the time of `dynsim compare` by kind of work.

Commands are measured with an empty cache folder, and again with the resulting cache. Everything
else is measured in its own process: the first call, which compiles, and later ones.
"""

import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.timing import cost, medians

Costs = dict[str, list[float]]
"""Wall and CPU seconds, or one number in another unit, by label."""
ROOT = Path(__file__).parents[3]
DEMO = ("--task", "syn-small", "--eta-y", "1", "--eta-z", "0.1", "--steps", "1000")
COMMANDS = {
    "compare": ("compare", *DEMO, "--out", "out", "--overwrite"),
    "explain": ("explain", *DEMO),
    "explain, own problem": ("explain", "own:DeepLinear", "--eta", "0.05", "--steps", "200"),
    "error of sweep": ("sweep", "no-such-sweep"),
    "error of phase": ("phase", "--momentum", "2"),
    "error of phase, range": ("phase", "--resolution", "0"),
}
"""Arguments of the command line; the first are those of `make demo`."""
LATER, ENOUGH = 3, 5.0
"""Largest number of calls after the first, and seconds after which no call begins."""
MAIN = "import sys; from sweeps.cli import main; sys.exit(main())"
# Packages come from the measured checkout, and this module from its own checkout.
HERE = (
    f"import sys, sweeps, dynsim, odes; sys.path.insert(0, {str(ROOT)!r}); "
    "from tests.benchmarks import waits; "
)


def report(
    old: Path | None = None, repeat: int = 3, only: tuple[str, ...] = (), profile: bool = False
) -> Iterator[str]:
    """Yield a table of medians over `repeat` processes, for this checkout and an `old` one, with
    the rows whose names begin with one of `only`; or a `profile` of `compare`."""
    if profile:
        yield from importlib.import_module("tests.benchmarks.waits.kinds").report()
        return
    trees = {"this": ROOT} | ({"old": old.resolve()} if old else {})
    yield f"{'seconds: clock (CPU)':<34}" + "".join(f"{name:>20}" for name in trees)
    with tempfile.TemporaryDirectory() as folder:
        for tree in trees.values():
            prepare(tree, Path(folder))
        for name in (*COMMANDS, *WORKS):
            if only and not name.startswith(only):
                continue
            measure = _command if name in COMMANDS else _work
            found: dict[str, dict[str, list[list[float]]]] = {}
            for _ in range(repeat):
                for tree, path in reversed(trees.items()):
                    for label, each in measure(name, path, Path(folder)).items():
                        found.setdefault(label, {}).setdefault(tree, []).append(each)
            for label, costs in found.items():
                cells = [_cell(costs.get(tree, [])) for tree in trees]
                yield f"{label:<34}" + "".join(f"{text:>20}" for text in cells)


def _cell(costs: list[list[float]]) -> str:
    middle = medians(costs)
    return {0: "-", 1: "{:.3g}", 2: "{:.2f} ({:.2f})"}[len(middle)].format(*middle)


def prepare(tree: Path, folder: Path) -> None:
    """Prepare a checkout like an installation, with bytecode and the list of fonts."""
    run = functools.partial(subprocess.run, cwd=tree, env=environment(tree, folder, folder))
    run([sys.executable, "-m", "compileall", "-q", "dynsim", "odes", "sweeps"], check=True)
    run([sys.executable, "-c", "import matplotlib.font_manager"], check=True)
    shutil.copy(ROOT / "docs/howto/deep_linear.py", folder / "own.py")


def environment(tree: Path, folder: Path, cache: Path) -> dict[str, str]:
    given = {n: each for n, each in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    paths = filter(None, (str(tree), given.get("PYTHONPATH")))
    own = {"PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(cache)}
    return given | own | {"MPLCONFIGDIR": str(folder / "fonts"), "TF_CPP_MIN_LOG_LEVEL": "3"}


def process(code: str, words: tuple[str, ...], env: dict[str, str]) -> tuple[list[float], str]:
    """Run a process and return its wall and CPU seconds and its output; no seconds if it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        begin = time.perf_counter()
        folder = Path(env["MPLCONFIGDIR"]).parent
        line = [sys.executable, "-c", code, *words]
        made = subprocess.Popen(line, env=env, cwd=folder, stdout=out, stderr=error)
        _, status, used = os.wait4(made.pid, 0)
        made.returncode = os.waitstatus_to_exitcode(status)
        took = [time.perf_counter() - begin, used.ru_utime + used.ru_stime]
        out.seek(0)
        error.seek(0)
        said = error.read()
        # 2 is the exit status of the command line for invalid input.
        if made.returncode not in (0, 2) or "Traceback" in said:
            print(said.strip().rpartition("\n")[2], file=sys.stderr)
            return [], ""
        return took, out.read()


def _command(name: str, tree: Path, folder: Path) -> Costs:
    with tempfile.TemporaryDirectory() as cache:
        env = environment(tree, folder, Path(cache))
        found = {n: process(MAIN, COMMANDS[name], env)[0] for n in ("first", "kept")}
    return {f"{name}, {label}": took for label, took in found.items() if took}


def _work(name: str, tree: Path, folder: Path) -> Costs:
    with tempfile.TemporaryDirectory() as cache:
        env = environment(tree, folder, Path(cache))
        _, said = process(HERE + "waits.measure(sys.argv[1])", (name,), env)
    return json.loads(said.splitlines()[-1]) if said else {}


def measure(name: str) -> None:
    """Print the cost of `WORKS[name]` in this process as JSON, with one device per core."""
    importlib.import_module("jax").config.update("jax_num_cpu_devices", os.cpu_count())
    print(json.dumps({f"{name}, {label}": each for label, each in WORKS[name]().items()}))


def _first_and_later(work: Callable[[float], object]) -> Costs:
    """Measure the cost of `work` at 1 and the median of later calls at other values."""
    costs: list[list[float]] = []
    while len(costs) < 2 or (len(costs) <= LATER and sum(w for w, _ in costs[1:]) < ENOUGH):
        costs.append(cost(lambda: work(1 + len(costs) / 100)))
    return {"first": costs[0], "warm": medians(costs[1:])}


def _swept(run: Any, axes: Any, theory: str, record: Any, **options: Any) -> None:
    import sweeps

    sweep = sweeps.Sweep(run, axes, theory, record, **options)
    sweeps.run(sweep, progress=False).load()


def _fig6() -> Costs:
    import sweeps

    sweep = sweeps.load("fig6", ['record = ["entropy"]'])
    return _first_and_later(lambda _: sweeps.run(sweep, progress=False).load())


def _map(resolution: int, theory: str, **seeds: Any) -> Costs:
    import sweeps

    run = sweeps.experiment(momentum=0.9, steps=100)

    def work(shift: float) -> None:
        rates = {"logspace": [0.01 * shift, 100 * shift, resolution]}
        _swept(run, {"eta_y": rates, "eta_z": rates, **seeds}, theory, ("loss", "entropy", "speed"))

    return _first_and_later(work)


def _two_stage() -> Costs:
    import sweeps

    record = ("eta_time", "K1", "K2", "auc_Q", "W_trace", "V_trace")
    run = lambda shift: sweeps.experiment("two_stage", r=1.4 * shift)
    seeds = {"seed": {"range": 6}}
    return _first_and_later(lambda x: _swept(run(x), seeds, "simulation", record, times=128))


def _mlp(optax: bool) -> Costs:
    import dynsim
    import sweeps
    from tests.benchmarks import mlp

    rule, rate = dynsim.adamw(1e-3, decay=mlp.DECAY), "eta"
    if optax:
        numbers = {"learning_rate": 1e-3, "weight_decay": mlp.DECAY}
        rule, rate = dynsim.from_optax(mlp.optax.adamw, **numbers), "learning_rate"
    run = sweeps.Experiment(mlp.Net(), rule, mlp.STEPS, mlp.BATCH)
    axes = lambda shift: {rate: mlp.RATES * shift, "seed": range(mlp.SEEDS)}
    work = lambda x: _swept(run, axes(x), "simulation", ("batch_loss",), times="end")
    return _first_and_later(work)


def _tails() -> Costs:
    import dynsim
    from odes import spread

    options: dict[str, Any] = {"times": [100], "batch": 128, "length": 128, "tails": True}
    options["record"] = ["loss", "entropy", "z_top_distinct", "z_top_common"]
    solve = functools.partial(spread.solve, dynsim.SynSmall().build(), **options)
    ready = importlib.import_module("jax").block_until_ready
    return _first_and_later(lambda shift: ready(solve(dynsim.sgd(shift, 0.1))))


def _central() -> Costs:
    import jax
    import numpy as np

    import dynsim
    import odes

    problem = importlib.import_module("docs.tools.measured.bursts").network(0)
    options: dict[str, Any] = {"record": ["oscillation"], "key": jax.random.key(0)}
    solve = lambda: odes.central_flow(problem, dynsim.sgd(0.8), np.arange(0, 901, 20), **options)
    return {"first": cost(lambda: jax.block_until_ready(solve().observables))}


def _sharpness() -> Costs:
    from tests.benchmarks import sharpness

    return {name: [sharpness.record(each)] for name, each in sharpness.NETWORKS.items()}


WORKS: dict[str, Callable[[], Costs]] = {
    "Fig. 6": _fig6,
    "trained map 64x64x4": lambda: _map(64, "simulation", seed={"range": 4}),
    "exact map 1024x1024": lambda: _map(1024, "symmetric-descent"),
    "two-stage, six seeds": _two_stage,
    "mlp, adamw": lambda: _mlp(optax=False),
    "mlp, from_optax": lambda: _mlp(optax=True),
    "spread with tails": _tails,
    "central flow, 73 weights": _central,
    "sharpness in gradients": _sharpness,
}
"""Measurements within a process, by name."""
