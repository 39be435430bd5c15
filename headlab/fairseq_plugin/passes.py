"""Forward passes over data with the weights as they are, for methods that look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from fairseq import utils
from torch import Tensor

from headlab.config import OptimConfig
from headlab.fairseq_plugin.components import HeadlabTask, TranslationLoss
from headlab.fairseq_plugin.model import HeadlabTransformer
from headlab.progress import Progress


def frozen_loss(model: HeadlabTransformer, task: HeadlabTask) -> Callable[[Any], Tensor]:
    """A function from a batch to its cross-entropy per target token, in evaluation mode and without gradients.

    The model is in evaluation mode afterwards; a training update puts it back by itself.
    """
    loss = TranslationLoss(task, 0.0, None)

    def look(sample: Any) -> Tensor:
        with torch.inference_mode():
            total, tokens, _ = task.valid_step(sample, model, loss)
        return torch.as_tensor(total / max(tokens, 1))

    return look


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
