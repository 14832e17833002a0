"""In-context regression by linear attention as typically written in PyTorch, one run at a time.

`dynsim.train` is compared with it: a fixed training set of tokens, used in full at every step,
gradients by autograd, and a Python loop over steps.
"""

import torch  # pyright: ignore[reportMissingImports]  (comes with the extra bench)

from dynsim.linear_icl.regression import Regression


def trained(
    task: Regression,
    seed: int,
    steps: int,
    *,
    heads: int = 5,
    scale: float = 0.02,
    eta: float = 0.5,
    sequences: int = 5000,
) -> float:
    """Train rank-one heads once."""
    torch.manual_seed(seed)
    root = torch.tensor(task.eigenvalues.tolist()).sqrt()
    w = torch.randn(sequences, task.D)
    x = torch.randn(sequences, task.N + 1, task.D) * root
    y = torch.einsum("bd,bnd->bn", w, x)
    v, k, q = (
        torch.randn(*shape) * scale for shape in ((heads,), (heads, task.D), (heads, task.D))
    )
    weights = [weight.requires_grad_() for weight in (v, k, q)]
    optimizer = torch.optim.SGD(weights, lr=eta)
    loss = torch.zeros(())
    for _ in range(steps):
        scores = (x[:, :-1] @ k.T) * (x[:, -1:] @ q.T)
        attended = torch.einsum("bnh,bn->bh", scores, y[:, :-1]) / task.N
        loss = torch.mean((y[:, -1] - attended @ v) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())
