r"""Sharpness of a loss, and the threshold above which an update rule oscillates.

Near a minimum with the Hessian H, each step of a rule multiplies the weights by a fixed matrix. Its
steps along an eigenvector oscillate and grow once the *preconditioned sharpness* exceeds 2. It is
the largest eigenvalue of

.. math::

    E^{1/2} \left( c\, (H + \lambda_c) + P \lambda_d \right) E^{1/2}, \qquad E = \eta P^{-1}

with the rates :math:`\eta` of the groups of weights, the preconditioner :math:`P = \sqrt{\hat v} +
\epsilon` of Adam and RMSProp (1 for other rules), coupled and decoupled decay :math:`\lambda_c` and
:math:`\lambda_d`, and

    c = 1                       gradient descent, RMSProp
    c = 1 / (1 + mu)            heavy ball
    c = (1 + 2 mu) / (1 + mu)   Nesterov
    c = (1 - b1) / (1 + b1)     Adam

The edge is therefore at 2 for every rule. In terms of the sharpness S this is eta S = 2 for
gradient descent, 2 (1 + mu) for heavy ball and (2 + 2 mu) / (1 + 2 mu) for Nesterov (Cohen et al.
2021, arXiv:2103.00065), and eta S(P^-1 H) = 2 (1 + b1) / (1 - b1) for Adam (Cohen et al. 2022,
arXiv:2207.14484). We derived the terms with decay from an eigenvalue -1 of the step. Adam's bias
correction of m is neglected.

The sharpness is computed from Hessian-vector products. Up to `DENSE` weights the full Hessian is
formed. For more weights LOBPCG finds the largest eigenvalues (`dynsim.problem.eigenvalues`). It
starts from the eigenvectors of the previous record, and one random direction, in case an eigenvalue
has grown in a direction that these do not contain. It stops when the residual of each vector is
below `TOLERANCE`, relative to the sum of its eigenvalue and the largest one. The error of an
eigenvalue is at most of the order of its residual, and usually of its square.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree, Real

from dynsim.precision import Number
from dynsim.problem.eigenvalues import random, top
from dynsim.training.recording import PRECONDITIONED, SHARPNESS
from dynsim.training.rule import Rule, by_group, square_root
from dynsim.training.rules import BUILT_IN_RULES, SGD, Adam, RMSProp, Sign

EDGE = 2.0
"""The preconditioned sharpness beyond which steps along an eigenvector oscillate and grow."""


def sharpness_threshold(
    rule: Rule, step: Real[Number, "*S"] = 0, preconditioner: Real[Number, "*#S"] | None = None
) -> Real[Array, "*S"]:
    """Return the sharpness above which a rule's steps oscillate and grow.

    Compare it with the observable "sharpness", the largest eigenvalue of the Hessian; for Adam and
    RMSProp it is the threshold of the largest eigenvalue of P^-1 H. For rules with rates by group,
    record "preconditioned_sharpness", whose threshold is 2 for every rule.

    Coupled decay of Adam and RMSProp is part of the gradient, so that P divides it too: the
    threshold is lower by decay / P. If P differs between weights, no single threshold is exact:
    steps are stable below the one for the smallest P, and grow above the one for the largest P. In
    general, use "preconditioned_sharpness".

    Args:
        rule: an update rule from `dynsim.sgd`, `adam`, `adamw` or `rmsprop`.
        step: (*S) number of optimiser steps before the update, for rates with a schedule.
        preconditioner: P, required for Adam and RMSProp with coupled decay, otherwise not used.

    Returns:
        (*S) thresholds in units of the sharpness; infinite where the rate is zero, and negative
        where decay alone makes the steps grow.

    Raises:
        ValueError: for a rule without a threshold (`sign`, optax rules, rates or decay by group),
            or if a required `preconditioner` is missing.

    Example:
        >>> float(dynsim.sharpness_threshold(dynsim.sgd(0.1)))
        20.0
        >>> float(dynsim.sharpness_threshold(dynsim.sgd(0.1, momentum=0.9)))
        38.0
    """
    check_threshold(rule)
    decay = by_group(rule.decay)
    if set(rule.schedules) != {""} or set(decay) - {""}:
        raise ValueError(
            "rule: has rates or decay by group, so no single sharpness decides; record "
            "'preconditioned_sharpness', whose threshold is 2"
        )
    rate, strength = jnp.asarray(rule.rate(step)), jnp.asarray(decay.get("", 0.0))
    outside, inside = (strength, 0.0) if rule.decoupled else (0.0, strength)
    if isinstance(rule, Adam | RMSProp) and decay and not rule.decoupled:
        if preconditioner is None:
            raise ValueError(
                f"preconditioner = None: {rule.name} divides coupled decay by it, so it must "
                "be given; or record 'preconditioned_sharpness', whose threshold is 2"
            )
        inside = inside / jnp.asarray(preconditioner)
    # eta (c (S + lambda_c) + lambda_d) = 2, solved for S.
    return (EDGE / rate - outside) / _factor(rule) - inside


def check_threshold(rule: Rule) -> None:
    """Raise `ValueError` for a rule whose stability does not depend on a sharpness."""
    if isinstance(rule, Sign):
        raise ValueError("rule = sign: its steps have the same length at any sharpness")
    if type(rule) not in BUILT_IN_RULES:
        raise ValueError(f"rule = {rule.name}: its stability is not known; use a built-in rule")


def preconditioned(
    hessian: Callable[[PyTree], PyTree],
    rule: Rule,
    rate: PyTree[Array],
    memory: PyTree,
    params: PyTree,
    groups: PyTree = None,
) -> Callable[[PyTree], PyTree]:
    """Return the matrix of the module docstring as a linear map of pytrees like `params`.

    Args:
        hessian: H as such a map.
        rate: learning rate of the next update, by group if the rule has groups.
        memory: state of the rule after that update.
        groups: names of groups of weights, if the rule has numbers by group.
    """
    ones = jax.tree.map(jnp.ones_like, params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    rates = jax.tree.map(jnp.negative, rule.descend(ones, rate, groups))
    E = rates
    if isinstance(rule, Adam | RMSProp):
        # P of the last update, from the averages in the state of optax.
        squares = optax.tree.get(memory, "nu")
        weight = 1.0
        if isinstance(rule, Adam):
            weight = 1 - jnp.asarray(rule.b2) ** optax.tree.get(memory, "count")
        P = jax.tree.map(lambda v: square_root(v / weight) + rule.eps, squares)
        E = jax.tree.map(jnp.divide, rates, P)
    root_E, factor = jax.tree.map(square_root, E), _factor(rule)
    decay = rule.decayed(zeros, ones, groups)
    inside, outside = (zeros, decay) if rule.decoupled else (decay, zeros)

    # E^(1/2) c (H + lambda_c) E^(1/2) x, plus the part of decoupled decay.
    def total(half: Array, scaled: Array, curved: Array, inside: Array, added: Array) -> Array:
        return half * factor * (curved + inside * scaled) + added

    def times(tangent: PyTree) -> PyTree:
        scaled = jax.tree.map(jnp.multiply, root_E, tangent)
        # E P = eta, so that decoupled decay adds eta lambda_d.
        added = jax.tree.map(lambda *factors: math.prod(factors), outside, rates, tangent)
        return jax.tree.map(total, root_E, scaled, hessian(scaled), inside, added)

    return times


def _factor(rule: Rule) -> Array:
    """Return the factor c of the module docstring."""
    if isinstance(rule, Adam):
        b1 = jnp.asarray(rule.b1)
        return (1 - b1) / (1 + b1)
    if isinstance(rule, SGD):
        mu = jnp.asarray(rule.mu)
        return (1 + 2 * mu) / (1 + mu) if rule.nesterov else 1 / (1 + mu)
    return jnp.ones(())


DENSE = 200
"""Number of weights up to which the full Hessian is formed, which gives exact eigenvalues."""
Map = Callable[[PyTree], PyTree]
"""A symmetric matrix as a linear map of pytrees of arrays."""


def eigenvalue_counts(names: Iterable[str]) -> dict[str, int]:
    """Return how many eigenvalues of each matrix are recorded, by the name of the first one."""
    counts: dict[str, int] = {}
    for name in names:
        if name == PRECONDITIONED:
            counts[name] = 1
        elif number := re.fullmatch(rf"{SHARPNESS}(?:_(\d+))?", name):
            counts[SHARPNESS] = max(counts.get(SHARPNESS, 1), int(number[1] or 1))
    return counts


def record_sharpness(
    names: Iterable[str],
    slope: Callable[[PyTree], tuple[Array, PyTree]],
    scaled: Callable[[Map], Map],
    params: PyTree,
    before: PyTree,
    step: Int[ArrayLike, ""] = 0,
) -> tuple[dict[str, Array], PyTree]:
    """Evaluate the sharpnesses among `names`, and return them with the eigenvectors.

    Args:
        slope: the loss and its gradient as a function of the weights.
        scaled: makes the matrix of the preconditioned sharpness of the Hessian.
        params: the weights.
        before: eigenvectors of the previous record, or `starting_vectors`.
        step: number of the step, which determines the random direction.
    """
    counts = eigenvalue_counts(names)
    if not counts:
        return {}, before
    hessian = jax.linearize(lambda params: slope(params)[1], params)[1]
    eigenvalues, vectors = {}, {}
    for name, count in counts.items():
        matrix = scaled(hessian) if name == PRECONDITIONED else hessian
        values, vectors[name] = largest(matrix, params, count, before[name], step)
        eigenvalues[name] = values[0]
        eigenvalues.update({f"{name}_{i}": value for i, value in enumerate(values, 1)})
    return {name: eigenvalues[name] for name in names if name in eigenvalues}, vectors


def starting_vectors(params: PyTree, counts: dict[str, int]) -> dict[str, Float[Array, "n b"]]:
    """Return the initial vectors for the first record.

    Raises:
        ValueError: for more eigenvalues than weights.
    """
    n, dtype = ravel_pytree(params)[0].size, ravel_pytree(params)[0].dtype
    for name, k in counts.items():
        # LOBPCG needs five times as many weights as the block has columns.
        if k > n or (n > DENSE and 5 * (k + 1) >= n):
            most = n if n <= DENSE else (n - 1) // 5 - 1
            raise ValueError(f"record = '{name}_{k}': at most {most} can be found with {n} weights")
    return {name: random(0, n, k if n > DENSE else 0, dtype) for name, k in counts.items()}


def largest(
    matrix: Map,
    params: PyTree,
    count: int,
    before: Float[Array, "n b"],
    step: Int[ArrayLike, ""] = 0,
) -> tuple[Float[Array, " k"], Float[Array, "n b"]]:
    """Return the `count` largest eigenvalues of a matrix, in descending order, and the vectors to
    pass to the next call as `before`.

    Args:
        params: a pytree with the structure, shapes and dtype of the vectors.
        before: vectors from an earlier call, or `starting_vectors`.
        step: number of the step, which determines the random direction.

    Returns:
        Eigenvalues, NaN if the matrix is not finite or LOBPCG did not converge. They can be
        differentiated in both modes.
    """
    _, unravel = ravel_pytree(params)
    times = lambda v: ravel_pytree(matrix(unravel(v)))[0]  # noqa: E731
    values, vectors = top(times, count, before, step)
    # The full matrix needs no vectors to start from, so that the state of a run need not hold them.
    return values, vectors if before.shape[1] else before
