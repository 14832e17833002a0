r"""How sharp a loss can be before an update rule oscillates.

Near a minimum with the Hessian H a rule multiplies the weights by a fixed matrix each step. Its
steps along an eigenvector swing from side to side, and grow, once the *preconditioned sharpness*
exceeds 2, which is the largest eigenvalue of

.. math::

    E^{1/2} \left( c\, (H + \lambda_c) + P \lambda_d \right) E^{1/2}, \qquad E = \eta P^{-1}

with the rates :math:`\eta` of the groups of weights, the preconditioner :math:`P = \sqrt{\hat v} +
\epsilon` of Adam and RMSProp (1 for the others), coupled and decoupled decay :math:`\lambda_c` and
:math:`\lambda_d`, and

    c = 1                       gradient descent, RMSProp
    c = 1 / (1 + mu)            heavy ball
    c = (1 + 2 mu) / (1 + mu)   Nesterov
    c = (1 - b1) / (1 + b1)     Adam

So the edge is at 2 for every rule. It is eta S = 2 for gradient descent, 2 (1 + mu) for heavy ball
and (2 + 2 mu) / (1 + 2 mu) for Nesterov (Cohen et al. 2021, arXiv:2103.00065), and eta S(P^-1 H) =
2 (1 + b1) / (1 - b1) for Adam (Cohen et al. 2022, arXiv:2207.14484). The terms with decay are
derived here, from an eigenvalue -1 of the step. Adam's correction for the start of m is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree, Real

from dynsim.precision import Number
from dynsim.training.rule import Rule, by_group
from dynsim.training.rules import KNOWN, SGD, Adam, RMSProp, Sign

EDGE = 2.0
"""The preconditioned sharpness beyond which steps along an eigenvector oscillate and grow."""


def sharpness_threshold(
    rule: Rule, step: Real[Number, "*S"] = 0, preconditioner: Real[Number, "*#S"] | None = None
) -> Real[Array, "*S"]:
    """The sharpness above which a rule's steps oscillate and grow.

    Compare it with the observable "sharpness", the largest eigenvalue of the Hessian; for Adam and
    RMSProp it is the threshold of the largest eigenvalue of P^-1 H. For rules with rates by group,
    record "preconditioned_sharpness", whose threshold is 2 for every rule.

    Coupled decay of Adam and RMSProp is part of the gradient, so that P divides it too: the
    threshold is lower by decay / P. Where P differs between weights no single threshold is exact.
    Steps are stable below that of the smallest P, and grow above that of the largest P. Between
    the two, and in general, "preconditioned_sharpness" decides.

    Args:
        rule: an update rule from `dynsim.sgd`, `adam`, `adamw` or `rmsprop`.
        step: (*S) optimiser steps before the update, for rates with a schedule.
        preconditioner: P, required for Adam and RMSProp with coupled decay, and unused otherwise.

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
    rate, each = jnp.asarray(rule.rate(step)), jnp.asarray(decay.get("", 0.0))
    outside, inside = (each, 0.0) if rule.decoupled else (0.0, each)
    if isinstance(rule, Adam | RMSProp) and decay and not rule.decoupled:
        if preconditioner is None:
            raise ValueError(
                f"preconditioner = None: {rule.name} divides coupled decay by it, so it must "
                "be given; or record 'preconditioned_sharpness', whose threshold is 2"
            )
        inside = inside / jnp.asarray(preconditioner)
    return (EDGE / rate - outside) / _factor(rule) - inside


def check_threshold(rule: Rule) -> None:
    """Raise `ValueError` for a rule whose stability does not depend on a sharpness."""
    if isinstance(rule, Sign):
        raise ValueError("rule = sign: its steps have the same length at any sharpness")
    if type(rule) not in KNOWN:
        raise ValueError(f"rule = {rule.name}: its stability is not known; use a built-in rule")


def preconditioned(
    hessian: Callable[[PyTree], PyTree],
    rule: Rule,
    rate: PyTree[Array],
    memory: PyTree,
    params: PyTree,
    groups: PyTree = None,
) -> Callable[[PyTree], PyTree]:
    """The matrix of the module as a map of tangents, which are pytrees like `params`.

    Args:
        hessian: H as such a map.
        rate: learning rate of the next update, by group where the rule has groups.
        memory: memory of the rule after that update.
        groups: names of groups of weights, where the rule has numbers by group.
    """
    ones = jax.tree.map(jnp.ones_like, params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    rates = jax.tree.map(jnp.negative, rule.descend(ones, rate, groups))
    speeds = rates
    if isinstance(rule, Adam | RMSProp):
        speeds = jax.tree.map(jnp.divide, rates, _preconditioner(rule, memory))
    root, factor = jax.tree.map(jnp.sqrt, speeds), _factor(rule)
    decay = rule.decayed(zeros, ones, groups)
    inside, outside = (zeros, decay) if rule.decoupled else (decay, zeros)

    def total(root: Array, scaled: Array, curved: Array, inside: Array, added: Array) -> Array:
        return root * factor * (curved + inside * scaled) + added

    def times(tangent: PyTree) -> PyTree:
        scaled = jax.tree.map(jnp.multiply, root, tangent)
        added = jax.tree.map(lambda *each: math.prod(each), outside, rates, tangent)
        return jax.tree.map(total, root, scaled, hessian(scaled), inside, added)

    return times


def _factor(rule: Rule) -> Array:
    """c of the module."""
    if isinstance(rule, Adam):
        b1 = jnp.asarray(rule.b1)
        return (1 - b1) / (1 + b1)
    if isinstance(rule, SGD):
        mu = jnp.asarray(rule.mu)
        return (1 + 2 * mu) / (1 + mu) if rule.nesterov else 1 / (1 + mu)
    return jnp.ones(())


def _preconditioner(rule: Adam | RMSProp, memory: PyTree) -> PyTree:
    """P of Adam or RMSProp, as their last update divided by it."""
    squares = optax.tree.get(memory, "nu")
    weight = 1.0
    if isinstance(rule, Adam):
        weight = 1 - jnp.asarray(rule.b2) ** optax.tree.get(memory, "count")
    return jax.tree.map(lambda v: jnp.sqrt(v / weight) + rule.eps, squares)
