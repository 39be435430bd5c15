"""Translation, from lines of text to lines of text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fairseq.data.data_utils import collate_tokens

from headlab.config import ScoreConfig
from headlab.corpora import Pieces
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import MAX_POSITIONS, HeadlabTransformer
from headlab.fairseq_plugin.search import Search


class Translator:
    """Translate detokenised text with one model.

    A hypothesis has at most 2 x source length + 10 pieces; the source is cut at the model's longest input.
    """

    def __init__(self, model: HeadlabTransformer, task: HeadlabTask, pieces: Pieces, cfg: ScoreConfig) -> None:
        self.model, self.task, self.pieces, self.batch = model.eval(), task, pieces, cfg.batch_sentences
        self.device = next(model.parameters()).device
        target = task.target_dictionary
        self.search = Search(model, cfg.beam, cfg.lenpen, target.eos(), target.pad())

    def __call__(self, lines: list[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """The translation of each line, in the same order; an empty line stays empty."""
        source = self.task.source_dictionary
        encoded = [
            source.encode_line(text, add_if_not_exist=False, append_eos=True).long()[-(MAX_POSITIONS - 1) :]
            for text in self.pieces.encode(lines)
        ]
        order = sorted((i for i, text in enumerate(lines) if text.strip()), key=lambda i: len(encoded[i]))
        found = [""] * len(lines)
        with torch.inference_mode(), self.task.context():
            for start in range(0, len(order), self.batch):
                batch = order[start : start + self.batch]
                tokens = collate_tokens([encoded[i] for i in batch], source.pad(), left_pad=True).to(self.device)
                lengths = torch.tensor([len(encoded[i]) for i in batch], device=self.device)
                limits = (2 * lengths + 10).clamp(max=MAX_POSITIONS - 2)
                for index, words in zip(batch, self.search(tokens, lengths, limits), strict=True):
                    found[index] = self.task.target_dictionary.string(words)
                if progress is not None:
                    progress(min(start + self.batch, len(order)))
        return self.pieces.decode(found)
