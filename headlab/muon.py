"""Muon: momentum made orthogonal (Jordan et al. 2024), for the matrices between a Transformer's layers. Pure torch.

    m <- mu * m + (1 - mu) * gradient            g = mu * m + (1 - mu) * gradient   (Nesterov)
    W <- W - rate * 0.2 * sqrt(longer side) * U V^T    where g = U S V^T

The factor gives an update the size of one of Adam's, so that both go by one learning rate (Liu et al. 2025). U V^T is
approximated by three steps of a Newton-Schulz iteration. torch.optim.Muon does the same one matrix after the other, in
bfloat16 which CPUs are slow at; here all matrices of a shape are one product, in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Of X <- aX + (bA + cA^2)X with A = X X^T: Jordan's, which bring all singular values of 0 to 1 near 1 in a few steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 3  # Jordan takes 5: with them the valid loss on en_ru was 0.03 nats lower after 500 updates


def orthogonal(matrices: Tensor) -> Tensor:
    """Near U V^T of each of ``matrices`` = U S V^T; (count, rows, columns), no more rows than columns.

    Singular values above a thirtieth of the norm come out between about 0.7 and 1.2, which serves an update as well as
    1 would; smaller ones come out smaller.
    """
    a, b, c = COEFFICIENTS
    x = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(STEPS):
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
