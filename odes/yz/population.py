r"""Population flow of the full parameters (Y, Z): the general flow of the layer, by its names.

Scan and Snap, section 3: :math:`T \to \infty` (Lemma 2), infinite batch, :math:`\eta \to 0`. With
:math:`g_n = Y (e_{\nu(n)} - \alpha_n)`,

.. math::

    \begin{align*}
    Y' &= \eta_Y \sum_n \pi(n)\, f_n\, (e_{\nu(n)} - \alpha_n)^\top \\
    z_m' &= \eta_Z \sum_{n \in \psi^{-1}(m)} \pi(n)\, f_n \odot \bigl( g_n - f_n (f_n \cdot g_n)
        \bigr)
    \end{align*}

which is minus the gradient of the population loss with the learning rates in front. Nothing else is
dropped: overlap and start are arbitrary. `odes.solver.flows` has the flows of momentum and Adam.
For sequences of finite length T the loss is that of `dynsim.yz.finite_length`, to first order in
1/T.

Example:
    >>> rule, times = dynsim.sgd(1.0, 0.1), [0, 10, 100]
    >>> theory = odes.population.solve(dynsim.syn_small(), rule, times, length=128)
"""

import functools
from typing import Any

from dynsim.classes.task import SequenceClasses
from dynsim.training.rule import Rule
from dynsim.trajectory import Times, Trajectory
from odes.problem import flow as flow_of
from odes.yz.layer import on_task


def solve(
    task: SequenceClasses,
    optimizer: Rule,
    times: Times,
    *,
    flow: str | None = None,
    **options: Any,
) -> Trajectory:
    """Integrate the population flow that belongs to `optimizer`: `odes.flow` of the layer.

    Args:
        task: the sequence classes.
        optimizer, times: as of `odes.flow`.
        flow: the `kind` of `odes.flow`.
        **options: `init`, `key`, `record`, `dtype` and `tolerances` of `odes.flow`. Weights start
            at zero unless these options or the layer set them. `length` is the sequence length T,
            the query included, to first order in 1/T; infinite by default, regardless of the layer.

    Returns:
        A `Trajectory`; the status of a failed solve is not OK; nothing raises.

    Raises:
        ValueError: as `odes.flow`, and for a length at which an expansion in 1/T is not valid.
    """
    return on_task(functools.partial(flow_of, kind=flow), task, optimizer, times, **options)
