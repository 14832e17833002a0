"""Write the page of errata with the numbers that demonstrate them: `make tables TABLES=errata`.

The text is in errata.txt, where `%(NAME.KEY).3f` stands for a number returned by the function NAME.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from eq10 import eq10_errors

import dynsim
import odes
from dynsim import JoMA, Merged
from dynsim.joma import Hidden, Joint
from dynsim.precision import precision
from dynsim.training import loop
from dynsim.yz import model as yz
from odes import coefficients, decoder, growth, joma, sparse_attention
from odes.decoder import wrightomega
from odes.yz import eq10 as attention
from odes.yz import population
from odes.yz import theorem4 as single_common
from papers import saad_solla
from sweeps.runner import progress

TEXT = Path(__file__).with_suffix(".txt")
PAGE = Path(__file__).parents[2] / "results" / "slips.md"

Numbers = Mapping[str, SupportsFloat]
"""Numbers by their names in the text."""


def markdown() -> str:
    """Return the page of errata, with every number computed in float64."""
    with precision("float64"):
        named = progress.track(ERRATA, "erratum", lambda erratum: erratum.__name__)
        found = {erratum.__name__: erratum() for erratum in named}
    numbers = {f"{name}.{key}": n for name, own in found.items() for key, n in own.items()}
    return TEXT.read_text() % numbers


def remark_1() -> Numbers:
    """Norms of the sum of the zeta_n, and the loss with Remark 1's slower decoder."""
    sums = {}
    for K, M in ((2, 34), (34, 34)):
        zeta = M / (M - 1) * (np.eye(M)[:K] - 1 / M)
        sums[K] = np.linalg.norm(zeta.sum(0))
    task, optimizer, times = (
        dynsim.Overlapping(2, 0.5).build(),
        dynsim.sgd(1.0, 0.0),
        np.array([0, 20.0]),
    )
    want = population.solve(task, optimizer, times, record=["loss"])["loss"][-1]
    plain = attention.solve(task, optimizer, times, record=["loss"])["loss"][-1]
    slowed = attention.solve(task, optimizer, times, record=["loss"], remark_1=True)["loss"][-1]
    return {"two": sums[2], "all": sums[34], "flow": want, "slowed": slowed, "plain": plain}


def sign_of_e_prime() -> Numbers:
    """Largest deviation of I -+ E' from the inverse of I + E, for a random F."""
    f = np.random.default_rng(0).uniform(size=(4, 9))
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    inverse, identity = np.asarray(coefficients.gram_inverse(jnp.asarray(f))), np.eye(4)
    prime = identity - inverse
    signs = {"minus": identity - prime, "plus": identity + prime}
    return {name: np.abs((f @ f.T) @ each - identity).max() for name, each in signs.items()}


def eq10_convention() -> Numbers:
    """Errors of Eq. 10 in % in the time of SGD and of the paper, by the number of classes."""
    errors = {K: eq10_errors(K, 0.3) for K in (2, 5)}
    sgd = {f"sgd_{K}": 100 * e.finite_m for K, e in errors.items()}
    return sgd | {f"paper_{K}": 100 * e.finite_m_paper for K, e in errors.items()}


def lemma_3() -> Numbers:
    """Errors of Eq. 10 against both updates, in %, by overlap."""
    return {
        f"{name}_{rho:g}": 100 * getattr(errors, name)
        for rho in (0.01, 0.3)
        for errors in [eq10_errors(5, rho)]
        for name in ("logit", "speed", "finite_m")
    }


def printed_bound() -> Numbers:
    """B(0) at C0 = 5."""
    options = {"c0": 5.0, "convention": "paper"}
    return {
        name: growth.bound(0.0, 1.0, 1.0, 10, 1000, printed=name == "printed", **options)
        for name in ("exact", "printed")
    }


