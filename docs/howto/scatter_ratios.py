"""Predicted over measured standard deviations across 1000 seeds, with CPU time and memory.

    python docs/howto/scatter_ratios.py saxe softmax network

All seeds start from the same weights. Each part runs in its own process, of which the CPU time,
including compilation, and the peak memory are printed.
"""

import concurrent.futures
import multiprocessing
import resource
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import dynsim
import odes
from papers.saad_solla import Committee
from papers.saxe import DeepLinear

SEEDS, PATHS = 1000, 100


class Network(dynsim.Problem):
    """A network of 1951 weights on a noisy function."""

    RECORD = ("batch_loss",)

    def init(self, key):
        return eqx.nn.MLP(8, "scalar", 39, 2, jnp.tanh, key=key)

    def draw(self, key, batch):
        x, noise = jax.random.normal(key, (batch, 8)), jax.random.fold_in(key, 0)
        return x, jnp.sin(x[:, 0] * x[:, 1]) + x[:, 2] + jax.random.normal(noise, (batch,)) / 2

    def loss(self, model, data):
        return jnp.mean((jax.vmap(model)(data[0]) - data[1]) ** 2)

    def observables(self):
        return {"output": lambda self, model: model(jnp.ones(8))}


class Softmax(dynsim.Problem):
    """Classification by one layer."""

    RECORD = ("batch_loss",)

    def init(self, key):
        return jax.random.normal(key, (6, 3)) / 2

    def draw(self, key, batch):
        inputs, labels = jax.random.split(key)
        x = jax.random.normal(inputs, (batch, 6))
        return x, jax.random.categorical(labels, 2 * x[:, :3])

    def loss(self, params, data):
        x, y = data
        return -jnp.mean(jax.nn.log_softmax(x @ params)[jnp.arange(len(y)), y])

    def observables(self):
        return {"weights": lambda self, params: params}


CASES = {
    "saxe": (DeepLinear(u0=0.1), dynsim.sgd(0.05), 64, [10, 30, 100, 300], "learned"),
    "saad-solla": (Committee(N=100), dynsim.sgd(0.01), 1, [30, 300, 1000, 4000], "Q"),
    "softmax": (Softmax(), dynsim.sgd(0.1), 32, [3, 10, 30, 100], "weights"),
    "network": (Network(), dynsim.sgd(0.01, momentum=0.9), 32, [3, 10, 30, 100], "output"),
    "network-sgd": (Network(), dynsim.sgd(0.05), 32, [3, 10, 30, 100], "output"),
    "network-adam": (Network(), dynsim.adam(1e-3), 32, [3, 10, 30, 100], "output"),
}
"""Problem, rule, batch, recorded steps and observable."""


def parts(case: str) -> list[str]:
    """Return the parts to run; stochastic paths only for SGD."""
    paths = ["sde"] if CASES[case][1].name == "sgd" else []
    return ["one run", "runs", "linear noise", *paths]


def solved(case: str, part: str) -> tuple[list, float, float]:
    """Return the standard deviation and its error at each time, CPU seconds, and GiB."""
    problem, rule, batch, times, name = CASES[case]
    init, key = problem.init(jax.random.key(0)), jax.random.key(1)
    options = {"batch": batch, "record": name, "init": init}
    begin = time.process_time()
    if part == "linear noise":
        found = odes.linear_noise(
            problem, rule, times, key=key, starts=1, examples=max(128, 16 * batch), **options
        )
        moments = [(np.sqrt(np.mean(each**2)), 0.0) for each in found.std[name]]
    elif part == "one run":
        moments = []
        dynsim.train(problem, rule, key, steps=times[-1], times=times, **options)
    else:
        if part == "sde":
            runs = odes.sde(problem, rule, times, key=key, paths=PATHS, dtype="float32", **options)
        else:
            train = lambda key: dynsim.train(  # noqa: E731
                problem, rule, key, steps=times[-1], times=times, **options
            )
            runs = jax.vmap(train)(jax.random.split(key, SEEDS))
        across = runs.across_runs()[name]
        moments = [
            (np.sqrt(np.mean(std**2)), np.sqrt(np.mean(error**2)))
            for std, error in zip(across.std, across.std_error, strict=True)
        ]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return np.array(moments).tolist(), time.process_time() - begin, memory


def ratios(found: dict[str, list]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return predicted over measured, and its error, at each time for each theory in `found`."""
    measured, error = np.array(found["runs"]).T
    every = {}
    for part in sorted(found.keys() & {"linear noise", "sde"}):
        predicted, own = np.array(found[part]).T
        every[part] = predicted / measured, np.hypot(predicted * error / measured, own) / measured
    return every


def main() -> None:
    context = multiprocessing.get_context("spawn")
    for case in sys.argv[1:] or CASES:
        found = {}
        for part in parts(case):
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                found[part], seconds, memory = pool.submit(solved, case, part).result()
            print(f"{case}, {part}: {seconds:.1f} s, {memory:.2f} GiB", flush=True)
        for part, both in ratios(found).items():
            for step, ratio, error in zip(CASES[case][3], *both, strict=True):
                print(f"  {part}, step {step}: {ratio:.3f} +- {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
