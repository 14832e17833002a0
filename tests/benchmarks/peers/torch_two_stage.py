"""Two-stage training as typically written in PyTorch, one run at a time.

It is an independent implementation with which `dynsim.train` is compared. Prompts are drawn once
and gathered by index, and gradients come from autograd. Weights are the sum of a signal part, moved
by gradients, and a noise part, because the claims are about the signal.
"""

from collections.abc import Sequence

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (comes with the extra bench)

from dynsim import Rule
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.task import Prompts

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(N, L, d) tokens of P and of Q, and (N, L) labels."""


def trained(
    task: Prompts,
    optimizer: Rule,
    seed: int,
    times: Sequence[int],
    *,
    batch: int = 128,
) -> np.ndarray:
    """Train once, up to the last of `times`."""
    torch.manual_seed(seed)
    P, Q, labels = drawn(task, task.pool)
    signal = torch.zeros(2, task.d, task.d)
    noise = float(task.starting_noise) * torch.randn(2, task.d, task.d)
    stages = Annealing.of(optimizer)
    decay, deviation = float(stages.decay), float(stages.noise)
    kept = []
    for k in range(times[-1] + 1):
        if k == times[len(kept)]:
            kept.append(torch.stack([signal, noise]).numpy())
        eta = float(stages.eta_1 if k < stages.first else stages.eta_2)
        chosen = torch.randint(task.pool, (batch,))
        U = (signal + noise).requires_grad_()
        value = loss(U, (P[chosen], Q[chosen], labels[chosen]), float(task.coupling))
        (gradient,) = torch.autograd.grad(value, U)
        signal = (1 - eta * decay) * signal - eta * gradient
        noise = (1 - eta * decay) * noise - eta * deviation * torch.randn(2, task.d, task.d)
    return np.stack(kept)


def drawn(task: Prompts, num: int) -> Batch:
    labels = 2.0 * torch.randint(2, (num, task.length)) - 1
    P = float(task.s1) * torch.randn(num, task.length, task.d)
    P[..., 0] = labels * (float(task.gamma0) + P[..., 0].abs())
    Q = float(task.s2) * torch.randn(num, task.length, task.d)
    sides = 2.0 * torch.randint(2, (num, task.length)) - 1
    Q[..., 0] = torch.where(labels > 0, 0.0, sides * float(task.r))
    return P, Q, labels


def output(U: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("nld,nd->nl", x, x[:, -1] @ U.T)
    return (labels * scores.relu())[:, :-1].sum(1) / x.shape[1]


def loss(U: torch.Tensor, batch: Batch, coupling: float) -> torch.Tensor:
    P, Q, labels = batch
    y = labels[:, -1]
    margins = y * output(U[0], P, labels), y * output(U[1], Q, labels)
    apart = sum(torch.nn.functional.softplus(-margin) for margin in margins)
    together = torch.nn.functional.softplus(-(margins[0] + margins[1]))
    return ((1 - coupling) * apart + coupling * together).mean()
