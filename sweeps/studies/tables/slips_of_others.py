"""Errata of the papers on in-context regression, sparse attention and GaLore, and which of two
forms of JoMA's theorems holds."""

from collections.abc import Mapping
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

import dynsim
import odes
from dynsim import JoMA, Merged
from dynsim.joma.model import Hidden, Joint
from dynsim.training import keys
from odes import joma, sparse_attention
from odes.sparse_attention import symmetric


def growing_part() -> Mapping[str, SupportsFloat]:
    """Time to half of what merged attention learns: by the flow, and by two readings of eq. 10."""
    white = dynsim.regression(4, 31, "white", attention="merged", heads=8, scale=1e-3)
    init = white.init(keys.split(jax.random.key(0))[0])
    assert isinstance(init, Merged)
    times = np.linspace(0.0, 8.0, 801)
    flow = odes.flow(white, dynsim.sgd(0.5), times, init=init, record="learned")
    half = np.interp(0.5, np.asarray(flow["learned"]).mean(1), times)
    root, end = 2.0, 2.0 / float(np.asarray(white.gain)[0])
    along = np.trace(np.asarray(init.U), axis1=1, axis2=2) / root
    part, norm = np.linalg.norm(init.v + along) / 2, np.linalg.norm(init.v)
    # Where the share of eq. 10 is one half.
    printed, ours = (np.log(end / w**2 - 1) / (2 * root) for w in (norm, part))
    return {"flow": half, "printed": printed, "ours": ours}


def _steps(name: str, T: int, d: int, B: int) -> float:
    """Steps at eta = 1 until the loss is at 0.8 of its start, by a theory."""
    task, times = dynsim.retrieval(T, d, B), np.arange(0.0, 2800, 2)
    theory = odes.theories(task)[name]
    loss = theory.solve(task, dynsim.sgd(1.0), times, record="loss")["loss"]
    return float(np.interp(-0.4, -np.asarray(loss), times))


def shared_pull() -> Mapping[str, SupportsFloat]:
    """Steps of the plateau by the number of copies, by the flow and by eq. 14."""
    return {
        f"{name}_{B}": _steps(name, 256, 64, B)
        for B in (1, 2, 4, 8)
        for name in ("plain", "printed")
    }


def escape() -> Mapping[str, SupportsFloat]:
    """Steps of the plateau by the flow, by eq. 6, and in closed form."""
    task = dynsim.retrieval(256, 64)
    return {
        "flow": _steps("plain", 256, 64, 1),
        "printed": sparse_attention.linear_escape_time(task, 0.2),
        "closed": sparse_attention.escape_time(task),
    }


def fixed_token() -> Mapping[str, SupportsFloat]:
    """Growth rate around zero, times T, with a fixed token: by the flow and two formulas."""
    T, d, p = 2**14, 16, 0.3
    task = dynsim.retrieval(T, d, 1, p)
    zero = symmetric.Alike(*4 * (jnp.zeros(()),))
    descent = lambda state: jax.tree.map(jnp.negative, symmetric.gradient(task, state))  # noqa: E731
    jacobian = jax.jacobian(descent)(zero)
    names = symmetric.Alike.__annotations__
    matrix = np.array([[float(getattr(getattr(jacobian, a), b)) for b in names] for a in names])
    rate = float(np.linalg.eigvals(matrix).real.max())
    # The other tokens' noise damps W at the rate 1/(d T).
    undamped = float(np.sqrt(rate * (rate + 1 / (d * T))))
    ours = np.sqrt((1 + (d - 1) * p**2) / d)
    printed = np.sqrt((p**2 * d + (1 - p) ** 2) / d)
    return {"flow": undamped * T, "printed": printed, "ours": ours}


def joma_softmax() -> Mapping[str, SupportsFloat]:
    """How far two forms of Theorem 1 are from z of equal sequences, in %."""
    # Equal sequences of two classes make what Theorem 1 assumes exact but for the change of b.
    same = dynsim.sequence_classes(
        [[0.5, 0.3, 0.2]] * 2, [0, 0], next_token=[0, 1], prior=[0.8, 0.2]
    )
    rng = np.random.default_rng(3)
    init = Joint(Hidden(rng.normal(size=(2, 3)) / 2, rng.normal(size=(2, 1)) / 2), np.zeros((1, 3)))
    flow = odes.flow(JoMA(same, head="signal"), dynsim.sgd(0.1), [0.0, 4.0], init=init)
    V, Z = np.asarray(flow.params.Y.V), np.asarray(flow.params.Z)[0]
    b = np.asarray(same.probs)[0]
    square, first = (np.asarray(x) ** 2 for x in (V, init.Y.V))
    one, two = np.sum(square - first, 0), np.sum(square - first) * b
    forms = {"one": one / 2 - two, "other": (one - two) / 2}
    return {name: 100 * np.linalg.norm(Z - z) / np.linalg.norm(Z) for name, z in forms.items()}


def joma_growth() -> Mapping[str, SupportsFloat]:
    """Four tokens late before the blow-up: two forms of Theorem 2, in units of what is expected,
    and how far z is from two exponents, in %."""
    task = dynsim.sequence_classes([[0.5, 0.3, 0.2, 0], [0.2, 0.1, 0.3, 0.4]], [0, 0])
    zero = Joint(Hidden(np.zeros((2, 4)), np.zeros((2, 1))), np.zeros((1, 4)))
    rates, problem = dynsim.sgd(1.0), JoMA(task, attention="exp", head="signal")
    late = 0.9 * float(joma.blow_up(problem, rates))
    run = odes.flow(problem, rates, [late], init=zero, record=("weight", "logits"))
    v, z = np.asarray(run["weight"])[0], np.asarray(run["logits"])[0, 0]
    size = np.linalg.norm(np.asarray(joma.discriminancy(task)), axis=0)
    erf = jax.scipy.special.erf
    found: dict[str, SupportsFloat] = {}
    for name, by in (("two", 2.0), ("root", np.sqrt(2.0))):
        ratio = np.asarray(erf(jnp.asarray(v / by)) / size) * np.sqrt(np.pi / 2) / late
        found |= {f"{name}_least": ratio.min(), f"{name}_most": ratio.max()}
    V = np.asarray(run.params.Y.V)
    for name, half in (("node", V[0] ** 2 / 2), ("sum", np.sum(V**2, 0) / 2)):
        found[name] = 100 * np.abs(z - half).max() / np.abs(z).max()
    return found


SLIPS = (growing_part, shared_pull, escape, fixed_token, joma_softmax, joma_growth)
"""What `sweeps.studies.tables.slips` calls, in float64."""