def shared_query() -> Numbers:
    """B and the logit of the common token if all classes share one query."""
    K = 6
    probs = np.zeros((K, 1 + 3 * K))
    probs[:, 0] = 1
    for n in range(K):
        probs[n, 1 + 3 * n : 4 + 3 * n] = 1
    task = dynsim.sequence_classes(probs / probs.sum(1, keepdims=True), query=[0] * K)
    optimizer, times = dynsim.sgd(1.0, 0.3), np.array([0.0, 30.0])
    record = ["B", "z_top_common"]
    flow = attention.solve(task, optimizer, times, record=record)
    ours = single_common.solve(task, optimizer, times, record=record)
    f = np.asarray(yz.normalise(jnp.asarray(task.probs)))
    c0 = growth.c0(1 / f[0, 0], K)
    printed = growth.bound(30.0, 1.0, 0.3, K, task.M, c0=c0, convention="paper")
    eq10, theorem = (np.mean(run["B"][-1]) for run in (flow, ours))
    common = flow["z_top_common"][-1, 0]
    return {"eq10": eq10, "common": common, "ours": theorem, "printed": printed}


def c0() -> Numbers:
    """xi over gamma of three classes that overlap by 0.1."""
    K, rho = 3, 0.1
    gram = (1 - rho) * np.eye(K) + rho
    return {
        "theorem_1": np.linalg.inv(gram)[0, 0] - 1,
        "printed": K * rho**2,
        "ours": (K - 1) * rho**2 / ((1 - rho) * (1 + (K - 1) * rho)),
    }


def asymptotics() -> Numbers:
    """gamma over eta_Y t / K for small t, and the factor missing in the paper."""
    M, s = 34.0, 1e-4
    return {"ratio": decoder.gamma(s, 1.0, M) / s, "factor": ((M - 1) / M) ** 2}


def cancellation() -> Numbers:
    """M h at a late time: as a difference in float32, by our form in float32, and in float64."""
    M, t = 30.0, 1e8
    exact = decoder.scaled_h(t, M)
    A = (M * t + 1) / (M - 1)
    with jax.enable_x64(False):
        A32 = jnp.float32(A)
        naive = A32 - wrightomega(A32 - jnp.log(jnp.float32(M - 1)))
        ours = decoder.scaled_h(jnp.float32(t), jnp.float32(M))
    return {"naive": naive, "ours": ours, "exact": exact}


def growing_part() -> Numbers:
    """Time at which merged attention has learned half, by the flow and two readings of eq. 10."""
    white = dynsim.Regression(
        4, 31, spectrum=dynsim.WhiteSpectrum(), attention=dynsim.MergedHeads(), heads=8, scale=1e-3
    )
    init = white.init(loop.split_key(jax.random.key(0))[0])
    assert isinstance(init, Merged)
    times = np.linspace(0.0, 8.0, 801)
    flow = odes.flow(white, dynsim.sgd(0.5), times, init=init, record="learned")
    half = np.interp(0.5, np.asarray(flow["learned"]).mean(1), times)
    root, end = 2.0, 2.0 / float(np.asarray(white.gain)[0])
    along = np.trace(np.asarray(init.U), axis1=1, axis2=2) / root
    part, norm = np.linalg.norm(init.v + along) / 2, np.linalg.norm(init.v)
    # The time at which the share of eq. 10 is one half.
    printed, ours = (np.log(end / w**2 - 1) / (2 * root) for w in (norm, part))
    return {"flow": half, "printed": printed, "ours": ours}


def _steps(name: str, T: int, d: int, B: int) -> float:
    """Steps at eta = 1 until the loss falls to 0.8 of its start, by a theory."""
    task, times = dynsim.Retrieval(T, d, B), np.arange(0.0, 2800, 2)
    theory = odes.theories(task)[name]
    loss = theory.solve(task, dynsim.sgd(1.0), times, record="loss")["loss"]
    return float(np.interp(-0.4, -np.asarray(loss), times))


