"""Stochastic L0 gates on attention heads: Voita et al. 2019, section 5, with Louizos et al. 2018's Hard Concrete.

Every head's output is multiplied by a gate g that does not depend on the input and is drawn once per forward pass:

    u ~ U(eps, 1 - eps)
    s = sigmoid((ln u - ln(1 - u) + log_a) / T)
    g = clip(s * (high - low) + low, 0, 1)

The loss is cross-entropy + lambda * sum over heads of P(g > 0) with P(g > 0) = sigmoid(log_a - T * ln(-low / high)).
At test time a gate is closed or open, whichever of P(g = 0) and P(g = 1) is larger; with low = 1 - high that is
open exactly where log_a > 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headlab.attention.heads import Head
from headlab.config import L0Config
from headlab.methods.base import Method

#: |log_a| from which a gate is decided: at T = 0.33 it then evaluates to exactly 0 or 1 (ln 11 = 2.398).
DECIDED = 2.4


class HardConcrete(nn.Module):
    """The gates of one attention layer.

    Args:
        log_a: initial gate parameters, shape (heads,).
        cfg: constants; float32 throughout, since the logarithms do not survive half precision.
    """

    def __init__(self, log_a: Tensor, cfg: L0Config) -> None:
        super().__init__()
        self.log_a = nn.Parameter(log_a.float())
        self.log_a.param_group = "gates"  # type: ignore[attr-defined] # own learning rate, no weight decay
        self.temperature, self.low, self.high, self.eps = cfg.temperature, cfg.low, cfg.high, cfg.eps

    def forward(self) -> Tensor:
        """One factor per head, shape (heads,): a draw in training, sigmoid(log_a) stretched in evaluation."""
        log_a = self.log_a.float()
        if self.training:
            u = torch.empty_like(log_a).uniform_(self.eps, 1 - self.eps)
            s = torch.sigmoid((torch.log(u) - torch.log1p(-u) + log_a) / self.temperature)
        else:
            s = torch.sigmoid(log_a)
        return (s * (self.high - self.low) + self.low).clamp(0, 1)

    def open_probability(self) -> Tensor:
        """P(g > 0) of each head, shape (heads,)."""
        return torch.sigmoid(self.log_a.float() - self.temperature * math.log(-self.low / self.high))


class L0(Method):
    """L0 gates with either a fixed penalty or a penalty steered to a series of head counts.

    Args:
        cfg: constants, start, and ``penalty`` (lambda, per target token and head), the fixed-penalty protocol.
        targets: head counts to reach one after the other, falling; empty with a fixed penalty.
        updates_per_target: how many updates each of them gets.
    """

    name = "l0"
    trains = True
    chain = True
    #: Share of a target's updates in which the goal falls to it; the rest is for gates to settle.
    FALL = 0.5
    #: The controller of ln(lambda): weights of the margin, of its sum over updates, and of its change per update.
    PROPORTIONAL, INTEGRAL, DERIVATIVE = 1.0, 0.04, 8.0
    START_PENALTY = 0.001  # per token and head, where the controller begins
    #: |log_a| is kept below this, so that no gate is ever too far from 0 to come back while a target lasts.
    LIMIT = 3.0

    def __init__(self, cfg: L0Config, targets: Sequence[int] = (), updates_per_target: int = 0) -> None:
        self.cfg, self.targets, self.updates_per_target = cfg, list(targets), updates_per_target
        self.learning_rate = cfg.lr
        self.penalty = cfg.penalty if cfg.penalty is not None else self.START_PENALTY
        self.level = math.log(self.penalty)  # the controller's sum
        self.falling: list[float] = []  # the log_a of the update before, largest first
        self.goal = math.nan

    def attach(self, model: nn.Module, scope: Iterable[str]) -> None:
        """Put gates on the layers: ``init=open`` leaves the model's evaluation outputs as they are."""
        super().attach(model, scope)
        self.gates: list[HardConcrete] = []
        for layer in self.layers:
            gate = HardConcrete(self._start(layer.num_heads), self.cfg).to(layer.out_proj.weight.device)
            layer.gate = gate
            self.gates.append(gate)
        self.start = self.log_a()
        if self.targets and self.targets != sorted(self.targets, reverse=True):
            raise ValueError(f"targets {self.targets} must fall: gates that closed are not opened on purpose")

    def _start(self, heads: int) -> Tensor:
        if self.cfg.init == "open":  # g = 1 exactly in evaluation
            return torch.full((heads,), self.LIMIT)
        bound = math.sqrt(6 / (max(heads, 1) * 2))  # released code: Glorot-uniform of a (1, heads, 1, 1) variable
        return torch.empty(heads).uniform_(-bound, bound)

    def log_a(self) -> Tensor:
        """The gate parameters of all heads of the scope in table order."""
        return torch.cat([gate.log_a.detach().float() for gate in self.gates])

    def open_heads(self) -> int:
        """How many heads would be open at test time."""
        return int((self.log_a() > 0).sum())

    def emergent(self) -> int:
        """The open heads."""
        return self.open_heads()

    def loss(self, ntokens: int) -> Tensor:
        """lambda * sum of P(g > 0) over the heads of the scope (paper, equation 9; per target token)."""
        return self.penalty * torch.cat([gate.open_probability() for gate in self.gates]).sum()

    def advance(self, epoch: int, update: int, progress: float) -> None:
        """Steer lambda so that as many gates have log_a > 0 as the goal says; nothing with a fixed penalty.

        Counting open gates alone would tell the controller nothing while gates travel towards 0, and lambda would
        grow until all of them fall together. So it watches where the border between kept and closed heads lies:
        the margin is log_a halfway between the last head that should be open and the first that should not. The
        count is right exactly when those two lie on either side of 0.
        """
        with torch.no_grad():
            for gate in self.gates:
                gate.log_a.clamp_(-self.LIMIT, self.LIMIT)
        if not self.targets:
            return
        self.goal = self.goal_at(update, len(self.heads()))
        falling = sorted(self.log_a().tolist(), reverse=True)
        place = round(self.goal)
        margin = self.margin(falling, place)
        change = margin - self.margin(self.falling or falling, place)
        self.falling = falling
        # Bounded, so that the sum does not grow while gates are on their way from the start to 0.
        self.level += self.INTEGRAL * min(max(margin, -0.5), 0.5)
        self.penalty = math.exp(self.level + self.PROPORTIONAL * margin + self.DERIVATIVE * change)

    def margin(self, falling: Sequence[float], count: int) -> float:
        """Halfway between the ``count``-th of ``falling`` and the next; LIMIT stands in where there is none."""
        bounded = [self.LIMIT, *falling, -self.LIMIT]
        return (bounded[count] + bounded[count + 1]) / 2

    def goal_at(self, update: int, total: int) -> float:
        """The number of open heads aimed at in update ``update``: falls linearly, then holds, target by target."""
        place = min(update // self.updates_per_target, len(self.targets) - 1)
        before = total if place == 0 else self.targets[place - 1]
        fallen = min((update - place * self.updates_per_target) / (self.FALL * self.updates_per_target), 1.0)
        return before + (self.targets[place] - before) * fallen

    def scores(self) -> dict[Head, float]:
        """log_a of every head."""
        return {head: float(a) for head, a in zip(self.heads(), self.log_a(), strict=True)}

    def factors(self) -> dict[Head, float]:
        """The evaluation gates with ``fold=gate``; kept heads count in full with ``fold=one``."""
        if self.cfg.fold == "one":
            return {}
        modes = [gate.training for gate in self.gates]
        values = torch.cat([gate.eval()().detach() for gate in self.gates])
        for gate, mode in zip(self.gates, modes, strict=True):
            gate.train(mode)
        return {head: float(g) for head, g in zip(self.heads(), values, strict=True)}

    def log(self) -> dict[str, float]:
        """Open heads, the expected L0, undecided gates, lambda, and the goal where there is one."""
        log_a = self.log_a()
        expected = torch.cat([gate.open_probability().detach() for gate in self.gates]).sum()
        numbers = {
            "heads_open": self.open_heads(),
            "expected_l0": float(expected),
            "undecided": int((log_a.abs() < DECIDED).sum()),
            "lambda": self.penalty,
        }
        return numbers | ({} if math.isnan(self.goal) else {"goal": self.goal})

    def warnings(self) -> list[str]:
        """Gates that hardly moved, or that are still between closed and open."""
        log_a, found = self.log_a(), []
        moved = float((log_a - self.start).abs().max())
        if moved < 0.5:
            found.append(f"no gate moved by more than {moved:.2f}: raise method.l0.lr or the number of updates")
        undecided = int((log_a.abs() < DECIDED).sum())
        if undecided > len(log_a) / 4:
            found.append(f"{undecided} of {len(log_a)} gates are undecided (|log_a| < {DECIDED}): train them longer")
        return found

    def state_dict(self) -> dict[str, Any]:
        """lambda and the controller; the gates themselves are parameters of the model."""
        return {"penalty": self.penalty, "level": self.level, "falling": self.falling}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up an earlier lambda."""
        self.penalty, self.level, self.falling = state["penalty"], state["level"], state["falling"]
