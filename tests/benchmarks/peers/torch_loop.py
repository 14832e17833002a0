"""The training loop of Fig. 6 as typically written in PyTorch, one run at a time.

Sweeps are compared with it. Tokens are drawn on the host with NumPy; the model is written
in the paper's symbols, with X the one-hot matrix of the contextual tokens; gradients come from
autograd. `compact=True` replaces the products with X by gathering and scattering.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (comes with the extra bench)

import dynsim


def entropy_after_training(
    task: dynsim.SequenceClasses,
    eta_y: float,
    eta_z: float,
    seed: int,
    *,
    momentum: float = 0.9,
    steps: int = 100,
    batch: int = 128,
    length: int = 128,
    compact: bool = False,
) -> float:
    """Train once from uniform weights."""
    numbers = np.random.default_rng(seed)
    torch.manual_seed(seed)
    probs, query = np.asarray(task.probs), torch.as_tensor(np.array(task.query)).long()
    next_token = torch.as_tensor(np.array(task.next_token)).long()
    K, M = probs.shape
    bound = M**-0.5
    Y = torch.empty(M, M).uniform_(-bound, bound).requires_grad_()
    Z = torch.empty(M, M).uniform_(-bound, bound).requires_grad_()
    optimizer = torch.optim.SGD(
        [{"params": [Y], "lr": eta_y}, {"params": [Z], "lr": eta_z}], lr=0, momentum=momentum
    )
    for _ in range(steps):
        classes = numbers.integers(K, size=batch)
        drawn = np.stack([numbers.choice(M, length - 1, p=probs[n]) for n in classes])
        tokens, classes = torch.from_numpy(drawn), torch.from_numpy(classes)
        if compact:
            b = torch.softmax(Z[query[classes][:, None], tokens], dim=1)
            a = torch.zeros(batch, M).scatter_add(1, tokens, b)
        else:
            X = torch.nn.functional.one_hot(tokens, M).float()
            x_query = torch.nn.functional.one_hot(query[classes], M).float()
            b = torch.softmax(torch.einsum("btm,qm,bq->bt", X, Z, x_query), dim=1)
            a = torch.einsum("btm,bt->bm", X, b)
        f = a / a.norm(dim=1, keepdim=True)
        loss = torch.nn.functional.cross_entropy(f @ Y, next_token[classes])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        c = torch.from_numpy(probs.copy()).float() * torch.exp(Z[query])
        p = torch.where(torch.from_numpy(np.array(task.distinct())), c, torch.zeros(()))
        p = p / p.sum(1, keepdim=True)
        return float(torch.special.entr(p).sum(1).mean())