def shared_pull() -> Numbers:
    """Length of the plateau in steps for each number of copies, by the flow and by eq. 14."""
    return {
        f"{name}_{B}": _steps(name, 256, 64, B)
        for B in (1, 2, 4, 8)
        for name in ("plain", "printed")
    }


def escape() -> Numbers:
    """Length of the plateau in steps by the flow, by eq. 6, and in closed form."""
    task = dynsim.Retrieval(256, 64)
    return {
        "flow": _steps("plain", 256, 64, 1),
        "printed": sparse_attention.linear_escape_time(task, 0.2),
        "closed": sparse_attention.escape_time(task),
    }


def fixed_token() -> Numbers:
    """Growth rate at zero times T with a fixed token, by the flow and two formulas."""
    T, d, p = 2**14, 16, 0.3
    task = dynsim.Retrieval(T, d, 1, p)
    zero = sparse_attention.Alike(*4 * (jnp.zeros(()),))
    descent = lambda state: jax.tree.map(jnp.negative, sparse_attention.gradient(task, state))  # noqa: E731
    jacobian = jax.jacobian(descent)(zero)
    names = sparse_attention.Alike.__annotations__
    matrix = np.array([[float(getattr(getattr(jacobian, a), b)) for b in names] for a in names])
    rate = float(np.linalg.eigvals(matrix).real.max())
    # The other tokens' noise damps W at the rate 1/(d T).
    undamped = float(np.sqrt(rate * (rate + 1 / (d * T))))
    ours = np.sqrt((1 + (d - 1) * p**2) / d)
    printed = np.sqrt((p**2 * d + (1 - p) ** 2) / d)
    return {"flow": undamped * T, "printed": printed, "ours": ours}


def committee() -> Numbers:
    """Rates above which the teacher of a committee is unstable: by the derivative of the equations
    of its overlaps, and as cited."""
    found: dict[str, SupportsFloat] = {}
    for K in (2, 3, 4):
        problem, upper = saad_solla.Committee(N=K, K=K), np.triu_indices(K)

        def step(x: jax.Array, eta: float, problem: Any = problem, upper: Any = upper) -> jax.Array:
            # Q is symmetric: only half of it are variables.
            half = jnp.zeros((problem.K,) * 2).at[upper].set(x[: len(upper[0])])
            R = x[len(upper[0]) :].reshape(half.shape)
            state = {"Q": jnp.triu(half, 1).T + half, "R": R}
            rule = dynsim.sgd(eta / problem.N)
            moved = saad_solla.field(0.0, state, odes.Training(problem, rule, 1))
            return jnp.concatenate([moved["Q"][upper], moved["R"].ravel()])

        slope = jax.jit(jax.jacfwd(step))
        teacher = jnp.concatenate([jnp.eye(K)[upper], jnp.eye(K).ravel()])
        low, high = 0.5, 3.0
        while high - low > 1e-7:
            middle = (low + high) / 2
            growth = np.linalg.eigvals(np.asarray(slope(teacher, middle))).real.max()
            low, high = (low, middle) if growth > 0 else (middle, high)
        cited = np.sqrt(3) * np.pi / (K + 3 / np.sqrt(5) - 1)
        found |= {f"exact_{K}": low, f"cited_{K}": cited}
    return found


def joma_softmax() -> Numbers:
    """Errors of two forms of Theorem 1 for z of equal sequences, in %."""
    # With equal sequences in both classes, the only assumption violated is that b is constant.
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


def joma_growth() -> Numbers:
    """Four tokens shortly before the blow-up: two forms of Theorem 2 relative to the expected
    value, and the distance of z from two exponents in %."""
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


ERRATA = (
    remark_1,
    sign_of_e_prime,
    eq10_convention,
    lemma_3,
    printed_bound,
    shared_query,
    c0,
    asymptotics,
    cancellation,
    growing_part,
    shared_pull,
    escape,
    fixed_token,
    committee,
    joma_softmax,
    joma_growth,
)

if __name__ == "__main__":
    PAGE.write_text(markdown())
