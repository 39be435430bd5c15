"""fairseq's seams that headlab fills: task, criterion, optimizer and learning-rate schedule.

They are registered under the names ``headlab`` and are handed to fairseq's own Trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor, nn
from torch.nn import functional as F

from headlab.methods.base import Method
from headlab.muon import MuonAdam


class HeadlabTask(TranslationTask):
    """fairseq's translation task, with CPU autocast around each step where the precision asks for it."""

    def __init__(self, cfg: TranslationConfig, src_dict: Any, tgt_dict: Any, autocast: torch.dtype | None) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.autocast = autocast

    def __reduce__(self) -> tuple[Any, ...]:
        """What a process of its own is given: fairseq's state container does not survive pickling."""
        return HeadlabTask, (self.cfg, self.src_dict, self.tgt_dict, self.autocast)

    def context(self) -> torch.autocast:
        """The autocast context of a forward pass over given targets; does nothing in full precision."""
        return torch.autocast("cpu", dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None)

    def train_step(
        self, sample: dict[str, Any], model: nn.Module, criterion: nn.Module, optimizer: Any, update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Tensor, Any, dict[str, Any]]:  # fmt: skip
        """One forward and backward pass (fairseq's, under :meth:`context`)."""
        model.train()
        model.set_num_updates(update_num)  # type: ignore[operator]
        with self.context():
            loss, sample_size, logging_output = criterion(model, sample)
        if ignore_grad:
            loss *= 0
        optimizer.backward(loss)
        return loss, sample_size, logging_output

    def valid_step(
        self, sample: dict[str, Any], model: nn.Module, criterion: nn.Module
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """One forward pass in evaluation mode."""
        with self.context():
            result: tuple[Tensor, Any, dict[str, Any]] = super().valid_step(sample, model, criterion)
        return result


class TranslationLoss(FairseqCriterion):
    """Label-smoothed cross-entropy summed over target tokens, plus what a pruning method adds to it.

    Smoothing as in fairseq: the target keeps 1 - eps and the other V - 1 words share eps. The method's term is
    per token, so it is multiplied by the sample size that fairseq's Trainer divides gradients by.
    """

    def __init__(self, task: HeadlabTask, label_smoothing: float, method: Method | None) -> None:
        super().__init__(task)
        self.label_smoothing = label_smoothing
        self.method = method  # its parameters live in the model, so it is not a submodule here

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "method":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss of one batch, its number of target tokens, and what to log."""
        target = sample["target"]
        features, _ = model(**sample["net_input"], features_only=True, return_all_hiddens=False)
        if features.is_cuda:  # cannot tell how many positions are real without being waited for
            features, target = features.flatten(0, 1), target.flatten()
        else:  # padding is taken out before the output projection, the largest product of a small model
            real = target.ne(self.padding_idx)
            features, target = features[real], target[real]
        decoder: Any = model.decoder  # also where fairseq has wrapped the model for data-parallel training
        logits = decoder.output_layer(features).float()
        words, tokens = logits.size(-1), int(sample["ntokens"])
        smoothing = self.label_smoothing * words / (words - 1) if model.training else 0.0
        loss = F.cross_entropy(
            logits, target, reduction="sum", ignore_index=self.padding_idx, label_smoothing=smoothing
        )
        extra = self.method.loss(tokens) if self.method is not None and model.training else None
        logging_output = {
            "loss": loss.detach(),
            "method_loss": 0.0 if extra is None else extra.detach() * tokens,
            "ntokens": tokens,
            "nsentences": sample["target"].size(0),
            "sample_size": tokens,
        }
        return (loss if extra is None else loss + extra * tokens), tokens, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Per-token means, in nats."""
        tokens = sum(o["ntokens"] for o in logging_outputs)
        for name in ("loss", "method_loss"):
            metrics.log_scalar(name, sum(float(o[name]) for o in logging_outputs) / max(tokens, 1), tokens)
        metrics.log_scalar("ntokens", tokens)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Sums across workers are all that is needed."""
        return True


@dataclass
class AdamConfig(FairseqDataclass):
    """Adam with decoupled weight decay; gates have a rate of their own and no decay."""

    algorithm: str = "adam"
    adam_factor: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    gate_lr: float = 0.0
    lr: list[float] = field(default_factory=lambda: [0.0])


@register_optimizer("headlab_adam", dataclass=AdamConfig)
class GroupedAdam(FairseqOptimizer):
    """torch's fused AdamW over weights, and over parameters marked ``param_group = "gates"`` with a rate of their own.

    With ``algorithm=muon`` those marked ``param_group = "matrices"`` are updated by Muon instead, and all
    other weights have ``adam_factor`` times the rate.
    """

    def __init__(self, cfg: AdamConfig, params: list[nn.Parameter]) -> None:
        super().__init__(cfg)
        muon = cfg.algorithm == "muon"
        sorts: dict[str, list[nn.Parameter]] = {"weights": [], "matrices": [], "gates": []}
        for parameter in params:
            sort = getattr(parameter, "param_group", "weights")
            if sort == "matrices" and not muon:
                sort = "weights"
            if parameter.numel():
                sorts[sort].append(parameter)
        settings: dict[str, dict[str, Any]] = {
            "weights": {"weight_decay": cfg.weight_decay, "factor": cfg.adam_factor if muon else 1.0},
            "matrices": {"weight_decay": cfg.weight_decay, "factor": 1.0, "muon": True},
            "gates": {"weight_decay": 0.0, "fixed_lr": cfg.gate_lr},
        }
        groups: list[dict[str, Any]] = [{"params": found, **settings[sort]} for sort, found in sorts.items() if found]
        self._optimizer = MuonAdam(groups, lr=cfg.lr[0], betas=(cfg.beta1, cfg.beta2), eps=cfg.eps, fused=True)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """What overrides a checkpoint's own settings on resume: nothing, a resumed run has the same ones."""
        return {}

    def set_lr(self, lr: float) -> None:
        """Set the rate of the weights; gates keep theirs."""
        for group in self.param_groups:
            group["lr"] = group["fixed_lr"] if "fixed_lr" in group else lr * group["factor"]

    @property
    def supports_flat_params(self) -> bool:
        """Gates and weights differ in rate, so gradients are not flattened into one tensor."""
        return False


@dataclass
class ScheduleConfig(FairseqDataclass):
    """Warm-up, then decay: see :func:`learning_rate`."""

    schedule: str = "inverse_sqrt"
    peak: float = 0.0
    warmup: int = 0
    updates: int = 0
    final: float = 0.0


def learning_rate(cfg: ScheduleConfig, update: int) -> float:
    """The rate of update number ``update`` (from 0): linear warm-up to ``peak``, then one of

    ``inverse_sqrt`` peak * sqrt(warmup / step); ``cosine`` and ``linear`` from peak to ``final * peak`` at the
    last of ``updates`` steps; ``constant``.
    """
    step = update + 1
    if step < cfg.warmup:
        return cfg.peak * step / cfg.warmup
    if cfg.schedule == "inverse_sqrt":
        return cfg.peak * math.sqrt(max(cfg.warmup, 1) / step)
    if cfg.schedule == "constant":
        return cfg.peak
    done = min((step - cfg.warmup) / max(cfg.updates - cfg.warmup, 1), 1.0)
    left = 0.5 * (1 + math.cos(math.pi * done)) if cfg.schedule == "cosine" else 1 - done
    return cfg.peak * (cfg.final + (1 - cfg.final) * left)


@register_lr_scheduler("headlab_schedule", dataclass=ScheduleConfig)
class Schedule(FairseqLRScheduler):
    """:func:`learning_rate`, update by update."""

    def step_update(self, num_updates: int) -> float:
        """Set the rate of the coming update."""
        self.optimizer.set_lr(learning_rate(self.cfg, num_updates))
        return float(self.optimizer.get_lr())
