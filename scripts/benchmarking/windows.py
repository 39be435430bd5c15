"""Cutting a training into windows: both programs train with fairseq's Trainer, which is stopped between them."""

from __future__ import annotations

import zlib
from typing import Any

from fairseq.trainer import Trainer

from .turns import Turn


def stop_between_windows(turn: Turn, updates: int) -> None:
    """Make every Trainer of this process wait for its turn before each ``updates`` updates.

    A window holds everything from one update to the next: reading batches, the update, what is logged. Its unit is
    a target token; ``batches`` is a checksum over the numbers of the sentences in their order.
    """
    step = Trainer.train_step
    done, tokens, batches = 0, 0, 0

    def train_step(trainer: Trainer, samples: list[dict[str, Any]], *rest: Any, **named: Any) -> Any:
        nonlocal done, tokens, batches
        if done % updates == 0:
            if done:
                turn.done(tokens, batches=batches)
            turn.wait()
            tokens = batches = 0
        done += 1
        for sample in samples:
            tokens += int(sample["ntokens"])
            batches = zlib.crc32(sample["id"].numpy().tobytes(), batches)
        return step(trainer, samples, *rest, **named)

    Trainer.train_step = train_step
