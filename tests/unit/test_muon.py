"""Muon against a singular value decomposition and against torch's own, one matrix at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from headlab import muon
from headlab.muon import MuonAdam, orthogonal


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (1, 9), (16, 17)])
def test_orthogonal_has_the_singular_vectors_of_its_argument_and_values_near_one(shape):
    torch.manual_seed(1)
    matrices = torch.randn(5, *shape) * torch.tensor([1e-4, 0.1, 1.0, 7.0, 1e3])[:, None, None]
    matrices[:, 0] *= 3  # so that singular values differ
    found = orthogonal(matrices)
    u, before, vh = torch.linalg.svd(matrices, full_matrices=False)
    core = u.transpose(1, 2) @ found @ vh.transpose(1, 2)
    values = core.diagonal(dim1=1, dim2=2)
    large = before > before.norm(dim=1, keepdim=True) / 100
    assert values[large].min() > 0.72
    assert values.max() < 1.28
    assert values.min() > 0
    torch.testing.assert_close(core, torch.diag_embed(values), atol=1e-3, rtol=0)


def test_each_matrix_moves_as_by_the_equations_and_all_else_as_by_adamw():
    torch.manual_seed(2)
    square, wide, tall, other = (nn.Parameter(torch.randn(*shape)) for shape in ((6, 6), (4, 6), (6, 4), (5,)))
    matrices = [square, wide, tall]
    rate, decay = 0.02, 0.1
    groups = [{"params": matrices, "muon": True, "weight_decay": decay}, {"params": [other], "weight_decay": 0.0}]
    optimizer = MuonAdam(groups, lr=rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    twin = nn.Parameter(other.detach().clone())
    adam = torch.optim.AdamW([twin], lr=rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    momenta = [torch.zeros_like(m) for m in matrices]
    expected = [m.detach().clone() for m in matrices]
    for _ in range(4):
        for parameter in (*matrices, other):
            parameter.grad = torch.randn_like(parameter)
        twin.grad = other.grad.clone()
        for place, matrix in enumerate(matrices):
            gradient = matrix.grad
            momenta[place] = 0.95 * momenta[place] + 0.05 * gradient
            direction = 0.95 * momenta[place] + 0.05 * gradient
            if direction.size(0) > direction.size(1):
                turned = orthogonal(direction.t()[None])[0].t()
            else:
                turned = orthogonal(direction[None])[0]
            expected[place] = expected[place] * (1 - rate * decay) - rate * 0.2 * 6**0.5 * turned
        optimizer.step()
        adam.step()
    for matrix, wanted in zip(matrices, expected, strict=True):
        torch.testing.assert_close(matrix.detach(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(other.detach(), twin.detach())


def test_each_step_is_the_best_polynomial_for_what_the_one_before_leaves():
    """Chebyshev: the error of the best of three terms is largest at four places, in turn above and below."""
    low, high = 0.01, 1.0
    for a, b, c in muon.COEFFICIENTS:
        s = np.geomspace(low, high, 200_001)
        error = a * s + b * s**3 + c * s**5 - 1
        turns = np.flatnonzero(np.diff(np.sign(np.diff(error)))) + 1
        extremes = error[[0, *turns, -1]]
        assert len(extremes) == 4
        assert extremes * [-1, 1, -1, 1] == pytest.approx(np.full(4, abs(error).max()), abs=5e-3)
        low, high = 1 - abs(error).max(), 1 + abs(error).max()
    assert (low, high) == pytest.approx((0.73, 1.27), abs=5e-3)


def test_with_jordans_polynomials_it_is_torchs_muon_but_for_that_ones_half_precision(monkeypatch):
    monkeypatch.setattr(muon, "COEFFICIENTS", ((3.4445, -4.7750, 2.0315),) * 5)
    torch.manual_seed(3)
    own = nn.Parameter(torch.randn(12, 20))
    theirs = nn.Parameter(own.detach().clone())
    ours = MuonAdam([{"params": [own], "muon": True, "weight_decay": 0.0}], lr=0.02, fused=True)
    torchs = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    start = own.detach().clone()
    for _ in range(3):
        own.grad = torch.randn_like(own)
        theirs.grad = own.grad.clone()
        ours.step()
        torchs.step()
    moved = (own - start).detach().norm()
    assert (own - theirs).detach().norm() < 0.03 * moved


def test_it_resumes_from_its_state():
    torch.manual_seed(4)

    def made() -> tuple[list[nn.Parameter], MuonAdam]:
        torch.manual_seed(5)
        weights = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))]
        groups = [{"params": weights[:1], "muon": True}, {"params": weights[1:]}]
        return weights, MuonAdam(groups, lr=0.01, fused=True)

    gradients = [[torch.randn(3, 4), torch.randn(4)] for _ in range(6)]
    through, straight = made()
    broken, first = made()
    second = None
    for step, pair in enumerate(gradients):
        if step == 3:
            weights = [w.detach().clone() for w in broken]
            state = first.state_dict()
            broken, second = made()
            with torch.no_grad():
                for weight, value in zip(broken, weights, strict=True):
                    weight.copy_(value)
            second.load_state_dict(state)
        for weight, other, gradient in zip(through, broken, pair, strict=True):
            weight.grad, other.grad = gradient.clone(), gradient.clone()
        straight.step()
        (second or first).step()
    for weight, other in zip(through, broken, strict=True):
        assert torch.equal(weight, other)
