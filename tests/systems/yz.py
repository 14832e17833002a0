"""Y/Z layers, with the equations of each theory in NumPy, integrated by SciPy."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp
from scipy.special import log_softmax, softmax, wrightomega

import dynsim
import odes
from dynsim import YZ, SequenceClasses, Status
from dynsim.training.rule import Rule

Values = Mapping[str, np.ndarray]
Field = Callable[..., tuple[np.ndarray, ...]]
TOLERANCE = {"rtol": 1e-6, "atol": 1e-8}
"""Both solvers accumulate some ten times their tolerance of 1e-8."""
CLOSED = {"rtol": 1e-10, "atol": 1e-14}
"""Where both sides are closed forms."""


def integrate(
    field: Field, start: tuple[np.ndarray, ...], times: Float[np.ndarray, " S"]
) -> list[Float[np.ndarray, "S *shape"]]:
    """States at `times` of (x, y, ...)' = field(t, x, y, ...), which is in `start` at time 0."""
    cuts = np.cumsum([part.size for part in start])[:-1]
    unravel = lambda flat: [
        part.reshape(like.shape) for part, like in zip(np.split(flat, cuts), start, strict=True)
    ]
    ravel = lambda parts: np.concatenate([np.ravel(part) for part in parts])
    found = solve_ivp(
        lambda t, flat: ravel(field(t, *unravel(flat))),
        *((0, times[-1]), ravel(start), "DOP853", times),
        rtol=1e-10,
        atol=1e-12,
    )
    states = [unravel(flat) for flat in found.y.T]
    return [np.stack(parts) for parts in zip(*states, strict=True)]


