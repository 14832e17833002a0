"""How far the theory of Y and Z (Scan and Snap, section 3) holds for W_Q, W_K and W_V [ours].

The paper trains Y and Z directly. We compare the plain flow in Y and Z, and the flow of the
factors, with descent on the factors of Syn-Small: over the width d of the embedding and the scale s
of W_Q and W_K at the start, whose rate is eta_Z d / (2 s^2). K K^T/d and Q Q^T/d then add up to
what the plain flow assumes, on average, so that it is most accurate at this rate. T and the batch
are infinite. U is frozen, orthonormal for d >= M and Gaussian otherwise; it is the decoder too, and
Y = 0 at the start.
"""

import functools
import math
from typing import Annotated

import annotated_types as at
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.colors import LogNorm

import dynsim
import odes
import sweeps
from sweeps import drawing

WIDTHS, SCALES, SEEDS = (16, 34, 68, 136), (0.25, 0.5, 1.0, 2.0, 4.0), 2
THEORIES = {"plain": "plain flow in (Y, Z)", "factors": "flow of the factors"}
MEASURES = {"attention": "attention $c_n$", "loss": "loss"}
Rate = Annotated[float, at.Gt(0)]


class FactorFlow(sweeps.Figure):
    """Errors of the plain flow and of the factor flow against descent on the factors.

    Attributes:
        eta_y: learning rate of W_V.
        eta_z: learning rate of Z in the plain flow.
        steps: optimiser steps.
    """

    NAME = "qkv"

    eta_y: Rate = 0.2
    eta_z: Rate = 0.2
    steps: Annotated[int, at.Ge(1)] = 200

    def draw(self, data):
        errors = xr.concat([self.errors(d) for d in WIDTHS], xr.Variable("width", [*WIDTHS]))
        figure, axes = drawing.panels(2, 2, width=4.2, height=3.3, sharex=True)
        names = [f"{width}" for width in WIDTHS], [f"{scale:g}" for scale in SCALES]
        style = {"norm": LogNorm(0.1, 200), "cmap": "cividis_r"}
        for row, (measure, quantity) in zip(axes, MEASURES.items(), strict=True):
            for ax, (theory, title) in zip(row, THEORIES.items(), strict=True):
                values = 100 * errors[f"{theory}/{measure}"].transpose("scale", "width")
                drawing.table(ax, values.values, percent, *names, **style)
                ax.set(title=f"{title}: {quantity}", ylabel=r"scale $s$ of $W_Q$, $W_K$")
        for ax in axes[1]:
            ax.set_xlabel("width $d$ (overlapping below M = 34)")
        figure.suptitle("distance from descent on the factors, relative to how far descent goes")
        frame = (100 * errors).to_dataframe(dim_order=["width", "scale"])
        text = f"error in %\n{frame.to_string(float_format='%.3g')}"
        return sweeps.Picture(figure, {str(n): errors[n] for n in errors.variables}, text)

    def errors(self, width):
        """Distance of each theory from descent, over how far descent moved, by scale: the root mean
        square over seeds, NaN where a run is not valid to its end."""
        with jax.enable_x64(True):
            over_seeds = jax.vmap(functools.partial(self.runs, width), in_axes=(None, 0))
            runs = jax.jit(jax.vmap(over_seeds, in_axes=(0, None)))
            descent, theories = runs(jnp.asarray(SCALES), jnp.arange(SEEDS))
        relative = {}
        for measure in MEASURES:
            # (scale, seed, time, ...)
            want = np.asarray(descent[measure])
            rest = tuple(range(2, want.ndim))
            moved = ((want - want[:, :, :1]) ** 2).sum(rest)
            for name, theory in theories.items():
                missed = ((np.asarray(theory[measure]) - want) ** 2).sum(rest)
                error = np.where(np.asarray(theory.ok & descent.ok), missed / moved, np.nan)
                relative[f"{name}/{measure}"] = "scale", error.mean(1) ** 0.5
        return xr.Dataset(relative, {"scale": [*SCALES]})

    def runs(self, width, scale, seed):
        """Descent on the factors, and both theories of it, from the same weights."""
        task = dynsim.SynSmall().build()
        embedding = "orthogonal" if width >= task.M else "gaussian"
        problem = dynsim.QKV(task, math.inf, width, value_scale=0.0, embedding=embedding)
        # The constructor takes no traced numbers.
        problem = eqx.tree_at(lambda problem: problem.scale, problem, scale)
        init = problem.init(jax.random.split(jax.random.key(seed))[0])
        rule = dynsim.sgd({"Y": self.eta_y, "Z": self.eta_z * width / (2 * scale**2)})  # as above
        times = np.unique(np.linspace(0, self.steps, 11).astype(int))
        both = {"init": init, "record": [*MEASURES], "dtype": "float64"}
        training = {"steps": self.steps, "batch": math.inf, "times": times}
        descent = dynsim.train(problem, rule, **training, **both)
        both["tolerances"] = odes.Tolerances(rtol=1e-7, atol=1e-9)
        factors = odes.theories(problem)["factors"].solve(problem, rule, times, **both)
        both["init"] = init.effective(task)  # Y and Z of these factors
        plain = dynsim.sgd(self.eta_y, self.eta_z)
        plain = odes.population.solve(task, plain, times, **both)
        return descent, {"plain": plain, "factors": factors}


def percent(value):
    """Error in a cell; a dash where there is none."""
    return "-" if np.isnan(value) else f"{value:.2g} %" if value < 99 else f"{value:.0f} %"
