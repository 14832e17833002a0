"""Prompts of the two-stage system, with the equations of the reduced ODE in NumPy, integrated by
SciPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp
from scipy.special import erf

import dynsim
from dynsim import Status
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts
from odes import two_stage
from odes.solver.tolerances import Tolerances
from odes.two_stage import field
from odes.two_stage.loss import ReducedState, Rule

RULE = Rule(24, 12, 24, 12)
"""Nodes that are exact to less than the grids here are."""


@dataclasses.dataclass(frozen=True, eq=False)
class Components:
    """Uncoupled components of which everything moves within the first stage.

    Attributes:
        start: a, b and the variances of the five blocks of noise.
        steps: number of optimiser steps, of the first stage.
    """

    task: Prompts
    rule: dynsim.Annealed
    start: tuple[float, ...]
    steps: float

    def check(self) -> None:
        """Assert that the solver's states are those of the equations."""
        want = self.exact()
        found = two_stage.solve(
            self.task,
            self.rule,
            [self.steps / 3, self.steps],
            start=ReducedState(*self.start),
            record=("state",),
            rule=RULE,
            tolerances=Tolerances(1e-8, 1e-11),
        )
        assert found.status == Status.OK
        # The grids agree to 1e-4; everything has moved by more than 2 %.
        np.testing.assert_allclose(found["state"][-1], want, rtol=4e-4)
        assert (np.abs(want / self.start - 1) > 0.02).all()

    def check_drift(self) -> None:
        """Assert that the start moves as the equations say."""
        model = field.checked_model(self.task, True, RULE)
        args, start = (
            (self.task, Annealing.of(self.rule)),
            ReducedState(*map(jnp.asarray, self.start)),
        )
        found = jax.jit(lambda state: field.drift(model, jnp.zeros(()), state, args))(start)
        want = self.drift(np.array(self.start))
        # The grid of |g| errs by 2e-4.
        np.testing.assert_allclose(jax.tree.leaves(found), want, rtol=4e-4)

    def drift(self, x: Float[np.ndarray, "7"]) -> Float[np.ndarray, "7"]:
        """Every number goes down the loss, all weights decay, and gradient noise feeds the
        variances."""
        optimizer, d = Annealing.of(self.rule), self.task.d
        sizes = np.array([d - 1, (d - 1) * d, d - 1, d - 1, (d - 1) ** 2])
        slope = np.array(
            [(self.loss(x + e) - self.loss(x - e)) / (2 * e.sum()) for e in np.diag(1e-4 * x)]
        )
        down = np.r_[-slope[:2], -4 / sizes * x[2:] * slope[2:] - optimizer.decay * x[2:]]
        noise = np.r_[0, 0, 5 * (optimizer.eta_1 * optimizer.noise**2,)]
        return down - optimizer.decay * x + noise

    def exact(self) -> Float[np.ndarray, "7"]:
        """The state at the end."""
        span, start = (0, self.steps * 0.2), np.array(self.start)
        solved = solve_ivp(
            lambda t, x: self.drift(x), span, start, rtol=1e-5, atol=1e-8, method="RK23"
        )
        return solved.y[:, -1]

    def loss(self, x: Float[np.ndarray, "7"]) -> float:
        """K1 + K2 on grids, from the equations, without derivatives."""
        a, b, h2, w2, e2, u2, m2 = x
        task = self.task
        d, L, r, s1, s2 = task.d, task.length, task.r, task.s1, task.s2
        normal = np.linspace(-6, 6, 41)
        density = np.exp(-(normal**2) / 2)
        density /= density.sum()
        g = np.linspace(0, 6, 81)
        half = np.exp(-(g**2) / 2)
        half[0] *= 0.5
        half /= half.sum()
        pbar = task.gamma0 + s1 * np.sqrt(2 / np.pi)
        p2 = task.gamma0**2 + 2 * task.gamma0 * s1 * np.sqrt(2 / np.pi) + s1**2
        p = (task.gamma0 + s1 * g)[:, None]
        w = a * p + np.sqrt(h2 * (d - 1)) * s1 * normal
        across = s1**2 * (d - 1) * w2 * (p**2 + s1**2 * (d - 1))
        kappa = 1 - 1 / L
        variance = kappa / L * ((p2 * w**2 + across) / 2 - (pbar * w / 2) ** 2)
        score = (kappa * pbar * w / 2)[:, :, None] + np.sqrt(variance)[:, :, None] * normal
        K1 = np.einsum("g,h,f,ghf->", half, density, density, np.logaddexp(0, -score))
        K2 = 0.0
        for y in (1, -1):
            m = r * s2 * np.sqrt((d - 1) * e2) * normal + (y < 0) * r**2 * b
            s = s2 * np.sqrt(s2**2 * (d - 1) ** 2 * m2 + (y < 0) * (d - 1) * r**2 * u2)
            z = m / s
            folded = s * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2) + m * erf(z / np.sqrt(2))
            D = folded - s * np.sqrt(2 / np.pi)
            spread = np.sqrt(kappa / L * (s**2 / 2 + m**2 / 4 - D**2 / 16))
            score = (-y * kappa * D / 4)[:, None] + spread[:, None] * normal
            K2 += np.einsum("e,f,ef->", density, density, np.logaddexp(0, -score)) / 2
        return K1 + K2
