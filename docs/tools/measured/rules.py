"""Errors of each flow against its update rule, on two problems: `make tables TABLES=rules`."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import dynsim
import odes
from dynsim.training.rule import Rule
from dynsim.yz import model as yz
from sweeps import output
from sweeps.runner import progress

DECAY = 0.1


class TanhNetwork(dynsim.Problem):
    """A tanh network of one hidden layer that learns sin(2 x) from 32 points."""

    width: int = 8

    def init(self, key: PRNGKeyArray) -> PyTree:
        return eqx.nn.MLP(1, 1, self.width, 1, activation=jnp.tanh, key=key)

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        x = jnp.linspace(-1.5, 1.5, 32)
        found = jax.vmap(params)(x[:, None])[:, 0]
        return jnp.mean((found - jnp.sin(2 * x)) ** 2) / 2


class SynSmall(dynsim.Problem):
    """The attention layer on the task Syn-Small, sequences and batch infinite."""

    def init(self, key: PRNGKeyArray) -> PyTree:
        return yz.init_uniform(dynsim.SynSmall().build(), key)

    def population_loss(self, params: PyTree) -> Float[Array, ""]:
        task = dynsim.SynSmall().build()
        return yz.loss(params, task, yz.population(task))


class Tested(NamedTuple):
    """A function from rate and decay to a rule, its rate on each problem, and flows to measure."""

    make: Callable[..., Rule]
    rates: tuple[float, float]
    flows: tuple[str, ...]


PROBLEMS = {"tanh network": TanhNetwork(), "Syn-Small": SynSmall()}
STEPS = 100
COLUMNS = ("constant rate", "cosine with warm-up", "coupled decay", "decoupled decay")
RULES = {
    "SGD": Tested(dynsim.sgd, (0.2, 1.0), ("plain", "corrected")),
    "momentum 0.9": Tested(
        lambda eta, **decay: dynsim.sgd(eta, momentum=0.9, **decay),
        (0.02, 0.1),
        ("rescaled", "heavy-ball", "matched", "corrected"),
    ),
    "Nesterov 0.9": Tested(
        lambda eta, **decay: dynsim.sgd(eta, momentum=0.9, nesterov=True, **decay),
        (0.02, 0.1),
        ("rescaled", "heavy-ball", "matched", "corrected"),
    ),
    "sign": Tested(dynsim.sign, (0.003, 0.01), ("plain",)),
    "sign, momentum 0.9": Tested(
        lambda eta, **decay: dynsim.sign(eta, momentum=0.9, **decay),
        (0.003, 0.01),
        ("plain", "matched"),
    ),
    "RMSProp": Tested(
        lambda eta, **decay: dynsim.rmsprop(eta, eps=1e-2, **decay),
        (0.005, 0.005),
        ("rmsprop", "matched-rmsprop"),
    ),
    "Adam": Tested(
        lambda eta, **decay: dynsim.adam(eta, b2=0.99, eps=1e-2, **decay),
        (0.005, 0.005),
        ("adam", "matched-adam", "corrected-adam"),
    ),
}
HEADER = f"""Relative error of the weights at eta and eta/2, and the order in eta between them in
brackets. {STEPS} steps at eta, {2 * STEPS} at eta/2; decay {DECAY:g}, at a constant rate.
"""


def markdown() -> str:
    """Return a table per problem: rules and flows down, schedules and decays across."""
    lines = [HEADER]
    for index, (name, problem) in enumerate(PROBLEMS.items()):
        table = output.markdown_table(("rule", "eta", "flow", *COLUMNS), _rows(problem, index))
        lines += [f"**{name}**", "", *table, ""]
    return "\n".join(lines)


def _rows(problem: dynsim.Problem, index: int) -> Iterator[tuple[str, ...]]:
    for name, tested in progress.track(tuple(RULES.items()), "rule", lambda each: each[0]):
        eta = tested.rates[index]
        errors = [errors_of(problem, tested, eta, column) for column in COLUMNS]
        for flow in tested.flows:
            cells = (_cell(*column[flow]) for column in errors)
            yield name, f"{eta:g}", f"`{flow}`", *cells


def _cell(coarse: float, fine: float) -> str:
    if not np.isfinite([coarse, fine]).all():
        return "fails"
    return f"{coarse:.1e}, {fine:.1e} ({np.log2(coarse / fine):.1f})"


def errors_of(
    problem: dynsim.Problem, tested: Tested, eta: float, column: str
) -> dict[str, list[float]]:
    """Return the errors at `eta` and `eta` / 2 by flow; inf for a flow that was not solved.

    An error is the distance between the weights of flow and descent over the distance of descent
    from the start, both root mean squares over the second half of the run, because sign descent
    chatters with a random phase.
    """
    found: dict[str, list[float]] = {flow: [] for flow in tested.flows}
    for rate, steps in ((eta, STEPS), (eta / 2, 2 * STEPS)):
        rule = _rule(tested, rate, steps, column)
        times = np.append(0, np.linspace(steps // 2, steps, 26).astype(int))
        given = {"key": jax.random.key(0), "record": {"weights": _weights}}
        weights = np.asarray(odes.descent(problem, rule, times, **given)["weights"])
        moved = np.linalg.norm(weights[1:] - weights[0])
        for flow, errors in found.items():
            run = odes.flow(problem, rule, times, kind=flow, **given)
            error = np.linalg.norm(np.asarray(run["weights"]) - weights) / moved
            errors.append(float(error) if run.status == dynsim.Status.OK else np.inf)
    return found


def _rule(tested: Tested, eta: float, steps: int, column: str) -> Rule:
    """Return the rule of a column; all have the same type of schedule, to share a program."""
    cosine = column == "cosine with warm-up"
    end, warmup = (0.0, 0.2 * steps) if cosine else (1.0, 0.0)
    return tested.make(
        dynsim.schedules.cosine(eta, float(steps), end, warmup=warmup),
        decay=DECAY if "decay" in column else 0.0,
        decoupled=column == "decoupled decay",
    )


def _weights(problem: dynsim.Problem, params: PyTree) -> Float[Array, " N"]:
    return ravel_pytree(eqx.filter(params, eqx.is_inexact_array))[0]


if __name__ == "__main__":
    print(markdown())
