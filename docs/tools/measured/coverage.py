"""Whether linear noise knows its own error: `make tables TABLES=coverage`.

In ten settings with four keys each, standard deviations across seeds are predicted and measured. A
prediction covers the truth if the difference is at most two standard errors: its own and that of
the runs, added in quadrature. A row has means over the keys, and the difference for each of them in
these errors.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import dynsim
import odes
from dynsim import Rule
from sweeps import output
from sweeps.runner import progress

KEYS, SEEDS, STEPS, ERRORS = 4, 64, 100, 2
EXAMPLES = 1024
"""Examples per step: 16 of the largest batches, so that all batches share a program."""
SGD, MOMENTUM, ADAM = "SGD 0.1", "momentum 0.9 at 0.03", "Adam 0.01"
RULES = {
    SGD: dynsim.sgd(0.1),
    MOMENTUM: dynsim.sgd(0.03, momentum=0.9),
    ADAM: dynsim.adam(0.01, b2=0.99),
}
SETTINGS = (
    *((rule, *each) for rule in (SGD, MOMENTUM) for each in ((16, 1), (64, 8), (16, 32), (64, 32))),
    *((ADAM, 64, 1), (ADAM, 16, 32)),
)
"""Rule, batch and starts, each with `KEYS` keys."""
NAMES = ("size", "batch_loss")


class Softmax(dynsim.Problem):
    """Classification by one layer, from random weights."""

    def init(self, key: PRNGKeyArray) -> Float[Array, "6 3"]:
        return jax.random.normal(key, (6, 3)) / 2

    def draw(self, key: PRNGKeyArray, batch: int) -> tuple[Array, Array]:
        inputs, labels = jax.random.split(key)
        x = jax.random.normal(inputs, (batch, 6))
        return x, jax.random.categorical(labels, 2 * x[:, :3])

    def loss(self, params: Array, data: tuple[Array, Array]) -> Float[Array, ""]:
        x, y = data
        return -jnp.mean(jax.nn.log_softmax(x @ params)[jnp.arange(len(y)), y])

    def observables(self) -> dict:
        return {"size": lambda self, params: jnp.sum(params**2)}


class Found(NamedTuple):
    """Predicted and measured standard deviations by key, with their errors."""

    predicted: Float[np.ndarray, " K"]
    error: Float[np.ndarray, " K"]
    measured: Float[np.ndarray, " K"]
    sampling: Float[np.ndarray, " K"]

    @property
    def distance(self) -> Float[np.ndarray, " K"]:
        """The differences in standard errors."""
        return (self.predicted - self.measured) / np.hypot(self.error, self.sampling)


def measured(
    rule: Rule, batch: int, starts: int, keys: PRNGKeyArray, seeds: int = SEEDS
) -> dict[str, Found]:
    """Predict and measure the standard deviations at the last step, for each key."""
    problem = Softmax()
    told: dict[str, Any] = {"batch": batch, "record": list(NAMES)}

    def solve(key: PRNGKeyArray) -> dynsim.Trajectory:
        # With a single start, the theory describes runs from the same weights.
        init = problem.init(key) if starts == 1 else None
        options = {"starts": starts, "examples": EXAMPLES, "dtype": "float32"}
        return odes.linear_noise(problem, rule, [STEPS], key=key, init=init, **options, **told)

    def train(key: PRNGKeyArray) -> dynsim.Trajectory:
        init = problem.init(key) if starts == 1 else None
        run = functools.partial(dynsim.train, problem, rule, steps=STEPS, times=[STEPS], init=init)
        every = jax.random.split(jax.random.fold_in(key, STEPS), seeds)
        return jax.vmap(lambda key: run(key, **told))(every)

    theory, runs = jax.vmap(solve)(keys), jax.vmap(train)(keys)
    across = [jax.tree.map(operator.itemgetter(i), runs).across_runs() for i in range(len(keys))]
    assert theory.std_error is not None
    found = {}
    for name in NAMES:
        predicted, error = (np.asarray(x[name])[:, -1] for x in (theory.std, theory.std_error))
        values = np.array([(each[name].std[-1], each[name].std_error[-1]) for each in across])
        found[name] = Found(predicted, error, *values.T)
    return found


def markdown() -> str:
    """Return a table of the settings, and the share of those whose prediction covers the truth."""
    rows: list[tuple[str, ...]] = []
    covered: dict[str, int] = dict.fromkeys(NAMES, 0)
    for number, (rule, batch, starts) in progress.track(tuple(enumerate(SETTINGS)), "setting"):
        keys = jax.random.split(jax.random.key(number), KEYS)
        for name, found in measured(RULES[rule], batch, starts, keys).items():
            covered[name] += int((abs(found.distance) <= ERRORS).sum())
            sides = (found.predicted, found.error), (found.measured, found.sampling)
            cells = (f"{std.mean():.3g} ± {error.mean():.1g}" for std, error in sides)
            away = ", ".join(f"{each:+.1f}" for each in found.distance)
            rows.append((rule, str(batch), str(starts), f"`{name}`", *cells, away))
    columns = ("rule", "batch", "starts", "observable", "predicted", f"{SEEDS} seeds", "distances")
    shares = (f"{n} of {KEYS * len(SETTINGS)} for `{name}`" for name, n in covered.items())
    about = f"Within {ERRORS} standard errors: {', '.join(shares)}."
    return "\n".join((about, "", *output.markdown_table(columns, rows))) + "\n"


if __name__ == "__main__":
    print(markdown())
