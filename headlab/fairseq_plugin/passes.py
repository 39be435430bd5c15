"""Forward passes over data with the weights as they are, for methods that look at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fairseq import utils

from headlab.config import OptimConfig
from headlab.fairseq_plugin.components import HeadlabTask, TranslationLoss
from headlab.fairseq_plugin.model import HeadlabTransformer
from headlab.methods.base import Looked, LossFn
from headlab.progress import Progress


def frozen_loss(model: HeadlabTransformer, task: HeadlabTask, gradients: bool = False) -> LossFn:
    """A function from a batch to its cross-entropy, in evaluation mode; with ``gradients`` one to differentiate.

    The model is in evaluation mode afterwards; a training update puts it back by itself.
    """
    loss = TranslationLoss(task, 0.0, None)

    def look(sample: Any) -> Looked:
        model.eval()
        with torch.inference_mode(not gradients), task.context():
            total, tokens, _ = loss(model, sample)
        return Looked(total, tokens)

    return look


class DevSet:
    """The batches of the valid set in one order, on the device of ``model``; ``passes`` counts how often they went by.

    ``expected`` passes are what the progress is told of.
    """

    def __init__(
        self, model: HeadlabTransformer, task: HeadlabTask, optim: OptimConfig, title: str, expected: int
    ) -> None:
        task.load_dataset("valid")
        itr = task.get_batch_iterator(
            task.dataset("valid"), max_tokens=optim.batch_tokens, max_positions=model.max_positions(),
            ignore_invalid_inputs=True,
        ).next_epoch_itr(shuffle=False)  # fmt: skip
        self.samples = list(itr)
        self.cuda = next(model.parameters()).is_cuda
        self.progress = Progress(title, expected * len(self.samples))
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self.samples, start=1):
            yield utils.move_to_cuda(sample) if self.cuda else sample
            self.progress.at(self.passes * len(self.samples) + number)
        self.passes += 1


def training_batches(
    model: HeadlabTransformer, task: HeadlabTask, optim: OptimConfig, seed: int, title: str
) -> Iterator[Any]:
    """The batches of the first epoch of a training with these settings, on the device of ``model``."""
    task.load_dataset("train")
    itr = task.get_batch_iterator(
        task.dataset("train"), max_tokens=optim.batch_tokens, max_positions=model.max_positions(),
        ignore_invalid_inputs=True, seed=seed, epoch=1,
    ).next_epoch_itr(shuffle=True)  # fmt: skip
    cuda = next(model.parameters()).is_cuda
    with Progress(title, len(itr)) as progress:
        for number, sample in enumerate(itr, start=1):
            yield utils.move_to_cuda(sample) if cuda else sample
            progress.at(number)
