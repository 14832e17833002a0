"""Modular addition with analytic weights (Gromov, arXiv:2301.02679).

A network of quadratic units learns q = n + m mod p from some of the pairs, and generalises long
after it has fitted them, with weight decay and, even later, without. Weights that solve the task
are known. With a frequency k and phases for each unit, they are

    U_n = cos(2 pi k n / p + a),  V_m = cos(2 pi k m / p + b),  W_q = cos(2 pi k q / p + a + b).

Terms with other phases average out over many units, so the output is largest at the correct q.
"""

from typing import Annotated

import annotated_types as at
import jax
import jax.numpy as jnp

import dynsim
import odes


class ModularAddition(dynsim.Problem):
    """A network of quadratic units that adds modulo p; every unit learns one frequency.

    Attributes:
        p: modulus.
        width: number of hidden units.
        fraction: fraction of all pairs that it is trained on.
        train_accuracy: accuracy on the training pairs.
        test_accuracy: accuracy on all other pairs.
        purity: share of the largest frequency in the power of the input weights.
        phases: mean cosine of the sum of a unit's input phases less its output phase.
    """

    RULE = {"kind": "adamw", "eta": 0.01, "decay": 1.0}
    RUN_DEFAULTS = {"rule": RULE, "steps": 1500, "batch": "inf"}
    p: Annotated[int, at.Ge(2)] = 23
    width: Annotated[int, at.Ge(1)] = 128
    fraction: Annotated[float, at.Gt(0), at.Lt(1)] = 0.5

    def init(self, key):
        u, v, w = jax.random.normal(key, (3, self.width, self.p))
        scale = (2 * self.p) ** 0.5
        return {"U": u / scale, "V": v / scale, "W": w / self.width**0.5}

    def table(self, params):
        """Outputs (p, p, p) for all pairs, and the correct ones."""
        h = (params["U"].T[:, None] + params["V"].T[None]) ** 2  # (p, p, width)
        n = jnp.arange(self.p)
        return h @ params["W"], jax.nn.one_hot((n[:, None] + n[None]) % self.p, self.p)

    def pairs(self):
        """Whether each pair (p, p) is in the training set, which is the same in every run."""
        order = jax.random.permutation(jax.random.key(0), self.p**2)
        return (order < self.fraction * self.p**2).reshape(self.p, self.p)

    def population_loss(self, params):
        outputs, right = self.table(params)
        return jnp.mean((outputs - right) ** 2, where=self.pairs()[:, :, None])

    def observables(self):
        return {name: lambda self, w, name=name: measured(self, w)[name] for name in NAMES}

    @classmethod
    def theories(cls):
        return (ANALYTIC,)


NAMES: tuple[str, ...] = "train_accuracy", "test_accuracy", "purity", "phases"


def measured(problem, params):
    outputs, right = problem.table(params)
    hit, seen = outputs.argmax(2) == right.argmax(2), problem.pairs()
    waves = {name: jnp.fft.rfft(w, axis=1)[:, 1:] for name, w in params.items()}
    power = abs(waves["U"]) ** 2 + abs(waves["V"]) ** 2  # by unit and frequency
    turn = waves["U"] * waves["V"] * waves["W"].conj()  # phase a + b less that of W
    accuracies = jnp.mean(hit, where=seen), jnp.mean(hit, where=~seen)
    purity = power.max(axis=1).sum() / power.sum()
    return dict(zip(NAMES, (*accuracies, purity, turn.real.sum() / abs(turn).sum()), strict=True))


def analytic(training, _):
    p, shape = training.problem.p, (3, training.problem.width, 1)
    k, a, b = jax.random.uniform(jax.random.key(1), shape)
    turns = jnp.ceil(k * (p // 2)) * jnp.arange(p)[None] / p  # k from 1 to (p - 1) / 2
    waves = {"U": turns + a, "V": turns + b, "W": turns + a + b}
    return {name: jnp.cos(2 * jnp.pi * wave) for name, wave in waves.items()}


ANALYTIC = odes.system(
    "analytic",
    "analytic weights",
    "training has ended in a solution, of many units",
    lambda t, state, training: jax.tree.map(jnp.zeros_like, state),
    analytic,
    lambda t, state, training: measured(training.problem, state),
    any_rule=True,
    needs=(),
)
