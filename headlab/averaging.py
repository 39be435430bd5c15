"""The one checkpoint rule of all rows of a table: the recorded weights are the mean of several states."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from headlab.config import OptimConfig
from headlab.fairseq_plugin.checkpoints import average
from headlab.fairseq_plugin.training import Span


def candidates(optim: OptimConfig, span: Span) -> list[int]:
    """The updates whose weights may enter the mean for the end of ``span``; never none of a span with updates."""
    if optim.average_rule == "last":
        return [u for j in range(optim.average) if (u := span.stop - j * optim.average_every) > span.start]
    return [u for u in range(span.start + 1, span.stop + 1) if u % optim.validate_every == 0 or u == span.stop]


def averaged(run: Path, optim: OptimConfig, span: Span) -> dict[str, Tensor]:
    """The weights to record for the end of ``span``, from the states (and the valid losses) of a training."""
    updates = candidates(optim, span)
    if optim.average_rule == "best":
        measured = _valid_losses(run / "metrics.jsonl")
        updates = sorted(updates, key=lambda u: measured[u])[: optim.average]
    return average([run / "states" / f"{u}.safetensors" for u in updates])


def _valid_losses(path: Path) -> dict[int, float]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["update"]: line["valid_loss"] for line in lines if "valid_loss" in line}