def peak(optimizer: Rule, group: str) -> float:
    """Largest learning rate of a group of weights."""
    return float(optimizer.schedules[group].peak)


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """A layer that starts from zero weights, or from `start`. The rates at time t are `pace(t)`
    times the peaks of the rule, whose schedules that is."""

    task: SequenceClasses
    optimizer: Rule
    times: tuple[float, ...]
    start: YZ | None = None
    pace: Callable[[float], float] = lambda t: 1.0

    def check(self, theory: str) -> None:
        """Assert that a theory computes what its equations say."""
        layer = dynsim.Layer(self.task)
        known = odes.theories(layer)[theory]
        known.check(layer, self.optimizer)
        want = dict(EXACT[theory](self))
        params, closed = want.pop("params", None), want.pop("closed", {})
        times, given = np.array(self.times), {} if self.start is None else {"init": self.start}
        record = (*want, *closed)
        found = known.solve(layer, self.optimizer, times, record=record, **given)
        assert (found.status, found.source) == (Status.OK, theory)
        for values, tolerance in ((want, TOLERANCE), (closed, CLOSED)):
            for name, value in values.items():
                np.testing.assert_allclose(found[name], value, **tolerance, err_msg=name)
        if params is not None:
            for got, value in zip((found.params.Y, found.params.Z), params, strict=True):
                assert np.linalg.norm(got - value) <= 1e-6 * np.linalg.norm(value)

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rates, as a theory without inertia reads them."""
        kept = 1 - float(self.optimizer.mu)
        return peak(self.optimizer, "Y") / kept, peak(self.optimizer, "Z") / kept

    def elapsed(self, times: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """Integral of the pace from 0, which is constant during a step."""
        steps = np.arange(np.max(times))
        parts = np.clip(np.asarray(times)[..., None] - steps, 0, 1)
        return parts @ np.array([self.pace(k) for k in steps])

    @property
    def prior(self) -> Float[np.ndarray, "K 1"]:
        """pi(n)."""
        return np.asarray(self.task.prior, np.float64)[:, None]

    def weights(self) -> tuple[Float[np.ndarray, "M M"], Float[np.ndarray, "Q M"]]:
        """Y and Z at the start."""
        if self.start is not None:
            return np.asarray(self.start.Y), np.asarray(self.start.Z)
        return np.zeros((self.task.M,) * 2), np.zeros((self.task.num_queries, self.task.M))

    def attention(self, Z: Float[np.ndarray, "Q M"]) -> Float[np.ndarray, "K M"]:
        """f_n = c_n / |c_n| (Lemma 2)."""
        c = np.asarray(self.task.probs) * np.exp(Z[np.asarray(self.task.query_index)])
        return c / np.linalg.norm(c, axis=1, keepdims=True)

    def residual(self, logits: Float[np.ndarray, "K M"]) -> Float[np.ndarray, "K M"]:
        """r_n = e_nu(n) - softmax of the logits."""
        return np.eye(self.task.M)[np.asarray(self.task.next_token)] - softmax(logits, axis=1)

    def read(
        self, f: Float[np.ndarray, "K M"], Y: Float[np.ndarray, "M M"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What Y reads, to which a residual adds the query; r_n, and g_n, what goes back to f."""
        if self.start is None or not self.start.residual:
            r = self.residual(f @ Y)
            return f, r, r @ Y.T
        c = f + np.eye(self.task.M)[np.asarray(self.task.query)]
        norm = np.linalg.norm(c, axis=1, keepdims=True)
        h = c / norm
        r = self.residual(h @ Y)
        g = r @ Y.T
        return h, r, (g - h * (h * g).sum(1, keepdims=True)) / norm

    def pull(
        self, f: Float[np.ndarray, "K M"], g: Float[np.ndarray, "K M"]
    ) -> Float[np.ndarray, "Q M"]:
        """sum over the classes of a query of pi(n) f_n o (g_n - f_n (f_n . g_n))."""
        found = np.zeros((self.task.num_queries, self.task.M))
        each = self.prior * f * (g - f * (f * g).sum(1, keepdims=True))
        np.add.at(found, np.asarray(self.task.query_index), each)
        return found

    def descent(
        self, Y: Float[np.ndarray, "M M"], Z: Float[np.ndarray, "Q M"]
    ) -> tuple[Float[np.ndarray, "M M"], Float[np.ndarray, "Q M"]]:
        """Minus the gradient of the population loss."""
        f = self.attention(Z)
        h, r, g = self.read(f, Y)
        return (self.prior * h).T @ r, self.pull(f, g)

    def loss(self, logits: Float[np.ndarray, "K M"]) -> float:
        """Cross entropy in nat."""
        own = np.arange(self.task.K), np.asarray(self.task.next_token)
        return float(-(self.prior[:, 0] * log_softmax(logits, axis=1)[own]).sum())

    def measured(self, Y: Float[np.ndarray, "S M M"], Z: Float[np.ndarray, "S Q M"]) -> Values:
        """Observables of the weights at all times, and the last weights."""
        f = np.stack([self.attention(z) for z in Z])
        h, _, g = map(np.stack, zip(*map(self.read, f, Y), strict=True))
        return {
            "z": Z[:, np.asarray(self.task.query_index)],
            "loss": np.array([self.loss(a @ y) for a, y in zip(h, Y, strict=True)]),
            "speed": (f * g).sum(2),
            "params": (Y[-1], Z[-1]),
        }

    def decoder(self, visits: Float[np.ndarray, "*S"], rate: float) -> Float[np.ndarray, "*S"]:
        """M h by Eq. 45: e^{M h} + (M-1) M h = M eta_Y s + 1."""
        rest = self.task.M - 1
        scaled = (self.task.M * rate * np.asarray(visits) + 1) / rest
        return scaled - wrightomega(scaled - np.log(rest))

    def speed(self, Mh: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
        """gamma = (M-1)^2 h / (M - 1 + e^{M h}) (Theorem 1)."""
        rest = self.task.M - 1
        return rest**2 * Mh / self.task.M / (rest + np.exp(Mh))


def flow(system: Layer) -> Values:
    """Y' = -eta_Y dL/dY, Z' = -eta_Z dL/dZ."""
    eta_y, eta_z = system.rates

    def field(t: float, Y: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, ...]:
        dY, dZ = system.descent(Y, Z)
        return system.pace(t) * eta_y * dY, system.pace(t) * eta_z * dZ

    return system.measured(*integrate(field, system.weights(), np.array(system.times)))


def with_inertia(system: Layer, decay: float, gain: float, later: float) -> Values:
    """v' = gain G - decay v, p' = -eta v from rest, read `later`."""
    eta_y, eta_z = peak(system.optimizer, "Y"), peak(system.optimizer, "Z")

    def field(t: float, Y: np.ndarray, Z: np.ndarray, *v: np.ndarray) -> tuple[np.ndarray, ...]:
        moved = (gain * g - decay * x for g, x in zip(system.descent(Y, Z), v, strict=True))
        pace = system.pace(t - later)
        return pace * eta_y * v[0], pace * eta_z * v[1], *moved

    start = system.weights()
    times = np.array(system.times)
    states = integrate(field, (*start, *map(np.zeros_like, start)), times + later * (times > 0))
    return system.measured(*states[:2])


def heavy_ball(system: Layer) -> Values:
    """v' = G - (1-mu) v."""
    return with_inertia(system, 1 - float(system.optimizer.mu), 1.0, 0.0)


def matched(system: Layer) -> Values:
    """v' = -ln(mu) (G/(1-mu) - v), read half a step later."""
    mu = float(system.optimizer.mu)
    return with_inertia(system, -np.log(mu), -np.log(mu) / (1 - mu), 0.5)


def lemma3(system: Layer) -> Values:
    """W_n' = eta_Y pi(n) r_n, and g_n = Y r_n with the smallest Y that has F Y = W."""
    eta_y, eta_z = system.rates

    def field(t: float, W: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, ...]:
        f, r = system.attention(Z), system.residual(W)
        pull = system.pull(f, r @ (np.linalg.pinv(f) @ W).T)
        return system.pace(t) * eta_y * system.prior * r, system.pace(t) * eta_z * pull

    start = np.zeros((system.task.K, system.task.M)), system.weights()[1]
    W, Z = integrate(field, start, np.array(system.times))
    return {
        "z": Z[:, np.asarray(system.task.query_index)],
        "loss": np.array([system.loss(w) for w in W]),
        "speed": np.stack([(w * system.residual(w)).sum(1) for w in W]),
    }


def printed(system: Layer, *, weight: float, slower: float = 1.0) -> Values:
    """Eq. 10, sum by sum, for classes of one query and equal priors."""
    (eta_y, eta_z), K = system.rates, system.task.K
    gamma = lambda t: system.speed(system.decoder(system.elapsed(t) / K, slower * eta_y))

    def field(t: float, Z: np.ndarray) -> tuple[np.ndarray]:
        f = system.attention(Z)
        inverse = np.linalg.inv(f @ f.T)
        total = np.zeros(system.task.M)
        for n in range(K):
            for m in set(range(K)) - {n}:
                beta = -inverse[m, n]
                total += beta * f[n] * (f[n] * (f[n] @ f[m]) - f[m])
        return (system.pace(t) * eta_z * weight * gamma(t) * total[None],)

    times = np.array(system.times)
    (Z,) = integrate(field, (system.weights()[1],), times)
    f = np.stack([system.attention(z) for z in Z])
    overlap = f @ f.transpose(0, 2, 1)
    own = np.stack([np.diag(np.linalg.inv(gram)) for gram in overlap])
    return {
        "z": Z[:, np.asarray(system.task.query_index)],
        "overlap": overlap,
        # Theorem 1: what the drift's distinct tokens have in common.
        "xi": gamma(times)[:, None] * (own - 1),
        "closed": decoded(system, slower * eta_y),
    }


def decoded(system: Layer, rate: float) -> Values:
    """Loss and speed of Lemma 6's decoder after pi(n) t visits; logits are M h (e_n - 1/M)."""
    Mh = system.decoder(system.elapsed(np.array(system.times))[:, None] * system.prior[:, 0], rate)
    loss = np.log1p((system.task.M - 1) * np.exp(-Mh)) @ system.prior[:, 0]
    return {"loss": loss, "speed": system.speed(Mh)}


def remark_1(system: Layer) -> Values:
    """The decoder slowed down by 1 - rho, rho the mean overlap of two classes at the start."""
    f = system.attention(system.weights()[1])
    pairs = [a @ b for i, a in enumerate(f) for b in f[:i]]
    return printed(system, weight=1 / system.task.K, slower=1 - np.mean(pairs))


def fixed(system: Layer) -> Values:
    """The decoder alone: attention stays where it starts."""
    z = system.weights()[1][np.asarray(system.task.query_index)]
    still = np.broadcast_to(z, (len(system.times), *z.shape))
    return {"z": still, "closed": decoded(system, system.rates[0])}


EXACT: dict[str, Callable[[Layer], Values]] = {
    "plain": flow,
    "symmetric": lambda system: (matched if system.optimizer.name == "momentum" else flow)(system),
    "rescaled": flow,
    "heavy-ball": heavy_ball,
    "matched": matched,
    "lemma3": lemma3,
    # From zero weights the decoder of Lemma 3 has this closed form at any M.
    "eq10-finite-m": lemma3,
    "eq10": lambda system: printed(system, weight=1 / system.task.K),
    "eq10-paper": lambda system: printed(system, weight=1.0),
    "eq10-remark-1": remark_1,
    "fixed_attention": fixed,
}
"""What each theory computes, by name: observables, among them those known in closed form, and the
last weights of those that move Y and Z."""
