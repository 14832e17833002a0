"""Mean and spread over seeds of training at finite batch B and length T [ours].

Linear noise approximation. The mean follows descent on the loss of finite T, p_k; what a batch adds
to the gradient has covariance C(p_k) / B, C = Cov of the gradient of one sequence. To first order
in this noise an observable O after S steps has, over seeds,

    Cov(O, O') = 1/B sum_{k < S} lambda_k^T C(p_k) lambda'_k

where lambda_k is the derivative of O by something added to the gradient of step k: the adjoint of
descent, with the update rule inside. Steps run backwards from the last time; with a velocity, or
Adam's averages, u_k and the update p_{k+1}, u_{k+1} = U(p_k, u_k, G(p_k)),

    lambda_k = dU/dG^T (a_{k+1}),     a_k = dU/d(p, u)^T (a_{k+1}) + Hess lambda_k,     a_S = dO

No covariance of the size of C is formed. With s_n(c) = lambda . grad l_n(c) for a sequence of class
n with frequencies c, which are multinomial (`dynsim.yz.finite_length`), to first order in 1/L

    lambda^T C lambda' = Cov_n(E s_n, E s'_n) + E_n (1/L) sum_i p_i ds_n/dc_i ds'_n/dc_i

where sum_i p_i ds_n/dc_i = 0 has been used, as l_n does not change when c is scaled. All of this is
one derivative of (grad loss, l_n, dl_n/dc) along lambda.

It is linear: it says nothing where runs scatter so far that the gradient changes on the way.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree, Real

from dynsim import checks
from dynsim.classes.task import SequenceClasses
from dynsim.precision import DType, Number, precision, settle
from dynsim.training.optim import Optimizer
from dynsim.training.recording import Record, Recording
from dynsim.training.run_checks import checked_times
from dynsim.trajectory import Times, Trajectory
from dynsim.yz import finite_length, observables
from dynsim.yz import model as yz
from dynsim.yz.observables import DEFAULT_RECORD
from odes.solver.integrate import judge, weights


class Position(NamedTuple):
    """Weights, and the memory of the update rule as far as it is numbers."""

    params: yz.YZ
    memory: PyTree
    

def proto(task, optimizer, times, batch, context, init, record, group=8):
    rule = optimizer.transformation()
    times = np.asarray(times)
    steps = int(times[-1])
    stride = max(int(math.ceil(math.sqrt(steps))), 1)
    segments = -(-steps // stride)

    def grad(params):
        return finite_length.loss_and_grad(params, task, context)[1]

    def update(params, memory, g):
        updates, memory = rule.update(g, memory, params)
        return jax.tree.map(jnp.add, params, updates), memory

    def step(state, _=None):
        params, memory = state
        return update(params, memory, grad(params)), state

    def observe(params):
        return record(task, observables.measure(task, params))

    flat = lambda params: ravel_pytree(observe(params))[0]
    start = (init, rule.init(init))

    def segment(state, _):
        return jax.lax.scan(step, state, None, length=stride)[0], state

    _, begins = jax.lax.scan(segment, start, None, length=segments)
    at = lambda i, tree: jax.tree.map(lambda x: x[i], tree)
    P = jax.eval_shape(flat, init).shape[0]
    prior, p = jnp.asarray(task.prior), jnp.asarray(task.probs)

    def all_of(params):
        losses = finite_length.losses(params, task, context)
        by = finite_length.by_counts(params, task)
        slope = jax.grad(lambda c: jnp.sum(by(c)))(p)
        return grad(params), losses, slope

    def back(carry, state):
        # bank of cotangents: (J, P, ...)
        (a, cov, k), goals = carry
        params, memory = state
        dyn, static = eqx.partition(memory, eqx.is_inexact_array)
        g, linear = jax.linearize(all_of, params)
        def upd(params, dyn, g):
            new, mem = update(params, eqx.combine(dyn, static), g)
            return new, eqx.filter(mem, eqx.is_inexact_array)
        _, pull = jax.vjp(upd, params, dyn, g[0])
        def one(a):
            c, m, lam = pull(a)
            if optimizer.kind == "adam":
                m = jax.tree.map(lambda x: jnp.where(jnp.isnan(x), 0, x), m)
                lam = jax.tree.map(lambda x: jnp.where(jnp.isnan(x), 0, x), lam)
            h, mu, D = linear(lam)
            return (jax.tree.map(jnp.add, c, h), m), mu, D
        a, mu, D = jax.vmap(jax.vmap(one))(a)
        centred = mu - jnp.sum(prior * mu, -1, keepdims=True)
        add = jnp.einsum("jan,jbn,n->jab", centred, centred, prior)
        if context is not None:
            add = add + jnp.einsum("jani,jbni,ni->jab", D, D, prior[:, None] * p) / context
        cov = cov + add / batch
        # inject at time k
        a = inject(a, goals, k, params)
        return ((a, cov, k - 1), goals), None

    def inject(a, goals, k, params):
        hit = goals == k
        def put(a):
            jac = jax.jacrev(flat)(params)
            new = jax.tree.map(lambda x, j: jnp.where(hit.reshape(-1, *[1] * (x.ndim - 1)), j[None], x), a[0], jac)
            return (new, a[1])
        return jax.lax.cond(jnp.any(hit), put, lambda a: a, a)

    def of_group(goals):
        J = goals.shape[0]
        dyn = eqx.filter(start[1], eqx.is_inexact_array)
        zero = jax.tree.map(lambda x: jnp.zeros((J, P, *x.shape), x.dtype), (init, dyn))
        last = jnp.max(goals)
        n = (last + stride - 1) // stride
        # times at end of all: state at `steps` handled by one extra step
        def body(i, carry):
            s = n - 1 - i
            (a, cov), _ = carry, None
            final, states = jax.lax.scan(step, at(s, begins), None, length=stride)
            a = jax.lax.cond(i == 0, lambda a: inject(a, goals, (s + 1) * stride, final[0]), lambda a: a, a)
            k = (s + 1) * stride - 1
            ((a, cov, _), _), _ = jax.lax.scan(back, ((a, cov, k), goals), states, reverse=True)
            return a, cov
        return jax.lax.fori_loop(0, n, body, (zero, jnp.zeros((J, P, P))))[1]

    S = times.shape[0]
    G = -(-S // group)
    padded = np.concatenate([np.full(G * group - S, -1), times]).reshape(G, group)
    cov = jax.lax.map(of_group, jnp.asarray(padded)).reshape(G * group, P, P)[G * group - S:]
    return cov
