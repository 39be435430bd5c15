"""headlab's side: its own training and translation, as its command line starts them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headlab.attention.heads import KINDS, Layout
from headlab.checks import groups_of
from headlab.config import Config, ModelConfig, ScoreConfig
from headlab.corpora import Pieces
from headlab.fairseq_plugin.generation import Translator
from headlab.fairseq_plugin.model import HeadlabTransformer, build_model, freeze_decoder
from headlab.fairseq_plugin.modelfiles import load_model
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task
from headlab.fairseq_plugin.training import Job, Span, Training
from headlab.methods.base import Method
from headlab.methods.gha import GHA
from headlab.methods.l0 import L0

from .turns import Turn
from .windows import stop_between_windows

#: Updates that no benchmark reaches.
NEVER = 10**9


def train(
    turn: Turn, cfg: Config, machine: Machine, corpus: Corpus, updates: int, gates: tuple[str, ...] = (),
    frozen: bool = False, grouped: str | None = None,
) -> None:  # fmt: skip
    """headlab's training in windows of ``updates`` updates; the unit is a target token.

    ``gates`` are the kinds of attention that get L0 gates, steered as in a real selection; with ``frozen`` the
    decoder is not trained; ``grouped`` is the feature map by which all heads are under the group constraint.
    Validation and checkpoints are off, as on the other side.
    """
    stop_between_windows(turn, updates)
    task = load_task(corpus, machine)
    torch.manual_seed(cfg.seed)
    model = build_model(cfg.model, task.source_dictionary, task.target_dictionary)
    if frozen:
        freeze_decoder(model)
    method: Method | None = None
    if grouped is not None:
        method = GHA(replace(cfg.method.gha, map=grouped), groups_of(cfg, None)[0], cfg.seed)
        method.attach(model, KINDS)
    elif gates:
        # half of the heads, at the pace of a selection
        method = L0(cfg.method.l0, [model.layout().count(gates) // 2], cfg.prune.selection_updates)
        method.attach(model, gates)
    optim = replace(cfg.optim, validate_every=NEVER, checkpoint_every=NEVER)
    rate = method.learning_rate if method is not None else 0.0
    with tempfile.TemporaryDirectory() as folder:
        job = Job("benchmark", model, task, optim, cfg.seed, machine, Path(folder), Span(0, NEVER), set(), method, rate)
        Training(job).run()


@dataclass(frozen=True)
class _InPieces:
    """Leaves translations in pieces, in which they are compared with those of ``fairseq-generate``."""

    pieces: Pieces

    def encode(self, lines: list[str]) -> list[str]:
        return self.pieces.encode(lines)

    def decode(self, lines: list[str]) -> list[str]:
        return lines


def translate(
    turn: Turn, folder: Path, cfg: Config, score: ScoreConfig, machine: Machine, lines: list[str]
) -> None:  # fmt: skip
    """Translate ``lines`` with the model in ``folder``, again and again; the unit is a sentence."""
    model, task, pieces = load_model(folder, cfg.model, cfg.data.source_lang, cfg.data.target_lang, machine)
    _translate(turn, Translator(model, task, _InPieces(pieces), score), lines)  # type: ignore[arg-type]


def translate_random(
    turn: Turn, shape: ModelConfig, heads: int, corpus: Corpus, score: ScoreConfig, machine: Machine, lines: list[str],
    length: int,
) -> None:  # fmt: skip
    """The same with a randomly initialised model of ``shape`` that keeps ``heads`` heads in every layer.

    Every translation has exactly ``length`` pieces.
    """
    task = load_task(corpus, machine)
    torch.manual_seed(1)
    layout = Layout.full(shape.encoder_layers, shape.decoder_layers, shape.heads)
    layout = layout.keep([head for head in layout if head.index < heads], KINDS)
    model = build_model(shape, task.source_dictionary, task.target_dictionary, layout).to(machine.device)
    _force_length(model, task.target_dictionary.eos(), length)
    pieces = Pieces(corpus.bin.parent / "pieces.model")
    _translate(turn, Translator(model, task, _InPieces(pieces), score), lines)  # type: ignore[arg-type]


def _translate(turn: Turn, translate: Translator, lines: list[str]) -> None:
    while True:
        turn.wait()
        pieces = translate(lines)
        turn.done(len(lines), pieces=pieces)


def _force_length(model: HeadlabTransformer, eos: int, length: int) -> None:
    """Make the decoder want the end of the sentence after ``length`` pieces and never before.

    Done in the model, so that it holds for any search; the largest finite score leaves no room for another word.
    """
    forward = model.decoder.forward

    def forced(prev_output_tokens: torch.Tensor, *rest: Any, **named: Any) -> Any:
        logits, extra = forward(prev_output_tokens, *rest, **named)
        logits[..., eos] = 1e4 if prev_output_tokens.size(1) > length else -1e4
        return logits, extra

    model.decoder.forward = forced
