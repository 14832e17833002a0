"""Errors of the flows of the attention layer against descent: `make tables TABLES=flows`."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import dynsim
from dynsim.precision import precision
from odes import symmetric
from sweeps import output
from sweeps.runner import progress

GRID = np.geomspace(0.01, 1, 12)
"""Learning rates of the maps, the same for Y and for Z."""
STEPS = (50, 100)
"""Steps at which a flow is compared with descent."""
SMALL = 0.3
"""Learning rate of Adam up to which training takes more than a few steps."""
TOP = "z_top_distinct"
"""The logit of the top distinct token."""
RATES = ((0.1, 0.1), (1.0, 1.0), (3.0, 1.0), (5.0, 1.0), (10.0, 1.0))

Errors = Float[np.ndarray, "Y Z"]


def momentum(eta_y: float, eta_z: float) -> dynsim.SGD:
    """The rule whose flows are compared."""
    return dynsim.sgd(eta_y, eta_z, momentum=0.9)


def markdown() -> str:
    """Return all tables and maps."""
    flows = maps(("matched", "corrected", "heavy-ball"), momentum)
    adam = maps(("corrected-adam", "matched-adam", "adam"), dynsim.adam, SMALL)
    head = ("rule", "eta_Y", "eta_Z", "usual flow", "corrected flow")
    return "\n".join([*flows, "", *adam, "", *output.markdown_table(head, correction())])


def maps(
    flows: Sequence[str], rule: Callable[..., dynsim.Rule], small: float | None = None
) -> Iterator[str]:
    """Yield the shares of the learning rates at which flows are accurate, also of rates up to
    `small`, and the errors in %."""
    errors = {flow: flow_error(flow, rule) for flow in progress.track(tuple(flows))}
    rows = []
    for flow, error in errors.items():
        shares = (f"{100 * np.mean(error <= most):.1f} %" for most in (0.01, 0.03, 0.1))
        rows.append((f"`{flow}`", *shares, f"{100 * error.max():.2g} %"))
    yield from output.markdown_table(
        ("flow", "within 1 %", "within 3 %", "within 10 %", "worst"), rows
    )
    for flow, error in errors.items():
        yield from ("", f"`{flow}`, error in %; eta_Y down, eta_Z across, 0.01 to 1:", "")
        yield from ("    " + " ".join(f"{100 * value:7.2f}" for value in row) for row in error)
        if small is not None:
            low = error[GRID <= small][:, GRID <= small]
            yield from (
                "",
                f"Within 3 % where both rates are at most {small:g}: "
                f"{100 * np.mean(low <= 0.03):.1f} %",
            )


def flow_error(flow: str, rule: Callable[..., dynsim.Rule]) -> Errors:
    """Largest relative error of the flow against descent on Syn-Small with infinite T and batch, in
    the logit of the top distinct token at `STEPS`; (eta_y, eta_z) over `GRID`."""
    task, times = symmetric.symmetric_task(dynsim.SynSmall().build()), np.array(STEPS)

    def one(eta_y: jax.Array, eta_z: jax.Array) -> jax.Array:
        optimizer = rule(eta_y, eta_z)
        solved = symmetric.solve(task, optimizer, times, flow=flow, record=(TOP,))
        descent = symmetric.descend(task, optimizer, steps=STEPS[-1], times=times, record=(TOP,))
        error = jnp.abs(solved[TOP] / descent[TOP] - 1)
        return jnp.where(solved.ok & descent.ok, jnp.max(error), jnp.inf)

    with precision("float64"):
        pairs = (jnp.asarray(each.ravel()) for each in np.meshgrid(GRID, GRID, indexing="ij"))
        errors = jax.vmap(one)(*pairs)
    return np.asarray(errors).reshape(len(GRID), len(GRID))


def correction() -> Iterator[tuple[str, ...]]:
    """Yield the relative errors at step 100 of the usual and the corrected flow, in the same
    logit."""
    task = symmetric.symmetric_task(dynsim.SynSmall().build())
    rules = {
        "sgd": (dynsim.sgd, ("plain", "corrected")),
        "momentum 0.9": (momentum, ("matched", "corrected")),
    }
    for name, (eta_y, eta_z) in progress.track(tuple(itertools.product(rules, RATES)), "case"):
        rule, flows = rules[name]
        optimizer = rule(eta_y, eta_z)
        exact = symmetric.descend(task, optimizer, steps=100, times=[100])[TOP]
        solved = (symmetric.solve(task, optimizer, [0, 100], flow=flow)[TOP][-1] for flow in flows)
        errors = (f"{100 * float((each / exact).item() - 1):+.3f} %" for each in solved)
        yield name, f"{eta_y:g}", f"{eta_z:g}", *errors


if __name__ == "__main__":
    print(markdown())
