"""The PyTorch loop of two-stage training: its loss, its prompts and its steps."""

import dataclasses

import jax
import numpy as np
import pytest

from dynsim import Annealed, Prompts
from dynsim.two_stage.annealing import Annealing
from dynsim.two_stage.model import PQ, data_loss
from dynsim.two_stage.task import PromptBatch

torch = pytest.importorskip("torch")
TASK = Prompts(4, 6, gamma0=0.7, s1=1.2, s2=0.8, r=1.3, coupling=0.4)


def test_loss_and_gradient_are_those_of_the_model():
    from tests.benchmarks.peers.torch_two_stage import drawn, loss

    torch.manual_seed(0)
    batch = drawn(TASK, 16)
    U = torch.randn(2, 4, 4).requires_grad_()
    value = loss(U, batch, TASK.coupling)
    (gradient,) = torch.autograd.grad(value, U)
    ours = PromptBatch(*(jax.numpy.asarray(leaf.numpy()) for leaf in batch))
    weights = PQ(*(jax.numpy.asarray(block.detach().numpy()) for block in U))
    want, grads = jax.value_and_grad(data_loss)(weights, TASK.coupling, ours)
    # float32, sums in another order.
    assert float(value.detach()) == pytest.approx(float(want), rel=1e-5)
    np.testing.assert_allclose(gradient, [grads.W, grads.V], rtol=1e-4, atol=1e-6)


def test_prompts_have_the_moments_of_the_law_and_steps_are_those_of_the_algorithm():
    from tests.benchmarks.peers.torch_two_stage import drawn, loss, trained

    torch.manual_seed(1)
    P, Q, labels = (leaf.double().numpy() for leaf in drawn(TASK, 20_000))
    margin, negative = labels * P[..., 0], labels < 0
    # 120 000 tokens: four standard errors.
    assert margin.min() >= TASK.gamma0 - 1e-6
    assert margin.mean() == pytest.approx(TASK.mean_margin, abs=0.009)
    assert (margin**2).mean() == pytest.approx(TASK.mean_square_margin, rel=0.015)
    assert (Q[..., 0] == np.float32(TASK.r)).sum() == pytest.approx(negative.sum() / 2, rel=0.02)
    assert (Q[..., 0][~negative] == 0).all()
    np.testing.assert_allclose([P[..., 1:].std(), Q[..., 1:].std()], [1.2, 0.8], rtol=0.006)
    assert labels.mean() == pytest.approx(0, abs=0.012)
    # A pool of one prompt, so that the batch is known, and no gradient noise.
    rule = Annealed(0.2, 0.05, 0.25, 0.0, stage_2=0.02)
    first, _ = Annealing.of(rule).steps
    task = dataclasses.replace(TASK, pool=1, tau_0=0.5)
    weights = trained(task, rule, 3, [0, 1, first, first + 1], batch=2)
    torch.manual_seed(3)
    data = drawn(TASK, 1)
    assert not weights[0][0].any()
    np.testing.assert_allclose(weights[1][1], (1 - 0.2 * 0.25) * weights[0][1], rtol=1e-6)
    for before, after, eta in ((0, 1, 0.2), (2, 3, 0.05)):
        U = torch.tensor(weights[before].sum(0)).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(U, data, TASK.coupling), U)
        want = (1 - eta * 0.25) * weights[before][0] - eta * gradient.numpy()
        np.testing.assert_allclose(weights[after][0], want, rtol=1e-5, atol=1e-7)
