"""Muon: momentum made orthogonal (Jordan et al. 2024), for the matrices between a Transformer's layers. Pure torch.

    m <- mu * m + (1 - mu) * gradient            g = mu * m + (1 - mu) * gradient   (Nesterov)
    W <- W - rate * 0.2 * sqrt(longer side) * U V^T    where g = U S V^T

The factor gives an update the size of one of Adam's, so that both go by one learning rate (Liu et al. 2025). U V^T is
approximated by three matrix polynomials, each the best of its degree for what the one before leaves (Amsel et al. 2025,
"The Polar Express"; Jordan takes five equal ones). torch.optim.Muon does the same one matrix after the other, in
bfloat16 which CPUs are slow at; here all matrices of a shape are one product, in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Of X <- aX + (bA + cA^2)X with A = X X^T, step by step. Singular values s become as + bs^3 + cs^5: the first step is
#: the best one of this form, in Chebyshev's sense, for s from 0.01 to 1, and ends within 1 +- e; the next is the best
#: one for that interval, and so on.
COEFFICIENTS = ((8.0934, -23.6205, 17.4462), (3.6367, -2.7221, 0.5366), (2.6613, -1.9771, 0.4526))


def orthogonal(matrices: Tensor) -> Tensor:
    """Near U V^T of each of ``matrices`` = U S V^T; (count, rows, columns), no more rows than columns.

    Singular values above a hundredth of the norm come out between 0.73 and 1.27, which serves an update as well as 1
    would; smaller ones come out smaller.
    """
    x = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for a, b, c in COEFFICIENTS:
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class MuonAdam(torch.optim.AdamW):
    """Muon for the groups with ``muon=True``, all of whose parameters are matrices; AdamW for the others."""

    MOMENTUM = 0.95

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update by the gradients that there are; ``closure`` is not supported and has to be None."""
        assert closure is None
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group.get("muon")]
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group.get("muon"):
                self._turn(group)

    @torch.no_grad()
    def _turn(self, group: dict[str, Any]) -> None:
        shapes: dict[tuple[int, int], list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                short, long = sorted(weight.shape)
                shapes.setdefault((short, long), []).append(weight)
        for (_, long), weights in shapes.items():
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            momenta = [self._momentum(weight) for weight in weights]
            torch._foreach_lerp_(momenta, gradients, 1 - self.MOMENTUM)
            ahead = torch._foreach_lerp(gradients, momenta, self.MOMENTUM)
            updates = orthogonal(torch.stack([_wide(update) for update in ahead]))
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            for weight, update in zip(weights, updates, strict=True):
                _wide(weight).add_(update, alpha=-group["lr"] * 0.2 * long**0.5)

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:  # AdamW expects a number of steps of every parameter when it takes up a saved state
            state |= {"step": torch.tensor(0.0), "momentum": torch.zeros_like(weight)}
        momentum: Tensor = state["momentum"]
        return momentum


def _wide(matrix: Tensor) -> Tensor:
    """``matrix``, or its transpose where it has more rows than columns: a view."""
    return matrix if matrix.size(0) <= matrix.size(1) else matrix.t()
